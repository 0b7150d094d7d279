// The tile operations and elementwise functions as hpmoe/tile_ops defines them: rules and facts.
// Written by `python -m hpmoe.kernels.schema`; a test holds it equal to the definitions.
// clang-format off
#pragma once

#include "core/generated/enums.h"
#include "core/marks.h"

namespace hpmoe {

// Its elements are int32; bodies know which part of it a task takes; a number may stand in its place; its elements may be
// integers as well as floats; they are bytes, or may be bytes as well as floats.
constexpr int kIsInteger = 1, kIsCutByBody = 2, kMayBeNumber = 4, kMayBeInteger = 8, kIsBytes = 16, kMayBeBytes = 32;

// Which modes an operand may have, a bit a mode, and which of these traits; `rows` 0 ends an opcode's list.
struct OperandRule {
  int rows, cols, traits;
};

// What each opcode asks of its op: domains, a bit each, operands and their modes; outputs come first.
struct OpRule {
  const char* name;
  Opcode opcode;
  int32_t num_outputs, min_operands;
  bool needs_route;
  int domains;
  OperandRule operands[6];
};

constexpr OpRule kRules[] = {
    {"PUT", Opcode::PUT, 1, 2, true, 0x4, {{0x20, 0x3, 0}, {0x8c0, 0x3, 0}}},
    {"PUT_BACK", Opcode::PUT_BACK, 1, 2, true, 0x4, {{0x1040, 0x3, 0}, {0x1, 0x3, 0}}},
    {"REDUCE", Opcode::REDUCE, 1, 2, true, 0x2, {{0x1, 0x1, 0}, {0x40, 0x1, 0}, {0x1, 0x2, 0}}},
    {"GMM", Opcode::GMM, 1, 3, false, 0x7,
     {{0x1, 0x1, 0}, {0x1, 0x2, 0}, {0xe, 0x1, kIsCutByBody}, {0x100, 0x1, kIsCutByBody}}},
    {"WGRAD", Opcode::WGRAD, 1, 3, false, 0x8,
     {{0x1, 0x1, 0}, {0x12, 0x2, 0}, {0x12, 0x1, 0}, {0x201, 0x1, 0}, {0x201, 0x1, 0}}},
    {"MAP", Opcode::MAP, 1, 2, false, 0x7,
     {{0x1, 0x1, kMayBeInteger}, {0xd, 0x5, kMayBeNumber | kMayBeInteger}, {0xd, 0x5, kMayBeNumber | kMayBeInteger},
      {0xd, 0x5, kMayBeNumber | kMayBeInteger}}},
    {"SWIGLU", Opcode::SWIGLU, 1, 3, false, 0x7, {{0x1, 0x1, 0}, {0x1, 0x1, 0}, {0x1, 0x1, 0}}},
    {"SWIGLU_GRAD", Opcode::SWIGLU_GRAD, 2, 5, false, 0x7,
     {{0x1, 0x1, 0}, {0x1, 0x1, 0}, {0x1, 0x1, 0}, {0x1, 0x1, 0}, {0x1, 0x1, 0}}},
    {"ROW_REDUCE", Opcode::ROW_REDUCE, 1, 2, false, 0x7, {{0x1, 0x6, kMayBeInteger}, {0x1, 0x2, kMayBeInteger}}},
    {"ROW_DOT", Opcode::ROW_DOT, 1, 3, false, 0x7, {{0x1, 0x6, 0}, {0x1, 0x2, 0}, {0x1, 0x2, 0}}},
    {"COL_SUM", Opcode::COL_SUM, 1, 2, false, 0x8, {{0x1, 0x1, kMayBeInteger}, {0x12, 0x1, kMayBeInteger}}},
    {"ALL_TO_ALL", Opcode::ALL_TO_ALL, 1, 2, true, 0x1, {{0x20, 0x2, 0}, {0x8c0, 0x2, 0}}},
    {"ALL_TO_ALL_BACK", Opcode::ALL_TO_ALL_BACK, 1, 2, true, 0x1, {{0x1040, 0x2, 0}, {0x1, 0x2, 0}}},
    {"NOTIFY", Opcode::NOTIFY, 0, 0, true, 0x1, {}},
    {"GATHER", Opcode::GATHER, 1, 3, false, 0x3,
     {{0x1, 0x2, kMayBeInteger}, {0x2, 0x2, kMayBeInteger}, {0x1, 0x6, kIsInteger}}},
    {"KEEP", Opcode::KEEP, 1, 2, true, 0x2, {{0x1, 0x2, 0}, {0x40, 0x2, 0}}},
    {"DROP_COUNTS", Opcode::DROP_COUNTS, 1, 1, true, 0x1, {{0x1, 0x2, kIsInteger}}},
    {"LAUNCH", Opcode::LAUNCH, 0, 0, false, 0x1, {}},
    {"REPLICATE", Opcode::REPLICATE, 1, 2, true, 0x11, {{0x100, 0x2, 0}, {0x2, 0x2, 0}}},
    {"RETURN_GRADS", Opcode::RETURN_GRADS, 1, 2, true, 0x11, {{0x200, 0x2, 0}, {0x100, 0x2, 0}}},
    {"FAN_OUT", Opcode::FAN_OUT, 1, 2, true, 0x4, {{0x400, 0x1, kMayBeBytes}, {0x1, 0x1, kMayBeBytes}}},
    {"FAN_IN", Opcode::FAN_IN, 1, 2, true, 0x4, {{0x1, 0x1, 0}, {0x400, 0x1, 0}, {0x400, 0x2, 0}}},
    {"TOP_K", Opcode::TOP_K, 2, 3, false, 0x7,
     {{0x1, 0x2, kMayBeInteger}, {0x1, 0x2, kIsInteger}, {0x1, 0x2, kMayBeInteger}}},
    {"TAKE_COLS", Opcode::TAKE_COLS, 1, 3, false, 0x7,
     {{0x1, 0x2, kMayBeInteger}, {0x1, 0x2, kMayBeInteger}, {0x5, 0x2, kMayBeInteger}}},
    {"ADD_COLS", Opcode::ADD_COLS, 1, 3, false, 0x7,
     {{0x1, 0x2, kMayBeInteger}, {0x1, 0x2, kMayBeNumber | kMayBeInteger}, {0x1, 0x2, kMayBeInteger}}},
    {"CUMSUM", Opcode::CUMSUM, 1, 2, false, 0x7, {{0x1, 0x2, kMayBeInteger}, {0x1, 0x2, kMayBeInteger}}},
    {"DRAW", Opcode::DRAW, 1, 2, false, 0x2, {{0x1, 0x1, 0}, {0x4, 0x4, kIsInteger}}},
    {"PICK", Opcode::PICK, 1, 2, false, 0x7, {{0x1, 0x1, kMayBeInteger}, {0x1, 0x2, kMayBeInteger}}},
    {"PLACE", Opcode::PLACE, 1, 2, false, 0x7, {{0x1, 0x1, kMayBeInteger}, {0x1, 0x2, kMayBeInteger}}},
    {"GROUP_REDUCE", Opcode::GROUP_REDUCE, 1, 2, false, 0x7, {{0x1, 0x2, kMayBeInteger}, {0x1, 0x2, kMayBeInteger}}},
    {"FILL_OUTSIDE", Opcode::FILL_OUTSIDE, 1, 3, false, 0x7, {{0x1, 0x2, 0}, {0x1, 0x2, 0}, {0x1, 0x2, kIsInteger}}},
    {"COUNT_OUTSIDE", Opcode::COUNT_OUTSIDE, 1, 4, false, 0x7,
     {{0x1, 0x2, 0}, {0x1, 0x2, 0}, {0x1, 0x2, kMayBeNumber}, {0x1, 0x2, kMayBeNumber}}},
    {"QUANTIZE", Opcode::QUANTIZE, 1, 2, false, 0x7, {{0x1, 0x2, kIsBytes}, {0x1, 0x2, 0}}},
    {"DEQUANTIZE", Opcode::DEQUANTIZE, 1, 2, false, 0x7, {{0x1, 0x2, 0}, {0x1, 0x2, kIsBytes}}},
    {"REDUCE_QUANTIZED", Opcode::REDUCE_QUANTIZED, 1, 2, true, 0x2, {{0x1, 0x2, 0}, {0x40, 0x2, kIsBytes}, {0x1, 0x2, 0}}},
    {"COUNT_AND_FILL", Opcode::COUNT_AND_FILL, 2, 5, false, 0x7,
     {{0x1, 0x2, 0}, {0x1, 0x2, kIsInteger}, {0x1, 0x2, 0}, {0x1, 0x2, kMayBeNumber}, {0x1, 0x2, kMayBeNumber}}},
    {"REDUCE_AND_FILL", Opcode::REDUCE_AND_FILL, 2, 5, true, 0x2,
     {{0x1, 0x2, 0}, {0x1, 0x2, kIsInteger}, {0x40, 0x2, 0}, {0x1, 0x2, kMayBeNumber}, {0x1, 0x2, kMayBeNumber},
      {0x1, 0x2, 0}}},
    {"RELAY_SUM", Opcode::RELAY_SUM, 1, 2, true, 0x4, {{0x1, 0x1, 0}, {0x1000, 0x1, 0}, {0x1, 0x2, 0}}},
    {"GMM_INT8", Opcode::GMM_INT8, 1, 3, false, 0x4,
     {{0x1, 0x1, kIsInteger}, {0x1, 0x2, kIsBytes}, {0x8, 0x1, kIsCutByBody | kIsBytes},
      {0x100, 0x1, kIsCutByBody | kIsBytes}}},
    {"RESCALE", Opcode::RESCALE, 1, 3, false, 0x4,
     {{0x1, 0x1, 0}, {0x1, 0x1, kMayBeInteger}, {0x1, 0x2, kIsBytes}, {0x8, 0x1, 0}}},
    {"GMM_DEQUANTIZED", Opcode::GMM_DEQUANTIZED, 1, 3, false, 0x4,
     {{0x1, 0x1, 0}, {0x1, 0x2, 0}, {0x8, 0x1, kIsCutByBody | kIsBytes}, {0x108, 0x3, kMayBeBytes},
      {0x100, 0x1, kIsCutByBody | kIsBytes}, {0x100, 0x2, kIsBytes}}},
    {"QUANTIZE_WEIGHT", Opcode::QUANTIZE_WEIGHT, 2, 3, false, 0x2,
     {{0x1, 0x2, kMayBeBytes}, {0x1, 0x2, kIsBytes}, {0x2, 0x2, 0}}},
    {"DEQUANTIZE_WEIGHT", Opcode::DEQUANTIZE_WEIGHT, 1, 2, false, 0x2,
     {{0x1, 0x2, 0}, {0x1, 0x2, kIsBytes}, {0x1, 0x2, kIsBytes}}},
    {"GMM_FP8", Opcode::GMM_FP8, 1, 3, false, 0x4,
     {{0x1, 0x1, 0}, {0x1, 0x2, kIsBytes}, {0x8, 0x1, kIsCutByBody | kIsBytes}, {0x108, 0x3, kMayBeBytes},
      {0x100, 0x1, kIsCutByBody | kIsBytes}, {0x100, 0x2, kIsBytes}}},
    {"RMS_NORM", Opcode::RMS_NORM, 1, 3, false, 0x7, {{0x1, 0x2, 0}, {0x1, 0x2, 0}, {0x1, 0x2, kMayBeNumber}}},
    {"RMS_NORM_GRAD", Opcode::RMS_NORM_GRAD, 1, 4, false, 0x7,
     {{0x1, 0x2, 0}, {0x1, 0x2, 0}, {0x1, 0x2, 0}, {0x1, 0x2, kMayBeNumber}}},
};

inline const OpRule* find_rule(int32_t opcode) {
  for (const OpRule& rule : kRules)
    if (static_cast<int32_t>(rule.opcode) == opcode) return &rule;
  return nullptr;
}

// Inputs of an elementwise function, by its code; 0 where there is none.
constexpr int num_map_inputs(int32_t code) {
  switch (code) {
    case 0: case 1: case 2: case 3: case 4: case 5: case 6: case 7: case 8: case 9: case 10: case 11: case 12: case 13:
    case 14: case 15: case 16: case 17: case 18: case 19: return 1;
    case 32: case 33: case 34: case 35: case 36: case 37: case 38: case 39: case 40: case 41: case 42: case 43: case 44:
    case 45: case 46: return 2;
    case 64: return 3;
    default: return 0;
  }
}

// Returns whether an elementwise function supports integers.
constexpr bool is_of_integers(int64_t code) {
  switch (code) {
    case 0: case 1: case 9: case 11: case 13: case 16: case 32: case 33: case 34: case 37: case 38: case 39: case 40:
    case 41: case 42: case 43: case 44: case 45: case 46: case 64: return true;
    default: return false;
  }
}

// Facts about opcodes, a bit each.
HPMOE_DEVICE constexpr bool has_bit(uint64_t facts, Opcode opcode) {
  return static_cast<uint32_t>(opcode) < 64 && (facts >> static_cast<uint32_t>(opcode) & 1);
}
// Its tasks write rows of tokens into other ranks' memory.
HPMOE_DEVICE constexpr bool is_put(Opcode opcode) { return has_bit(0x6, opcode); }
// It exchanges the rows of all ranks at once.
HPMOE_DEVICE constexpr bool is_exchange(Opcode opcode) { return has_bit(0x3000, opcode); }
// It moves weights to copies of experts, or their gradients back.
HPMOE_DEVICE constexpr bool moves_copies(Opcode opcode) { return has_bit(0x180000, opcode); }
// It only tells that rows were sent.
HPMOE_DEVICE constexpr bool is_completion_flag(Opcode opcode) { return has_bit(0x4000, opcode); }
// It moves rows or matrices between ranks, or tells of it.
HPMOE_DEVICE constexpr bool is_transfer(Opcode opcode) { return has_bit(0x187006, opcode); }
// It is about rows, or gradients, on their way back.
HPMOE_DEVICE constexpr bool is_back(Opcode opcode) { return has_bit(0x102004, opcode); }
// It sends rows back to the tokens that they are of.
HPMOE_DEVICE constexpr bool returns_rows(Opcode opcode) { return has_bit(0x2004, opcode); }
// Its tasks compute blocks of rows of a weight's gradient.
HPMOE_DEVICE constexpr bool makes_blocks(Opcode opcode) { return has_bit(0x20, opcode); }
// It takes rows of tokens to those of their experts.
HPMOE_DEVICE constexpr bool fans_out(Opcode opcode) { return has_bit(0x200000, opcode); }
// It is the start of a kernel.
HPMOE_DEVICE constexpr bool is_launch(Opcode opcode) { return has_bit(0x40000, opcode); }
// Its param[1] says whether its weight is read early.
HPMOE_DEVICE constexpr bool may_be_early(Opcode opcode) { return has_bit(0x108000000010, opcode); }
// Its param[0] is the route of the rows that came back to relays.
HPMOE_DEVICE constexpr bool sums_relayed(Opcode opcode) { return has_bit(0x4000000000, opcode); }
// Its param[0] is the code of an elementwise function.
HPMOE_DEVICE constexpr bool applies_function(Opcode opcode) { return has_bit(0x40, opcode); }

}  // namespace hpmoe
