// The steps that a rank computes from its own entries before it meets the other ranks. A launch and its simulation share
// them.
#pragma once

#include <vector>

#include "convert.h"
#include "core/abi.h"
#include "core/image.h"
#include "core/routing.h"

namespace hpmoe {

// Makes the routings of an image's routes, without entries.
inline std::vector<Routing> make_routings(const Image& image) {
  std::vector<Routing> out;
  out.reserve(image.header->num_routes);  // a route to ranks keeps the address of its experts' routing
  for (int32_t i = 0; i < image.header->num_routes; ++i) {
    const Route& route = image.routes[i];
    out.emplace_back(image, route, route.of >= 0 ? &out[route.of] : nullptr);
  }
  for (int32_t i = 0; i < image.header->num_routes; ++i)
    if (image.routes[i].over >= 0) out[i].set_relays(&out[image.routes[i].over]);
  return out;
}

// Sorts a rank's entries by expert, drops entries over capacity and divides the rest among replicas.
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
    std::vector<float> given(mine.num_tokens * routing.shards().num_choices());
    const auto dtype = static_cast<Dtype>(image.buffers[route.weights_buffer].dtype);
    to_float32(dtype, mine.buffers[route.weights_buffer], given.size(), given.data());
    weights = routing.of_entries(std::move(given));
  }
  const Code dropped = routing.drop_entries(rank, weights.data(), mine.num_tokens, status);
  if (dropped == Code::OK) routing.divide_entries(rank);
  return dropped;
}

// Checks that the arrays of a rank hold the rows that it receives: they were allocated from counts read earlier.
inline Code check_row_capacity(const HpmoeRank& mine, int32_t route, int64_t received, Status& status) {
  if (!mine.row_capacity || received <= mine.row_capacity[route]) return Code::OK;
  status.wait = route;
  status.value = received;
  status.threshold = mine.row_capacity[route];
  return Code::NO_ROW_CAPACITY;
}

// Returns threshold = mult * extent for every event of a rank whose routing is known.
std::vector<int64_t> find_thresholds(const Image& image, const std::vector<Routing>& routings, int32_t rank,
                                     int64_t num_tokens);

}  // namespace hpmoe
