// The matrix core: products of rows in global memory; product.h describes a product.
//
// L0C holds one tile in two halves of 128 columns: one half is written out while the other is summed. L1 holds two steps,
// 64 KB of A and 128 KB of B each. L0A and L0B hold two steps of half that depth and of one half of the columns, 32 KB
// each. One buffer of a memory is filled while the other is read. The first step of the next product is loaded during the
// last step of the current one.
#pragma once

#include "product.h"
#if HPMOE_CHIP == 3510
#include "cube_3510.h"
#else
#include "cube_2201.h"
#endif

namespace hpmoe {

constexpr int32_t kHalfN = 128, kDeepBytesL0 = 256;

class CubeUnit {
 public:
  static constexpr bool kLooksAhead = true;

  __aicore__ inline void init(AscendC::TPipe* pipe) {
    AscendC::SetHF32Mode(AscendC::HF32Mode::DISABLE);  // an earlier kernel may have left it on
    pipe->InitBuffer(l1_, kBytesOperands + CounterAdder::kBytesOfL1 + kBytesOfScales);
    pipe->InitBuffer(l0a_, 2 * kBytesL0);
    pipe->InitBuffer(l0b_, 2 * kBytesL0);
    pipe->InitBuffer(l0c_, 2 * kBytesHalf);
    in_l1_.init(pipe);
    in_l0_.init(pipe);
    sums_.init(pipe);
    counters_.init(pipe, l1_.Get<int32_t>()[kBytesOperands / sizeof(int32_t)]);
    polls_.init(pipe);
  }
  __aicore__ inline void end() {
    in_l1_.end();
    in_l0_.end();
    sums_.end();
    counters_.end();
    polls_.end();
  }

  // Begins a product: loads its first step into L1. At most one other product may be unfinished; products finish in
  // order.
  __aicore__ inline void begin(const Product& product) {
    Work& work = work_[next_work_];
    next_work_ = 1 - next_work_;
    work.product = product;
    work.steps.init(product);
    work.is_empty = work.steps.is_done();
    if (!work.is_empty) load_next(work);
  }
  // Prepares to read B of a later product into L2. B must not be written in this launch. The copy in L1 is discarded.
  __aicore__ inline void begin_early(const Product& product) {
    early_ = product;
    early_k0_ = early_n0_ = 0;
  }
  // Reads another 64 KB of B. At most two reads are in flight when the scalar unit continues, so it never waits for more.
  __aicore__ inline void read_early() {
    if (early_.k == 0 || early_n0_ >= early_.n) return;
    if (early_.dtype == Dtype::FLOAT32) {
      read_early_step<float>();
    } else if (early_.dtype == Dtype::UINT8) {
      read_early_step<int8_t>();
    } else {
      read_early_step<half>();
    }
  }
  // Computes all steps but the last of the current product.
  __aicore__ inline void run() {
    Work& work = work_[this_work_];
    while (!work.steps.is_done()) {
      const Step step = work.loaded;
      load_next(work);
      multiply_step(work.product, step);
    }
  }
  // Computes the last step.
  __aicore__ inline void finish() {
    const Work& work = work_[this_work_];
    this_work_ = 1 - this_work_;
    if (!work.is_empty) multiply_step(work.product, work.loaded);
  }

  // Orders later loads after the scalar unit's polls.
  __aicore__ inline void load_after_poll() { polls_.pass(); }
  // Does nothing, because each signal of an AIC waits for earlier results.
  __aicore__ inline void settle_stores() {}
  // Adds `amount` to a counter after all earlier results are written.
  __aicore__ inline void add_to_counter(uint64_t counter, int32_t amount) { counters_.add(counter, amount); }

 private:
  struct Work {
    Product product;
    Steps steps;
    Step loaded;  // the last step that was loaded into L1
    bool is_empty;
  };

