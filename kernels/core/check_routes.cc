#include "core/check_routes.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/dtypes.h"

namespace hpmoe {
namespace {

// The owner's share of an expert begins at 0, each replica's share begins at the end of the previous one, and the last
// one ends at 1.
bool are_shares_ok(const Route& r, const Share* shares, int32_t own) {
  std::vector<int32_t> taken(r.num_experts);
  const auto takes = [&](const Share& share) {
    const bool follows = share.low == taken[share.expert] && share.high >= share.low && share.high <= kWhole;
    taken[share.expert] = share.high;
    return follows;
  };
  for (int32_t e = 0; e < r.num_experts; ++e) {
    const Share& share = shares[e / own * r.num_local_experts + e % own];
    if (share.expert != e || !takes(share)) return false;
  }
  for (int32_t p = 0; p < r.num_experts / own * r.num_local_experts; ++p) {
    const Share& share = shares[p];
    if (p % r.num_local_experts < own || share.expert == -1) continue;
    if (!in_range(share.expert, r.num_experts) || !takes(share)) return false;
  }
  return std::all_of(taken.begin(), taken.end(), [](int32_t high) { return high == kWhole; });
}

// Each rank owns equally many experts; its other local experts are replica slots.
bool are_experts_ok(const Image& image, const Route& r) {
  const Header& h = *image.header;
  const int64_t physical = int64_t{r.num_local_experts} * h.ep_size;
  if (r.num_experts < h.ep_size || r.num_experts % h.ep_size != 0 || physical < r.num_experts || physical > INT32_MAX)
    return false;
  if (physical == r.num_experts) return true;
  if (r.first_share < 0 || r.first_share + physical > h.num_shares) return false;
  return are_shares_ok(r, image.shares_of(r), r.num_experts / h.ep_size);
}

bool is_capacity_ok(const Image& image, const Route& r) {
  if (r.drop_policy == int32_t(DropPolicy::NONE)) return true;
  if (!in_range(r.drop_policy, kNumDropPolicy) || !(r.capacity_factor > 0 && std::isfinite(r.capacity_factor))) return false;
  if (r.drop_policy != int32_t(DropPolicy::PROBS)) return true;
  if (!in_range(r.weights_buffer, image.header->num_buffers)) return false;
  const Buffer& weights = image.buffers[r.weights_buffer];
  return weights.cols == r.top_k / r.tp_size && is_float(static_cast<Dtype>(weights.dtype)) &&
         (weights.rows == 0 || weights.rows >= r.num_tokens);
}

// Checks the stops of a route to ranks or relays: an earlier route takes its tokens to their experts.
bool are_stops_ok(const Image& image, const Route& r) {
  if (r.of == -1) return r.first_stop == -1;
  const int64_t words = int64_t{image.header->ep_size} * image.header->ep_size;
  if (!in_range(r.of, static_cast<int32_t>(&r - image.routes)) || r.first_stop < 0 ||
      r.first_stop + words > image.header->num_stops)
    return false;
  const int32_t* const table = image.stops + r.first_stop;
  if (!std::all_of(table, table + words, [&](int32_t rank) { return in_range(rank, image.header->ep_size); })) return false;
  const Route& of = image.routes[r.of];
  return of.of == -1 && r.alignment == 1 && r.num_experts == image.header->ep_size && r.num_local_experts == 1 &&
         r.top_k == of.top_k && r.tp_size == of.tp_size && r.num_tokens == of.num_tokens && r.ids_buffer == of.ids_buffer &&
         r.drop_policy == int32_t(DropPolicy::NONE);
}

// A route that forwards rows takes tokens to the same experts, forwards only rows of this route, and rows with the same
// stop at a rank have the same relay.
bool is_over_ok(const Image& image, const Route& r) {
  if (r.over == -1) return true;
  if (!in_range(r.over, image.header->num_routes) || &r == &image.routes[r.over] || image.routes[r.over].of == -1)
    return false;
  const auto index = static_cast<int32_t>(&r - image.routes), ep_size = image.header->ep_size;
  const Route& over = image.routes[r.over];
  if (over.of != (r.of >= 0 ? r.of : index) || !are_stops_ok(image, r) || !are_stops_ok(image, over)) return false;
  for (int32_t i = 0; i < index; ++i)
    if (image.routes[i].over == r.over) return false;
  const Stops before = image.stops_of(over), stops = image.stops_of(r);
  for (int32_t source = 0; source < ep_size; ++source)
    for (int32_t dest = 0; dest < ep_size; ++dest)
      if (before(source, stops(source, dest)) != before(source, dest)) return false;
  return true;
}

}  // namespace

bool is_route_ok(const Image& image, const Route& r) {
  const Header& h = *image.header;
  if (!in_range(r.ids_buffer, h.num_buffers) || r.num_local_experts < 1 || r.num_slots < 0 || r.num_tokens < 0) return false;
  const Buffer& ids = image.buffers[r.ids_buffer];
  const int64_t entries = int64_t{r.num_tokens} * r.top_k;
  if (r.tp_size < 1 || r.top_k % r.tp_size != 0 || h.ep_size % r.tp_size != 0) return false;
  const bool is_of_ids = r.of >= 0 || ids.cols == r.top_k / r.tp_size;
  return are_experts_ok(image, r) && r.top_k >= 1 && is_of_ids && ids.dtype == int32_t(Dtype::INT32) &&
         (ids.rows == 0 || ids.rows >= r.num_tokens) && r.max_rows >= 0 && is_capacity_ok(image, r) && r.alignment >= 1 &&
         r.return_tokens >= 1 && r.return_tokens % h.tile_rows == 0 && are_stops_ok(image, r) && is_over_ok(image, r) &&
         entries <= INT32_MAX / h.ep_size &&
         r.num_slots <= std::max(max_rows_of(r, h.tile_rows), entries * h.ep_size) + r.num_local_experts &&
         max_rows_of(r, h.tile_rows) <= INT32_MAX;
}

int64_t most_copies(const Image& image, const Route& route) {
  const Share* shares = image.shares_of(route);
  const int64_t own = num_own(image, route);
  std::vector<int64_t> copies(image.header->ep_size);
  for (int32_t p = 0; shares && p < image.header->ep_size * route.num_local_experts; ++p) {
    if (p % route.num_local_experts >= own && shares[p].expert >= 0) ++copies[shares[p].expert / own];
  }
  return *std::max_element(copies.begin(), copies.end());
}

}  // namespace hpmoe
