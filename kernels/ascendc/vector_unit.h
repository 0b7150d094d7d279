// The vector core: pieces of rows from global memory as float32 in UB, and back in their stored dtype.
//
// UB has two input buffers of three pieces (48 KB) and three output buffers of one (24 KB), so that loads, computation
// and stores overlap; five float32 pieces (80 KB); two buffers of 14 KB for rows that only pass through; entries and
// signals (3 KB). A piece is 8 KB in its stored dtype: 4096 elements, or 2048 if an operand is float32.
//
// The scalar unit waits for a pipe only before it reads the pipe's result. It is therefore ahead of all pipes, and loads
// of the next task overlap stores of the last one.
#pragma once

#include "frame.h"
#include "in_order.h"
#include "ring.h"

namespace hpmoe {

constexpr int32_t kPieceBytes = 8 * 1024, kPieceFloats = kPieceBytes / 2, kMaxInputs = 3, kNumOutputs = 3, kNumFloats = 5;
constexpr int32_t kPassBytes = 14 * 1024, kMaxEntries = 256, kEntryWords = 640, kLane = 16, kBlockBytes = 32;
constexpr int32_t kFloatsAtOnce = 64;  // in a step of the vector unit

using Floats = AscendC::LocalTensor<float>;
using Bytes = AscendC::LocalTensor<uint8_t>;

// num_rows x num_cols elements of an operand from (row, col) on; rows are `pitch` elements apart in UB.
struct Piece {
  int32_t row, col, num_rows, num_cols, pitch;

  __aicore__ inline int32_t count() const { return num_rows * pitch; }
};

class VectorUnit {
 public:
  static constexpr bool kLooksAhead = false;

  AscendC::TQue<AscendC::TPosition::VECIN, 2> inputs;
  AscendC::TQue<AscendC::TPosition::VECOUT, kNumOutputs> outputs;
  AscendC::TQueBind<AscendC::TPosition::VECIN, AscendC::TPosition::VECOUT, 2> passing;

  __aicore__ inline void init(AscendC::TPipe* pipe) {
    pipe->InitBuffer(inputs, 2, kMaxInputs * kPieceBytes);
    pipe->InitBuffer(outputs, kNumOutputs, kPieceBytes);
    pipe->InitBuffer(floats_, kNumFloats * kPieceFloats * sizeof(float));
    pipe->InitBuffer(passing, 2, kPassBytes);
    pipe->InitBuffer(entries_, kEntryWords * sizeof(int32_t));
    pipe->InitBuffer(signal_, kNumSignals * kBlockBytes);
    pipe->InitBuffer(mask_, kPieceFloats / 8);
    signals_.init(pipe);
    polls_.init(pipe);
    loaded_ = pipe->AllocEventID<AscendC::HardEvent::MTE2_S>();
    for (AscendC::TEventID& arrived : arrived_) arrived = pipe->AllocEventID<AscendC::HardEvent::MTE2_S>();
    computed_ = pipe->AllocEventID<AscendC::HardEvent::V_S>();
    written_.init(pipe);
    scalars_.init(pipe);
  }
  __aicore__ inline void end() {
    signals_.end();
    polls_.end();
    written_.end();
    scalars_.end();
  }

  __aicore__ inline Floats floats(int32_t i) { return floats_.Get<float>()[i * kPieceFloats]; }
  // One bit for each element of a piece.
  __aicore__ inline Bytes mask() { return mask_.Get<uint8_t>(); }
  __aicore__ inline AscendC::LocalTensor<int32_t> words() { return floats_.Get<int32_t>(); }

  // Copies a piece of an operand into slot `i` of an input buffer; each element of a column takes a lane of 16.
  __aicore__ inline void load(const Bytes& buffer, int32_t i, const Rows2d& from, const Piece& piece) {
    const int32_t size = element_bytes(from.dtype), width = from.is_column ? 1 : piece.num_cols;
    const int32_t pitch = from.is_column ? kLane : piece.pitch;
    const uint64_t first = from.address + piece.row * from.row_bytes + (from.is_column ? 0 : piece.col * size);
    copy_in(buffer[i * kPieceBytes], first, piece.num_rows, width * size, from.row_bytes, pitch * size);
  }