  static constexpr int32_t kBytesL1A = kTileM * kDeepBytesL1, kBytesL1B = kTileN * kDeepBytesL1;
  static constexpr int32_t kBytesL0 = 32 * 1024, kBytesHalf = kTileM * kHalfN * sizeof(float);
  static constexpr int32_t kBytesOperands = 2 * (kBytesL1A + kBytesL1B);
  static_assert(kBytesOperands + CounterAdder::kBytesOfL1 + kBytesOfScales <= kBytesL1, "two steps of both operands fit L1");
  static_assert(2 * kTileN * kDeepBytesL0 <= kEarlyBytes, "two pieces of a weight that is read early");
  static_assert(kTileM * sizeof(float) <= kDeepBytesL1, "a unit matrix is one step");
  static_assert(kTileM * kDeepBytesL0 <= kBytesL0 && 2 * kBytesL0 <= 64 * 1024, "two steps of A fit L0A");
  static_assert(kHalfN * kDeepBytesL0 <= kBytesL0, "two steps of B fit L0B");
  static_assert(2 * kBytesHalf <= kBytesL0c, "both halves of a tile fit L0C");

  template <class T>
  __aicore__ inline Fractals<T> l1_a(int32_t i) {
    return l1_.Get<T>()[i * kBytesL1A / sizeof(T)];
  }
  template <class T>
  __aicore__ inline Fractals<T> l1_b(int32_t i) {
    return l1_.Get<T>()[(2 * kBytesL1A + i * kBytesL1B) / sizeof(T)];
  }

  // Scales of mxfp8, after the operands and the counters' block.
  __aicore__ inline Fractals<int8_t> scales_a(int32_t i) {
    return l1_.Get<int8_t>()[kBytesOperands + CounterAdder::kBytesOfL1 + i * kBytesOfScales / 2];
  }
  __aicore__ inline Fractals<int8_t> scales_b(int32_t i) { return scales_a(i)[kTileM * kDeepBytesL1 / kMxBlock]; }

  template <class T>
  __aicore__ inline static uint64_t element(uint64_t base, int32_t row, int32_t col, int32_t ld) {
    return base + (static_cast<uint64_t>(row) * ld + col) * sizeof(T);
  }

  __aicore__ inline void load_next(Work& work) {
    const Step step = work.steps.next();
    const int32_t i = next_load_;
    next_load_ = 1 - next_load_;
    in_l1_.wait_free(i);
    if (work.product.dtype == Dtype::FLOAT32) {
      load_step<float>(work.product, step, i);
    } else if (work.product.dtype == Dtype::UINT8) {
      load_step<int8_t>(work.product, step, i);
      load_scales_of_step(work.product, step, i);
    } else {
      load_step<half>(work.product, step, i);
    }
    in_l1_.set_full(i);
    work.loaded = step;
  }

  template <class T>
  __aicore__ inline void read_early_step() {
    constexpr int32_t kDeep = kDeepBytesL0 / sizeof(T);
    const int32_t i = next_load_, k0 = early_k0_, n0 = early_n0_;
    const int32_t k = least(kDeep, early_.k - k0), n = least(kTileN, early_.n - n0);
    next_load_ = next_step_ = 1 - i;
    early_k0_ += kDeep;
    if (early_k0_ >= early_.k) {
      early_k0_ = 0;
      early_n0_ += kTileN;
    }
    in_l1_.wait_free(i);
    load_b<T>(l1_b<T>(i), early_, k0, n0, k, n);
    in_l1_.set_full(i);
    in_l1_.wait_full(i);
    in_l1_.set_free(i);
    load_after_poll();
  }

  template <class T>
  __aicore__ inline static void load_b(const Fractals<T>& b, const Product& p, int32_t k0, int32_t n0, int32_t k,
                                       int32_t n) {
    if (p.b_is_transposed) {
      load_l1(b, element<T>(p.b, n0, k0, p.ld_b), n, k, p.ld_b, false);
    } else {
      load_l1(b, element<T>(p.b, k0, n0, p.ld_b), k, n, p.ld_b, true);
    }
  }

