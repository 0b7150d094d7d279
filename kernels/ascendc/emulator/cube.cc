#include "cube.h"

#include <limits>

namespace AscendC::detail {

namespace {

template <class T>
void multiply_as(const T* a, const T* b, T* c, const MmadParams& p, const Depth& depth, T undefined) {
  const uint32_t num_m = (p.m + 15u) / 16, num_n = (p.n + 15u) / 16, c0 = depth.c0;
  std::vector<T> row(p.k);
  for (uint32_t i = 0; i < num_m * 16; ++i) {
    for (uint32_t k = 0; k < p.k && i < p.m; ++k)
      row[k] = p.m == 1 ? a[k] : a[((i / 16 * depth.down + k / c0 * depth.deeper) * 16 + i % 16) * c0 + k % c0];
    for (uint32_t nj = 0; nj < num_n; ++nj) {
      T* const out = c + (nj * num_m + i / 16) * 256 + i % 16 * 16;
      for (uint32_t j = 0; j < 16; ++j) {
        if (i >= p.m || nj * 16 + j >= p.n) {
          out[j] = undefined;
          continue;
        }
        T sum = p.cmatrixInitVal ? T{0} : out[j];
        for (uint32_t k = 0; k < p.k; ++k) sum += row[k] * b[(((k / c0) * num_n + nj) * 16 + j) * c0 + k % c0];
        out[j] = sum;
      }
    }
  }
}

}  // namespace

void multiply(const float* a, const float* b, float* c, const MmadParams& p, const Depth& depth) {
  multiply_as(a, b, c, p, depth, std::numeric_limits<float>::quiet_NaN());
}

void multiply(const int32_t* a, const int32_t* b, int32_t* c, const MmadParams& p, const Depth& depth) {
  multiply_as(a, b, c, p, depth, std::numeric_limits<int32_t>::min());
}

}  // namespace AscendC::detail
