// The matrix core: c[m, n] = a[m, k] @ b[k, n] for rows in global memory, in tiles of 128 x 256 float32 sums.
//
// All of L0C holds one tile, in two halves of 128 columns, so that one is written out while the other is summed. L1 holds
// two steps 256 deep: 64 KB of A and 128 KB of B each. L0A and L0B hold two steps 128 deep, 32 KB each, of a half. While one
// buffer of a memory is read, the other is filled; the first step of the next product comes in during the last of this one.
#pragma once

#include "ring.h"

namespace hpmoe {

constexpr int32_t kTileM = 128, kTileN = 256, kHalfN = 128, kDepthL1 = 256, kDepthL0 = 128, kFractal = 16,
                  kFractalSize = 256;

// Matrices of c's shape that are added to it, by multiplying them from the left with a unit matrix: those whose bit is set of
// several that begin `step` bytes apart, with rows ld elements apart. `unit`: where the unit matrices of tables.h are.
struct Added {
  uint64_t address, step, which, unit;
  int32_t ld;
};

// Rows are ld elements apart. A turned operand is stored as columns: A as [k, m], B as [n, k]. c is written, or a float32 c
// added to; without products (k = 0) it becomes zeros. m = 0: nothing to do.
struct Product {
  uint64_t a, b, c;
  int32_t ld_a, ld_b, ld_c, m, n, k;
  bool a_is_turned, b_is_turned, adds;
  Dtype dtype, result;
  Added added;
};

// What L1 holds at once: a part of the depth of one tile, or of one of the matrices that are added; `added` is its number, or -1.
struct Step {
  int32_t m0, n0, k0, m, n, k, added;
  bool is_first, is_last;  // of its tile
};

// The steps of a product, tile by tile.
class Steps {
 public:
  __aicore__ inline void init(const Product& p) {
    m_ = p.m;
    n_ = p.n;
    k_ = p.k;
    which_ = p.added.which;
    begin_tile();
    m0_ = n0_ = 0;
  }
  __aicore__ inline bool is_done() const { return m_ == 0 || n0_ >= n_; }
  __aicore__ inline Step next() {
    Step step{m0_, n0_, k0_, least(kTileM, m_ - m0_), least(kTileN, n_ - n0_), least(kDepthL1, k_ - k0_), -1, is_first_, false};
    is_first_ = false;
    if (k0_ < k_ || which_ == 0) {
      k0_ += kDepthL1;
    } else {
      while ((left_ >> added_ & 1) == 0) ++added_;
      left_ &= left_ - 1;
      step.added = added_;
      step.k = step.m;
    }
    step.is_last = k0_ >= k_ && left_ == 0;
    if (!step.is_last) return step;
    begin_tile();
    m0_ += kTileM;
    if (m0_ >= m_) {
      m0_ = 0;
      n0_ += kTileN;
    }
    return step;
  }

 private:
  __aicore__ inline void begin_tile() {
    k0_ = 0;
    added_ = 0;
    left_ = which_;
    is_first_ = true;
  }

  int32_t m_ = 0, n_ = 0, k_ = 0, m0_ = 0, n0_ = 0, k0_ = 0, added_ = 0;
  uint64_t which_ = 0, left_ = 0;
  bool is_first_ = true;
};

class CubeUnit {
 public:
  static constexpr bool kLooksAhead = true;

  __aicore__ inline void init(AscendC::TPipe* pipe) {
    pipe->InitBuffer(l1_, 2 * (kBytesL1A + kBytesL1B) + kNumSignals * kSignalBytes);
    pipe->InitBuffer(l0a_, 2 * kBytesL0);
    pipe->InitBuffer(l0b_, 2 * kBytesL0);
    pipe->InitBuffer(l0c_, 2 * kBytesHalf);
    in_l1_.init(pipe);
    in_l0_.init(pipe);
    sums_.init(pipe);
    for (int32_t i = 0; i < kNumSignals; ++i) {
      written_[i] = pipe->AllocEventID<AscendC::HardEvent::FIX_MTE3>();
    }
    signals_.init(pipe);
    polls_.init(pipe);
  }
  __aicore__ inline void end() {
    in_l1_.end();
    in_l0_.end();
    sums_.end();
    signals_.end();
    polls_.end();
  }

  // Products begin in order, at most one before the one under way ends: its first step comes into L1.
  __aicore__ inline void begin(const Product& product) {
    Work& work = work_[next_work_];
    next_work_ = 1 - next_work_;
    work.product = product;
    work.steps.init(product);
    work.is_empty = work.steps.is_done();
    if (!work.is_empty) load_next(work);
  }
  // All steps of the product under way but the last.
  __aicore__ inline void run() {
    Work& work = work_[this_work_];
    while (!work.steps.is_done()) {
      const Step step = work.loaded;
      load_next(work);
      multiply(work.product, step);
    }
  }
  // The last step.
  __aicore__ inline void finish() {
    const Work& work = work_[this_work_];
    this_work_ = 1 - this_work_;
    if (!work.is_empty) multiply(work.product, work.loaded);
  }