  template <class T>
  __aicore__ inline void load_step(const Product& p, const Step& step, int32_t i) {
    const Fractals<T> a = l1_a<T>(i), b = l1_b<T>(i);
    if (step.added >= 0) {
      const uint64_t from = p.added.address + step.added * p.added.step;
      const int32_t unit = p.dtype == Dtype::BFLOAT16  ? kUnitBfloat16
                           : p.dtype == Dtype::FLOAT16 ? kUnitFloat16
                                                       : kUnitFloat32;
      load_unit(a, p.added.unit + unit * sizeof(int32_t), step.m);
      load_l1(b, element<T>(from, step.m0, step.n0, p.added.ld), step.m, step.n, p.added.ld, true);
      return;
    }
    if (step.k == 0) {
      clear_l1(a, step.m, kFractal);
      clear_l1(b, kFractal, step.n);
      return;
    }
    if (step.m == 1) {  // Mmad reads a single row as a plain vector, so a second row of zeros is added
      clear_l1(a, kFractal, step.k);
      AscendC::PipeBarrier<PIPE_MTE2>();
    }
    if (p.a_is_transposed) {
      load_l1(a, element<T>(p.a, step.k0, step.m0, p.ld_a), step.k, step.m, p.ld_a, true);
    } else {
      load_l1(a, element<T>(p.a, step.m0, step.k0, p.ld_a), step.m, step.k, p.ld_a, false);
    }
    load_b<T>(b, p, step.k0, step.n0, step.k, step.n);
  }

  __aicore__ inline void load_scales_of_step(const Product& p, const Step& step, int32_t i) {
    if (p.scales.a == 0 || step.k == 0) return;
    const int32_t block = step.k0 / kMxBlock;
    load_scales(scales_a(i), element<int8_t>(p.scales.a, step.m0, block, p.scales.ld_a), step.m, step.k, p.scales.ld_a);
    load_scales(scales_b(i), element<int8_t>(p.scales.b, step.n0, block, p.scales.ld_b), step.n, step.k, p.scales.ld_b);
  }

  // Multiplies a step that is in L1, half by half of its columns: the first half is written out while the second is
  // summed.
  __aicore__ inline void multiply_step(const Product& p, const Step& step) {
    const int32_t from = next_step_, num_halves = step.n > kHalfN ? 2 : 1;
    next_step_ = 1 - next_step_;
    in_l1_.wait_full(from);
    for (int32_t h = 0; h < num_halves; ++h) {
      const int32_t sums = (first_half_ + h) % 2;
      if (step.is_first) sums_.wait_free(sums);
      if (p.dtype == Dtype::FLOAT32) {
        multiply_half<float>(p, step, from, h, sums);
      } else if (p.dtype == Dtype::UINT8) {
        multiply_half<int8_t>(p, step, from, h, sums);
      } else {
        multiply_half<half>(p, step, from, h, sums);
      }
      if (h + 1 == num_halves) in_l1_.set_free(from);
      if (!step.is_last) continue;
      sums_.set_full(sums);
      write_half(p, step, h, sums);
    }
    if (step.is_last) first_half_ = (first_half_ + num_halves) % 2;
  }

  // Columns that Mmad computes: whole squares if bytes are transposed.
  template <class T>
  __aicore__ inline static int32_t multiplied_cols(int32_t n, bool b_is_down) {
    return sizeof(T) == sizeof(int8_t) && b_is_down ? round_up(n, kTransposed<T>) : n;
  }

  __aicore__ inline static int32_t half_cols(const Step& step, int32_t h) { return least(kHalfN, step.n - h * kHalfN); }

  template <class T>
  __aicore__ inline void multiply_half(const Product& p, const Step& step, int32_t from, int32_t h, int32_t sums) {
    constexpr int32_t kDeep = kDeepBytesL0 / sizeof(T);
    const int32_t depth = step.k > 0 ? step.k : kFractal, m = most(step.m, 2);
    const bool a_is_down = p.a_is_transposed && step.added < 0, b_is_down = !p.b_is_transposed || step.added >= 0;
    const int32_t n = multiplied_cols<T>(half_cols(step, h), b_is_down);
    Part of_a{0, 0, 0, fractals(m), l1_pitch<T>(fractals(m), fractals(depth), a_is_down), a_is_down};
    const int32_t pitch_of_b = l1_pitch<T>(fractals(step.n), fractals_down<T>(depth, b_is_down), b_is_down);
    Part of_b{0, 0, h * kHalfN / kFractal, fractals(n), pitch_of_b, b_is_down};
    const AscendC::LocalTensor<float> out = l0c_.Get<float>()[sums * kBytesHalf / sizeof(float)];
    for (int32_t k1 = 0; k1 < depth; k1 += kDeep) {
      const int32_t k = least(kDeep, depth - k1), l0 = next_l0_;
      next_l0_ = 1 - next_l0_;
      const Fractals<T> a = l0a_.Get<T>()[l0 * kBytesL0 / sizeof(T)], b = l0b_.Get<T>()[l0 * kBytesL0 / sizeof(T)];
      of_a.k1 = of_b.k1 = k1;
      of_a.k = of_b.k = k;
      in_l0_.wait_free(l0);
      load_l0(p, step, from, a, b, of_a, of_b);
      in_l0_.set_full(l0);
      in_l0_.wait_full(l0);
      multiply_l0(p, out, a, b, m, n, k, step.is_first && k1 == 0);
      in_l0_.set_free(l0);
    }
  }

