// What a rank computes about its own entries before it meets the others: the same for a launch and for its simulation.
#pragma once

#include <vector>

#include "abi.h"
#include "convert.h"
#include "image.h"
#include "routing.h"

namespace hpmoe {

// Sorts a rank's entries by expert, drops those over capacity and divides the rest among copies.
inline Code sort_and_drop(const Image& image, const HpmoeRank& mine, const Route& route, int32_t rank, Routing& routing,
                          Status& status) {
  if (routing.experts()) {
    routing.sort_once(rank, mine.num_tokens);
    return Code::OK;
  }
  const auto* ids = static_cast<const int32_t*>(mine.buffers[route.ids_buffer]);
  const Code code = routing.sort_entries(rank, ids, mine.num_tokens, status);
  if (code != Code::OK) return code;
  std::vector<float> weights;
  if (static_cast<DropPolicy>(route.drop_policy) == DropPolicy::PROBS) {
    weights.resize(mine.num_tokens * route.top_k);
    const auto dtype = static_cast<Dtype>(image.buffers[route.weights_buffer].dtype);
    to_float32(dtype, mine.buffers[route.weights_buffer], weights.size(), weights.data());
  }
  const Code dropped = routing.drop_entries(rank, weights.data(), mine.num_tokens, status);
  if (dropped == Code::OK) routing.divide_entries(rank);
  return dropped;
}

}  // namespace hpmoe
