// The sum of a relay: out[r] = sum_k w[r, k] * in[r * K + k], k = 0, 1, ..., over the rows that came back for received
// row r.
#include <algorithm>
#include <vector>

#include "bodies.h"
#include "lanes.h"

namespace hpmoe {

Code relay_sum(const Frame& frame) {
  const Routing& routing = *frame.routing;
  const Route& passed_on = frame.image.routes[params::Relayed::of(frame.op).route];
  const int64_t top_k = passed_on.top_k, cols = frame.num_cols(0);
  Writer out({frame.element(0, 0, frame.first_col(0)), frame.buffer(0).cols, 1, frame.dtype(0)});
  Reader in({frame.element(1, 0, frame.first_col(1)), frame.buffer(1).cols, 1, frame.dtype(1)});
  std::vector<float> weights(top_k, 1.0f);
  std::vector<int64_t> kept;
  for (int32_t source = 0; source < frame.place().ep_size(); ++source) {
    const Segment part = routing.segment_in_slot(source, frame.rank, routing.slot(frame.rank, frame.task.row));
    for (int64_t i = 0; i < part.rows; ++i) {
      const int64_t row = part.first_row + i;
      const auto first = static_cast<int32_t>(routing.entries_of(part)[i] / routing.top_k() * top_k);
      kept.clear();
      for (int32_t k = 0; k < top_k; ++k)
        if (routing.comes_back(source, frame.rank, first + k)) kept.push_back(k);
      if (frame.op.num_operands > 2) to_float32(frame.dtype(2), frame.element(2, row, 0), top_k, weights.data());
      for_each_chunk(1, cols, [&](int64_t, int64_t col, int64_t n) {
        float* const sum = out.chunk(row, col);
        std::fill_n(sum, n, 0.0f);
        for (const int64_t k : kept) add_scaled(n, weights[k], in.chunk(row * top_k + k, col, n), sum);
        out.store(row, col, n);
      });
    }
  }
  return Code::OK;
}

}  // namespace hpmoe
