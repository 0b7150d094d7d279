// The matrix core: c[m, n] = a[m, k] @ b[k, n] for rows in global memory, in tiles that fill L0C.
//
// A tile is 128 x 256 sums of float32: all of L0C. Products are taken 64 deep from L0, which then holds two of A (32 KB)
// and two of B (64 KB), and are fed from L1 256 deep, two of A (128 KB) and two of B (256 KB). While one half of a memory
// is read, the other is filled.
#pragma once

#include "device.h"

namespace hpmoe {

constexpr int32_t kTileM = 128, kTileN = 256, kDepthL1 = 256, kDepthL0 = 64, kFractal = 16, kFractalSize = 256;

// Rows of bfloat16 or float16, `ld` elements apart. A turned operand is stored as columns: A as [k, m], B as [n, k].
template <class T>
struct Matrix {
  AscendC::GlobalTensor<T> data;
  int64_t ld;
  bool is_turned;
};

struct MatmulSizes {
  int32_t m, n, k;
};

class CubeUnit {
 public:
  __aicore__ inline void init(AscendC::TPipe* pipe) {
    pipe->InitBuffer(l1_, 2 * (kBytesL1A + kBytesL1B) + kSignalBytes);
    pipe->InitBuffer(l0a_, 2 * kBytesL0A);
    pipe->InitBuffer(l0b_, 2 * kBytesL0B);
    pipe->InitBuffer(l0c_, kTileM * kTileN * sizeof(float));
    for (int32_t i = 0; i < 2; ++i) {
      l1_free_[i] = pipe->AllocEventID<AscendC::HardEvent::MTE1_MTE2>();
      l1_full_[i] = pipe->AllocEventID<AscendC::HardEvent::MTE2_MTE1>();
      l0_free_[i] = pipe->AllocEventID<AscendC::HardEvent::M_MTE1>();
      l0_full_[i] = pipe->AllocEventID<AscendC::HardEvent::MTE1_M>();
      AscendC::SetFlag<AscendC::HardEvent::MTE1_MTE2>(l1_free_[i]);
      AscendC::SetFlag<AscendC::HardEvent::M_MTE1>(l0_free_[i]);
    }
    sums_free_ = pipe->AllocEventID<AscendC::HardEvent::FIX_M>();
    sums_full_ = pipe->AllocEventID<AscendC::HardEvent::M_FIX>();
    AscendC::SetFlag<AscendC::HardEvent::FIX_M>(sums_free_);
    signal_ready_ = pipe->AllocEventID<AscendC::HardEvent::MTE2_MTE3>();
    signal_sent_ = pipe->AllocEventID<AscendC::HardEvent::MTE3_MTE2>();
    AscendC::SetFlag<AscendC::HardEvent::MTE3_MTE2>(signal_sent_);
  }

  __aicore__ inline void end() {
    for (int32_t i = 0; i < 2; ++i) {
      AscendC::WaitFlag<AscendC::HardEvent::MTE1_MTE2>(l1_free_[i]);
      AscendC::WaitFlag<AscendC::HardEvent::M_MTE1>(l0_free_[i]);
    }
    AscendC::WaitFlag<AscendC::HardEvent::FIX_M>(sums_free_);
    AscendC::WaitFlag<AscendC::HardEvent::MTE3_MTE2>(signal_sent_);
  }

  // c rows are ldc elements apart. A float32 c may be added to instead. Without products (k = 0) c becomes zeros.
  template <class T, class C>
  __aicore__ inline void multiply(const MatmulSizes& sizes, const Matrix<T>& a, const Matrix<T>& b,
                                  const AscendC::GlobalTensor<C>& c, int64_t ldc, bool accumulates) {
    for (int32_t n0 = 0; n0 < sizes.n; n0 += kTileN) {
      for (int32_t m0 = 0; m0 < sizes.m; m0 += kTileM) {
        const MatmulSizes tile{least(kTileM, sizes.m - m0), least(kTileN, sizes.n - n0), sizes.k};
        const Matrix<T> tile_a{a.data[a.is_turned ? m0 : m0 * a.ld], a.ld, a.is_turned};
        const Matrix<T> tile_b{b.data[b.is_turned ? n0 * b.ld : n0], b.ld, b.is_turned};
        multiply_tile(tile, tile_a, tile_b);
        write_tile(tile, c[m0 * ldc + n0], ldc, accumulates);
      }
    }
  }

