// A program for the sanitizers: products of every dtype and many odd sizes, each operand and the result ending where an
// unmapped page begins, so that a read or a write past the end is a fault even from instructions no sanitizer sees.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>
#include <vector>

#include "checks.h"
#include "cpu/amx_sharing.h"
#include "cpu/convert.h"
#include "cpu/gemm.h"

namespace {

using namespace hpmoe;

struct Operand {
  int64_t rows, cols;
  Dtype dtype;
  Guarded memory;
  std::vector<float> values;

  Operand(int64_t num_rows, int64_t num_cols, Dtype of, std::mt19937& random)
      : rows(num_rows), cols(num_cols), dtype(of), memory(rows * cols * element_size(of)), values(rows * cols) {
    if (values.empty()) return;
    std::normal_distribution<float> normal;
    for (float& x : values) x = normal(random);
    if (random() % 4 == 0) values[random() % values.size()] = 1e-38f;  // too small for matrix units
    from_float32(dtype, values.data(), rows * cols, memory.data);
    read();
  }
  void read() { to_float32(dtype, memory.data, rows * cols, values.data()); }
  Matrix matrix(bool transposed = false) const { return {memory.data, dtype, cols, transposed}; }
};

void check_product(const Sizes& s, bool transpose_a, bool transpose_b, bool accumulate, const Dtype dtypes[3],
                   std::mt19937& random) {
  const Operand a(transpose_a ? s.k : s.m, transpose_a ? s.m : s.k, dtypes[0], random);
  const Operand b(transpose_b ? s.n : s.k, transpose_b ? s.k : s.n, dtypes[1], random);
  Operand c(s.m, s.n, dtypes[2], random);
  const std::vector<float> before = c.values;
  Matrix result = c.matrix();
  result.streamed = random() % 2;
  gemm(s, a.matrix(transpose_a), b.matrix(transpose_b), result, accumulate);
  c.read();
  for (int64_t i = 0; i < s.m; ++i) {
    for (int64_t j = 0; j < s.n; ++j) {
      double sum = accumulate ? before[i * s.n + j] : 0.0;
      for (int64_t k = 0; k < s.k; ++k) {
        sum += double(a.values[transpose_a ? k * s.m + i : i * s.k + k]) * b.values[transpose_b ? j * s.k + k : k * s.n + j];
      }
      const double error = std::fabs(c.values[i * s.n + j] - sum);
      if (error <= 0.01 * std::fabs(sum) + 1e-4) continue;
      std::fprintf(stderr, "failed: a product of %d x %d x %d is wrong by %g\n", int(s.m), int(s.n), int(s.k), error);
      std::exit(1);
    }
  }
}

void check_products(unsigned seed, int count) {
  std::mt19937 random(seed);
  const Dtype floats[] = {Dtype::FLOAT32, Dtype::BFLOAT16, Dtype::FLOAT16};
  const auto below = [&](int limit) { return int(random() % unsigned(limit)); };
  for (int i = 0; i < count; ++i) {
    const int kind = below(3);
    Dtype dtypes[3];
    for (Dtype& dtype : dtypes) dtype = kind < 2 ? floats[kind] : floats[below(3)];
    const bool accumulate = dtypes[2] == Dtype::FLOAT32 && below(2) == 0;
    const int lines = below(2) ? 16 : 1;  // whole ones in memory, or any
    check_product({1 + below(80), lines * (1 + below(80 / lines)), below(100)}, below(2), below(2), accumulate, dtypes,
                  random);
  }
}

struct Choice {
  bool amx;
  Sharing sharing;
};

}  // namespace

int main(int argc, char** argv) {
  const double scale = argc > 1 ? std::atof(argv[1]) : 1;  // of how many rounds
  for (const Choice& choice : {Choice{true, Sharing::NO}, Choice{true, Sharing::YES}, Choice{false, Sharing::NO}}) {
    use_amx(choice.amx);
    if (uses_amx() != choice.amx) continue;  // this core has none
    assume_sharing(choice.sharing);
    std::mt19937 random(3);
    for (const Dtype of : {Dtype::BFLOAT16, Dtype::FLOAT32}) {
      const Dtype dtypes[] = {of, of, Dtype::FLOAT32};
      for (const bool transpose : {true, false}) {  // k in several steps, columns in several blocks
        check_product({50, 600, 1700}, transpose, transpose, true, dtypes, random);
      }
    }
    std::thread other(check_products, 1, int(200 * scale));
    check_products(2, int(200 * scale));
    other.join();
  }
  std::puts("product driver: ok");
}
