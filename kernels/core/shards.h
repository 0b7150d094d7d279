// Experts in shards: maps a token's choices to its entries, one for each shard of a chosen expert. Route in
// generated/structs.h describes the fields.
#pragma once

#include "core/generated/rules.h"
#include "core/generated/structs.h"

namespace hpmoe {

struct Shards {
  int32_t num_own, num_experts, top_k, tp_size;

  HPMOE_DEVICE inline int32_t num_choices() const { return top_k / tp_size; }
  HPMOE_DEVICE inline int32_t num_model_experts() const { return num_experts / tp_size; }
  HPMOE_DEVICE inline bool is_model_expert(int32_t id) const { return id >= 0 && id < num_model_experts(); }
  // Returns the choice of an entry, among the choices of all tokens.
  HPMOE_DEVICE inline int32_t choice_of(int32_t entry) const {
    return entry / top_k * num_choices() + entry % top_k % num_choices();
  }
  // Returns the shard of an expert that an entry is for; one past all shards for no expert.
  HPMOE_DEVICE inline int32_t shard_of(int32_t expert, int32_t entry) const {
    if (expert == kAbsent) return kAbsent;
    if (!is_model_expert(expert)) return num_experts;
    return expert + (expert / num_own * (tp_size - 1) + entry % top_k / num_choices()) * num_own;
  }
  // Returns the expert of a shard.
  HPMOE_DEVICE inline int32_t expert_of(int32_t shard) const {
    return shard / num_own / tp_size * num_own + shard % num_own;
  }
};

template <class Route>
HPMOE_DEVICE inline Shards shards_of(const Route& route, int32_t ep_size) {
  return {route.num_experts / ep_size, route.num_experts, route.top_k, route.tp_size};
}

}  // namespace hpmoe