  // Adds `amount` to a counter: a block of L1, all of whose words are added to the words of the counter's line.
  __aicore__ inline void add_to_counter(uint64_t counter, int32_t amount) {
    const AscendC::LocalTensor<int32_t> block = l1_.Get<int32_t>()[2 * (kBytesL1A + kBytesL1B) / sizeof(int32_t)];
    AscendC::WaitFlag<AscendC::HardEvent::MTE3_MTE2>(signal_sent_);
    AscendC::Fill(block, AscendC::InitConstValueParams<int32_t>(1, 1, 0, amount));
    AscendC::SetFlag<AscendC::HardEvent::MTE2_MTE3>(signal_ready_);
    AscendC::WaitFlag<AscendC::HardEvent::MTE2_MTE3>(signal_ready_);
    AscendC::SetAtomicAdd<int32_t>();
    AscendC::DataCopy(global_at<int32_t>(counter), block, kSignalBytes / sizeof(int32_t));
    AscendC::SetAtomicNone();
    AscendC::SetFlag<AscendC::HardEvent::MTE3_MTE2>(signal_sent_);
  }

 private:
  static constexpr int32_t kBytesL1A = kTileM * kDepthL1 * 2, kBytesL1B = kTileN * kDepthL1 * 2, kSignalBytes = 32;
  static constexpr int32_t kBytesL0A = 32 * 1024, kBytesL0B = kTileN * kDepthL0 * 2;
  static_assert(2 * (kBytesL1A + kBytesL1B) + kSignalBytes <= 512 * 1024, "two steps of both operands fit L1");
  static_assert(kTileM * kDepthL0 * 2 <= kBytesL0A && 2 * kBytesL0A <= 64 * 1024, "two steps of A fit L0A");
  static_assert(2 * kBytesL0B <= 64 * 1024, "two steps of B fit L0B");
  static_assert(kTileM * kTileN * 4 <= 128 * 1024, "a tile of sums fits L0C");

  // The part of an operand that one step of L1 holds: its rows as they are stored, in columns of fractals.
  template <class T>
  __aicore__ inline void load_l1(const AscendC::LocalTensor<T>& to, const Matrix<T>& from, int32_t k0, int32_t rows,
                                 int32_t cols, bool k_is_row) {
    const int64_t offset = k_is_row ? k0 * from.ld : k0;
    const auto num_rows = static_cast<uint16_t>(rows), num_cols = static_cast<uint16_t>(cols);
    const auto column_step = static_cast<uint16_t>(round_up(rows, kFractal));
    AscendC::DataCopy(to, from.data[offset], AscendC::Nd2NzParams(1, num_rows, num_cols, 0, static_cast<uint16_t>(from.ld),
                                                                  column_step, 1, 0));
  }
  template <class T>
  __aicore__ inline void clear_l1(const AscendC::LocalTensor<T>& to, int32_t rows, int32_t cols) {
    const auto blocks = static_cast<uint16_t>(round_up(rows, kFractal) * round_up(cols, kFractal) / kFractal);
    AscendC::Fill(to.template ReinterpretCast<int32_t>(), AscendC::InitConstValueParams<int32_t>(1, blocks, 0, 0));
  }

  template <class T>
  __aicore__ inline AscendC::LocalTensor<T> l1_a(int32_t half) {
    return l1_.Get<T>()[half * kBytesL1A / sizeof(T)];
  }
  template <class T>
  __aicore__ inline AscendC::LocalTensor<T> l1_b(int32_t half) {
    return l1_.Get<T>()[(2 * kBytesL1A + half * kBytesL1B) / sizeof(T)];
  }

