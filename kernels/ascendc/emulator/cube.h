// The matrix core: copies fractals from L1 to L0A and L0B, multiplies into L0C, and stores rows of global memory.
#pragma once

#include "copies.h"

namespace AscendC {

struct LoadData2DParams {
  LoadData2DParams() = default;
  uint16_t startIndex = 0, dstGap = 0, srcStride = 0;
  bool ifTranspose = false;
  uint8_t repeatTimes = 0, sid = 0, addrMode = 0;
};

struct LoadData2DParamsV2 {
  LoadData2DParamsV2() = default;
  uint32_t mStartPosition = 0, kStartPosition = 0;
  uint16_t mStep = 0, kStep = 0;
  int32_t srcStride = 0;
  uint16_t dstStride = 0;
  bool ifTranspose = false;
  uint8_t sid = 0;
};

struct LoadData2dTransposeParams {
  LoadData2dTransposeParams() = default;
  uint16_t startIndex = 0;
  uint8_t repeatTimes = 0;
  uint16_t srcStride = 0, dstGap = 0, dstFracGap = 0;
  uint8_t addrMode = 0;
};

template <class T>
struct InitConstValueParams {
  InitConstValueParams() = default;
  InitConstValueParams(uint16_t repeatTimesIn, uint16_t blockNumIn, uint16_t dstGapIn, T initValueIn)
      : repeatTimes(repeatTimesIn), blockNum(blockNumIn), dstGap(dstGapIn), initValue(initValueIn) {}
  uint16_t repeatTimes = 0, blockNum = 0, dstGap = 0;
  T initValue{};
};

struct MmadParams {
  MmadParams() = default;
  MmadParams(uint16_t mIn, uint16_t nIn, uint16_t kIn, uint8_t unitFlagIn, bool cmatrixSourceIn, bool cmatrixInitValIn)
      : m(mIn), n(nIn), k(kIn), unitFlag(unitFlagIn), cmatrixSource(cmatrixSourceIn), cmatrixInitVal(cmatrixInitValIn) {}
  uint16_t m = 0, n = 0, k = 0;
  uint8_t unitFlag = 0;
  bool kDirectionAlign = false, cmatrixSource = false, cmatrixInitVal = true;
};

enum class HF32Mode { ENABLE, DISABLE };

enum class CO2Layout : uint8_t { NZ = 0, ROW_MAJOR, COLUMN_MAJOR };
struct FixpipeConfig {
  CO2Layout format;
};
constexpr FixpipeConfig CFG_ROW_MAJOR = {CO2Layout::ROW_MAJOR};

struct FixpipeParamsV220 {
  FixpipeParamsV220() = default;
  uint16_t nSize = 0, mSize = 0, srcStride = 0;
  uint32_t dstStride = 0;
  QuantMode_t quantPre = QuantMode_t::NoQuant;
  uint64_t deqScalar = 0;
  uint16_t ndNum = 1, srcNdStride = 0, dstNdStride = 0;
  bool reluEn = false;
  uint8_t unitFlag = 0;
  bool isChannelSplit = false;
};

namespace detail {

constexpr uint32_t kFractalBytes = 512;
template <class T>
constexpr uint32_t kFractalSize = kFractalBytes / sizeof(T);

template <class T>
void check_path(const LocalTensor<T>& to, const LocalTensor<T>& from, const char* what, bool of_950 = false) {
  emulator::require(emulator::kIs950 == of_950, what,
                    of_950 ? " with these parameters is of the 950" : " of the 950 takes others");
  emulator::require(from.memory() == emulator::Memory::L1 &&
                        (to.memory() == emulator::Memory::L0A || to.memory() == emulator::Memory::L0B),
                    what, " goes from L1 to L0A or L0B");
}
inline void count_fractals(emulator::Core& core, emulator::Memory to, int64_t number) {
  (to == emulator::Memory::L0A ? core.counts.l1_to_l0a : core.counts.l1_to_l0b) += number * kFractalBytes;
}

}  // namespace detail

// Fills L1 with a constant, in blocks of 32 bytes.
template <class T>
void Fill(const LocalTensor<T>& to, const InitConstValueParams<T>& p) {
  emulator::Core& core = emulator::current();
  core.need(true, "Fill");
  emulator::require(to.memory() == emulator::Memory::L1, "Fill: the kernel fills L1");
  core.work(PIPE_MTE2, "Fill", [=, &core] {
    const uint64_t step = uint64_t{p.blockNum} + p.dstGap;
    if (p.repeatTimes == 0 || p.blockNum == 0) return;
    const uint64_t blocks = (p.repeatTimes - 1u) * step + p.blockNum;
    uint8_t* const out = to.bytes(core, blocks * detail::kBlock, "Fill");
    for (uint64_t r = 0; r < p.repeatTimes; ++r)
      std::fill_n(reinterpret_cast<T*>(out + r * step * detail::kBlock), p.blockNum * detail::kBlock / sizeof(T),
                  p.initValue);
  });
}

// Loads fractals from L1; square ones (half precision) can be transposed.
template <class T>
void LoadData(const LocalTensor<T>& to, const LocalTensor<T>& from, const LoadData2DParams& p) {
  static_assert(sizeof(T) == 1 || sizeof(T) == 2 || sizeof(T) == 4, "fractals the kernel uses");
  emulator::Core& core = emulator::current();
  core.need(true, "LoadData");
  detail::check_path(to, from, "LoadData");
  emulator::require(!p.ifTranspose || sizeof(T) == 2, "LoadData turns numbers of 16 bits only");
  core.work(PIPE_MTE1, "LoadData", [=, &core] {
    ++core.counts.l0_loads;
    if (p.repeatTimes == 0) return;
    const uint64_t last = p.startIndex + uint64_t{p.repeatTimes - 1u} * p.srcStride, step = uint64_t{1} + p.dstGap;
    const auto* in = reinterpret_cast<const T*>(from.bytes(core, (last + 1) * detail::kFractalBytes, "LoadData"));
    auto* out = reinterpret_cast<T*>(to.bytes(core, ((p.repeatTimes - 1u) * step + 1) * detail::kFractalBytes, "LoadData"));
    for (uint32_t r = 0; r < p.repeatTimes; ++r) {
      const T* source = in + (p.startIndex + uint64_t{r} * p.srcStride) * detail::kFractalSize<T>;
      T* target = out + r * step * detail::kFractalSize<T>;
      for (uint32_t i = 0; i < detail::kFractalSize<T>; ++i) target[i] = source[p.ifTranspose ? i % 16 * 16 + i / 16 : i];
    }
    detail::count_fractals(core, to.memory(), p.repeatTimes);
  });
}

// Loads by img2col with 1 x 1 filters: a matrix in L1 of l1H * l1W rows of channelSize numbers, in columns of fractals.
// mExtension rows and kExtension numbers of it go to rows of fractals: of L0A, unchanged or transposed as a whole, or of
// L0B, with each fractal transposed.
template <class T>
struct LoadData3DParamsV2 {
  uint8_t padList[4] = {0, 0, 0, 0};
  uint16_t l1H = 0, l1W = 0, channelSize = 0, kExtension = 0, mExtension = 0, kStartPt = 0, mStartPt = 0;
  uint8_t strideW = 1, strideH = 1, filterW = 1, filterH = 1, dilationFilterW = 1, dilationFilterH = 1;
  bool enTranspose = false, enSmallK = false;
  T padValue{};
};
template <class T>
void LoadData(const LocalTensor<T>& to, const LocalTensor<T>& from, const LoadData3DParamsV2<T>& p) {
  constexpr uint32_t c0 = detail::kBlock / sizeof(T);
  emulator::Core& core = emulator::current();
  core.need(true, "LoadData");
  detail::check_path(to, from, "LoadData");
  const bool is_b = to.memory() == emulator::Memory::L0B, is_transposed = is_b || p.enTranspose;
  emulator::require(!is_transposed || sizeof(T) == 2, "LoadData: of images, the kernel turns numbers of 16 bits only");
  emulator::require(p.filterW == 1 && p.filterH == 1 && p.strideW == 1 && p.strideH == 1, "LoadData: filters of one pixel");
  emulator::require(p.channelSize % c0 == 0 && p.kExtension % c0 == 0 && p.kStartPt % c0 == 0 && p.mExtension % 16 == 0 &&
                        p.mStartPt % 16 == 0 && p.mStartPt <= 32767 && p.l1W <= 32767,
                    "LoadData: sides of an image are no whole fractals");
  const uint32_t height = uint32_t{p.l1H} * p.l1W, m = p.mExtension / 16u, k = p.kExtension / c0;
  emulator::require(p.mStartPt + p.mExtension <= height && p.kStartPt + p.kExtension <= p.channelSize,
                    "LoadData: a part reaches beyond its image");
  core.work(PIPE_MTE1, "LoadData of an image", [=, &core] {
    ++core.counts.l0_loads;
    if (m * k == 0) return;
    const uint64_t first_line = p.mStartPt / 16u, first_column = p.kStartPt / c0, lines = height / 16u;
    const uint64_t last = (first_column + k - 1) * lines + first_line + m - 1;
    const auto* in = reinterpret_cast<const T*>(from.bytes(core, (last + 1) * detail::kFractalBytes, "LoadData"));
    auto* out = reinterpret_cast<T*>(to.bytes(core, uint64_t{m} * k * detail::kFractalBytes, "LoadData"));
    for (uint64_t line = 0; line < m; ++line) {
      for (uint64_t column = 0; column < k; ++column) {
        const T* source = in + ((first_column + column) * lines + first_line + line) * detail::kFractalSize<T>;
        T* target = out + (is_transposed && !is_b ? column * m + line : line * k + column) * detail::kFractalSize<T>;
        for (uint32_t i = 0; i < detail::kFractalSize<T>; ++i) target[i] = source[is_transposed ? i % 16 * 16 + i / 16 : i];
      }
    }
    detail::count_fractals(core, to.memory(), int64_t{m} * k);
  });
}

// Loads and transposes squares: 16 x 16 numbers of 32 bits, whose left and right halves are successive fractals of L1, or
// 32 x 32 numbers of 8 bits, whose upper and lower halves are. The halves of the result are dstFracGap fractals apart;
// the next square's first half is dstGap fractals after this one's.
template <class T>
void LoadDataWithTranspose(const LocalTensor<T>& to, const LocalTensor<T>& from, const LoadData2dTransposeParams& p) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 1, "squares the kernel uses");
  constexpr uint32_t side = sizeof(T) == 4 ? 16 : 32;
  const uint32_t size = detail::kFractalSize<T>;
  emulator::Core& core = emulator::current();
  core.need(true, "LoadDataWithTranspose");
  detail::check_path(to, from, "LoadDataWithTranspose");
  emulator::require(p.addrMode == 0, "LoadDataWithTranspose: the kernel goes forward");
  const uint64_t step = uint64_t{1} + p.dstGap, half = uint64_t{1} + p.dstFracGap;
  emulator::require(half % step != 0 || half / step >= p.repeatTimes, "LoadDataWithTranspose: fractals overlap in L0");
  core.work(PIPE_MTE1, "LoadDataWithTranspose", [=, &core] {
    ++core.counts.l0_loads;
    if (p.repeatTimes == 0) return;
    const uint64_t last_in = p.startIndex + uint64_t{p.repeatTimes - 1u} * p.srcStride;
    const uint64_t last_out = (p.repeatTimes - 1u) * step + half;
    const auto* in = reinterpret_cast<const T*>(
        from.bytes(core, (last_in + 1) * 2 * detail::kFractalBytes, "LoadDataWithTranspose"));
    auto* out = reinterpret_cast<T*>(to.bytes(core, (last_out + 1) * detail::kFractalBytes, "LoadDataWithTranspose"));
    for (uint64_t r = 0; r < p.repeatTimes; ++r) {
      const T* source = in + (p.startIndex + r * p.srcStride) * 2 * size;
      const auto place = [size](uint32_t row, uint32_t col, uint64_t apart) {  // in two fractals
        return sizeof(T) == 4 ? col / 8 * apart * size + row * 8 + col % 8 : row / 16 * apart * size + row % 16 * 32 + col;
      };
      for (uint32_t i = 0; i < side; ++i)
        for (uint32_t j = 0; j < side; ++j) out[r * step * size + place(i, j, half)] = source[place(j, i, 1)];
    }
    detail::count_fractals(core, to.memory(), 2 * p.repeatTimes);
  });
}

