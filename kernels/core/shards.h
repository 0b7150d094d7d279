// Experts in shards: a token's choices, and its entries, one for each shard of an expert that it chooses. See Route of
// generated/structs.h.
#pragma once

#include "core/generated/rules.h"
#include "core/generated/structs.h"

namespace hpmoe {

struct Shards {
  int32_t num_own, num_experts, top_k, tp_size;

  HPMOE_DEVICE inline int32_t num_choices() const { return top_k / tp_size; }
  HPMOE_DEVICE inline int32_t num_model_experts() const { return num_experts / tp_size; }
  HPMOE_DEVICE inline bool is_model_expert(int32_t id) const { return id >= 0 && id < num_model_experts(); }
  // Which of the choices of all tokens an entry is of.
  HPMOE_DEVICE inline int32_t choice_of(int32_t entry) const {
    return entry / top_k * num_choices() + entry % top_k % num_choices();
  }
  // The shard that an entry is for, of an expert of the model; one past all where there is no such expert.
  HPMOE_DEVICE inline int32_t shard_of(int32_t expert, int32_t entry) const {
    if (expert == kAbsent) return kAbsent;
    if (!is_model_expert(expert)) return num_experts;
    return expert + (expert / num_own * (tp_size - 1) + entry % top_k / num_choices()) * num_own;
  }
  // The expert of the model that a shard is of.
  HPMOE_DEVICE inline int32_t expert_of(int32_t shard) const {
    return shard / num_own / tp_size * num_own + shard % num_own;
  }
};

template <class Route>
HPMOE_DEVICE inline Shards shards_of(const Route& route, int32_t ep_size) {
  return {route.num_experts / ep_size, route.num_experts, route.top_k, route.tp_size};
}

}  // namespace hpmoe