  template <class T>
  __aicore__ inline void load_step(const MatmulSizes& tile, const Matrix<T>& a, const Matrix<T>& b, int32_t k0,
                                   int32_t half) {
    const int32_t depth = most(least(kDepthL1, tile.k - k0), 0);
    AscendC::WaitFlag<AscendC::HardEvent::MTE1_MTE2>(l1_free_[half]);
    if (depth == 0) {
      clear_l1(l1_a<T>(half), a.is_turned ? kFractal : tile.m, a.is_turned ? tile.m : kFractal);
      clear_l1(l1_b<T>(half), b.is_turned ? tile.n : kFractal, b.is_turned ? kFractal : tile.n);
    } else {
      if (tile.m == 1) {  // Mmad would take a single row for a plain vector: it gets a second one of zeros
        clear_l1(l1_a<T>(half), kFractal, depth);
        AscendC::PipeBarrier<PIPE_MTE2>();
      }
      load_l1(l1_a<T>(half), a, k0, a.is_turned ? depth : tile.m, a.is_turned ? tile.m : depth, a.is_turned);
      load_l1(l1_b<T>(half), b, k0, b.is_turned ? tile.n : depth, b.is_turned ? depth : tile.n, !b.is_turned);
    }
    AscendC::SetFlag<AscendC::HardEvent::MTE2_MTE1>(l1_full_[half]);
  }

  // L0A takes rows of fractals; a stored column of fractals is `step` fractals long.
  template <class T>
  __aicore__ inline void load_l0a(const AscendC::LocalTensor<T>& to, const AscendC::LocalTensor<T>& from, int32_t k1,
                                  int32_t num_m, int32_t num_k, int32_t step, bool is_turned) {
    AscendC::LoadData2DParams params;
    params.repeatTimes = static_cast<uint8_t>(num_k);
    params.srcStride = static_cast<uint16_t>(is_turned ? 1 : step);
    params.ifTranspose = is_turned;
    for (int32_t i = 0; i < num_m; ++i) {
      params.startIndex = static_cast<uint16_t>(is_turned ? i * step + k1 : k1 * step + i);
      AscendC::LoadData(to[i * num_k * kFractalSize], from, params);
    }
  }
  // L0B takes rows of fractals too, each of them turned.
  template <class T>
  __aicore__ inline void load_l0b(const AscendC::LocalTensor<T>& to, const AscendC::LocalTensor<T>& from, int32_t k1,
                                  int32_t num_n, int32_t num_k, int32_t step, bool is_turned) {
    AscendC::LoadData2DParams params;
    params.repeatTimes = static_cast<uint8_t>(num_n);
    params.srcStride = static_cast<uint16_t>(is_turned ? 1 : step);
    params.ifTranspose = !is_turned;
    for (int32_t i = 0; i < num_k; ++i) {
      params.startIndex = static_cast<uint16_t>(is_turned ? (k1 + i) * step : k1 + i);
      AscendC::LoadData(to[i * num_n * kFractalSize], from, params);
    }
  }