// Loads mStep x kStep fractals of a matrix of m x k in L1, whose columns are srcStride fractals apart, to columns that
// are dstStride fractals apart. A transposing load turns rows of fractals into columns. In float32 two horizontally
// adjacent fractals of L1 form a square, whose transposed halves go to two columns; in numbers of 8 bits two vertically
// adjacent fractals form one, whose transposed halves go to two lines.
template <class T>
void LoadData(const LocalTensor<T>& to, const LocalTensor<T>& from, const LoadData2DParamsV2& p) {
  static_assert(sizeof(T) == 1 || sizeof(T) == 2 || sizeof(T) == 4, "fractals the kernel uses");
  constexpr uint32_t across = sizeof(T) > 1 ? sizeof(T) / 2 : 1, lines_transposed = sizeof(T) > 1 ? 1 : 2;
  constexpr uint32_t c0 = detail::kBlock / sizeof(T);
  emulator::Core& core = emulator::current();
  core.need(true, "LoadData");
  detail::check_path(to, from, "LoadData", true);
  emulator::require(p.mStep <= 255 && p.kStep <= 255, "LoadData: ", p.mStep, " times ", p.kStep, " fractals are too many");
  emulator::require(!p.ifTranspose || p.mStep % lines_transposed == 0,
                    "LoadData: of 8 bits, pairs of fractals are transposed");
  emulator::require(!p.ifTranspose || p.kStep % across == 0, "LoadData: of float32, pairs of fractals are transposed");
  core.work(PIPE_MTE1, "LoadData", [=, &core] {
    ++core.counts.l0_loads;
    if (p.mStep == 0 || p.kStep == 0) return;
    const auto source = [&p](uint64_t m, uint64_t k) { return (p.kStartPosition + k) * p.srcStride + p.mStartPosition + m; };
    const uint64_t columns = p.ifTranspose ? p.mStep * across / lines_transposed : p.kStep;
    const uint64_t lines = p.ifTranspose ? p.kStep * lines_transposed / across : p.mStep;
    const auto* in = reinterpret_cast<const T*>(
        from.bytes(core, (source(p.mStep - 1u, p.kStep - 1u) + 1) * detail::kFractalBytes, "LoadData"));
    auto* out = reinterpret_cast<T*>(
        to.bytes(core, ((columns - 1) * p.dstStride + lines) * detail::kFractalBytes, "LoadData"));
    for (uint64_t column = 0; column < columns; ++column) {
      for (uint64_t line = 0; line < lines; ++line) {
        T* target = out + (column * p.dstStride + line) * detail::kFractalSize<T>;
        for (uint32_t i = 0; i < detail::kFractalSize<T>; ++i) {
          const uint64_t row = line * 16 + i / c0, col = column * c0 + i % c0;  // of the resulting operand
          const uint64_t down = p.ifTranspose ? col : row, right = p.ifTranspose ? row : col;
          target[i] = in[source(down / 16, right / c0) * detail::kFractalSize<T> + down % 16 * c0 + right % c0];
        }
      }
    }
    detail::count_fractals(core, to.memory(), static_cast<int64_t>(columns * lines));
  });
}

