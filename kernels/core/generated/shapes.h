// Size rules of tile operations, from their definitions in hpmoe/tile_ops.
// Written by `python -m hpmoe.kernels.schema`; a test holds it equal to the definitions.
// clang-format off
#pragma once

#include "core/shapes.h"

namespace hpmoe {

// Returns the first size rule that an operation breaks, or NULL.
inline const char* shapes_fault(Opcode opcode, const Shapes& s) {
  switch (opcode) {
    case Opcode::PUT: {
      if (!s.same_dtype(0, 1))
        return "a PUT moves elements to another dtype";
      if (s.cols(0) != s.cols(1) || !s.same_cols(0, 1) || s.offset(0) != s.offset(1))
        return "a PUT moves rows of operand 1 to unlike rows of operand 0";
      const int64_t v1 = s.rows_are(1, Rows::RELAY_ROWS) || s.rows_are(0, Rows::RELAY_ENTRIES);
      if (v1 && !s.has_relays(s.own_route()))
        return "a PUT is about relays, of which route ? has none";
      if (v1 && s.alignment() != 1)
        return "a PUT has relays pass on rows of its route, which is filled up";
      if (!s.has_capacity(0, s.max_rows()))
        return "a PUT receives ? rows in operand 0, which has ?";
    } break;
    case Opcode::PUT_BACK: {
      if (!s.same_dtype(0, 1))
        return "a PUT_BACK moves elements to another dtype";
      if (s.cols(0) != s.cols(1) || !s.same_cols(0, 1) || s.offset(0) != s.offset(1))
        return "a PUT_BACK moves rows of operand 1 to unlike rows of operand 0";
      const int64_t v1 = s.rows_are(1, Rows::RELAY_ROWS) || s.rows_are(0, Rows::RELAY_ENTRIES);
      if (v1 && !s.has_relays(s.own_route()))
        return "a PUT_BACK is about relays, of which route ? has none";
      if (v1 && s.alignment() != 1)
        return "a PUT_BACK has relays pass on rows of its route, which is filled up";
      if (!s.has_capacity(1, s.max_rows()))
        return "a PUT_BACK receives ? rows in operand 1, which has ?";
    } break;
    case Opcode::REDUCE: {
      if (s.has(2) && s.width(2) != s.top_k())
        return "a REDUCE has ? weights for each of a token's ? choices";
      if (s.num_rows() != s.num_tokens() || !s.is_clipped())
        return "a REDUCE has ? rows, and its route ? tokens";
    } break;
    case Opcode::GMM: {
      if (s.param(0) != 0 && s.param(0) != 1)
        return "a GMM has a word for is_transposed that is neither 0 nor 1";
      if (s.param(1) != 0 && s.param(1) != 1)
        return "a GMM has a word for is_early that is neither 0 nor 1";
      const int64_t v1 = !s.rows_are(2, Rows::SLOT_EXPERT);
      if (v1 && s.height(2) != 0 && s.height(2) != s.rows(2))
        return "a GMM takes the matrices of experts of operand 2 as one";
      const int64_t v2 = s.rows_are(2, Rows::SLOT_EXPERT) || s.height(2) > 0 ? s.height(2) : s.rows(2);
      if ((s.param(0) ? s.cols(2) : v2) != s.width(1))
        return "a GMM multiplies rows of ? elements by matrices of depth ?";
      if (s.param(0) && (s.offset(2) < 0 || s.offset(2) + s.own_cols() > v2))
        return "a GMM takes rows ? to ? of matrices of ?";
      if (s.has(3) && (v1 || !s.has_copies() || s.offset(2) != s.offset(3) || s.cols(2) != s.cols(3) || s.height(2) != s.height(3) || !s.same_dtype(2, 3)))
        return "a GMM takes copies that are not like its weights";
    } break;
    case Opcode::WGRAD: {
      if (s.rows_are(1, Rows::ALL) == s.has_route())
        return "a WGRAD sums all rows where a route brings those of experts, or the reverse";
      if (s.has(2) && s.rows_are(2, Rows::ALL) != s.rows_are(1, Rows::ALL))
        return "a WGRAD sums other rows of operand 2 than of operand 1";
      if (s.rows_are(1, Rows::ALL) && (s.num_rows() != 1 || s.first_expert() != 0))
        return "a WGRAD sums all rows more than once";
      if (s.rows_are(1, Rows::ALL) && s.has(1) && !s.is_number(1) && !s.has_rows(1, s.summed_rows()))
        return "a WGRAD sums ? rows of operand 1, which has ?";
      if (s.rows_are(1, Rows::ALL) && s.has(2) && !s.is_number(2) && !s.has_rows(2, s.summed_rows()))
        return "a WGRAD sums ? rows of operand 2, which has ?";
      if (!s.rows_are(1, Rows::ALL) && (s.first_expert() < 0 || s.num_rows() < 1 || s.first_expert() + s.num_rows() > s.num_local_experts()))
        return "a WGRAD sums rows of experts ? to ?, and a rank has ?";
      if (s.height(0) != 0 && s.height(0) != s.width(1))
        return "a WGRAD makes matrices of ? rows in operand 0, which has those of ?";
      if (s.param(0) < 1 || (s.blocks() - 1) * s.param(0) >= s.width(1))
        return "a WGRAD cuts matrices of ? rows into ? blocks of ?";
      if (!s.has_capacity(0, s.num_rows() * s.width(1)))
        return "a WGRAD makes ? matrices in operand 0, which has too few rows";
      if (s.rows_are(3, Rows::RETURNED) && s.first_expert() != 0)
        return "a WGRAD adds what copies returned to experts that are not the rank's own";
      if (s.has(3) && (!(s.rows_are(3, Rows::RETURNED) ? (s.height(3) == s.width(1) && s.has_copies() && s.has_capacity(3, s.most_copies() * s.width(1))) : (s.rows(3) == s.rows(0) && s.is_float32(3) && s.is_float32(0))) || s.cols(3) != s.cols(0) || s.offset(3) != s.offset(0)))
        return "a WGRAD adds operand 3, which is not like operand 0";
      if (s.rows_are(4, Rows::RETURNED) && s.first_expert() != 0)
        return "a WGRAD adds what copies returned to experts that are not the rank's own";
      if (s.has(4) && (!(s.rows_are(4, Rows::RETURNED) ? (s.height(4) == s.width(1) && s.has_copies() && s.has_capacity(4, s.most_copies() * s.width(1))) : (s.rows(4) == s.rows(0) && s.is_float32(4) && s.is_float32(0))) || s.cols(4) != s.cols(0) || s.offset(4) != s.offset(0)))
        return "a WGRAD adds operand 4, which is not like operand 0";
      if (s.has(4) && s.rows_are(3, Rows::OWN) == s.rows_are(4, Rows::OWN))
        return "a WGRAD adds two arrays of a kind";
    } break;
    case Opcode::MAP: {
      if (num_map_inputs(s.param(0)) <= 0)
        return "a MAP has an unknown function";
      if (s.rows_are(0, Rows::SLOT_EXPERT) && s.height(0) != 0)
        return "a MAP takes one row of an expert of operand 0, which has ?";
      if (s.is_integer(0) && !s.takes_integers())
        return "a MAP applies a function of floats to the integers of operand 0";
      if (s.rows_are(1, Rows::SLOT_EXPERT) && s.height(1) != 0)
        return "a MAP takes one row of an expert of operand 1, which has ?";
      if (s.is_integer(1) && !s.takes_integers())
        return "a MAP applies a function of floats to the integers of operand 1";
      if (s.rows_are(2, Rows::SLOT_EXPERT) && s.height(2) != 0)
        return "a MAP takes one row of an expert of operand 2, which has ?";
      if (s.is_integer(2) && !s.takes_integers())
        return "a MAP applies a function of floats to the integers of operand 2";
      if (s.rows_are(3, Rows::SLOT_EXPERT) && s.height(3) != 0)
        return "a MAP takes one row of an expert of operand 3, which has ?";
      if (s.is_integer(3) && !s.takes_integers())
        return "a MAP applies a function of floats to the integers of operand 3";
    } break;
    case Opcode::ROW_REDUCE: {
      if (s.param(0) < 0 || s.param(0) >= 2)
        return "a ROW_REDUCE has an unknown kind of reduction";
      if (s.cols_are(0, Cols::ALL) && s.width(0) != 1)
        return "a ROW_REDUCE makes one column of ?";
      if (s.has(2) && (!s.same_cols(1, 2) || s.width(1) != s.width(2)))
        return "a ROW_REDUCE multiplies rows of ? and ? columns";
    } break;
    case Opcode::ROW_DOT: {
      if (s.cols_are(0, Cols::ALL) && s.width(0) != 1)
        return "a ROW_DOT makes one column of ?";
      if (s.has(2) && (!s.same_cols(1, 2) || s.width(1) != s.width(2)))
        return "a ROW_DOT multiplies rows of ? and ? columns";
    } break;
    case Opcode::COL_SUM: {
      if (s.rows_are(1, Rows::ALL) == s.has_route())
        return "a COL_SUM sums all rows where a route brings those of experts, or the reverse";
      if (s.has(2) && s.rows_are(2, Rows::ALL) != s.rows_are(1, Rows::ALL))
        return "a COL_SUM sums other rows of operand 2 than of operand 1";
      if (s.rows_are(1, Rows::ALL) && (s.num_rows() != 1 || s.first_expert() != 0))
        return "a COL_SUM sums all rows more than once";
      if (s.rows_are(1, Rows::ALL) && s.has(1) && !s.is_number(1) && !s.has_rows(1, s.summed_rows()))
        return "a COL_SUM sums ? rows of operand 1, which has ?";
      if (s.rows_are(1, Rows::ALL) && s.has(2) && !s.is_number(2) && !s.has_rows(2, s.summed_rows()))
        return "a COL_SUM sums ? rows of operand 2, which has ?";
      const int64_t v1 = !s.rows_are(1, Rows::ALL);
      if (v1 && (s.first_expert() < 0 || s.num_rows() < 1 || s.first_expert() + s.num_rows() > s.num_local_experts()))
        return "a COL_SUM sums rows of experts ? to ?, and a rank has ?";
      if (v1 && s.num_rows() != s.num_local_experts())
        return "a COL_SUM sums rows of ? experts, and a rank has ?";
      if (!s.has_capacity(0, s.num_rows()))
        return "a COL_SUM makes ? rows of operand 0, which has fewer";
    } break;
    case Opcode::ALL_TO_ALL: {
      if (!s.same_dtype(0, 1))
        return "an ALL_TO_ALL moves elements to another dtype";
      if (s.cols(0) != s.cols(1) || !s.same_cols(0, 1) || s.offset(0) != s.offset(1))
        return "an ALL_TO_ALL moves rows of operand 1 to unlike rows of operand 0";
      const int64_t v1 = s.rows_are(1, Rows::RELAY_ROWS) || s.rows_are(0, Rows::RELAY_ENTRIES);
      if (v1 && !s.has_relays(s.own_route()))
        return "an ALL_TO_ALL is about relays, of which route ? has none";
      if (v1 && s.alignment() != 1)
        return "an ALL_TO_ALL has relays pass on rows of its route, which is filled up";
      if (!s.has_capacity(0, s.max_rows()))
        return "an ALL_TO_ALL receives ? rows in operand 0, which has ?";
    } break;
    case Opcode::ALL_TO_ALL_BACK: {
      if (!s.same_dtype(0, 1))
        return "an ALL_TO_ALL_BACK moves elements to another dtype";
      if (s.cols(0) != s.cols(1) || !s.same_cols(0, 1) || s.offset(0) != s.offset(1))
        return "an ALL_TO_ALL_BACK moves rows of operand 1 to unlike rows of operand 0";
      const int64_t v1 = s.rows_are(1, Rows::RELAY_ROWS) || s.rows_are(0, Rows::RELAY_ENTRIES);
      if (v1 && !s.has_relays(s.own_route()))
        return "an ALL_TO_ALL_BACK is about relays, of which route ? has none";
      if (v1 && s.alignment() != 1)
        return "an ALL_TO_ALL_BACK has relays pass on rows of its route, which is filled up";
      if (!s.has_capacity(1, s.max_rows()))
        return "an ALL_TO_ALL_BACK receives ? rows in operand 1, which has ?";
    } break;
    case Opcode::NOTIFY: {
      if (s.param(0) < 0 || s.param(0) >= 2)
        return "a NOTIFY has an unknown kind of leg";
    } break;
    case Opcode::GATHER: {
      if (s.width(0) != s.width(1))
        return "a GATHER gathers rows of ? columns in ?";
      if (s.is_integer(0) != s.is_integer(1))
        return "a GATHER makes integers of floats, or floats of integers";
      if (!s.cols_are(2, Cols::ONE) && s.width(2) != 1)
        return "a GATHER gathers by rows of several columns";
    } break;
    case Opcode::KEEP: {
      if (!s.same_dtype(0, 1))
        return "a KEEP moves elements to another dtype";
      if (s.width(0) != s.top_k() || s.offset(0) != 0 || s.cols(1) != 1)
        return "a KEEP keeps ? columns of entries in ?, of ? choices";
      if (s.has(2) && s.width(2) != s.top_k())
        return "a KEEP has ? weights for each of a token's ? choices";
      if (s.num_rows() != s.num_tokens() || !s.is_clipped())
        return "a KEEP has ? rows, and its route ? tokens";
    } break;
    case Opcode::DROP_COUNTS: {
      if (s.width(0) != s.num_model_experts())
        return "a DROP_COUNTS counts ? experts of ?";
    } break;
    case Opcode::LAUNCH: {
      if (s.param(0) < 0 || s.param(0) >= 3)
        return "a LAUNCH has an unknown kind of rows";
    } break;
    case Opcode::REPLICATE: {
      if (!s.same_dtype(0, 1))
        return "a REPLICATE moves elements to another dtype";
      if (!s.has_copies())
        return "a REPLICATE moves copies of a route that has none";
      if (s.cols(0) != s.cols(1))
        return "a REPLICATE moves matrices of operand 1 to unlike ones of operand 0";
      if (s.height(0) != s.param(1))
        return "a REPLICATE moves matrices of ? rows, and those of operand 0 have ?";
      if (s.height(1) != s.param(1))
        return "a REPLICATE moves matrices of ? rows, and those of operand 1 have ?";
      if (s.param(0) < 1 || s.param(1) < 1 || (s.blocks() - 1) * s.param(0) >= s.param(1))
        return "a REPLICATE moves ? blocks of ? rows of ?";
      if (!s.has_capacity(0, (s.num_local_experts() - s.num_own_experts()) * s.param(1)))
        return "a REPLICATE moves ? copies, of which operand 0 has too few rows";
      if (!s.has_capacity(1, s.num_own_experts() * s.param(1)))
        return "a REPLICATE moves ? matrices, of which operand 1 has too few rows";
    } break;
    case Opcode::RETURN_GRADS: {
      if (!s.same_dtype(0, 1))
        return "a RETURN_GRADS moves elements to another dtype";
      if (!s.has_copies())
        return "a RETURN_GRADS moves copies of a route that has none";
      if (s.cols(0) != s.cols(1))
        return "a RETURN_GRADS moves matrices of operand 1 to unlike ones of operand 0";
      if (s.height(0) != s.param(1))
        return "a RETURN_GRADS moves matrices of ? rows, and those of operand 0 have ?";
      if (s.height(1) != s.param(1))
        return "a RETURN_GRADS moves matrices of ? rows, and those of operand 1 have ?";
      if (s.param(0) < 1 || s.param(1) < 1 || (s.blocks() - 1) * s.param(0) >= s.param(1))
        return "a RETURN_GRADS moves ? blocks of ? rows of ?";
      if (!s.has_capacity(1, (s.num_local_experts() - s.num_own_experts()) * s.param(1)))
        return "a RETURN_GRADS moves ? copies, of which operand 1 has too few rows";
      if (!s.has_capacity(0, s.most_copies() * s.param(1)))
        return "a RETURN_GRADS moves ? matrices, of which operand 0 has too few rows";
    } break;
    case Opcode::FAN_OUT: {
      if (!s.same_dtype(0, 1))
        return "a FAN_OUT moves elements to another dtype";
      if (!s.is_of_tokens())
        return "a FAN_OUT fans rows out or in, and its route is not one to ranks";
      if (s.has(2) && s.width(2) != 1)
        return "a FAN_OUT has ? weights for a row";
    } break;
    case Opcode::FAN_IN: {
      if (!s.is_of_tokens())
        return "a FAN_IN fans rows out or in, and its route is not one to ranks";
      if (s.has(2) && s.width(2) != 1)
        return "a FAN_IN has ? weights for a row";
    } break;
    case Opcode::TOP_K: {
      if (s.param(0) != 0 && s.param(0) != 1)
        return "a TOP_K has a word for largest that is neither 0 nor 1";
      if (s.width(0) != s.width(1) || s.width(0) > s.width(2))
        return "a TOP_K chooses ? values and ? indices of ?";
      if (s.is_integer(0) != s.is_integer(2))
        return "a TOP_K makes integers of floats, or floats of integers";
    } break;
    case Opcode::TAKE_COLS: {
      if (!s.is_integer(2))
        return "a TAKE_COLS takes indices that are no integers";
      if (s.width(0) != s.width(2))
        return "a TAKE_COLS has ? indices for ? columns";
      if (s.is_integer(0) != s.is_integer(1))
        return "a TAKE_COLS makes integers of floats, or floats of integers";
    } break;
    case Opcode::ADD_COLS: {
      if (!s.is_integer(2))
        return "an ADD_COLS takes indices that are no integers";
      if (!s.is_number(1) && s.width(1) != s.width(2))
        return "an ADD_COLS has ? indices for ? columns";
      if (!s.is_number(1) && s.is_integer(0) != s.is_integer(1))
        return "an ADD_COLS makes integers of floats, or floats of integers";
    } break;
    case Opcode::CUMSUM: {
      if (s.param(0) != 0 && s.param(0) != 1)
        return "a CUMSUM has a word for reverse that is neither 0 nor 1";
      if (s.width(0) != s.width(1))
        return "a CUMSUM makes rows of ? columns of ?";
      if (s.is_integer(0) != s.is_integer(1))
        return "a CUMSUM makes integers of floats, or floats of integers";
    } break;
    case Opcode::PICK: {
      if (!s.same_dtype(0, 1))
        return "a PICK moves elements to another dtype";
      if (s.offset(0) != 0 || s.offset(1) != 0)
        return "a PICK begins at another column than the first";
      if (s.own_cols() > 0 && s.own_cols() != s.width(0))
        return "a PICK leaves columns out";
      if (s.param(0) < 1 || s.param(1) < 1 || s.param(2) < 0 || s.param(3) < 0)
        return "a PICK moves ? elements from ? on, ? apart";
      const int64_t v1 = s.param(0) * s.param(1);
      if (s.width(0) < v1 || s.width(0) % v1 != 0)
        return "a PICK makes rows of ? columns by axes of ?";
      const int64_t v2 = s.width(0) / v1 * s.param(1);
      if (s.width(1) <= 0 || s.width(1) % v2 != 0)
        return "a PICK takes rows of ? columns, ? parts of ?";
      if (s.param(2) + (s.param(0) - 1) * s.param(3) >= s.width(1) / v2)
        return "a PICK picks ? elements, ? apart, of ?";
    } break;
    case Opcode::PLACE: {
      if (!s.same_dtype(0, 1))
        return "a PLACE moves elements to another dtype";
      if (s.offset(0) != 0 || s.offset(1) != 0)
        return "a PLACE begins at another column than the first";
      if (s.own_cols() > 0 && s.own_cols() != s.width(0))
        return "a PLACE leaves columns out";
      if (s.param(0) < 1 || s.param(1) < 1 || s.param(2) < 0 || s.param(3) < 0)
        return "a PLACE moves ? elements from ? on, ? apart";
      const int64_t v1 = s.param(0) * s.param(1);
      if (s.width(0) < v1 || s.width(0) % v1 != 0)
        return "a PLACE makes rows of ? columns by axes of ?";
      const int64_t v2 = s.width(0) / v1 * s.param(1);
      if (s.width(1) <= 0 || s.width(1) % v2 != 0)
        return "a PLACE takes rows of ? columns, ? parts of ?";
      if (s.param(3) < 1)
        return "a PLACE places elements ? apart";
      if (s.param(2) + (s.width(1) / v2 - 1) * s.param(3) >= s.param(0))
        return "a PLACE places ? elements, ? apart, in ?";
    } break;
    case Opcode::GROUP_REDUCE: {
      if (s.param(0) < 0 || s.param(0) >= 2)
        return "a GROUP_REDUCE has an unknown kind of reduction";
      if (s.offset(0) != 0 || s.offset(1) != 0)
        return "a GROUP_REDUCE begins at another column than the first";
      if (s.own_cols() > 0 && s.own_cols() != s.width(0))
        return "a GROUP_REDUCE leaves columns out";
      if (s.is_integer(0) != s.is_integer(1))
        return "a GROUP_REDUCE makes integers of floats, or floats of integers";
      if (s.param(1) < 1 || s.param(2) < 1)
        return "a GROUP_REDUCE reduces groups of ? elements, ? columns apart";
      if (s.width(1) != s.width(0) * s.param(1) || s.width(0) % s.param(2) != 0)
        return "a GROUP_REDUCE makes rows of ? columns of ?, ? of each";
    } break;
    case Opcode::FILL_OUTSIDE: {
      if (s.param(0) < 0 || s.param(0) >= 3)
        return "a FILL_OUTSIDE has an unknown kind of fill";
      if (s.width(0) != s.width(1) || s.width(2) != 1 + (s.width(0) + 31) / 32)
        return "a FILL_OUTSIDE fills ? columns by ? words into ?";
    } break;
    case Opcode::COUNT_OUTSIDE: {
      if (s.width(0) != 1)
        return "a COUNT_OUTSIDE counts into ? columns";
    } break;
    case Opcode::QUANTIZE: {
      if (s.param(0) < 0 || s.param(0) >= 2)
        return "a QUANTIZE has an unknown kind of element";
      if (s.param(1) < 0 || s.param(1) >= 2)
        return "a QUANTIZE has an unknown kind of scale";
      if (s.param(2) < 0 || (s.param(0) != 1 && s.param(1) != 0))
        return "a QUANTIZE has quantised rows of an unknown format";
      const int64_t v1 = s.param(2) > 0 ? s.param(2) : 1;
      if (s.width(0) != s.width(1) + (s.param(2) > 0 ? (s.width(1) + v1 - 1) / v1 : (s.width(1) > 0 ? 1 : 0)) * (s.param(1) == 1 ? 1 : 4))
        return "a QUANTIZE has rows of ? bytes for ? columns";
    } break;
    case Opcode::DEQUANTIZE: {
      if (s.param(0) < 0 || s.param(0) >= 2)
        return "a DEQUANTIZE has an unknown kind of element";
      if (s.param(1) < 0 || s.param(1) >= 2)
        return "a DEQUANTIZE has an unknown kind of scale";
      if (s.param(2) < 0 || (s.param(0) != 1 && s.param(1) != 0))
        return "a DEQUANTIZE has quantised rows of an unknown format";
      const int64_t v1 = s.param(2) > 0 ? s.param(2) : 1;
      if (s.width(1) != s.width(0) + (s.param(2) > 0 ? (s.width(0) + v1 - 1) / v1 : (s.width(0) > 0 ? 1 : 0)) * (s.param(1) == 1 ? 1 : 4))
        return "a DEQUANTIZE has rows of ? bytes for ? columns";
    } break;
    case Opcode::REDUCE_QUANTIZED: {
      if (s.param(0) < 0 || s.param(0) >= 2)
        return "a REDUCE_QUANTIZED has an unknown kind of element";
      if (s.param(1) < 0 || s.param(1) >= 2)
        return "a REDUCE_QUANTIZED has an unknown kind of scale";
      if (s.param(2) < 0 || (s.param(0) != 1 && s.param(1) != 0))
        return "a REDUCE_QUANTIZED has quantised rows of an unknown format";
      const int64_t v1 = s.param(2) > 0 ? s.param(2) : 1;
      if (s.width(1) != s.width(0) + (s.param(2) > 0 ? (s.width(0) + v1 - 1) / v1 : (s.width(0) > 0 ? 1 : 0)) * (s.param(1) == 1 ? 1 : 4))
        return "a REDUCE_QUANTIZED has rows of ? bytes for ? columns";
      if (s.has(2) && s.width(2) != s.top_k())
        return "a REDUCE_QUANTIZED has ? weights for each of a token's ? choices";
      if (s.num_rows() != s.num_tokens() || !s.is_clipped())
        return "a REDUCE_QUANTIZED has ? rows, and its route ? tokens";
    } break;
    case Opcode::COUNT_AND_FILL: {
      if (s.param(0) < 0 || s.param(0) >= 3)
        return "a COUNT_AND_FILL has an unknown kind of fill";
      if (s.width(0) != s.width(2) || s.width(1) != 1 + (s.width(0) + 31) / 32)
        return "a COUNT_AND_FILL fills ? columns into ?, and ? words";
    } break;
    case Opcode::REDUCE_AND_FILL: {
      if (s.param(0) < 0 || s.param(0) >= 3)
        return "a REDUCE_AND_FILL has an unknown kind of fill";
      if (s.width(0) != s.width(2) || s.width(1) != 1 + (s.width(0) + 31) / 32)
        return "a REDUCE_AND_FILL fills ? columns into ?, and ? words";
      if (s.has(5) && s.width(5) != s.top_k())
        return "a REDUCE_AND_FILL has ? weights for each of a token's ? choices";
      if (s.num_rows() != s.num_tokens() || !s.is_clipped())
        return "a REDUCE_AND_FILL has ? rows, and its route ? tokens";
    } break;
    case Opcode::RELAY_SUM: {
      if (!s.is_of_tokens())
        return "a RELAY_SUM sums what came back to relays, and its route is not one to relays";
      if (!s.has_relays(s.param(0)))
        return "a RELAY_SUM is about relays, of which route ? has none";
      if (!s.relays_are_own(s.param(0)))
        return "a RELAY_SUM is of route ?, and sums what came back to the relays of another than route ?";
      if (s.has(2) && s.width(2) != s.top_k_of(s.param(0)))
        return "a RELAY_SUM has ? weights for each of a token's ? choices";
    } break;
    case Opcode::GMM_INT8: {
      if (s.param(0) != 0 && s.param(0) != 1)
        return "a GMM_INT8 has a word for is_transposed that is neither 0 nor 1";
      if (s.param(1) != 0 && s.param(1) != 1)
        return "a GMM_INT8 has a word for is_early that is neither 0 nor 1";
      if (s.width(1) - 4 <= 0 || s.width(1) - 4 > 131072)
        return "a GMM_INT8 sums ? products, more than an int32 holds or none";
      if (s.has(5) || (s.rows_are(3, Rows::REPLICA) && s.has(4)))
        return "a GMM_INT8 takes other operands of copies than of its own experts";
      const int64_t v1 = !s.rows_are(2, Rows::SLOT_EXPERT);
      if (v1 || s.height(2) <= 0)
        return "a GMM_INT8 takes a weight that is of no experts";
      if (s.rows_are(3, Rows::REPLICA) && (!s.has_copies() || s.offset(2) != s.offset(3) || s.cols(2) != s.cols(3) || s.height(2) != s.height(3) || !s.same_dtype(2, 3)))
        return "a GMM_INT8 takes copies in operand 3 that are not like operand 2";
      if (s.has(4) && (!s.has_copies() || s.offset(2) != s.offset(4) || s.cols(2) != s.cols(4) || s.height(2) != s.height(4) || !s.same_dtype(2, 4)))
        return "a GMM_INT8 takes copies in operand 4 that are not like operand 2";
      if (s.has(5) && (!s.has_copies() || s.offset(3) != s.offset(5) || s.cols(3) != s.cols(5) || s.height(3) != s.height(5) || !s.same_dtype(3, 5)))
        return "a GMM_INT8 takes copies in operand 5 that are not like operand 3";
      if (v1 && s.height(2) != 0 && s.height(2) != s.rows(2))
        return "a GMM_INT8 takes the matrices of experts of operand 2 as one";
      const int64_t v2 = s.rows_are(2, Rows::SLOT_EXPERT) || s.height(2) > 0 ? s.height(2) : s.rows(2);
      if ((s.param(0) ? s.cols(2) : v2) != s.width(1) - 4)
        return "a GMM_INT8 multiplies rows of ? elements by matrices of depth ?";
      if (s.param(0) && (s.offset(2) < 0 || s.offset(2) + s.own_cols() > v2))
        return "a GMM_INT8 takes rows ? to ? of matrices of ?";
    } break;
    case Opcode::RESCALE: {
      if (s.width(2) <= 4)
        return "a RESCALE takes the scale of rows of ? bytes";
      if (!s.is_int32(1) && !s.is_float32(1))
        return "a RESCALE takes sums that are neither int32 nor float32";
      if (s.rows_are(3, Rows::SLOT_EXPERT) && (s.height(3) != 0 || s.is_bytes(3)))
        return "a RESCALE takes one row of an expert of operand 3, which has ?";
    } break;
    case Opcode::GMM_DEQUANTIZED: {
      if (s.param(0) != 0 && s.param(0) != 1)
        return "a GMM_DEQUANTIZED has a word for is_transposed that is neither 0 nor 1";
      if (s.param(1) < 0 || s.param(1) >= 2)
        return "a GMM_DEQUANTIZED has an unknown kind of element";
      if (s.param(2) < 0 || s.param(2) >= 2)
        return "a GMM_DEQUANTIZED has an unknown kind of scale";
      if (s.param(3) < 0 || (s.param(1) != 1 && s.param(2) != 0))
        return "a GMM_DEQUANTIZED multiplies elements of an unknown format";
      const int64_t v1 = !s.rows_are(3, Rows::REPLICA);
      if (!(s.param(3) > 0 ? (v1 && s.has(4) == s.has(5)) : (!s.has(5) && (v1 || !s.has(4)))))
        return "a GMM_DEQUANTIZED takes other operands of copies than of its own experts";
      const int64_t v2 = !s.rows_are(2, Rows::SLOT_EXPERT);
      if (v2 || s.height(2) <= 0)
        return "a GMM_DEQUANTIZED takes a weight that is of no experts";
      if (s.rows_are(3, Rows::REPLICA) && (!s.has_copies() || s.offset(2) != s.offset(3) || s.cols(2) != s.cols(3) || s.height(2) != s.height(3) || !s.same_dtype(2, 3)))
        return "a GMM_DEQUANTIZED takes copies in operand 3 that are not like operand 2";
      if (s.has(4) && (!s.has_copies() || s.offset(2) != s.offset(4) || s.cols(2) != s.cols(4) || s.height(2) != s.height(4) || !s.same_dtype(2, 4)))
        return "a GMM_DEQUANTIZED takes copies in operand 4 that are not like operand 2";
      if (s.has(5) && (!s.has_copies() || s.offset(3) != s.offset(5) || s.cols(3) != s.cols(5) || s.height(3) != s.height(5) || !s.same_dtype(3, 5) || !s.same_cols(3, 5)))
        return "a GMM_DEQUANTIZED takes copies in operand 5 that are not like operand 3";
      if (s.param(3) == 0 && s.rows_are(3, Rows::SLOT_EXPERT) && (s.height(3) != 0 || s.is_bytes(3)))
        return "a GMM_DEQUANTIZED takes one row of an expert of operand 3, which has ?";
      const int64_t v3 = s.param(3) > 0 ? s.param(3) : 1;
      if (s.param(3) > 0 && (!s.is_bytes(3) || s.param(2) != 1 || s.cols(3) != (s.param(3) > 0 ? (s.cols(2) + v3 - 1) / v3 : (s.cols(2) > 0 ? 1 : 0)) || s.height(3) != s.height(2) || !s.cols_are(3, Cols::ALL) || s.offset(3) != 0))
        return "a GMM_DEQUANTIZED takes operand 3 for the scales of blocks of operand 2, which do not fit";
      if (v2 && s.height(2) != 0 && s.height(2) != s.rows(2))
        return "a GMM_DEQUANTIZED takes the matrices of experts of operand 2 as one";
      const int64_t v4 = s.rows_are(2, Rows::SLOT_EXPERT) || s.height(2) > 0 ? s.height(2) : s.rows(2);
      if ((s.param(0) ? s.cols(2) : v4) != s.width(1))
        return "a GMM_DEQUANTIZED multiplies rows of ? elements by matrices of depth ?";
      if (s.param(0) && (s.offset(2) < 0 || s.offset(2) + s.own_cols() > v4))
        return "a GMM_DEQUANTIZED takes rows ? to ? of matrices of ?";
    } break;
    case Opcode::QUANTIZE_WEIGHT: {
      if (s.param(0) < 0 || s.param(0) >= 2)
        return "a QUANTIZE_WEIGHT has an unknown kind of element";
      if (s.param(1) < 0 || s.param(1) >= 2)
        return "a QUANTIZE_WEIGHT has an unknown kind of scale";
      if (s.param(2) < 0 || (s.param(0) != 1 && s.param(1) != 0))
        return "a QUANTIZE_WEIGHT makes elements of an unknown format";
      if (s.param(3) <= 0 || s.num_rows() % (s.param(3) > 0 ? s.param(3) : 1) != 0)
        return "a QUANTIZE_WEIGHT makes ? rows of matrices of ? columns";
      const int64_t v1 = s.param(2) > 0 ? s.param(2) : 1;
      if (s.rows(2) < s.num_rows() || s.rows(0) != s.rows(2) || s.rows(1) != s.rows(2) || s.cols(1) != s.cols(2) || s.cols(0) != (s.param(2) > 0 ? (s.cols(1) + v1 - 1) / v1 : (s.cols(1) > 0 ? 1 : 0)) || s.is_bytes(0) != (s.param(1) == 1))
        return "a QUANTIZE_WEIGHT makes operand 1 and operand 0 of operand 2, which do not fit";
      if (s.offset(0) != 0)
        return "a QUANTIZE_WEIGHT takes operand 0 from column ? on";
      if (s.offset(1) != 0)
        return "a QUANTIZE_WEIGHT takes operand 1 from column ? on";
      if (s.offset(2) != 0)
        return "a QUANTIZE_WEIGHT takes operand 2 from column ? on";
    } break;
    case Opcode::DEQUANTIZE_WEIGHT: {
      if (s.param(0) < 0 || s.param(0) >= 2)
        return "a DEQUANTIZE_WEIGHT has an unknown kind of element";
      if (s.param(1) < 0 || s.param(1) >= 2)
        return "a DEQUANTIZE_WEIGHT has an unknown kind of scale";
      if (s.param(2) < 0 || (s.param(0) != 1 && s.param(1) != 0))
        return "a DEQUANTIZE_WEIGHT takes elements of an unknown format";
      if (s.cols(0) != s.cols(1) || s.rows(0) != s.rows(1) || s.rows(1) < s.num_rows())
        return "a DEQUANTIZE_WEIGHT makes operand 0 of operand 1, which has other sizes";
      const int64_t v1 = s.param(2) > 0 ? s.param(2) : 1;
      if (!(s.param(2) > 0 ? (s.has(2) && s.rows(2) == s.rows(1) && s.cols(2) == (s.param(2) > 0 ? (s.cols(1) + v1 - 1) / v1 : (s.cols(1) > 0 ? 1 : 0)) && s.param(1) == 1) : !s.has(2)))
        return "a DEQUANTIZE_WEIGHT takes other scales of operand 1 than its format has";
      if (s.offset(0) != 0)
        return "a DEQUANTIZE_WEIGHT takes operand 0 from column ? on";
      if (s.offset(1) != 0)
        return "a DEQUANTIZE_WEIGHT takes operand 1 from column ? on";
      if (s.offset(2) != 0)
        return "a DEQUANTIZE_WEIGHT takes operand 2 from column ? on";
    } break;
    case Opcode::GMM_FP8: {
      if (s.param(0) != 0 && s.param(0) != 1)
        return "a GMM_FP8 has a word for is_transposed that is neither 0 nor 1";
      if (s.param(1) != 0 && s.param(1) != 1)
        return "a GMM_FP8 has a word for is_early that is neither 0 nor 1";
      if (s.param(2) < 0)
        return "a GMM_FP8 multiplies elements of an unknown format";
      const int64_t v1 = s.param(2) > 0 ? 1 : 0;
      const int64_t v2 = v1 == 1 ? 1 : 4;
      const int64_t v3 = s.param(2) + v2;
      const int64_t v4 = s.width(1) - v2 * (s.param(2) > 0 ? (s.width(1) + v3 - 1) / v3 : 1);
      const int64_t v5 = v4 > 0;
      const int64_t v6 = s.param(2) > 0 ? s.param(2) : 1;
      const int64_t v7 = v6 - 1;
      const int64_t v8 = (v5 && v4 + (s.param(2) > 0 ? (v4 + v7) / v6 : (v5 ? 1 : 0)) * v2 == s.width(1)) ? v4 : -1;
      if (v8 < 1)
        return "a GMM_FP8 multiplies rows of ? bytes";
      const int64_t v9 = !s.rows_are(3, Rows::REPLICA);
      if (s.has(3) && s.param(2) == 0 && v9)
        return "a GMM_FP8 takes scales of columns, which RESCALE multiplies with sums";
      if (!(s.param(2) > 0 ? (v9 && s.has(4) == s.has(5)) : (!s.has(5) && (v9 || !s.has(4)))))
        return "a GMM_FP8 takes other operands of copies than of its own experts";
      const int64_t v10 = !s.rows_are(2, Rows::SLOT_EXPERT);
      if (v10 || s.height(2) <= 0)
        return "a GMM_FP8 takes a weight that is of no experts";
      if (s.rows_are(3, Rows::REPLICA) && (!s.has_copies() || s.offset(2) != s.offset(3) || s.cols(2) != s.cols(3) || s.height(2) != s.height(3) || !s.same_dtype(2, 3)))
        return "a GMM_FP8 takes copies in operand 3 that are not like operand 2";
      if (s.has(4) && (!s.has_copies() || s.offset(2) != s.offset(4) || s.cols(2) != s.cols(4) || s.height(2) != s.height(4) || !s.same_dtype(2, 4)))
        return "a GMM_FP8 takes copies in operand 4 that are not like operand 2";
      if (s.has(5) && (!s.has_copies() || s.offset(3) != s.offset(5) || s.cols(3) != s.cols(5) || s.height(3) != s.height(5) || !s.same_dtype(3, 5) || !s.same_cols(3, 5)))
        return "a GMM_FP8 takes copies in operand 5 that are not like operand 3";
      if (s.param(2) > 0 && (!s.is_bytes(3) || v1 != 1 || s.cols(3) != (s.param(2) > 0 ? (s.cols(2) + v7) / v6 : (s.cols(2) > 0 ? 1 : 0)) || s.height(3) != s.height(2) || !s.cols_are(3, Cols::ALL) || s.offset(3) != 0))
        return "a GMM_FP8 takes operand 3 for the scales of blocks of operand 2, which do not fit";
      if (v10 && s.height(2) != 0 && s.height(2) != s.rows(2))
        return "a GMM_FP8 takes the matrices of experts of operand 2 as one";
      const int64_t v11 = s.rows_are(2, Rows::SLOT_EXPERT) || s.height(2) > 0 ? s.height(2) : s.rows(2);
      if ((s.param(0) ? s.cols(2) : v11) != v8)
        return "a GMM_FP8 multiplies rows of ? elements by matrices of depth ?";
      if (s.param(0) && (s.offset(2) < 0 || s.offset(2) + s.own_cols() > v11))
        return "a GMM_FP8 takes rows ? to ? of matrices of ?";
    } break;
    case Opcode::RMS_NORM: {
      if (s.width(0) != s.width(1))
        return "a RMS_NORM makes rows of ? columns of ?";
      if (!s.is_number(2))
        return "a RMS_NORM takes an epsilon that is no number";
    } break;
    case Opcode::RMS_NORM_GRAD: {
      if (s.width(0) != s.width(1))
        return "a RMS_NORM_GRAD makes rows of ? columns of ?";
      if (s.width(0) != s.width(2))
        return "a RMS_NORM_GRAD makes rows of ? columns of ?";
      if (!s.is_number(3))
        return "a RMS_NORM_GRAD takes an epsilon that is no number";
    } break;
    default: break;
  }
  return nullptr;
}

}  // namespace hpmoe