  // Loads from here on come after what the scalar unit has seen.
  __aicore__ inline void load_after_poll() {
    polls_.wait_free(next_poll_);
    polls_.set_full(next_poll_);
    polls_.wait_full(next_poll_);
    polls_.set_free(next_poll_);
    next_poll_ = 1 - next_poll_;
  }
  // Each signal waits for the results before it by itself.
  __aicore__ inline void settle_stores() {}
  // Adds `amount` to a counter once all results so far are written: a block of L1, all of whose words are added to the words
  // of the counter's line.
  __aicore__ inline void add_to_counter(uint64_t counter, int32_t amount) {
    const int32_t i = next_signal_;
    next_signal_ = (next_signal_ + 1) % kNumSignals;
    const AscendC::LocalTensor<int32_t> block =
        l1_.Get<int32_t>()[(2 * (kBytesL1A + kBytesL1B) + i * kSignalBytes) / sizeof(int32_t)];
    signals_.wait_free(i);
    AscendC::SetFlag<AscendC::HardEvent::FIX_MTE3>(written_[i]);
    AscendC::Fill(block, AscendC::InitConstValueParams<int32_t>(1, 1, 0, amount));
    signals_.set_full(i);
    AscendC::WaitFlag<AscendC::HardEvent::FIX_MTE3>(written_[i]);
    signals_.wait_full(i);
    AscendC::SetAtomicAdd<int32_t>();
    AscendC::DataCopy(global_at<int32_t>(counter), block, kSignalBytes / sizeof(int32_t));
    AscendC::SetAtomicNone();
    signals_.set_free(i);
  }

 private:
  // Both half-precision types are moved alike; only products and results know which it is.
  using Halves = AscendC::LocalTensor<half>;

  struct Work {
    Product product;
    Steps steps;
    Step loaded;  // the step that came into L1 last
    bool is_empty;
  };

  static constexpr int32_t kBytesL1A = kTileM * kDepthL1 * 2, kBytesL1B = kTileN * kDepthL1 * 2;
  static constexpr int32_t kBytesL0 = 32 * 1024, kBytesHalf = kTileM * kHalfN * sizeof(float);
  static constexpr int32_t kSignalBytes = 32, kNumSignals = 4;
  static_assert(2 * (kBytesL1A + kBytesL1B) + kNumSignals * kSignalBytes <= 512 * 1024, "two steps of both operands fit L1");
  static_assert(kTileM * kDepthL0 * 2 <= kBytesL0 && 2 * kBytesL0 <= 64 * 1024, "two steps of A fit L0A");
  static_assert(kHalfN * kDepthL0 * 2 <= kBytesL0, "two steps of B fit L0B");
  static_assert(2 * kBytesHalf <= 128 * 1024, "both halves of a tile fit L0C");

  __aicore__ inline Halves l1_a(int32_t i) { return l1_.Get<half>()[i * kBytesL1A / sizeof(half)]; }
  __aicore__ inline Halves l1_b(int32_t i) { return l1_.Get<half>()[(2 * kBytesL1A + i * kBytesL1B) / sizeof(half)]; }

  __aicore__ inline static int32_t fractals(int32_t n) { return (n + kFractal - 1) / kFractal; }

  // Rows as they are stored, in columns of fractals.
  __aicore__ inline void load_l1(const Halves& to, uint64_t from, int32_t rows, int32_t cols, int32_t ld) {
    const AscendC::Nd2NzParams params(1, static_cast<uint16_t>(rows), static_cast<uint16_t>(cols), 0,
                                      static_cast<uint16_t>(ld), static_cast<uint16_t>(fractals(rows) * kFractal), 1, 0);
    AscendC::DataCopy(to, global_at<half>(from), params);
  }
  __aicore__ inline void clear_l1(const Halves& to, int32_t rows, int32_t cols) {
    const auto blocks = static_cast<uint16_t>(fractals(rows) * fractals(cols) * kFractal);
    AscendC::Fill(to.ReinterpretCast<int32_t>(), AscendC::InitConstValueParams<int32_t>(1, blocks, 0, 0));
  }
  // A unit matrix of m rows: fractals of zeros, and on the diagonal those that the prologue has left in global memory.
  __aicore__ inline void load_unit(const Halves& to, const Product& p, int32_t m) {
    const int32_t word = p.dtype == Dtype::BFLOAT16 ? kUnitBfloat16 : kUnitFloat16, num_m = fractals(m);
    clear_l1(to, m, m);
    AscendC::PipeBarrier<PIPE_MTE2>();
    for (int32_t i = 0; i < num_m; ++i)
      AscendC::DataCopy(to[i * (num_m + 1) * kFractalSize], global_at<half>(p.added.unit + word * sizeof(int32_t)), kFractalSize);
  }
  __aicore__ inline static uint64_t element(uint64_t base, int32_t row, int32_t col, int32_t ld) {
    return base + (static_cast<uint64_t>(row) * ld + col) * sizeof(half);
  }

