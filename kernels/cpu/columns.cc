// Bodies that select, pick, place and sum elements inside each row; in a router, a row holds a token's experts.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "bodies.h"
#include "integers.h"

namespace hpmoe {
namespace {

bool is_nan(float x) { return x != x; }
bool is_nan(int64_t) { return false; }

void load_row(const View& x, int64_t row, std::vector<float>& values) {
  for (size_t i = 0; i < values.size(); ++i) to_float32(x.dtype, x.at(row, i), 1, &values[i]);
}
void load_row(const View& x, int64_t row, std::vector<int64_t>& values) {
  for (size_t i = 0; i < values.size(); ++i) values[i] = load_integer(x, row, i);
}

void store_row(const View& out, int64_t row, const std::vector<float>& values) {
  for (size_t i = 0; i < values.size(); ++i) from_float32(out.dtype, &values[i], 1, out.at(row, i));
}
void store_row(const View& out, int64_t row, const std::vector<int64_t>& values) {
  for (size_t i = 0; i < values.size(); ++i) store_integer(out, row, i, values[i]);
}

// Orders NaN as the largest. Of equal elements the one with the smaller index comes first, in both directions.
template <class Value>
void choose(const std::vector<Value>& x, int64_t k, bool largest, std::vector<int32_t>& order) {
  std::iota(order.begin(), order.end(), 0);
  std::partial_sort(order.begin(), order.begin() + k, order.end(), [&](int32_t i, int32_t j) {
    const Value a = x[largest ? i : j], b = x[largest ? j : i];
    if (is_nan(a) != is_nan(b)) return is_nan(a);
    return a == b || is_nan(a) ? i < j : a > b;
  });
}

template <class Value>
Code top_k_of(const Frame& frame) {
  const View values = frame.view(0), ids = frame.view(1), x = frame.view(2);
  const int64_t k = frame.num_cols(0), cols = frame.num_cols(2);
  std::vector<Value> all(cols), chosen(k);
  std::vector<int32_t> order(cols);
  for (int64_t row = 0; row < frame.unit.rows; ++row) {
    load_row(x, row, all);
    choose(all, k, params::Choice::of(frame.op).largest, order);
    for (int64_t i = 0; i < k; ++i) {
      chosen[i] = all[order[i]];
      store_integer(ids, row, i, order[i]);
    }
    store_row(values, row, chosen);
  }
  return Code::OK;
}

template <class Value>
Code take_of(const Frame& frame) {
  const View out = frame.view(0), x = frame.view(1), index = frame.view(2);
  const int64_t k = frame.num_cols(0), cols = frame.num_cols(1);
  std::vector<Value> all(cols), taken(k);
  for (int64_t row = 0; row < frame.unit.rows; ++row) {
    load_row(x, row, all);
    for (int64_t i = 0; i < k; ++i) {
      const int64_t col = column_of(index, row, i, cols);
      if (col < 0) return Code::INDEX_OUT_OF_RANGE;
      taken[i] = all[col];
    }
    store_row(out, row, taken);
  }
  return Code::OK;
}

template <class Value>
Code add_of(const Frame& frame) {
  const bool is_number = frame.op.operands[1].buffer < 0;
  const View out = frame.view(0), index = frame.view(2);
  const int64_t k = frame.num_cols(2), cols = frame.num_cols(0);
  std::vector<Value> sums(cols), added(k, static_cast<Value>(frame.op.operands[1].value));
  for (int64_t row = 0; row < frame.unit.rows; ++row) {
    if (!is_number) load_row(frame.view(1), row, added);
    std::fill(sums.begin(), sums.end(), Value{0});
    for (int64_t i = 0; i < k; ++i) {
      const int64_t col = column_of(index, row, i, cols);
      if (col < 0) return Code::INDEX_OUT_OF_RANGE;
      sums[col] += added[i];
    }
    store_row(out, row, sums);
  }
  return Code::OK;
}

template <class Value>
Code cumsum_of(const Frame& frame) {
  const View out = frame.view(0), x = frame.view(1);
  std::vector<Value> sums(frame.num_cols(1));
  for (int64_t row = 0; row < frame.unit.rows; ++row) {
    load_row(x, row, sums);
    if (params::Running::of(frame.op).reverse) {
      std::partial_sum(sums.rbegin(), sums.rend(), sums.rbegin());
    } else {
      std::partial_sum(sums.begin(), sums.end(), sums.begin());
    }
    store_row(out, row, sums);
  }
  return Code::OK;
}

}  // namespace

Code top_k(const Frame& frame) { return is_integer(frame.dtype(2)) ? top_k_of<int64_t>(frame) : top_k_of<float>(frame); }

// Computes out[t, k] = x[t, index[t, k]]; a negative index counts from the end.
Code take_cols(const Frame& frame) { return is_integer(frame.dtype(1)) ? take_of<int64_t>(frame) : take_of<float>(frame); }

// Computes out[t, e] = sum of in[t, k] over all k with index[t, k] == e.
Code add_cols(const Frame& frame) { return is_integer(frame.dtype(0)) ? add_of<int64_t>(frame) : add_of<float>(frame); }

Code cumsum(const Frame& frame) { return is_integer(frame.dtype(1)) ? cumsum_of<int64_t>(frame) : cumsum_of<float>(frame); }

}  // namespace hpmoe
