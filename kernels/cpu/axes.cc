// Bodies along an axis inside rows of [outer, size, inner] elements: strided pick and place, sums and maxima. A row
// reduction is along an axis of all columns.
#include <algorithm>
#include <cstring>

#include "bodies.h"
#include "integers.h"
#include "lanes.h"

namespace hpmoe {
namespace {

// The axis of the output that a task's columns cover, and the size of the input's axis.
struct Axis {
  int64_t size, inner, start, step, there;
};

Axis axis_of(const Frame& frame) {
  const auto p = params::AlongAxis::of(frame.op);
  const int64_t outer = frame.buffer(0).cols / (int64_t{p.size} * p.inner);
  return {p.size, p.inner, p.start, p.step, frame.buffer(1).cols / (outer * p.inner)};
}

// Calls visit(o, first, last) for each outer index o, with the elements [first, last) of the output's axis that overlap
// columns [col, end). An element that the columns cut is visited whole. `inner` is 1, or whole elements are moved.
template <class Visit>
void for_each_part(const Axis& axis, int64_t col, int64_t end, Visit visit) {
  const int64_t part = axis.size * axis.inner;
  for (int64_t o = col / part; o * part < end; ++o) {
    const int64_t from = std::max(col - o * part, int64_t{0}), to = std::min(end - o * part, part);
    visit(o, from / axis.inner, (to + axis.inner - 1) / axis.inner);
  }
}

// Copies the part in columns [col, end) of the element of the output's axis that begins at column `at`.
template <class Element>
void copy_part(const Element* from, int64_t at, int64_t inner, int64_t col, int64_t end, Element* out) {
  const int64_t first = std::max(at, col), last = std::min(at + inner, end);
  std::memcpy(out + first, from + (first - at), (last - first) * sizeof(Element));
}

template <class Element>
void pick_row(const Axis& axis, const Element* x, int64_t col, int64_t end, Element* __restrict out) {
  for_each_part(axis, col, end, [&](int64_t o, int64_t first, int64_t last) {
    const Element* const from = x + (o * axis.there + axis.start) * axis.inner;
    const int64_t to = o * axis.size * axis.inner;
    if (axis.inner == 1) {
      for (int64_t j = first; j < last; ++j) out[to + j] = from[j * axis.step];
      return;
    }
    for (int64_t j = first; j < last; ++j)
      copy_part(from + j * axis.step * axis.inner, to + j * axis.inner, axis.inner, col, end, out);
  });
}

template <class Element>
void place_row(const Axis& axis, const Element* x, int64_t col, int64_t end, Element* __restrict out) {
  std::fill(out + col, out + end, Element{0});
  for_each_part(axis, col, end, [&](int64_t o, int64_t first, int64_t last) {
    const Element* const from = x + o * axis.there * axis.inner;
    const int64_t to = o * axis.size * axis.inner;
    const auto ahead = [&](int64_t j) { return std::max((j - axis.start + axis.step - 1) / axis.step, int64_t{0}); };
    const int64_t begin = first > axis.start ? ahead(first) : 0,
                  stop = std::min(last > axis.start ? ahead(last) : 0, axis.there);
    if (axis.inner == 1) {
      for (int64_t q = begin; q < stop; ++q) out[to + axis.start + q * axis.step] = from[q];
      return;
    }
    for (int64_t q = begin; q < stop; ++q)
      copy_part(from + q * axis.inner, to + (axis.start + q * axis.step) * axis.inner, axis.inner, col, end, out);
  });
}

template <class Element>
void move_columns(const Frame& frame, bool places) {
  const Axis axis = axis_of(frame);
  const int64_t row = frame.first_row(0), col = frame.task.col, end = col + frame.task.cols;
  for (int64_t i = 0; i < frame.unit.rows; ++i) {
    const auto* const x = reinterpret_cast<const Element*>(frame.element(1, row + i, 0));
    auto* const out = reinterpret_cast<Element*>(frame.element(0, row + i, 0));
    places ? place_row(axis, x, col, end, out) : pick_row(axis, x, col, end, out);
  }
}

Code moved(const Frame& frame, bool places) {
  switch (element_size(frame.dtype(0))) {
    case 8: move_columns<uint64_t>(frame, places); break;
    case 4: move_columns<uint32_t>(frame, places); break;
    default: move_columns<uint16_t>(frame, places);
  }
  return Code::OK;
}

// Computes one result for each `size` adjacent columns.
void reduce_neighbours(Reader& x, Writer& out, int64_t row, int64_t width, int64_t size, bool is_max) {
  float lanes[kLanes];
  for (int64_t col = 0; col < width; col += kChunk) {
    const int64_t n = std::min(kChunk, width - col);
    float* const results = out.chunk(row, col);
    for (int64_t g = 0; g < n; ++g) {
      std::fill_n(lanes, kLanes, is_max ? -__builtin_inff() : 0.0f);
      for (int64_t k = 0; k < size; k += kChunk) {
        const int64_t count = std::min(kChunk, size - k);
        (is_max ? max_lanes : sum_lanes)(count, x.chunk(row, (col + g) * size + k, count), lanes);
      }
      results[g] = is_max ? max_of(lanes) : sum_of(lanes);
    }
    out.store(row, col, n);
  }
}

// Computes one result for each column of `inner`, over `size` elements that are `inner` apart.
void reduce_apart(Reader& x, Writer& out, int64_t row, int64_t width, int64_t size, int64_t inner, bool is_max) {
  for (int64_t part = 0; part < width; part += inner) {
    for (int64_t col = 0; col < inner; col += kChunk) {
      const int64_t n = std::min(kChunk, inner - col);
      float* const results = out.chunk(row, part + col);
      std::fill_n(results, n, is_max ? -__builtin_inff() : 0.0f);
      for (int64_t j = 0; j < size; ++j)
        (is_max ? take_larger : add)(n, x.chunk(row, part * size + j * inner + col, n), results);
      out.store(row, part + col, n);
    }
  }
}

// Sums of integers wrap around.
void group_reduce_integers(const View& x, const View& out, int64_t rows, int64_t width, int64_t size, int64_t inner,
                           bool is_max) {
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t col = 0; col < width; ++col) {
      const int64_t first = col / inner * inner * size + col % inner;
      uint64_t total = load_integer(x, row, first);
      for (int64_t j = 1; j < size; ++j) {
        const int64_t value = load_integer(x, row, first + j * inner);
        total = is_max ? std::max<int64_t>(total, value) : total + value;
      }
      store_integer(out, row, col, static_cast<int64_t>(total));
    }
  }
}

