// A program for the sanitizers: entries sorted in one part and in many, tokens' rows moved and summed on several threads at
// once, compared with plain loops; arrays end where an unmapped page begins.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "checks.h"
#include "core/radix_sort.h"
#include "cpu/parallel.h"
#include "cpu/token_rows.h"

namespace {

using namespace hpmoe;

void test_sort(int64_t n, int32_t least, int32_t most, int32_t parts, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_int_distribution<int32_t> draw(least, most);
  std::vector<int32_t> keys(n), order(n), place(n), want(n);
  for (int32_t& key : keys) key = draw(random);
  std::iota(want.begin(), want.end(), 0);
  std::stable_sort(want.begin(), want.end(), [&](int32_t a, int32_t b) { return keys[a] < keys[b]; });
  std::vector<int32_t> scratch(n);
  sort_stably(keys.data(), n, order.data(), place.data(), on_all_cores(parts), seed % 2 ? scratch.data() : nullptr);
  check(order == want, "entries are sorted stably");
  for (int64_t i = 0; i < n; ++i) check(place[want[i]] == i, "each entry knows its place");
}

// Rows of float32, so that plain loops give the same bits up to the order of a product and a sum.
struct Rows {
  int64_t tokens, top_k, cols, start, num_rows;
  std::vector<int32_t> place;
  std::vector<float> weights;
  Guarded x, rows;

  Rows(int64_t tokens_, int64_t top_k_, int64_t cols_, int64_t start_, int64_t num_rows_, std::mt19937& random)
      : tokens(tokens_),
        top_k(top_k_),
        cols(cols_),
        start(start_),
        num_rows(num_rows_),
        place(tokens * top_k),
        weights(tokens * top_k),
        x(4 * tokens * cols),
        rows(4 * num_rows * cols) {
    std::iota(place.begin(), place.end(), 0);
    std::shuffle(place.begin(), place.end(), random);
    std::normal_distribution<float> normal;
    for (float& w : weights) w = normal(random);
    for (int64_t i = 0; i < tokens * cols; ++i) values(x)[i] = normal(random);
    for (int64_t i = 0; i < num_rows * cols; ++i) values(rows)[i] = normal(random);
  }

  static float* values(const Guarded& of) { return reinterpret_cast<float*>(of.data); }
  Places places() const { return {place.data(), tokens * top_k, top_k, start, num_rows}; }

  void check_all() const {
    std::vector<uint8_t> taken(num_rows);
    check(find_repeated(places(), taken.data()) < 0, "places are distinct");
    const Guarded spread(4 * num_rows * cols), sums(4 * tokens * cols), d_rows(4 * num_rows * cols);
    std::vector<float> d_weights(tokens * top_k);
    spread_rows(places(), taken.data(), x.data, 4 * cols, spread.data);
    collect_rows(places(), nullptr, tokens, weights.data(), Dtype::FLOAT32, rows.data, cols, sums.data);
    collect_rows_grad(places(), taken.data(), weights.data(), Dtype::FLOAT32, rows.data, x.data, cols, d_rows.data,
                      d_weights.data());
    std::vector<float> want(num_rows * cols), want_grad(num_rows * cols);
    for (int64_t token = 0; token < tokens; ++token) {
      std::vector<double> sum(cols);
      for (int64_t k = 0; k < top_k; ++k) {
        const int64_t entry = token * top_k + k, row = place[entry] - start;
        double dot = 0;
        for (int64_t c = 0; row >= 0 && row < num_rows && c < cols; ++c) {
          const float here = values(x)[token * cols + c], there = values(rows)[row * cols + c];
          want[row * cols + c] = here;
          want_grad[row * cols + c] = weights[entry] * here;
          sum[c] += double(weights[entry]) * there;
          dot += double(here) * there;
        }
        check(std::fabs(dot - d_weights[entry]) < 1e-3, "a weight's gradient is a dot product");
      }
      for (int64_t c = 0; c < cols; ++c) {
        check(std::fabs(sum[c] - values(sums)[token * cols + c]) < 1e-4, "a token gets the sum of its rows");
      }
    }
    check(std::equal(want.begin(), want.end(), values(spread)), "rows lie at their places, zeros elsewhere");
    check(std::equal(want_grad.begin(), want_grad.end(), values(d_rows)), "a row's gradient is its token's, scaled");
  }
};

void test_rows(unsigned seed) {
  std::mt19937 random(seed);
  const int64_t tokens = random() % 300, top_k = 1 + random() % 8, all = tokens * top_k;
  const int64_t start = all ? random() % all : 0, num_rows = random() % 3 ? all - start : all - start + random() % 4;
  Rows(tokens, top_k, 1 + random() % (seed % 10 ? 70 : 5000), start, num_rows, random).check_all();
}

void test_repeated() {
  const std::vector<int32_t> place{3, 1, 2, 1};
  std::vector<uint8_t> taken(4);
  check(find_repeated({place.data(), 4, 2, 0, 4}, taken.data()) == 1, "a place that two entries have is found");
  check(find_repeated({place.data(), 4, 2, 2, 2}, taken.data()) < 0, "outside of the range nothing is looked at");
}

// Results past the caches, of rows of odd sizes.
void test_streamed() {
  const int64_t bytes = (int64_t{17} << 20) + 13;
  const Guarded from(bytes), to(bytes);
  for (int64_t i = 0; i < bytes; ++i) from.data[i] = static_cast<char>(i * 31);
  copy_streamed(from.data, bytes, to.data);
  check(std::equal(from.data, from.data + bytes, to.data), "a copy is one");
  std::mt19937 random(3);
  Rows(600, 8, 999, 100, 4500, random).check_all();
}

}  // namespace

int main(int argc, char** argv) {
  const double scale = argc > 1 ? std::atof(argv[1]) : 1;  // of how many rounds
  for (int64_t n : {0, 1, 255, 4097, 100000}) {
    for (int32_t parts : {1, 3, 16}) {
      for (int32_t most : {0, 7, 255, 256, 1023, 1 << 20}) test_sort(n, most == 7 ? -1 : 0, most, parts, unsigned(n + most));
      test_sort(n, INT32_MIN, INT32_MAX, parts, 5);
    }
  }
  std::vector<std::thread> others;
  for (int i = 0; i < 3; ++i) {
    others.emplace_back([=] {
      for (int round = 0; round < int(20 * scale); ++round) test_rows(unsigned(1000 * i + round));
    });
  }
  for (std::thread& other : others) other.join();
  test_repeated();
  test_streamed();
  std::puts("token driver: ok");
}
