// Size rules of tile operations, from their definitions in hpmoe/tile_ops.
// Written by `python -m hpmoe.kernels.schema`; a test holds it equal to the definitions.
// clang-format off
#pragma once

#include "core/shapes.h"

namespace hpmoe {

// Returns the first size rule that an operation breaks, as words after the operation's name, or NULL.
inline const char* shapes_fault(Opcode opcode, const Shapes& s) {
  if (is_one_of(opcode, Opcode::PUT, Opcode::PUT_BACK, Opcode::ALL_TO_ALL, Opcode::ALL_TO_ALL_BACK, Opcode::KEEP, Opcode::REPLICATE, Opcode::RETURN_GRADS, Opcode::FAN_OUT, Opcode::PICK, Opcode::PLACE) && !s.same_dtype(0, 1))
    return "moves elements to another dtype";
  if (is_one_of(opcode, Opcode::PUT, Opcode::PUT_BACK, Opcode::ALL_TO_ALL, Opcode::ALL_TO_ALL_BACK)) {
    if (s.cols(0) != s.cols(1) || !s.same_cols(0, 1) || s.offset(0) != s.offset(1))
      return "moves rows of operand 1 to unlike rows of operand 0";
    const int64_t v1 = s.rows_are(1, Rows::RELAY_ROWS) || s.rows_are(0, Rows::RELAY_ENTRIES);
    if (v1 && !s.has_relays(s.own_route())) return "is about relays, of which route ? has none";
    if (v1 && s.alignment() != 1) return "has relays pass on rows of its route, which is filled up";
  }
  if (is_one_of(opcode, Opcode::PUT, Opcode::ALL_TO_ALL) && !s.has_capacity(0, s.max_rows()))
    return "receives ? rows in operand 0, which has ?";
  if (is_one_of(opcode, Opcode::PUT_BACK, Opcode::ALL_TO_ALL_BACK) && !s.has_capacity(1, s.max_rows()))
    return "receives ? rows in operand 1, which has ?";
  if (is_one_of(opcode, Opcode::GMM, Opcode::GMM_INT8, Opcode::GMM_DEQUANTIZED, Opcode::GMM_FP8) && s.param(0) != 0 && s.param(0) != 1)
    return "has a word for is_transposed that is neither 0 nor 1";
  if (is_one_of(opcode, Opcode::GMM, Opcode::GMM_INT8, Opcode::GMM_FP8) && s.param(1) != 0 && s.param(1) != 1)
    return "has a word for is_early that is neither 0 nor 1";
  if (is_one_of(opcode, Opcode::WGRAD, Opcode::COL_SUM)) {
    if (s.rows_are(1, Rows::ALL) == s.has_route())
      return "sums all rows where a route brings those of experts, or the reverse";
    if (s.has(2) && s.rows_are(2, Rows::ALL) != s.rows_are(1, Rows::ALL))
      return "sums other rows of operand 2 than of operand 1";
    if (s.rows_are(1, Rows::ALL) && (s.num_rows() != 1 || s.first_expert() != 0)) return "sums all rows more than once";
    if (s.rows_are(1, Rows::ALL) && s.has(1) && !s.is_number(1) && !s.has_rows(1, s.summed_rows()))
      return "sums ? rows of operand 1, which has ?";
    if (s.rows_are(1, Rows::ALL) && s.has(2) && !s.is_number(2) && !s.has_rows(2, s.summed_rows()))
      return "sums ? rows of operand 2, which has ?";
    if (!s.rows_are(1, Rows::ALL) && (s.first_expert() < 0 || s.num_rows() < 1 || s.first_expert() + s.num_rows() > s.num_local_experts()))
      return "sums rows of experts ? to ?, and a rank has ?";
  }
  if (opcode == Opcode::WGRAD) {
    if (s.height(0) != 0 && s.height(0) != s.width(1)) return "makes matrices of ? rows in operand 0, which has those of ?";
    if (s.param(0) < 1 || (s.blocks() - 1) * s.param(0) >= s.width(1)) return "cuts matrices of ? rows into ? blocks of ?";
    if (!s.has_capacity(0, s.num_rows() * s.width(1))) return "makes ? matrices in operand 0, which has too few rows";
    if (s.rows_are(3, Rows::RETURNED) && s.first_expert() != 0)
      return "adds what copies returned to experts that are not the rank's own";
    if (s.has(3) && (!(s.rows_are(3, Rows::RETURNED) ? (s.height(3) == s.width(1) && s.has_copies() && s.has_capacity(3, s.most_copies() * s.width(1))) : (s.rows(3) == s.rows(0) && s.is_float32(3) && s.is_float32(0))) || s.cols(3) != s.cols(0) || s.offset(3) != s.offset(0)))
      return "adds operand 3, which is not like operand 0";
    if (s.rows_are(4, Rows::RETURNED) && s.first_expert() != 0)
      return "adds what copies returned to experts that are not the rank's own";
    if (s.has(4) && (!(s.rows_are(4, Rows::RETURNED) ? (s.height(4) == s.width(1) && s.has_copies() && s.has_capacity(4, s.most_copies() * s.width(1))) : (s.rows(4) == s.rows(0) && s.is_float32(4) && s.is_float32(0))) || s.cols(4) != s.cols(0) || s.offset(4) != s.offset(0)))
      return "adds operand 4, which is not like operand 0";
    if (s.has(4) && s.rows_are(3, Rows::OWN) == s.rows_are(4, Rows::OWN)) return "adds two arrays of a kind";
  }
  if (opcode == Opcode::MAP) {
    if (num_map_inputs(s.param(0)) <= 0) return "has an unknown function";
    if (s.rows_are(0, Rows::SLOT_EXPERT) && s.height(0) != 0) return "takes one row of an expert of operand 0, which has ?";
    if (s.is_integer(0) && !s.takes_integers()) return "applies a function of floats to the integers of operand 0";
    if (s.rows_are(1, Rows::SLOT_EXPERT) && s.height(1) != 0) return "takes one row of an expert of operand 1, which has ?";
    if (s.is_integer(1) && !s.takes_integers()) return "applies a function of floats to the integers of operand 1";
    if (s.rows_are(2, Rows::SLOT_EXPERT) && s.height(2) != 0) return "takes one row of an expert of operand 2, which has ?";
    if (s.is_integer(2) && !s.takes_integers()) return "applies a function of floats to the integers of operand 2";
    if (s.rows_are(3, Rows::SLOT_EXPERT) && s.height(3) != 0) return "takes one row of an expert of operand 3, which has ?";
    if (s.is_integer(3) && !s.takes_integers()) return "applies a function of floats to the integers of operand 3";
  }
  if (is_one_of(opcode, Opcode::ROW_REDUCE, Opcode::GROUP_REDUCE) && (s.param(0) < 0 || s.param(0) >= 2))
    return "has an unknown kind of reduction";
  if (is_one_of(opcode, Opcode::ROW_REDUCE, Opcode::ROW_DOT)) {
    if (s.cols_are(0, Cols::ALL) && s.width(0) != 1) return "makes one column of ?";
    if (s.has(2) && (!s.same_cols(1, 2) || s.width(1) != s.width(2))) return "multiplies rows of ? and ? columns";
  }
  if (opcode == Opcode::COL_SUM) {
    if (!s.rows_are(1, Rows::ALL) && s.num_rows() != s.num_local_experts())
      return "sums rows of ? experts, and a rank has ?";
    if (!s.has_capacity(0, s.num_rows())) return "makes ? rows of operand 0, which has fewer";
  }
  if (opcode == Opcode::NOTIFY && (s.param(0) < 0 || s.param(0) >= 2)) return "has an unknown kind of leg";
  if (opcode == Opcode::GATHER && s.width(0) != s.width(1)) return "gathers rows of ? columns in ?";
  if (opcode == Opcode::KEEP && (s.width(0) != s.top_k() || s.offset(0) != 0 || s.cols(1) != 1))
    return "keeps ? columns of entries in ?, of ? choices";
  if (opcode == Opcode::DROP_COUNTS && s.width(0) != s.num_model_experts()) return "counts ? experts of ?";
  if (opcode == Opcode::LAUNCH && (s.param(0) < 0 || s.param(0) >= 3)) return "has an unknown kind of rows";
  if (is_one_of(opcode, Opcode::REPLICATE, Opcode::RETURN_GRADS)) {
    if (!s.has_copies()) return "moves copies of a route that has none";
    if (s.cols(0) != s.cols(1)) return "moves matrices of operand 1 to unlike ones of operand 0";
    if (s.height(0) != s.param(1)) return "moves matrices of ? rows, and those of operand 0 have ?";
    if (s.height(1) != s.param(1)) return "moves matrices of ? rows, and those of operand 1 have ?";
    if (s.param(0) < 1 || s.param(1) < 1 || (s.blocks() - 1) * s.param(0) >= s.param(1))
      return "moves ? blocks of ? rows of ?";
  }
  if (opcode == Opcode::REPLICATE) {
    if (!s.has_capacity(0, (s.num_local_experts() - s.num_own_experts()) * s.param(1)))
      return "moves ? copies, of which operand 0 has too few rows";
    if (!s.has_capacity(1, s.num_own_experts() * s.param(1))) return "moves ? matrices, of which operand 1 has too few rows";
  }
  if (opcode == Opcode::RETURN_GRADS) {
    if (!s.has_capacity(1, (s.num_local_experts() - s.num_own_experts()) * s.param(1)))
      return "moves ? copies, of which operand 1 has too few rows";
    if (!s.has_capacity(0, s.most_copies() * s.param(1))) return "moves ? matrices, of which operand 0 has too few rows";
  }
  if (is_one_of(opcode, Opcode::FAN_OUT, Opcode::FAN_IN)) {
    if (!s.is_of_tokens()) return "fans rows out or in, and its route is not one to ranks";
    if (s.has(2) && s.width(2) != 1) return "has ? weights for a row";
  }
  if (opcode == Opcode::TOP_K) {
    if (s.param(0) != 0 && s.param(0) != 1) return "has a word for largest that is neither 0 nor 1";
    if (s.width(0) != s.width(1) || s.width(0) > s.width(2)) return "chooses ? values and ? indices of ?";
    if (s.is_integer(0) != s.is_integer(2)) return "makes integers of floats, or floats of integers";
  }
  if (is_one_of(opcode, Opcode::TAKE_COLS, Opcode::ADD_COLS) && !s.is_integer(2))
    return "takes indices that are no integers";
  if (opcode == Opcode::TAKE_COLS && s.width(0) != s.width(2)) return "has ? indices for ? columns";
  if (opcode == Opcode::ADD_COLS) {
    if (!s.is_number(1) && s.width(1) != s.width(2)) return "has ? indices for ? columns";
    if (!s.is_number(1) && s.is_integer(0) != s.is_integer(1)) return "makes integers of floats, or floats of integers";
  }
  if (opcode == Opcode::CUMSUM && s.param(0) != 0 && s.param(0) != 1)
    return "has a word for reverse that is neither 0 nor 1";
  if (is_one_of(opcode, Opcode::CUMSUM, Opcode::RMS_NORM, Opcode::RMS_NORM_GRAD) && s.width(0) != s.width(1))
    return "makes rows of ? columns of ?";
  if (is_one_of(opcode, Opcode::PICK, Opcode::PLACE, Opcode::GROUP_REDUCE)) {
    if (s.offset(0) != 0 || s.offset(1) != 0) return "begins at another column than the first";
    if (s.own_cols() > 0 && s.own_cols() != s.width(0)) return "leaves columns out";
  }
  if (is_one_of(opcode, Opcode::GATHER, Opcode::TAKE_COLS, Opcode::CUMSUM, Opcode::GROUP_REDUCE) && s.is_integer(0) != s.is_integer(1))
    return "makes integers of floats, or floats of integers";
  if (opcode == Opcode::GATHER && !s.cols_are(2, Cols::ONE) && s.width(2) != 1) return "gathers by rows of several columns";
  if (is_one_of(opcode, Opcode::PICK, Opcode::PLACE)) {
    if (s.param(0) < 1 || s.param(1) < 1 || s.param(2) < 0 || s.param(3) < 0) return "moves ? elements from ? on, ? apart";
    const int64_t v1 = s.param(0) * s.param(1);
    if (s.width(0) < v1 || s.width(0) % v1 != 0) return "makes rows of ? columns by axes of ?";
    if (s.width(1) <= 0 || s.width(1) % (s.width(0) / v1 * s.param(1)) != 0) return "takes rows of ? columns, ? parts of ?";
  }
  if (opcode == Opcode::PICK && s.param(2) + (s.param(0) - 1) * s.param(3) >= s.width(1) / (s.width(0) / (s.param(0) * s.param(1)) * s.param(1)))
    return "picks ? elements, ? apart, of ?";
  if (opcode == Opcode::PLACE) {
    if (s.param(3) < 1) return "places elements ? apart";
    if (s.param(2) + (s.width(1) / (s.width(0) / (s.param(0) * s.param(1)) * s.param(1)) - 1) * s.param(3) >= s.param(0))
      return "places ? elements, ? apart, in ?";
  }
  if (opcode == Opcode::GROUP_REDUCE) {
    if (s.param(1) < 1 || s.param(2) < 1) return "reduces groups of ? elements, ? columns apart";
    if (s.width(1) != s.width(0) * s.param(1) || s.width(0) % s.param(2) != 0)
      return "makes rows of ? columns of ?, ? of each";
  }
  if (is_one_of(opcode, Opcode::FILL_OUTSIDE, Opcode::COUNT_AND_FILL, Opcode::REDUCE_AND_FILL) && (s.param(0) < 0 || s.param(0) >= 3))
    return "has an unknown kind of fill";
  if (opcode == Opcode::FILL_OUTSIDE && (s.width(0) != s.width(1) || s.width(2) != 1 + (s.width(0) + 31) / 32))
    return "fills ? columns by ? words into ?";
  if (opcode == Opcode::COUNT_OUTSIDE && s.width(0) != 1) return "counts into ? columns";
  if (is_one_of(opcode, Opcode::QUANTIZE, Opcode::DEQUANTIZE, Opcode::REDUCE_QUANTIZED, Opcode::QUANTIZE_WEIGHT, Opcode::DEQUANTIZE_WEIGHT)) {
    if (s.param(0) < 0 || s.param(0) >= 2) return "has an unknown kind of element";
    if (s.param(1) < 0 || s.param(1) >= 2) return "has an unknown kind of scale";
  }
  if (is_one_of(opcode, Opcode::QUANTIZE, Opcode::DEQUANTIZE, Opcode::REDUCE_QUANTIZED) && (s.param(2) < 0 || (s.param(0) != 1 && s.param(1) != 0)))
    return "has quantised rows of an unknown format";
  if (opcode == Opcode::QUANTIZE) {
    const int64_t v1 = s.param(2) > 0 ? s.param(2) : 1;
    if (s.width(0) != s.width(1) + (s.param(2) > 0 ? (s.width(1) + v1 - 1) / v1 : (s.width(1) > 0 ? 1 : 0)) * (s.param(1) == 1 ? 1 : 4))
      return "has rows of ? bytes for ? columns";
  }
  if (is_one_of(opcode, Opcode::DEQUANTIZE, Opcode::REDUCE_QUANTIZED)) {
    const int64_t v1 = s.param(2) > 0 ? s.param(2) : 1;
    if (s.width(1) != s.width(0) + (s.param(2) > 0 ? (s.width(0) + v1 - 1) / v1 : (s.width(0) > 0 ? 1 : 0)) * (s.param(1) == 1 ? 1 : 4))
      return "has rows of ? bytes for ? columns";
  }
  if (is_one_of(opcode, Opcode::REDUCE, Opcode::KEEP, Opcode::REDUCE_QUANTIZED) && s.has(2) && s.width(2) != s.top_k())
    return "has ? weights for each of a token's ? choices";
  if (is_one_of(opcode, Opcode::COUNT_AND_FILL, Opcode::REDUCE_AND_FILL) && (s.width(0) != s.width(2) || s.width(1) != 1 + (s.width(0) + 31) / 32))
    return "fills ? columns into ?, and ? words";
  if (opcode == Opcode::REDUCE_AND_FILL && s.has(5) && s.width(5) != s.top_k())
    return "has ? weights for each of a token's ? choices";
  if (is_one_of(opcode, Opcode::REDUCE, Opcode::KEEP, Opcode::REDUCE_QUANTIZED, Opcode::REDUCE_AND_FILL) && (s.num_rows() != s.num_tokens() || !s.is_clipped()))
    return "has ? rows, and its route ? tokens";
  if (opcode == Opcode::RELAY_SUM) {
    if (!s.is_of_tokens()) return "sums what came back to relays, and its route is not one to relays";
    if (!s.has_relays(s.param(0))) return "is about relays, of which route ? has none";
    if (!s.relays_are_own(s.param(0))) return "is of route ?, and sums what came back to the relays of another than route ?";
    if (s.has(2) && s.width(2) != s.top_k_of(s.param(0))) return "has ? weights for each of a token's ? choices";
  }
  if (opcode == Opcode::GMM_INT8) {
    if (s.width(1) - 4 <= 0 || s.width(1) - 4 > 131072) return "sums ? products, more than an int32 holds or none";
    if (s.has(5) || (s.rows_are(3, Rows::REPLICA) && s.has(4)))
      return "takes other operands of copies than of its own experts";
  }
  if (opcode == Opcode::RESCALE) {
    if (s.width(2) <= 4) return "takes the scale of rows of ? bytes";
    if (!s.is_int32(1) && !s.is_float32(1)) return "takes sums that are neither int32 nor float32";
    if (s.rows_are(3, Rows::SLOT_EXPERT) && (s.height(3) != 0 || s.is_bytes(3)))
      return "takes one row of an expert of operand 3, which has ?";
  }
  if (opcode == Opcode::GMM_DEQUANTIZED) {
    if (s.param(1) < 0 || s.param(1) >= 2) return "has an unknown kind of element";
    if (s.param(2) < 0 || s.param(2) >= 2) return "has an unknown kind of scale";
    if (s.param(3) < 0 || (s.param(1) != 1 && s.param(2) != 0)) return "multiplies elements of an unknown format";
    const int64_t v1 = !s.rows_are(3, Rows::REPLICA);
    if (!(s.param(3) > 0 ? (v1 && s.has(4) == s.has(5)) : (!s.has(5) && (v1 || !s.has(4)))))
      return "takes other operands of copies than of its own experts";
  }
  if (opcode == Opcode::QUANTIZE_WEIGHT) {
    if (s.param(2) < 0 || (s.param(0) != 1 && s.param(1) != 0)) return "makes elements of an unknown format";
    if (s.param(3) <= 0 || s.num_rows() % (s.param(3) > 0 ? s.param(3) : 1) != 0)
      return "makes ? rows of matrices of ? columns";
    const int64_t v1 = s.param(2) > 0 ? s.param(2) : 1;
    if (s.rows(2) < s.num_rows() || s.rows(0) != s.rows(2) || s.rows(1) != s.rows(2) || s.cols(1) != s.cols(2) || s.cols(0) != (s.param(2) > 0 ? (s.cols(1) + v1 - 1) / v1 : (s.cols(1) > 0 ? 1 : 0)) || s.is_bytes(0) != (s.param(1) == 1))
      return "makes operand 1 and operand 0 of operand 2, which do not fit";
  }
  if (opcode == Opcode::DEQUANTIZE_WEIGHT) {
    if (s.param(2) < 0 || (s.param(0) != 1 && s.param(1) != 0)) return "takes elements of an unknown format";
    if (s.cols(0) != s.cols(1) || s.rows(0) != s.rows(1) || s.rows(1) < s.num_rows())
      return "makes operand 0 of operand 1, which has other sizes";
    const int64_t v1 = s.param(2) > 0 ? s.param(2) : 1;
    if (!(s.param(2) > 0 ? (s.has(2) && s.rows(2) == s.rows(1) && s.cols(2) == (s.param(2) > 0 ? (s.cols(1) + v1 - 1) / v1 : (s.cols(1) > 0 ? 1 : 0)) && s.param(1) == 1) : !s.has(2)))
      return "takes other scales of operand 1 than its format has";
  }
  if (is_one_of(opcode, Opcode::QUANTIZE_WEIGHT, Opcode::DEQUANTIZE_WEIGHT)) {
    if (s.offset(0) != 0) return "takes operand 0 from column ? on";
    if (s.offset(1) != 0) return "takes operand 1 from column ? on";
    if (s.offset(2) != 0) return "takes operand 2 from column ? on";
  }
  if (opcode == Opcode::GMM_FP8) {
    if (s.param(2) < 0) return "multiplies elements of an unknown format";
    const int64_t v1 = (s.param(2) > 0 ? 1 : 0) == 1 ? 1 : 4;
    const int64_t v2 = s.param(2) + v1;
    const int64_t v3 = s.width(1) - v1 * (s.param(2) > 0 ? (s.width(1) + v2 - 1) / v2 : 1);
    const int64_t v4 = v3 > 0;
    const int64_t v5 = s.param(2) > 0 ? s.param(2) : 1;
    if (((v4 && v3 + (s.param(2) > 0 ? (v3 + v5 - 1) / v5 : (v4 ? 1 : 0)) * v1 == s.width(1)) ? v3 : -1) < 1)
      return "multiplies rows of ? bytes";
    const int64_t v6 = !s.rows_are(3, Rows::REPLICA);
    if (s.has(3) && s.param(2) == 0 && v6) return "takes scales of columns, which RESCALE multiplies with sums";
    if (!(s.param(2) > 0 ? (v6 && s.has(4) == s.has(5)) : (!s.has(5) && (v6 || !s.has(4)))))
      return "takes other operands of copies than of its own experts";
  }
  if (is_one_of(opcode, Opcode::GMM_INT8, Opcode::GMM_DEQUANTIZED, Opcode::GMM_FP8)) {
    if (!s.rows_are(2, Rows::SLOT_EXPERT) || s.height(2) <= 0) return "takes a weight that is of no experts";
    if (s.rows_are(3, Rows::REPLICA) && (!s.has_copies() || s.offset(2) != s.offset(3) || s.cols(2) != s.cols(3) || s.height(2) != s.height(3) || !s.same_dtype(2, 3)))
      return "takes copies in operand 3 that are not like operand 2";
    if (s.has(4) && (!s.has_copies() || s.offset(2) != s.offset(4) || s.cols(2) != s.cols(4) || s.height(2) != s.height(4) || !s.same_dtype(2, 4)))
      return "takes copies in operand 4 that are not like operand 2";
  }
  if (opcode == Opcode::GMM_INT8 && s.has(5) && (!s.has_copies() || s.offset(3) != s.offset(5) || s.cols(3) != s.cols(5) || s.height(3) != s.height(5) || !s.same_dtype(3, 5)))
    return "takes copies in operand 5 that are not like operand 3";
  if (is_one_of(opcode, Opcode::GMM_DEQUANTIZED, Opcode::GMM_FP8) && s.has(5) && (!s.has_copies() || s.offset(3) != s.offset(5) || s.cols(3) != s.cols(5) || s.height(3) != s.height(5) || !s.same_dtype(3, 5) || !s.same_cols(3, 5)))
    return "takes copies in operand 5 that are not like operand 3";
  if (opcode == Opcode::GMM_DEQUANTIZED) {
    if (s.param(3) == 0 && s.rows_are(3, Rows::SLOT_EXPERT) && (s.height(3) != 0 || s.is_bytes(3)))
      return "takes one row of an expert of operand 3, which has ?";
    const int64_t v1 = s.param(3) > 0 ? s.param(3) : 1;
    if (s.param(3) > 0 && (!s.is_bytes(3) || s.param(2) != 1 || s.cols(3) != (s.param(3) > 0 ? (s.cols(2) + v1 - 1) / v1 : (s.cols(2) > 0 ? 1 : 0)) || s.height(3) != s.height(2) || !s.cols_are(3, Cols::ALL) || s.offset(3) != 0))
      return "takes operand 3 for the scales of blocks of operand 2, which do not fit";
  }
  if (opcode == Opcode::GMM_FP8) {
    const int64_t v1 = s.param(2) > 0 ? s.param(2) : 1;
    if (s.param(2) > 0 && (!s.is_bytes(3) || (s.param(2) > 0 ? 1 : 0) != 1 || s.cols(3) != (s.param(2) > 0 ? (s.cols(2) + v1 - 1) / v1 : (s.cols(2) > 0 ? 1 : 0)) || s.height(3) != s.height(2) || !s.cols_are(3, Cols::ALL) || s.offset(3) != 0))
      return "takes operand 3 for the scales of blocks of operand 2, which do not fit";
  }
  if (is_one_of(opcode, Opcode::GMM, Opcode::GMM_INT8, Opcode::GMM_DEQUANTIZED, Opcode::GMM_FP8) && !s.rows_are(2, Rows::SLOT_EXPERT) && s.height(2) != 0 && s.height(2) != s.rows(2))
    return "takes the matrices of experts of operand 2 as one";
  if (is_one_of(opcode, Opcode::GMM, Opcode::GMM_DEQUANTIZED) && (s.param(0) ? s.cols(2) : (s.rows_are(2, Rows::SLOT_EXPERT) || s.height(2) > 0 ? s.height(2) : s.rows(2))) != s.width(1))
    return "multiplies rows of ? elements by matrices of depth ?";
  if (opcode == Opcode::GMM_INT8 && (s.param(0) ? s.cols(2) : (s.rows_are(2, Rows::SLOT_EXPERT) || s.height(2) > 0 ? s.height(2) : s.rows(2))) != s.width(1) - 4)
    return "multiplies rows of ? elements by matrices of depth ?";
  if (opcode == Opcode::GMM_FP8) {
    const int64_t v1 = (s.param(2) > 0 ? 1 : 0) == 1 ? 1 : 4;
    const int64_t v2 = s.param(2) + v1;
    const int64_t v3 = s.width(1) - v1 * (s.param(2) > 0 ? (s.width(1) + v2 - 1) / v2 : 1);
    const int64_t v4 = v3 > 0;
    const int64_t v5 = s.param(2) > 0 ? s.param(2) : 1;
    if ((s.param(0) ? s.cols(2) : (s.rows_are(2, Rows::SLOT_EXPERT) || s.height(2) > 0 ? s.height(2) : s.rows(2))) != ((v4 && v3 + (s.param(2) > 0 ? (v3 + v5 - 1) / v5 : (v4 ? 1 : 0)) * v1 == s.width(1)) ? v3 : -1))
      return "multiplies rows of ? elements by matrices of depth ?";
  }
  if (is_one_of(opcode, Opcode::GMM, Opcode::GMM_INT8, Opcode::GMM_DEQUANTIZED, Opcode::GMM_FP8) && s.param(0) && (s.offset(2) < 0 || s.offset(2) + s.own_cols() > (s.rows_are(2, Rows::SLOT_EXPERT) || s.height(2) > 0 ? s.height(2) : s.rows(2))))
    return "takes rows ? to ? of matrices of ?";
  if (opcode == Opcode::GMM && s.has(3) && (!s.rows_are(2, Rows::SLOT_EXPERT) || !s.has_copies() || s.offset(2) != s.offset(3) || s.cols(2) != s.cols(3) || s.height(2) != s.height(3) || !s.same_dtype(2, 3)))
    return "takes copies that are not like its weights";
  if (opcode == Opcode::RMS_NORM && !s.is_number(2)) return "takes an epsilon that is no number";
  if (opcode == Opcode::RMS_NORM_GRAD) {
    if (s.width(0) != s.width(2)) return "makes rows of ? columns of ?";
    if (!s.is_number(3)) return "takes an epsilon that is no number";
  }
  return nullptr;
}

}  // namespace hpmoe