  __aicore__ inline void load_next(Work& work) {
    const Step step = work.steps.next();
    const Product& p = work.product;
    const int32_t i = next_load_;
    next_load_ = 1 - next_load_;
    in_l1_.wait_free(i);
    if (step.added >= 0) {
      const uint64_t from = p.added.address + step.added * p.added.step;
      load_unit(l1_a(i), p, step.m);
      load_l1(l1_b(i), element(from, step.m0, step.n0, p.added.ld), step.m, step.n, p.added.ld);
    } else if (step.k == 0) {
      clear_l1(l1_a(i), step.m, kFractal);
      clear_l1(l1_b(i), kFractal, step.n);
    } else {
      if (step.m == 1) {  // Mmad would take a single row for a plain vector: it gets a second one of zeros
        clear_l1(l1_a(i), kFractal, step.k);
        AscendC::PipeBarrier<PIPE_MTE2>();
      }
      if (p.a_is_turned) {
        load_l1(l1_a(i), element(p.a, step.k0, step.m0, p.ld_a), step.k, step.m, p.ld_a);
      } else {
        load_l1(l1_a(i), element(p.a, step.m0, step.k0, p.ld_a), step.m, step.k, p.ld_a);
      }
      if (p.b_is_turned) {
        load_l1(l1_b(i), element(p.b, step.n0, step.k0, p.ld_b), step.n, step.k, p.ld_b);
      } else {
        load_l1(l1_b(i), element(p.b, step.k0, step.n0, p.ld_b), step.k, step.n, p.ld_b);
      }
    }
    in_l1_.set_full(i);
    work.loaded = step;
  }

  // L0A takes rows of fractals; a stored column of fractals is `column` fractals long.
  __aicore__ inline void load_l0a(const Halves& to, const Halves& from, int32_t k1, int32_t num_m, int32_t num_k,
                                  int32_t column, bool is_turned) {
    AscendC::LoadData2DParams params;
    params.repeatTimes = static_cast<uint8_t>(num_k);
    params.srcStride = static_cast<uint16_t>(is_turned ? 1 : column);
    params.ifTranspose = is_turned;
    for (int32_t i = 0; i < num_m; ++i) {
      params.startIndex = static_cast<uint16_t>(is_turned ? i * column + k1 : k1 * column + i);
      AscendC::LoadData(to[i * num_k * kFractalSize], from, params);
    }
  }
  // L0B takes rows of fractals too, each of them turned: those from column n1 of fractals on.
  __aicore__ inline void load_l0b(const Halves& to, const Halves& from, int32_t k1, int32_t n1, int32_t num_n, int32_t num_k,
                                  int32_t column, bool is_turned) {
    AscendC::LoadData2DParams params;
    params.repeatTimes = static_cast<uint8_t>(num_n);
    params.srcStride = static_cast<uint16_t>(is_turned ? 1 : column);
    params.ifTranspose = !is_turned;
    for (int32_t i = 0; i < num_k; ++i) {
      params.startIndex = static_cast<uint16_t>(is_turned ? (k1 + i) * column + n1 : n1 * column + k1 + i);
      AscendC::LoadData(to[i * num_n * kFractalSize], from, params);
    }
  }

  // A step that is in L1, half by half of its columns: the first half is written out while the second is summed.
  __aicore__ inline void multiply(const Product& p, const Step& step) {
    const int32_t from = next_step_, num_halves = step.n > kHalfN ? 2 : 1;
    next_step_ = 1 - next_step_;
    in_l1_.wait_full(from);
    for (int32_t h = 0; h < num_halves; ++h) {
      const int32_t sums = (first_half_ + h) % 2;
      if (step.is_first) sums_.wait_free(sums);
      multiply_half(p, step, from, h, sums);
      if (h + 1 == num_halves) in_l1_.set_free(from);
      if (!step.is_last) continue;
      sums_.set_full(sums);
      write_half(p, step, h, sums);
    }
    if (step.is_last) first_half_ = (first_half_ + num_halves) % 2;
  }

  __aicore__ inline static int32_t half_cols(const Step& step, int32_t h) { return least(kHalfN, step.n - h * kHalfN); }