// Computes `width` results of each row, each over `size` elements that are `inner` apart.
Code reduced(const Frame& frame, Reduction reduction, int64_t width, int64_t size, int64_t inner) {
  if (reduction != Reduction::SUM && reduction != Reduction::MAX) return Code::BAD_IMAGE;
  const bool is_max = reduction == Reduction::MAX;
  if (is_of_integers(frame)) {
    group_reduce_integers(frame.view(1), frame.view(0), frame.unit.rows, width, size, inner, is_max);
    return Code::OK;
  }
  Writer out(frame.view(0));
  Reader x(frame.view(1));
  for (int64_t row = 0; row < frame.unit.rows; ++row)
    inner == 1 ? reduce_neighbours(x, out, row, width, size, is_max) : reduce_apart(x, out, row, width, size, inner, is_max);
  return Code::OK;
}

}  // namespace

Code pick(const Frame& frame) { return moved(frame, false); }
Code place(const Frame& frame) { return moved(frame, true); }

Code group_reduce(const Frame& frame) {
  const auto p = params::ByGroups::of(frame.op);
  return reduced(frame, p.reduction, frame.buffer(0).cols, p.size, p.inner);
}

Code row_reduce(const Frame& frame) {
  return reduced(frame, params::ByColumns::of(frame.op).reduction, 1, frame.num_cols(1), 1);
}

}  // namespace hpmoe
