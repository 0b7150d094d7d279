// Random numbers of a seed and their positions, as in hpmoe/tile_ops/draws.py: philox2x32-10 in 32-bit words.
//
// Vector instructions multiply words and keep the low bits (CTRL[53] is 0), so the high bits come from 16-bit products.
// There is no exclusive or: a xor b is (a or b) - (a and b).
#pragma once

#include "vector_unit.h"

namespace hpmoe {

class Draw {
  using Words = AscendC::LocalTensor<int32_t>;

 public:
  static constexpr int32_t kAtOnce = kPieceFloats / 2;

  __aicore__ inline Draw(VectorUnit& unit, uint32_t key) : unit_(unit), key_(key) {
    AscendC::Duplicate(low_half(), 0xFFFF, kAtOnce);
  }

  // Returns float32 numbers in (0, 1) for rows and columns from (row, col) on.
  __aicore__ inline Floats run(int32_t row, int32_t col, const Piece& piece) {
    count_ = piece.count();
    for (int32_t r = 0; r < piece.num_rows; ++r) {
      AscendC::Duplicate(left()[r * piece.pitch], row + r, piece.pitch);
      AscendC::CreateVecIndex(right()[r * piece.pitch], col, piece.pitch);
    }
    AscendC::PipeBarrier<PIPE_V>();
    uint32_t key = key_;
    for (int32_t i = 0; i < 10; ++i, key += 0x9E3779B9u) turn(key);
    const Floats numbers = high().ReinterpretCast<float>();
    shift(left(), left(), 9);
    in_order::Cast(numbers, left(), AscendC::RoundMode::CAST_RINT, count_);
    in_order::Adds(numbers, numbers, 0.5f, count_);
    in_order::Muls(numbers, numbers, 1.1920928955078125e-07f, count_);
    return numbers;
  }

 private:
  static constexpr int32_t kHigh = 0xD256, kLow = 0xD193;  // halves of the multiplier

  __aicore__ inline Words words(int32_t i) { return unit_.words()[i * kAtOnce]; }
  __aicore__ inline Words left() { return words(0); }
  __aicore__ inline Words right() { return words(1); }
  __aicore__ inline Words low() { return words(2); }
  __aicore__ inline Words high() { return words(3); }
  __aicore__ inline Words carried() { return words(4); }
  __aicore__ inline Words work() { return words(5); }
  __aicore__ inline Words low_half() { return words(6); }

  // One round: computes the high half of left * multiplier, xor right, xor key; and the low half.
  __aicore__ inline void turn(uint32_t key) {
    AscendC::Duplicate(work(), static_cast<int32_t>(key), count_);
    mask(low(), left());
    AscendC::PipeBarrier<PIPE_V>();
    exclude(right(), right(), work());
    shift(high(), left(), 16);
    multiply(carried(), low(), kLow);
    shift(carried(), carried(), 16);
    multiply(work(), high(), kLow);
    add(carried(), carried(), work());
    mask(work(), carried());
    multiply(low(), low(), kHigh);
    add(low(), low(), work());
    shift(low(), low(), 16);
    shift(carried(), carried(), 16);
    multiply(high(), high(), kHigh);
    add(high(), high(), carried());
    add(high(), high(), low());
    multiply(work(), left(), static_cast<int32_t>(0xD256D193u));
    exclude(left(), high(), right());
    in_order::DataCopy(right(), work(), round_up(count_, kLane));
  }
  __aicore__ inline void multiply(const Words& to, const Words& a, int32_t factor) { in_order::Muls(to, a, factor, count_); }
  __aicore__ inline void add(const Words& to, const Words& a, const Words& b) { in_order::Add(to, a, b, count_); }
  __aicore__ inline void shift(const Words& to, const Words& a, uint32_t bits) {
    in_order::ShiftRight(to.ReinterpretCast<uint32_t>(), a.ReinterpretCast<uint32_t>(), bits, count_);
  }
  __aicore__ inline void mask(const Words& to, const Words& a) {
    in_order::And(to.ReinterpretCast<uint16_t>(), a.ReinterpretCast<uint16_t>(), low_half().ReinterpretCast<uint16_t>(),
                  2 * count_);
  }
  // Sets to = a xor b. Overwrites b and words(7).
  __aicore__ inline void exclude(const Words& to, const Words& a, const Words& b) {
    const Words both = words(7);
    in_order::And(both.ReinterpretCast<uint16_t>(), a.ReinterpretCast<uint16_t>(), b.ReinterpretCast<uint16_t>(),
                  2 * count_);
    in_order::Or(to.ReinterpretCast<uint16_t>(), a.ReinterpretCast<uint16_t>(), b.ReinterpretCast<uint16_t>(), 2 * count_);
    in_order::Sub(to, to, both, count_);
  }

  VectorUnit& unit_;
  const uint32_t key_;
  int32_t count_ = 0;
};

__aicore__ inline void draw(VectorUnit& unit, const Frame& frame) {
  const Buffer seeds = frame.buffer(1);
  const AscendC::LocalTensor<int32_t> seed = unit.read_entries(frame.element(1, seeds, 0, frame.first_col(1)), 1);
  const uint32_t stream = static_cast<uint32_t>(params::Stream::of(frame.op).stream) * 0x85EBCA6Bu;
  Draw body(unit, static_cast<uint32_t>(seed.GetValue(0)) ^ stream);
  const Rows2d out = frame.rows(0);
  for (Pieces pieces(frame.unit.rows, frame.task.cols, Draw::kAtOnce); !pieces.is_done();) {
    const Piece piece = pieces.next();
    unit.write(out, piece, body.run(frame.unit.start + piece.row, frame.first_col(0) + piece.col, piece), piece.count());
  }
}

}  // namespace hpmoe