// Sets whether products round float32 to 11 bits of mantissa first; the initial state is that of the kernel before.
inline void SetHF32Mode(HF32Mode mode) {
  emulator::current().need(true, "SetHF32Mode");
  emulator::current().rounds_float32 = mode == HF32Mode::ENABLE;
}

namespace detail {

// The layout in which Mmad reads its operands: fractals of 16 x c0, `num_k` of them along k. In A the next fractal down
// is `down` fractals later, and the next along k is `deeper` fractals later.
struct Depth {
  uint32_t c0, num_k, down, deeper;
};

// Fractals of float32 are 8 deep; rows of A have an even number of them if k is aligned. A 950 has columns of A.
template <class A>
Depth depth_of(const MmadParams& p) {
  constexpr uint32_t c0 = kBlock / sizeof(A);
  const uint32_t num_k = (p.k + c0 - 1) / c0;
  emulator::require(!p.kDirectionAlign || (c0 == 8 && !emulator::kIs950),
                    "Mmad: kDirectionAlign is for float32, and not of the 950");
  if (emulator::kIs950) return {c0, num_k, 1, (p.m + 15u) / 16};
  return {c0, num_k, p.kDirectionAlign ? num_k + num_k % 2 : num_k, 1};
}

// Computes c[m, n] = a[m, k] @ b[k, n], or adds it, in fractals: a as `depth` says, b in rows of fractals of columns, c
// in columns of fractals of rows. A single row is read as a plain vector. Elements past m and n are undefined.
void multiply(const float* a, const float* b, float* c, const MmadParams& p, const Depth& depth);
void multiply(const int32_t* a, const int32_t* b, int32_t* c, const MmadParams& p, const Depth& depth);

// Returns operands in the precision in which they are multiplied.
inline std::vector<int32_t> widen(const LocalTensor<int8_t>& from, uint64_t fractals, emulator::Core& core, bool) {
  const auto* const first = reinterpret_cast<const int8_t*>(from.bytes(core, fractals * kFractalBytes, "Mmad"));
  return {first, first + fractals * kFractalBytes};
}
inline std::vector<float> widen(const LocalTensor<fp8_e4m3fn_t>& from, uint64_t fractals, emulator::Core& core, bool) {
  std::vector<float> wide(fractals * kFractalBytes);
  const auto* const first = reinterpret_cast<const fp8_e4m3fn_t*>(from.bytes(core, wide.size(), "Mmad"));
  std::transform(first, first + wide.size(), wide.begin(), emulator::value_of);
  return wide;
}
template <class T>
std::vector<float> widen(const LocalTensor<T>& from, uint64_t fractals, emulator::Core& core, bool rounds) {
  std::vector<float> wide(fractals * kFractalSize<T>);
  emulator::widen(reinterpret_cast<const T*>(from.bytes(core, fractals * kFractalBytes, "Mmad")),
                  static_cast<int64_t>(wide.size()), wide.data());
  if (sizeof(T) == 4 && rounds) emulator::round_to_hf32(wide.data(), wide.size());
  return wide;
}

// Multiplies the operands that `operands` returns, in the precision of products, for the fractals of A and of B.
template <class C, class A, class Operands>
void multiply_later(const char* what, const LocalTensor<C>& c, const LocalTensor<A>& a, const LocalTensor<A>& b,
                    const MmadParams& p, Operands operands) {
  emulator::Core& core = emulator::current();
  core.need(true, what);
  emulator::require(
      c.memory() == emulator::Memory::L0C && a.memory() == emulator::Memory::L0A && b.memory() == emulator::Memory::L0B,
      what, " takes L0A and L0B to L0C");
  emulator::require(p.m <= 4095 && p.n <= 4095 && p.k <= 4095, what, ": a size is out of range");
  const uint64_t m = (p.m + 15u) / 16, n = (p.n + 15u) / 16;
  const Depth depth = depth_of<A>(p);
  core.clock.cube(static_cast<double>(m * n * depth.num_k) * (sizeof(A) == 4 ? 2 : 1));
  const bool is_kept_in_order = (p.m / 16) * (p.n / 16) >= 10;
  core.work(
      PIPE_M, what,
      [=, &core] {
        if (m * n * depth.num_k == 0) return;
        const auto [wide_a, wide_b] = operands(core, emulator::kIs950 ? m * depth.num_k : m * depth.down, n * depth.num_k);
        auto* out = reinterpret_cast<C*>(c.bytes(core, m * n * 1024, what, 1024));
        multiply(wide_a.data(), wide_b.data(), out, p, depth);
        core.counts.cube_flops += static_cast<int64_t>(2 * m * 16 * n * 16 * depth.num_k * depth.c0);
      },
      is_kept_in_order);
}

}  // namespace detail

