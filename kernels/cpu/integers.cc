// Elementwise bodies, sums and maxima of integers, without vectorisation: routers have only a few integers for each
// token.
#include "integers.h"

#include "bodies.h"
#include "core/integer_functions.h"

namespace hpmoe {
namespace {

// Returns the view of an operand; a number operand becomes a view whose strides are 0.
View operand_view(const Frame& frame, int i) {
  const Operand& operand = frame.op.operands[i];
  if (operand.buffer >= 0) return frame.view(i);
  return {reinterpret_cast<char*>(const_cast<float*>(&operand.value)), 0, 0, Dtype::FLOAT32};
}

}  // namespace

bool is_of_integers(const Frame& frame) {
  for (int i = 0; i < frame.op.num_operands; ++i)
    if (frame.op.operands[i].buffer >= 0 && is_integer(frame.dtype(i))) return true;
  return false;
}

Code map_integers(const Frame& frame) {
  const MapCode code = params::Elementwise::of(frame.op).function;
  const int last = frame.op.num_operands - 1;
  const View out = frame.view(0), a = operand_view(frame, 1), b = operand_view(frame, std::min(2, last)),
             c = operand_view(frame, std::min(3, last));
  const bool truncates = code == MapCode::COPY && is_float(a.dtype) && out.dtype == Dtype::INT32;
  for (int64_t row = 0; row < frame.unit.rows; ++row) {
    for (int64_t col = 0; col < frame.task.cols; ++col) {
      int64_t value;
      if (!apply(code, load_integer(a, row, col), load_integer(b, row, col), load_integer(c, row, col), value))
        return Code::BAD_IMAGE;
      if (truncates && value != static_cast<int32_t>(value)) value = std::numeric_limits<int32_t>::min();
      store_integer(out, row, col, value);
    }
  }
  return Code::OK;
}

Code col_sum_integers(const Frame& frame) {
  const View out{frame.element(0, frame.unit.expert, frame.first_col(0)), 0, 1, frame.dtype(0)};
  const View x{frame.element(1, frame.unit.start, frame.first_col(1)), frame.buffer(1).cols, 1, frame.dtype(1)};
  for (int64_t col = 0; col < frame.task.cols; ++col) {
    uint64_t sum = 0;
    for (int64_t row = 0; row < frame.unit.rows; ++row) sum += load_integer(x, row, col);
    store_integer(out, 0, col, wrapped(sum));
  }
  return Code::OK;
}

}  // namespace hpmoe
