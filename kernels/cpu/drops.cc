// Bodies for dropped entries: KEEP writes zeros for them, DROP_COUNTS counts them.
#include <cstring>

#include "bodies.h"

namespace hpmoe {

// Computes out[t, k] = in[t * K + k], and 0 for a dropped entry, for which no row came back.
Code keep(const Frame& frame) {
  const int64_t top_k = frame.routing->top_k(), size = element_size(frame.dtype(0));
  char* out = frame.base(0, frame.rank);
  const char* in = frame.base(1, frame.rank);
  for (int64_t i = frame.unit.start * top_k; i < (frame.unit.start + frame.unit.rows) * top_k; ++i) {
    if (frame.routing->is_kept(frame.rank, i)) {
      std::memcpy(out + i * size, in + i * size, size);
    } else {
      std::memset(out + i * size, 0, size);
    }
  }
  return Code::OK;
}

// Computes out[e] = entries of this rank that expert e had no capacity for; all shards of an expert have the same count.
Code drop_counts(const Frame& frame) {
  const Routing& routing = *frame.routing;
  auto* out = reinterpret_cast<int32_t*>(frame.base(0, frame.rank));
  const Shards& shards = routing.shards();
  for (int32_t e = 0; e < shards.num_model_experts(); ++e) out[e] = routing.dropped(frame.rank)[shards.shard_of(e, 0)];
  return Code::OK;
}

}  // namespace hpmoe