template <class C, class A, class B>
void Mmad(const LocalTensor<C>& c, const LocalTensor<A>& a, const LocalTensor<B>& b, const MmadParams& p) {
  static_assert(std::is_same_v<A, B> && std::is_same_v<C, std::conditional_t<std::is_same_v<A, int8_t>, int32_t, float>>,
                "products the kernel uses");
  emulator::require(emulator::kIs950 || !std::is_same_v<A, fp8_e4m3fn_t>, "Mmad: fp8 is of the 950");
  const bool rounds = emulator::current().rounds_float32;
  detail::multiply_later("Mmad", c, a, b, p, [=](emulator::Core& core, uint64_t of_a, uint64_t of_b) {
    return std::pair(detail::widen(a, of_a, core, rounds), detail::widen(b, of_b, core, rounds));
  });
}

// Copies fractals of L0C to rows of global memory, rounded to their dtype. Rows may have any number of columns; the other
// mode of the hardware, which writes fractals, is not modelled.
template <class T, class U, const FixpipeConfig& config = CFG_ROW_MAJOR>
void Fixpipe(const GlobalTensor<T>& to, const LocalTensor<U>& from, const FixpipeParamsV220& p) {
  constexpr bool is_int32 = std::is_same_v<U, int32_t> && std::is_same_v<T, int32_t>;
  static_assert((std::is_same_v<U, float> || is_int32) && config.format == CO2Layout::ROW_MAJOR,
                "results the kernel writes");
  emulator::Core& core = emulator::current();
  core.need(true, "Fixpipe");
  constexpr QuantMode_t wanted = std::is_same_v<T, float> || is_int32 ? NoQuant
                                 : std::is_same_v<T, half>            ? F322F16
                                                                      : F322BF16;
  emulator::require(p.quantPre == wanted, "Fixpipe: quantPre does not fit the dtype");
  emulator::require(p.nSize >= 1 && p.nSize <= 4095 && p.mSize >= 1 && p.mSize <= 8192, "Fixpipe: rows are written ",
                    p.mSize, " times ", p.nSize, ", 1 to 8192 times 1 to 4095 they may be");
  emulator::require(p.ndNum == 1 && p.dstStride > 0 && p.srcStride % 16 == 0, "Fixpipe: a parameter is out of range");
  const emulator::Atomic atomic = core.atomic;
  const bool saturates = core.saturates;
  core.work(PIPE_FIX, "Fixpipe", [=, &core] {
    const uint64_t columns = (p.nSize + 15u) / 16, floats = (columns - 1) * p.srcStride * 16 + uint64_t{p.mSize} * 16;
    const auto* in = reinterpret_cast<const U*>(from.bytes(core, floats * sizeof(U), "Fixpipe"));
    for (uint32_t i = 0; i < p.mSize; ++i) {
      for (uint64_t j = 0; j < columns; ++j) {
        const uint64_t width = std::min<uint64_t>(16, p.nSize - 16 * j) * sizeof(T);
        T row[16];
        const U* const sums = in + j * p.srcStride * 16 + uint64_t{i} * 16;
        if constexpr (is_int32) {
          std::copy_n(sums, 16, row);
        } else {
          emulator::narrow(sums, 16, row, saturates);
        }
        T* out = to.GetPhyAddr() + uint64_t{i} * p.dstStride + j * 16;
        emulator::store(core, atomic, reinterpret_cast<uint8_t*>(out), reinterpret_cast<uint8_t*>(row), width, "Fixpipe");
      }
    }
    core.counts.l0c_to_gm += int64_t{p.mSize} * p.nSize * static_cast<int64_t>(sizeof(T));
    core.counts.from_l0c.add(int64_t{p.mSize} * p.nSize * static_cast<int64_t>(sizeof(T)));
  });
}

}  // namespace AscendC
