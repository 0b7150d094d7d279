// Sizes of an op of an image. Its functions are those of Shapes in hpmoe/tile_ops/shapes.py; generated/shapes.h calls
// them.
#pragma once

#include <cstdint>

#include "core/check_routes.h"
#include "core/dtypes.h"

namespace hpmoe {

template <class... Opcodes>
constexpr bool is_one_of(Opcode opcode, Opcodes... opcodes) {
  return ((opcode == opcodes) || ...);
}

class Shapes {
 public:
  Shapes(const Image& image, const Op& op) : image_(image), op_(op), route_(find_route(image, op.route)) {}

  int64_t param(int i) const { return op_.param[i]; }

  bool has(int i) const { return i < op_.num_operands; }
  bool is_number(int i) const { return has(i) && op_.operands[i].buffer < 0; }
  int64_t cols(int i) const { return buffer(i).cols; }
  int64_t offset(int i) const { return has(i) ? op_.operands[i].offset : 0; }
  int64_t width(int i) const { return cols(i) - offset(i); }
  int64_t rows(int i) const { return buffer(i).rows; }
  int64_t height(int i) const { return buffer(i).rows_per_expert; }
  bool has_capacity(int i, int64_t rows) const { return buffer(i).rows == 0 || buffer(i).rows >= rows; }
  bool has_rows(int i, int64_t rows) const { return buffer(i).rows == rows; }
  bool is_integer(int i) const { return has_buffer(i) && hpmoe::is_integer(dtype(i)); }
  bool is_int32(int i) const { return has_buffer(i) && dtype(i) == Dtype::INT32; }
  bool is_float32(int i) const { return has_buffer(i) && dtype(i) == Dtype::FLOAT32; }
  bool is_bytes(int i) const { return has_buffer(i) && dtype(i) == Dtype::UINT8; }
  bool same_dtype(int i, int j) const { return dtype(i) == dtype(j); }
  bool rows_are(int i, Rows mode) const { return has(i) && static_cast<Rows>(op_.operands[i].rows) == mode; }
  bool cols_are(int i, Cols mode) const { return has(i) && static_cast<Cols>(op_.operands[i].cols) == mode; }
  bool same_cols(int i, int j) const { return has(i) && has(j) && op_.operands[i].cols == op_.operands[j].cols; }

  int64_t own_cols() const { return op_.cols; }
  int64_t num_rows() const { return op_.num_rows; }
  int64_t blocks() const { return op_.blocks; }
  bool is_clipped() const { return op_.clipped != 0; }
  int64_t summed_rows() const { return params::Summed::of(op_).rows; }
  int64_t first_expert() const { return params::Summed::of(op_).first_expert; }
  bool takes_integers() const { return is_of_integers(op_.param[0]); }

  bool has_route() const { return route_; }
  int64_t own_route() const { return op_.route; }
  bool is_of_tokens() const { return route_ && route_->of >= 0; }
  bool has_relays(int64_t route) const {
    return in_range(route, image_.header->num_routes) && image_.routes[route].over >= 0;
  }
  bool relays_are_own(int64_t route) const { return has_relays(route) && image_.routes[route].over == op_.route; }
  int64_t top_k_of(int64_t route) const {
    return in_range(route, image_.header->num_routes) ? image_.routes[route].top_k : 0;
  }
  int64_t top_k() const { return route_ ? route_->top_k : 0; }
  int64_t num_tokens() const { return route_ ? route_->num_tokens : 0; }
  int64_t max_rows() const { return route_ ? max_rows_of(*route_, image_.header->tile_rows) : 0; }
  int64_t alignment() const { return route_ ? route_->alignment : 1; }
  int64_t num_model_experts() const { return route_ ? route_->num_experts / route_->tp_size : 0; }
  int64_t num_local_experts() const { return route_ ? route_->num_local_experts : 0; }
  int64_t num_own_experts() const { return route_ ? num_own(image_, *route_) : 0; }
  bool has_copies() const { return route_ && image_.shares_of(*route_); }
  int64_t most_copies() const { return route_ ? hpmoe::most_copies(image_, *route_) : 0; }

 private:
  bool has_buffer(int i) const { return has(i) && op_.operands[i].buffer >= 0; }
  Dtype dtype(int i) const { return static_cast<Dtype>(buffer(i).dtype); }
  const Buffer& buffer(int i) const {
    static constexpr Buffer kNone{};
    return has_buffer(i) ? image_.buffers[op_.operands[i].buffer] : kNone;
  }

  const Image& image_;
  const Op& op_;
  const Route* route_;
};

}  // namespace hpmoe
