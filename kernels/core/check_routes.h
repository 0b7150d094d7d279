// The check of routes, and of what moves the weights of the copies that they know of.
#pragma once

#include <cstdint>

#include "core/image.h"

namespace hpmoe {

inline bool in_range(int64_t value, int64_t size) { return value >= 0 && value < size; }

// Experts that each rank owns.
inline int64_t num_own(const Image& image, const Route& route) { return route.num_experts / image.header->ep_size; }

// The route with this index, or NULL.
inline const Route* find_route(const Image& image, int32_t index) {
  return in_range(index, image.header->num_routes) ? &image.routes[index] : nullptr;
}

bool is_route_ok(const Image& image, const Route& route);

// The most copies that there are of the experts of one rank.
int64_t most_copies(const Image& image, const Route& route);

// What is wrong with an op that moves matrices to copies or back, or NULL.
const char* check_copies(const Image& image, const Op& op);

// What is wrong with operand i of a WGRAD, an array that its output begins with, or NULL: a float32 array like its output,
// or what came back from copies. num_k: rows of a matrix.
const char* check_added(const Image& image, const Op& op, int i, int64_t num_k);

}  // namespace hpmoe
