// The weighted sum of what the experts of a token sent back: out[t] = sum_k w[t, k] * in[t * K + k], k = 0, 1, ..., over the
// entries that are kept.
#pragma once

#include <vector>

#include "frame.h"

namespace hpmoe {

class EntrySums {
 public:
  // Operands of the frame; one more than it has: no weights.
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