  template <class T>
  __aicore__ inline void load_l0(const Product& p, const Step& step, int32_t from, const Fractals<T>& a,
                                 const Fractals<T>& b, const Part& of_a, const Part& of_b) {
    if constexpr (sizeof(T) == sizeof(int8_t)) {
      if (p.scales.a != 0) {
        load_l0_and_scales(a, l1_a<T>(from), scales_a(from), of_a, step.k);
        load_l0_and_scales(b, l1_b<T>(from), scales_b(from), of_b, step.k);
        return;
      }
    }
    load_l0a(a, l1_a<T>(from), of_a);
    load_l0b(b, l1_b<T>(from), of_b);
  }

  template <class T>
  __aicore__ inline static void multiply_l0(const Product& p, const AscendC::LocalTensor<float>& out, const Fractals<T>& a,
                                            const Fractals<T>& b, int32_t m, int32_t n, int32_t k, bool is_first) {
    AscendC::MmadParams params(static_cast<uint16_t>(m), static_cast<uint16_t>(n), static_cast<uint16_t>(k), 0, false,
                               is_first);
    params.kDirectionAlign = kAlignsDepth<T>;
    if constexpr (sizeof(T) == sizeof(float)) {
      AscendC::Mmad(out, a, b, params);
    } else if constexpr (sizeof(T) == sizeof(int8_t)) {
      if (p.element == Element::E4M3) {
        multiply_fp8(out, a, b, params, p.scales.a != 0);
      } else {
        AscendC::Mmad(out.template ReinterpretCast<int32_t>(), a, b, params);
      }
    } else if (p.dtype == Dtype::BFLOAT16) {
      AscendC::Mmad(out, a.template ReinterpretCast<bfloat16_t>(), b.template ReinterpretCast<bfloat16_t>(), params);
    } else {
      AscendC::Mmad(out, a, b, params);
    }
    if ((m / kFractal) * (n / kFractal) < 10) AscendC::PipeBarrier<PIPE_M>();
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
    using Sum = std::conditional_t<std::is_same_v<C, int32_t>, int32_t, float>;
    AscendC::Fixpipe(global_at<C>(p.c)[place], l0c_.Get<Sum>()[sums * kBytesHalf / sizeof(Sum)], params);
  }
  __aicore__ inline void write_half(const Product& p, const Step& step, int32_t h, int32_t sums) {
    sums_.wait_full(sums);
    if (p.adds) AscendC::SetAtomicAdd<float>();
    switch (p.result) {
      case Dtype::BFLOAT16: copy_half<bfloat16_t>(p, step, h, sums, QuantMode_t::F322BF16); break;
      case Dtype::INT32: copy_half<int32_t>(p, step, h, sums, QuantMode_t::NoQuant); break;
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
  Gate<AscendC::HardEvent::S_MTE2, AscendC::HardEvent::MTE2_S> polls_;
  CounterAdder counters_;
  Work work_[2];
  Product early_;
  int32_t early_k0_ = 0, early_n0_ = 0;  // k and n of B that are read next
  int32_t next_work_ = 0, this_work_ = 0;  // index of work_
  int32_t next_load_ = 0, next_step_ = 0, next_l0_ = 0;  // next buffers of L1 and L0
  int32_t first_half_ = 0;
};

}  // namespace hpmoe