  __aicore__ inline void multiply_half(const Product& p, const Step& step, int32_t from, int32_t h, int32_t sums) {
    const int32_t depth = step.k > 0 ? step.k : kFractal, m = most(step.m, 2), n = half_cols(step, h);
    const bool a_is_turned = p.a_is_turned && step.added < 0, b_is_turned = p.b_is_turned && step.added < 0;
    const int32_t num_m = fractals(m), num_n = fractals(n), n1 = h * kHalfN / kFractal;
    const int32_t column_a = a_is_turned ? fractals(depth) : num_m;
    const int32_t column_b = b_is_turned ? fractals(step.n) : fractals(depth);
    const AscendC::LocalTensor<float> out = l0c_.Get<float>()[sums * kBytesHalf / sizeof(float)];
    for (int32_t k1 = 0; k1 < depth; k1 += kDepthL0) {
      const int32_t k = least(kDepthL0, depth - k1), num_k = fractals(k), l0 = next_l0_;
      next_l0_ = 1 - next_l0_;
      const Halves a = l0a_.Get<half>()[l0 * kBytesL0 / sizeof(half)], b = l0b_.Get<half>()[l0 * kBytesL0 / sizeof(half)];
      in_l0_.wait_free(l0);
      load_l0a(a, l1_a(from), k1 / kFractal, num_m, num_k, column_a, a_is_turned);
      load_l0b(b, l1_b(from), k1 / kFractal, n1, num_n, num_k, column_b, b_is_turned);
      in_l0_.set_full(l0);
      in_l0_.wait_full(l0);
      const AscendC::MmadParams params(static_cast<uint16_t>(m), static_cast<uint16_t>(n), static_cast<uint16_t>(k), 0, false,
                                       step.is_first && k1 == 0);
      if (p.dtype == Dtype::BFLOAT16) {
        AscendC::Mmad(out, a.ReinterpretCast<bfloat16_t>(), b.ReinterpretCast<bfloat16_t>(), params);
      } else {
        AscendC::Mmad(out, a, b, params);
      }
      if ((m / kFractal) * (n / kFractal) < 10) AscendC::PipeBarrier<PIPE_M>();
      in_l0_.set_free(l0);
    }
  }

  template <class C>
  __aicore__ inline void copy_half(const Product& p, const Step& step, int32_t h, int32_t sums, QuantMode_t rounding) {
    AscendC::FixpipeParamsV220 params;
    params.nSize = static_cast<uint16_t>(half_cols(step, h));
    params.mSize = static_cast<uint16_t>(step.m);
    params.srcStride = static_cast<uint16_t>(fractals(step.m) * kFractal);
    params.dstStride = static_cast<uint32_t>(p.ld_c);
    params.quantPre = rounding;
    const uint64_t place = static_cast<uint64_t>(step.m0) * p.ld_c + step.n0 + h * kHalfN;
    AscendC::Fixpipe(global_at<C>(p.c)[place], l0c_.Get<float>()[sums * kBytesHalf / sizeof(float)], params);
  }
  __aicore__ inline void write_half(const Product& p, const Step& step, int32_t h, int32_t sums) {
    sums_.wait_full(sums);
    if (p.adds) AscendC::SetAtomicAdd<float>();
    switch (p.result) {
      case Dtype::BFLOAT16: copy_half<bfloat16_t>(p, step, h, sums, QuantMode_t::F322BF16); break;
      case Dtype::FLOAT16: copy_half<half>(p, step, h, sums, QuantMode_t::F322F16); break;
      default: copy_half<float>(p, step, h, sums, QuantMode_t::NoQuant);
    }
    if (p.adds) AscendC::SetAtomicNone();
    sums_.set_free(sums);
  }

  AscendC::TBuf<AscendC::TPosition::A1> l1_;
  AscendC::TBuf<AscendC::TPosition::A2> l0a_;
  AscendC::TBuf<AscendC::TPosition::B2> l0b_;
  AscendC::TBuf<AscendC::TPosition::CO1> l0c_;
  Ring<AscendC::HardEvent::MTE2_MTE1, AscendC::HardEvent::MTE1_MTE2, 2> in_l1_;
  Ring<AscendC::HardEvent::MTE1_M, AscendC::HardEvent::M_MTE1, 2> in_l0_;
  Ring<AscendC::HardEvent::M_FIX, AscendC::HardEvent::FIX_M, 2> sums_;
  Ring<AscendC::HardEvent::MTE2_MTE3, AscendC::HardEvent::MTE3_S, kNumSignals> signals_;
  Ring<AscendC::HardEvent::S_MTE2, AscendC::HardEvent::MTE2_S, 2> polls_;
  AscendC::TEventID written_[kNumSignals];
  Work work_[2];
  int32_t next_work_ = 0, this_work_ = 0;                         // of work_
  int32_t next_load_ = 0, next_step_ = 0, next_l0_ = 0;           // of the buffers of L1 and L0
  int32_t first_half_ = 0, next_signal_ = 0, next_poll_ = 0;
};

}  // namespace hpmoe