  // Converts slot `i` of an input buffer to float32.
  __aicore__ inline void widen(const Floats& to, const Bytes& buffer, int32_t i, int32_t dtype, int32_t count) {
    const Bytes from = buffer[i * kPieceBytes];
    switch (static_cast<Dtype>(dtype)) {
      case Dtype::BFLOAT16:
        return AscendC::Cast(to, from.ReinterpretCast<bfloat16_t>(), AscendC::RoundMode::CAST_NONE, count);
      case Dtype::FLOAT16: return AscendC::Cast(to, from.ReinterpretCast<half>(), AscendC::RoundMode::CAST_NONE, count);
      case Dtype::FLOAT32: return AscendC::Muls(to, from.ReinterpretCast<float>(), 1.0f, count);
      default: return refuse();
    }
  }
  __aicore__ inline void narrow(const Bytes& to, int32_t dtype, const Floats& from, int32_t count) {
    switch (static_cast<Dtype>(dtype)) {
      case Dtype::BFLOAT16:
        return AscendC::Cast(to.ReinterpretCast<bfloat16_t>(), from, AscendC::RoundMode::CAST_RINT, count);
      case Dtype::FLOAT16: return AscendC::Cast(to.ReinterpretCast<half>(), from, AscendC::RoundMode::CAST_RINT, count);
      case Dtype::FLOAT32: return AscendC::Muls(to.ReinterpretCast<float>(), from, 1.0f, count);
      default: return refuse();
    }
  }
  // Converts floats to float32 and copies integers.
  __aicore__ inline void widen_floats(const Floats& to, const Bytes& buffer, int32_t i, int32_t dtype, int32_t count) {
    if (!is_integer(static_cast<Dtype>(dtype))) return widen(to, buffer, i, dtype, count);
    AscendC::DataCopy(to, buffer[i * kPieceBytes].ReinterpretCast<float>(), count * element_bytes(dtype) / 4);
  }
  __aicore__ inline void narrow_floats(const Bytes& to, int32_t dtype, const Floats& from, int32_t count) {
    if (!is_integer(static_cast<Dtype>(dtype))) return narrow(to, dtype, from, count);
    AscendC::DataCopy(to.ReinterpretCast<float>(), from, count * element_bytes(dtype) / 4);
  }

  // Ends a task with an error; its later stores are suppressed. BAD_IMAGE means that no body exists.
  __aicore__ inline void refuse(Code code = Code::BAD_IMAGE) {
    if (code_ == Code::OK) code_ = code;
  }
  __aicore__ inline bool has_refused() const { return code_ != Code::OK; }
  __aicore__ inline Code code() const { return code_; }

  // Copies an output buffer to a piece of an operand.
  __aicore__ inline void store(const Rows2d& to, const Bytes& from, const Piece& piece) {
    if (has_refused()) return;
    const int32_t size = element_bytes(to.dtype), width = to.is_column ? 1 : piece.num_cols;
    const int32_t pitch = to.is_column ? kLane : piece.pitch;
    const uint64_t first = to.address + piece.row * to.row_bytes + (to.is_column ? 0 : piece.col * size);
    copy_out(first, from, piece.num_rows, width * size, to.row_bytes, pitch * size);
  }

  // Rounds a piece to the operand's dtype and copies it; afterwards `from` may be overwritten.
  __aicore__ inline void write(const Rows2d& to, const Piece& piece, const Floats& from, int32_t count) {
    Bytes result = outputs.AllocTensor<uint8_t>();
    narrow(result, to.dtype, from, count);
    leave(to, piece, result);
  }
  __aicore__ inline void write_floats(const Rows2d& to, const Piece& piece, const Floats& from, int32_t count) {
    Bytes result = outputs.AllocTensor<uint8_t>();
    narrow_floats(result, to.dtype, from, count);
    leave(to, piece, result);
  }
  __aicore__ inline void leave(const Rows2d& to, const Piece& piece, Bytes& result) {
    outputs.EnQue(result);
    result = outputs.DeQue<uint8_t>();
    store(to, result, piece);
    outputs.FreeTensor(result);
    AscendC::PipeBarrier<PIPE_V>();
  }

  // Copies blocks of `bytes` bytes that are `far` bytes apart in global memory and `near` bytes apart in UB.
  __aicore__ inline void copy_in(const Bytes& to, uint64_t from, int32_t blocks, int32_t bytes, int64_t far, int32_t near) {
    const AscendC::DataCopyExtParams params(static_cast<uint16_t>(blocks), bytes, gap(blocks, far, bytes),
                                            near_gap(near, bytes), 0);
    AscendC::DataCopyPad(to, global_at<uint8_t>(from), params, AscendC::DataCopyPadExtParams<uint8_t>());
  }
  __aicore__ inline void copy_out(uint64_t to, const Bytes& from, int32_t blocks, int32_t bytes, int64_t far, int32_t near) {
    const AscendC::DataCopyExtParams params(static_cast<uint16_t>(blocks), bytes, near_gap(near, bytes),
                                            gap(blocks, far, bytes), 0);
    AscendC::DataCopyPad(global_at<uint8_t>(to), from, params);
  }

