// What each opcode asks of its op: domain, operands and their modes.
#pragma once

#include "protocol.h"

namespace hpmoe {

// Which modes an operand may have, a bit a mode; `rows` 0 ends an opcode's list.
struct OperandRule {
  int rows, cols;
};

struct OpRule {
  Opcode opcode;
  int num_outputs, min_operands;
  bool needs_route;
  int domains;
  OperandRule operands[kMaxOperands];
};

template <class... Modes>
constexpr int any_of(Modes... modes) {
  return (... | (1 << static_cast<int>(modes)));
}

constexpr int kOwnRows = any_of(Rows::OWN), kOwnCols = any_of(Cols::OWN), kAllCols = any_of(Cols::ALL);
constexpr int kOneCol = any_of(Cols::ALL, Cols::ONE), kAnyRows = 0x7FF, kAnyCols = 0x7;
constexpr int kTokenSide = any_of(Rows::ENTRIES, Rows::TOKENS), kEntries = any_of(Rows::ENTRIES);
constexpr int kOfExpert = any_of(Rows::EXPERT, Rows::ALL), kPeer = any_of(Rows::PEER);
constexpr int kWeight = any_of(Rows::SLOT_EXPERT, Rows::ONE, Rows::ALL);
constexpr int kSpread = any_of(Rows::OWN, Rows::ONE, Rows::SLOT_EXPERT);
constexpr int kOnce = any_of(Domain::ONCE), kTiles = any_of(Domain::TILES), kSlots = any_of(Domain::SLOTS);
constexpr int kExperts = any_of(Domain::EXPERTS), kCopies = any_of(Domain::ONCE, Domain::COPIES),
              kRowDomains = kOnce | kTiles | kSlots;
constexpr OperandRule kOwn{kOwnRows, kOwnCols}, kOwnAll{kOwnRows, kAllCols},
    kInput{kSpread, any_of(Cols::OWN, Cols::ONE)};
constexpr OperandRule kAnyOwn{kAnyRows, kOwnCols}, kAdded{any_of(Rows::OWN, Rows::RETURNED), kOwnCols};
constexpr OperandRule kReplica{any_of(Rows::REPLICA), kOwnCols}, kReplicas{any_of(Rows::REPLICA), kAllCols};
constexpr int kFan = any_of(Rows::FAN);
constexpr OperandRule kColumns{kOwnRows, any_of(Cols::OWN, Cols::ALL)}, kOneOut{kOwnRows, kOneCol};

constexpr OpRule kRules[] = {
    {Opcode::PUT, 1, 2, true, kSlots, {{kPeer, kColumns.cols}, {kTokenSide, kColumns.cols}}},
    {Opcode::PUT_BACK, 1, 2, true, kSlots, {{kEntries, kColumns.cols}, kColumns}},
    {Opcode::REDUCE, 1, 2, true, kTiles, {kColumns, {kEntries, kColumns.cols}, kOwnAll}},
    {Opcode::GMM, 1, 3, false, kRowDomains, {kOwn, kOwnAll, {kWeight, kOwnCols}, kReplica}},
    {Opcode::WGRAD, 1, 3, false, kExperts, {kAnyOwn, {kOfExpert, kAnyCols}, {kOfExpert, kOwnCols}, kAdded, kAdded}},
    {Opcode::MAP, 1, 2, false, kRowDomains, {kOwn, kInput, kInput, kInput}},
    {Opcode::SWIGLU, 1, 3, false, kRowDomains, {kOwn, kOwn, kOwn}},
    {Opcode::SWIGLU_GRAD, 2, 5, false, kRowDomains, {kOwn, kOwn, kOwn, kOwn, kOwn}},
    {Opcode::ROW_REDUCE, 1, 2, false, kRowDomains, {kOneOut, kOwnAll}},
    {Opcode::ROW_DOT, 1, 3, false, kRowDomains, {kOneOut, kOwnAll, kOwnAll}},
    {Opcode::COL_SUM, 1, 2, false, kExperts, {{kAnyRows, kOwnCols}, {kOfExpert, kOwnCols}}},
    {Opcode::ALL_TO_ALL, 1, 2, true, kOnce, {{kPeer, kAllCols}, {kTokenSide, kAllCols}}},
    {Opcode::ALL_TO_ALL_BACK, 1, 2, true, kOnce, {{kEntries, kAllCols}, {kAnyRows, kAllCols}}},
    {Opcode::NOTIFY, 0, 0, true, kOnce, {}},
    {Opcode::KEEP, 1, 2, true, kTiles, {kOwnAll, {kEntries, kAllCols}}},
    {Opcode::DROP_COUNTS, 1, 1, true, kOnce, {kOwnAll}},
    {Opcode::REPLICATE, 1, 2, true, kCopies, {kReplicas, {any_of(Rows::ALL), kAllCols}}},
    {Opcode::RETURN_GRADS, 1, 2, true, kCopies, {{any_of(Rows::RETURNED), kAllCols}, kReplicas}},
    {Opcode::FAN_OUT, 1, 2, true, kSlots, {{kFan, kOwnCols}, kOwn}},
    {Opcode::FAN_IN, 1, 2, true, kSlots, {kOwn, {kFan, kOwnCols}, {kFan, kAllCols}}},
    {Opcode::LAUNCH, 0, 0, false, kOnce, {}},
    {Opcode::GATHER, 1, 3, false, kOnce | kTiles, {kOwnAll, {any_of(Rows::ALL), kAllCols}, {kOwnRows, kOneCol}}},
};

inline const OpRule* find_rule(int32_t opcode) {
  for (const OpRule& rule : kRules)
    if (static_cast<int32_t>(rule.opcode) == opcode) return &rule;
  return nullptr;
}

inline int num_map_inputs(int32_t code) {
  switch (static_cast<MapCode>(code)) {
#define HPMOE_CASE(name, value) \
  case MapCode::name: return value < 32 || value == 65 ? 1 : value < 64 ? 2 : 3;
    HPMOE_MAP_CODE(HPMOE_CASE)
#undef HPMOE_CASE
  }
  return 0;
}

}  // namespace hpmoe
