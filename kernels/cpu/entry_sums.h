// The weighted sum of the rows that the experts returned for a token: out[t] = sum_k w[t, k] * in[t * K + k], k = 0, 1,
// ..., over the entries that are kept.
#pragma once

#include <vector>

#include "frame.h"

namespace hpmoe {

class EntrySums {
 public:
  // Takes operand numbers. A `weights` one past the last operand means no weights.
  EntrySums(const Frame& frame, int out, int entries, int weights);

  void operator()(int64_t row);

 private:
  const Frame& frame_;
  const int weights_operand_;
  const int64_t top_k_, first_, cols_;
  Writer out_;
  Reader in_;
  std::vector<float> weights_;
};

}  // namespace hpmoe