  template <class T>
  __aicore__ inline void multiply_step(const MatmulSizes& tile, bool a_is_turned, bool b_is_turned, int32_t k0,
                                       int32_t half) {
    const int32_t depth = tile.k == 0 ? kFractal : least(kDepthL1, tile.k - k0), m = most(tile.m, 2);
    const int32_t num_m = round_up(m, kFractal) / kFractal, num_n = tile.n / kFractal;
    const int32_t depth_fractals = round_up(depth, kFractal) / kFractal;
    AscendC::WaitFlag<AscendC::HardEvent::MTE2_MTE1>(l1_full_[half]);
    for (int32_t k1 = 0; k1 < depth; k1 += kDepthL0) {
      const int32_t k = least(kDepthL0, depth - k1), num_k = round_up(k, kFractal) / kFractal;
      const AscendC::LocalTensor<T> a = l0a_.Get<T>()[l0_half_ * kBytesL0A / sizeof(T)];
      const AscendC::LocalTensor<T> b = l0b_.Get<T>()[l0_half_ * kBytesL0B / sizeof(T)];
      AscendC::WaitFlag<AscendC::HardEvent::M_MTE1>(l0_free_[l0_half_]);
      load_l0a(a, l1_a<T>(half), k1 / kFractal, num_m, num_k, a_is_turned ? depth_fractals : num_m, a_is_turned);
      load_l0b(b, l1_b<T>(half), k1 / kFractal, num_n, num_k, b_is_turned ? num_n : depth_fractals, b_is_turned);
      AscendC::SetFlag<AscendC::HardEvent::MTE1_M>(l0_full_[l0_half_]);
      if (k1 + kDepthL0 >= depth) AscendC::SetFlag<AscendC::HardEvent::MTE1_MTE2>(l1_free_[half]);
      AscendC::WaitFlag<AscendC::HardEvent::MTE1_M>(l0_full_[l0_half_]);
      const bool is_first = k0 + k1 == 0;
      AscendC::Mmad(l0c_.Get<float>(), a, b,
                    AscendC::MmadParams(static_cast<uint16_t>(m), static_cast<uint16_t>(tile.n), static_cast<uint16_t>(k), 0,
                                        false, is_first));
      if ((m / kFractal) * (tile.n / kFractal) < 10) AscendC::PipeBarrier<PIPE_M>();
      AscendC::SetFlag<AscendC::HardEvent::M_MTE1>(l0_free_[l0_half_]);
      l0_half_ = 1 - l0_half_;
    }
  }

  template <class T>
  __aicore__ inline void multiply_tile(const MatmulSizes& tile, const Matrix<T>& a, const Matrix<T>& b) {
    load_step(tile, a, b, 0, l1_half_);
    AscendC::WaitFlag<AscendC::HardEvent::FIX_M>(sums_free_);
    for (int32_t k0 = 0; k0 == 0 || k0 < tile.k; k0 += kDepthL1) {
      if (k0 + kDepthL1 < tile.k) load_step(tile, a, b, k0 + kDepthL1, 1 - l1_half_);
      multiply_step<T>(tile, a.is_turned, b.is_turned, k0, l1_half_);
      l1_half_ = 1 - l1_half_;
    }
    AscendC::SetFlag<AscendC::HardEvent::M_FIX>(sums_full_);
  }

  __aicore__ inline static QuantMode_t rounding(const AscendC::GlobalTensor<float>&) { return QuantMode_t::NoQuant; }
  __aicore__ inline static QuantMode_t rounding(const AscendC::GlobalTensor<half>&) { return QuantMode_t::F322F16; }
  __aicore__ inline static QuantMode_t rounding(const AscendC::GlobalTensor<bfloat16_t>&) { return QuantMode_t::F322BF16; }

  template <class C>
  __aicore__ inline void write_tile(const MatmulSizes& tile, const AscendC::GlobalTensor<C>& c, int64_t ldc,
                                    bool accumulates) {
    AscendC::FixpipeParamsV220 params;
    params.nSize = static_cast<uint16_t>(tile.n);
    params.mSize = static_cast<uint16_t>(tile.m);
    params.srcStride = static_cast<uint16_t>(round_up(tile.m, kFractal));
    params.dstStride = static_cast<uint32_t>(ldc);
    params.quantPre = rounding(c);
    AscendC::WaitFlag<AscendC::HardEvent::M_FIX>(sums_full_);
    if (accumulates) AscendC::SetAtomicAdd<float>();
    AscendC::Fixpipe(c, l0c_.Get<float>(), params);
    if (accumulates) AscendC::SetAtomicNone();
    AscendC::SetFlag<AscendC::HardEvent::FIX_M>(sums_free_);
  }

  AscendC::TBuf<AscendC::TPosition::A1> l1_;
  AscendC::TBuf<AscendC::TPosition::A2> l0a_;
  AscendC::TBuf<AscendC::TPosition::B2> l0b_;
  AscendC::TBuf<AscendC::TPosition::CO1> l0c_;
  AscendC::TEventID l1_free_[2], l1_full_[2], l0_free_[2], l0_full_[2];
  AscendC::TEventID sums_free_, sums_full_, signal_ready_, signal_sent_;
  int32_t l1_half_ = 0, l0_half_ = 0;
};

}  // namespace hpmoe