  // Reads entries of a sorted list into the entry buffer, at position `place` (a multiple of 8), and waits for them.
  __aicore__ inline AscendC::LocalTensor<int32_t> read_entries(uint64_t from, int32_t count, int32_t place = 0) {
    const AscendC::LocalTensor<int32_t> entries = entries_.Get<int32_t>()[place];
    copy_in(entries.ReinterpretCast<uint8_t>(), from, 1, count * sizeof(int32_t), 0, kBlockBytes);
    wait_for_loads();
    return entries;
  }
  // Reads a longer list into the last float32 piece.
  static constexpr int32_t kMostEntries = kPieceFloats;
  __aicore__ inline AscendC::LocalTensor<int32_t> read_long_entries(uint64_t from, int32_t count) {
    const AscendC::LocalTensor<int32_t> entries = words()[(kNumFloats - 1) * kPieceFloats];
    wait_for_results();  // no instruction uses these any more
    copy_in(entries.ReinterpretCast<uint8_t>(), from, 1, count * sizeof(int32_t), 0, kBlockBytes);
    wait_for_loads();
    return entries;
  }
  // Call before the scalar unit reads UB: waits for loads, or for results.
  __aicore__ inline void wait_for_loads() {
    AscendC::SetFlag<AscendC::HardEvent::MTE2_S>(loaded_);
    AscendC::WaitFlag<AscendC::HardEvent::MTE2_S>(loaded_);
  }
  // Marks a load that has been issued; wait_for_load() waits for it alone.
  static constexpr int32_t kNumMarks = 4;
  __aicore__ inline void mark_load(int32_t i) { AscendC::SetFlag<AscendC::HardEvent::MTE2_S>(arrived_[i]); }
  __aicore__ inline void wait_for_load(int32_t i) { AscendC::WaitFlag<AscendC::HardEvent::MTE2_S>(arrived_[i]); }
  __aicore__ inline void wait_for_results() {
    AscendC::SetFlag<AscendC::HardEvent::V_S>(computed_);
    AscendC::WaitFlag<AscendC::HardEvent::V_S>(computed_);
  }
  // Call after the scalar unit has written UB: orders later copies out of UB, or vector instructions.
  __aicore__ inline void release_to_copies() { written_.pass(); }
  __aicore__ inline void release_to_vectors() { scalars_.pass(); }

  // Orders later loads after the scalar unit's polls.
  __aicore__ inline void load_after_poll() { polls_.pass(); }
  // Orders later copies out of UB, such as a signal, after earlier ones.
  __aicore__ inline void settle_stores() { AscendC::PipeBarrier<PIPE_MTE3>(); }
  // Adds `amount` to a counter of this rank or of another.
  __aicore__ inline void add_to_counter(uint64_t counter, int32_t amount) {
    const int32_t i = next_signal_;
    next_signal_ = (next_signal_ + 1) % kNumSignals;
    const AscendC::LocalTensor<int32_t> block = signal_.Get<int32_t>()[i * kBlockBytes / sizeof(int32_t)];
    signals_.wait_free(i);
    block.SetValue(0, amount);
    signals_.set_full(i);
    signals_.wait_full(i);
    AscendC::SetAtomicAdd<int32_t>();
    AscendC::DataCopyPad(global_at<int32_t>(counter), block, AscendC::DataCopyExtParams(1, sizeof(int32_t), 0, 0, 0));
    AscendC::SetAtomicNone();
    signals_.set_free(i);
  }

 private:
  static constexpr int32_t kNumSignals = 4;
  static_assert((2 * kMaxInputs + kNumOutputs) * kPieceBytes + kNumFloats * kPieceFloats * sizeof(float) + 2 * kPassBytes +
                        kEntryWords * sizeof(int32_t) + kNumSignals * kBlockBytes + kPieceFloats / 8 <=
                    kBytesUb,
                "all buffers fit UB");

