#include "core/check_quantized.h"

#include "core/check_routes.h"
#include "core/decode.h"
#include "core/row_format.h"

namespace hpmoe {
namespace {

class QuantizedChecker {
 public:
  QuantizedChecker(const Image& image, const Op& op) : image_(image), op_(op) {}

  const char* check() const {
    switch (opcode_of(op_)) {
      case Opcode::GMM_INT8:
      case Opcode::GMM_FP8:
      case Opcode::GMM_WIDENED: return check_gmm();
      case Opcode::RESCALE: return check_rescale();
      case Opcode::QUANTIZE_WEIGHT: return check_weight();
      case Opcode::WIDEN_WEIGHT: return check_widened();
      case Opcode::QUANTIZE: return check_rows(0, 1);
      default: return check_rows(1, 0);
    }
  }

 private:
  const Buffer& buffer(int i) const { return image_.buffers[op_.operands[i].buffer]; }

  int64_t width(int i) const { return buffer(i).cols - op_.operands[i].offset; }

  bool is_bytes(int i) const { return buffer(i).dtype == static_cast<int32_t>(Dtype::UINT8); }

  // Of a product, where it is known.
  RowFormat weight_format() const {
    switch (opcode_of(op_)) {
      case Opcode::GMM_INT8: return kInt8Rows;
      case Opcode::GMM_FP8: return fp8_format_of(op_.param);
      default: return row_format_of(op_.param + 1);
    }
  }

  const char* check_gmm() const {
    if (!in_range(op_.param[0], 2)) return "a GMM's weight is neither as it is nor turned";
    const bool is_int8 = opcode_of(op_) == Opcode::GMM_INT8, is_fp8 = opcode_of(op_) == Opcode::GMM_FP8;
    const bool is_known = is_int8 || (is_fp8 ? op_.param[2] >= 0 : is_row_format(op_.param + 1));
    if (!is_known) return "a GMM's weight has elements of an unknown kind";
    const Buffer& weight = buffer(2);
    if (op_.route < 0 || weight.rows_per_expert == 0) return "a GMM over experts has a weight without experts";
    const RowFormat format = weight_format();
    const int64_t num_k = is_int8 || is_fp8 ? unpacked_cols(format, width(1)) : width(1);
    if (is_fp8 && num_k < 1) return "a GMM has quantised rows of other bytes than their format";
    if (is_int8 && (num_k < 1 || num_k > kMostInt8Terms)) return "a GMM sums more products than an int32 holds";
    if ((op_.param[0] == 1 ? weight.cols : weight.rows_per_expert) != num_k) return "a GMM's inner sizes differ";
    const int32_t copies = first_copy();
    if (copies < op_.num_operands && !has_copies_like(format.block == 0 ? 1 : 2))
      return "a GMM's copies are not like its weights";
    if (format.block > 0) return check_block_scales();
    if (is_fp8 && copies > 3) return "a GMM of fp8 takes scales of columns";
    return copies > 3 ? check_scales() : nullptr;
  }

  // The first operand of copies, or as many as there are operands.
  int32_t first_copy() const {
    for (int i = 3; i < op_.num_operands; ++i)
      if (static_cast<Rows>(op_.operands[i].rows) == Rows::REPLICA) return i;
    return op_.num_operands;
  }

  // Whether the last `num` operands, and they alone, are of copies, each like an operand from the third on.
  bool has_copies_like(int32_t num) const {
    const int32_t first = first_copy();
    if (op_.num_operands - first != num || first - 2 < num || first > 4) return false;
    for (int i = 0; i < num; ++i) {
      const Buffer &own = buffer(2 + i), &copies = buffer(first + i);
      if (static_cast<Rows>(op_.operands[first + i].rows) != Rows::REPLICA || copies.cols != own.cols ||
          copies.rows_per_expert != own.rows_per_expert || copies.dtype != own.dtype ||
          op_.operands[first + i].offset != op_.operands[2 + i].offset)
        return false;
    }
    return true;
  }

  // Of the elements of a weight, in rows like its own.
  const char* check_block_scales() const {
    if (op_.num_operands <= 3) return "a GMM's weight has other scales than its blocks";
    const Buffer &weight = buffer(2), &scales = buffer(3);
    const RowFormat format = weight_format();
    const bool fits = is_bytes(3) && format.scale == BlockScale::E8M0 &&
                      scales.cols == packed_cols(format, weight.cols) - weight.cols &&
                      scales.rows_per_expert == weight.rows_per_expert && op_.operands[3].offset == 0;
    return fits ? nullptr : "a GMM's weight has other scales than its blocks";
  }

  const char* check_rescale() const {
    if (width(2) < packed_cols(kInt8Rows, 1)) return "a RESCALE's rows have no scale";
    const auto sums = static_cast<Dtype>(buffer(1).dtype);
    if (sums != Dtype::INT32 && sums != Dtype::FLOAT32) return "a RESCALE's sums are neither int32 nor float32";
    return op_.num_operands > 3 ? check_scales() : nullptr;
  }

  const char* check_scales() const {
    const bool is_column = buffer(3).rows_per_expert == 0 && !is_bytes(3);
    return is_column ? nullptr : "an op takes one scale a column of an expert, not a matrix";
  }

  const char* check_weight() const {
    const Buffer &scales = buffer(0), &codes = buffer(1), &given = buffer(2);
    if (!is_row_format(op_.param)) return "a QUANTIZE_WEIGHT makes elements of an unknown kind";
    const RowFormat format = row_format_of(op_.param);
    const bool fits = op_.param[3] > 0 && op_.num_rows % op_.param[3] == 0 &&
                      is_bytes(0) == (format.scale == BlockScale::E8M0) &&
                      scales.cols == (packed_cols(format, codes.cols) - codes.cols) / scale_bytes(format) &&
                      codes.cols == given.cols && given.rows >= op_.num_rows && op_.operands[0].offset == 0 &&
                      op_.operands[1].offset == 0 && op_.operands[2].offset == 0;
    return fits ? nullptr : "a QUANTIZE_WEIGHT's rows are not the columns of matrices";
  }

  const char* check_widened() const {
    const Buffer &out = buffer(0), &codes = buffer(1);
    if (!is_row_format(op_.param)) return "a WIDEN_WEIGHT takes elements of an unknown kind";
    const RowFormat format = row_format_of(op_.param);
    const bool has_blocks = format.block > 0;
    bool fits = op_.num_operands == 2 + has_blocks && out.cols == codes.cols && codes.rows >= op_.num_rows;
    for (int i = 0; i < op_.num_operands; ++i) fits = fits && op_.operands[i].offset == 0;
    if (fits && has_blocks)
      fits = format.scale == BlockScale::E8M0 && buffer(2).rows >= op_.num_rows &&
             buffer(2).cols == packed_cols(format, codes.cols) - codes.cols;
    return fits ? nullptr : "a WIDEN_WEIGHT's weight has other sizes, or other scales than its blocks";
  }

  const char* check_rows(int packed, int plain) const {
    if (!is_row_format(op_.param)) return "an op has quantised rows of an unknown format";
    return buffer(packed).cols == packed_cols(row_format_of(op_.param), buffer(plain).cols)
               ? nullptr
               : "an op has quantised rows of other bytes than their format";
  }

  const Image& image_;
  const Op& op_;
};

}  // namespace

const char* check_quantized(const Image& image, const Op& op) { return QuantizedChecker(image, op).check(); }

}  // namespace hpmoe
