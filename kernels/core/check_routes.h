// Checks routes.
#pragma once

#include <cstdint>

#include "core/image.h"

namespace hpmoe {

inline bool in_range(int64_t value, int64_t size) { return value >= 0 && value < size; }

// Number of experts that each rank owns.
inline int64_t num_own(const Image& image, const Route& route) { return route.num_experts / image.header->ep_size; }

// Returns the route with this index, or NULL.
inline const Route* find_route(const Image& image, int32_t index) {
  return in_range(index, image.header->num_routes) ? &image.routes[index] : nullptr;
}

bool is_route_ok(const Image& image, const Route& route);

// Returns the largest number of replicas of one rank's experts.
int64_t most_copies(const Image& image, const Route& route);

}  // namespace hpmoe