  // Returns the distance from the end of a block to the next: in bytes of global memory, and in 32-byte blocks of UB.
  __aicore__ inline static uint32_t gap(int32_t blocks, int64_t step, int32_t bytes) {
    return blocks > 1 ? static_cast<uint32_t>(step - bytes) : 0;
  }
  __aicore__ inline static uint32_t near_gap(int32_t step, int32_t bytes) {
    return static_cast<uint32_t>(most(step / kBlockBytes - round_up(bytes, kBlockBytes) / kBlockBytes, 0));
  }

  AscendC::TBuf<AscendC::TPosition::VECCALC> floats_, entries_, signal_, mask_;
  AscendC::TEventID loaded_, computed_, arrived_[kNumMarks];
  Ring<AscendC::HardEvent::S_MTE3, AscendC::HardEvent::MTE3_S, kNumSignals> signals_;
  Gate<AscendC::HardEvent::S_MTE2, AscendC::HardEvent::MTE2_S> polls_;
  Gate<AscendC::HardEvent::S_MTE3, AscendC::HardEvent::MTE3_S> written_;
  Gate<AscendC::HardEvent::S_V, AscendC::HardEvent::V_S> scalars_;
  int32_t next_signal_ = 0;
  Code code_ = Code::OK;
};

// Divides an op's rows into pieces: several whole rows, or parts of one row.
class Pieces {
 public:
  __aicore__ inline Pieces(int32_t num_rows, int32_t num_cols, int32_t elements) : num_rows_(num_rows), num_cols_(num_cols) {
    cols_ = least(num_cols, elements / kLane * kLane);
    pitch_ = round_up(cols_, kLane);
    rows_ = most(least(elements / pitch_, kMaxRows), 1);
  }
  __aicore__ inline bool is_done() const { return row_ >= num_rows_; }
  __aicore__ inline Piece next() {
    const Piece piece{row_, col_, least(rows_, num_rows_ - row_), least(cols_, num_cols_ - col_), pitch_};
    col_ += cols_;
    if (col_ >= num_cols_) {
      col_ = 0;
      row_ += rows_;
    }
    return piece;
  }

 private:
  static constexpr int32_t kMaxRows = kPieceFloats / kLane / 2;  // a column of float32 takes 64 bytes a row

  int32_t num_rows_, num_cols_, cols_, pitch_, rows_, row_ = 0, col_ = 0;
};

// Base of bodies that read the same piece of some operands as float32, operand i in floats(i).
struct OfFloats {
  VectorUnit& unit;
  int32_t num_inputs;
  Rows2d in[kMaxInputs];

  __aicore__ inline void load(const Bytes& loaded, const Piece& piece) {
    for (int32_t i = 0; i < num_inputs; ++i) unit.load(loaded, i, in[i], piece);
  }
  __aicore__ inline void widen(const Bytes& loaded, const Piece& piece) {
    for (int32_t i = 0; i < num_inputs; ++i) unit.widen(unit.floats(i), loaded, i, in[i].dtype, piece.count());
  }
  // Returns the bytes of the widest element of the operands, or `bytes` if that is more.
  __aicore__ inline int32_t widest(int32_t bytes) const {
    for (int32_t i = 0; i < num_inputs; ++i) bytes = most(bytes, element_bytes(in[i].dtype));
    return bytes;
  }
};

// Elements of a piece whose widest operand has elements of `widest` bytes.
__aicore__ inline int32_t piece_elements(int32_t widest) { return kPieceBytes / widest; }

template <class Body, class APiece>
__aicore__ inline void load_piece(VectorUnit& unit, Body& body, const APiece& piece) {
  Bytes in = unit.inputs.AllocTensor<uint8_t>();
  body.load(in, piece);
  unit.inputs.EnQue(in);
}

// Runs a body over pieces: load(in, piece) copies a piece, widen(in, piece) converts it to float32, and compute(piece)
// writes the results. The next piece is loaded before this one is converted.
template <class Body, class SomePieces>
__aicore__ inline void run_pieces(VectorUnit& unit, SomePieces pieces, Body& body) {
  auto next = pieces.next();
  load_piece(unit, body, next);
  for (bool is_last = false; !is_last;) {
    const auto piece = next;
    is_last = pieces.is_done();
    if (!is_last) {
      next = pieces.next();
      load_piece(unit, body, next);
    }
    Bytes in = unit.inputs.DeQue<uint8_t>();
    body.widen(in, piece);
    unit.inputs.FreeTensor(in);
    AscendC::PipeBarrier<PIPE_V>();
    body.compute(piece);
  }
}

}  // namespace hpmoe
