// A MoE layer packed by hand, in every dtype, with every way to drop what is over a capacity, and with tokens sent to each
// of their experts, once to each rank or by relays; its arrays, and plain loops that say what it gives.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "checks.h"
#include "cpu/convert.h"
#include "image_writer.h"

namespace hpmoe {

// R ranks, E experts, K a token, T tokens, H hidden, I inner, B rows a tile, S slots a rank, Z slots of tokens sent once.
#ifndef LAYER_RANKS
#define LAYER_RANKS 2
#endif
constexpr int R = LAYER_RANKS, E = 4, L = E / R, K = 2, T = 10, H = 6, I = 5, B = 4, S = (R * T * K + B - 1) / B + 2 * L,
              Z = (R * T + B - 1) / B + 1;
constexpr int kTiles = (T + B - 1) / B;
// ENTRIES is WEIGHTS, a row for each entry. ONCE, THERE and SUMS are tokens that came once, weights and what goes back of
// them. RELAYED is what comes back to a relay, which has the weights of its tokens in CROSSED.
enum Array {
  IDS,
  X,
  WEIGHTS,
  W1,
  W2,
  A,
  HALVES,
  C,
  D,
  BACK,
  OUT,
  KEPT,
  ENTRIES,
  DROPPED,
  ONCE,
  THERE,
  SUMS,
  RELAYED,
  CROSSED,
  kNumArrays
};
constexpr int kCols[kNumArrays] = {K, H, K, 2 * I, H, H, 2 * I, I, H, H, H, K, 1, E, H, 1, H, H, K};
constexpr int kRows[kNumArrays] = {T, T, T,     L * H, L * I, S * B, S * B, S * B,     S * B, T * (K > R ? K : R),
                                   T, T, T * K, 1,     Z * B, S * B, Z * B, Z * B * K, Z * B};

struct Variant {
  Dtype dtype;
  DropPolicy policy;
  double factor;  // of the capacity
  bool is_once = false;
  int32_t alignment = 1;  // at most B
  int32_t node_size = 0;  // of relays, where it is not 0

  bool crosses() const { return node_size > 0; }
  int way() const { return is_once || crosses() ? 1 : 0; }  // the route of what goes over links
  bool drops() const { return policy == DropPolicy::POSITION || policy == DropPolicy::PROBS; }
  Dtype dtype_of(int array) const { return array == IDS || array == DROPPED ? Dtype::INT32 : dtype; }
};
constexpr Variant kPlain = {Dtype::FLOAT32, DropPolicy::NONE, 0};

inline Operand own(int buffer, Cols cols = Cols::OWN, int offset = 0) { return operand(buffer, Rows::OWN, cols, offset); }

// Events: per slot arrived, up (two halves), act, down; per return_tokens tokens home; per slot of tokens sent once
// arrived, summed; all weights there; all slots down. Of relays: all tokens and weights there; all rows back.
enum Events {
  ARRIVED = 0,
  UP = S,
  ACT = 2 * S,
  DOWN = 3 * S,
  HOME = 4 * S,
  CAME = HOME + kTiles,
  SUMMED = CAME + Z,
  WEIGHED = SUMMED + Z,
  DONE,
  kNumEvents
};

// From a token that came once to the rows of its experts, half of the columns a task; weights go to each of these rows.
inline void fan_tokens_out(ImageWriter& w) {
  const int out = w.op(Opcode::FAN_OUT, Domain::SLOTS, {operand(A, Rows::FAN, Cols::OWN), own(ONCE)});
  const int put = w.op(Opcode::PUT, Domain::SLOTS,
                       {operand(THERE, Rows::PEER, Cols::ALL), operand(ENTRIES, Rows::ENTRIES, Cols::ALL)});
  w.ops[out].route = 1;
  for (int s = 0; s < Z; ++s)
    for (int col : {0, H / 2}) w.task(out, s, col, H / 2, -1, {CAME + s}, {{ARRIVED, int16_t(Index::ENTRY_TILE), 0, 0}});
  for (int j = 0; j < R; ++j)
    for (int s = 0; s < S; ++s) w.task(put, s, 0, 0, j, {}, {{WEIGHED, 0, 0, int32_t(Remote::PEER)}});
}

// And back: the weighted sum of what they made.
inline void fan_tokens_in(ImageWriter& w) {
  const int in = w.op(Opcode::FAN_IN, Domain::SLOTS,
                      {own(SUMS), operand(D, Rows::FAN, Cols::OWN), operand(THERE, Rows::FAN, Cols::ALL)});
  w.ops[in].route = 1;
  for (int s = 0; s < Z; ++s) w.task(in, s, 0, H, -1, {DONE, WEIGHED}, {{SUMMED + s, 0, 0, 0}});
}

// A relay passes tokens on when all are there, and sums what comes back when all is.
inline void pass_on(ImageWriter& w) {
  const int weigh = w.op(Opcode::PUT, Domain::SLOTS,
                         {operand(CROSSED, Rows::PEER, Cols::ALL), operand(WEIGHTS, Rows::TOKENS, Cols::ALL)});
  const int put = w.op(Opcode::PUT, Domain::SLOTS,
                       {operand(A, Rows::PEER, Cols::ALL), operand(ONCE, Rows::RELAY_ROWS, Cols::ALL)});
  w.ops[weigh].route = 1;
  for (int j = 0; j < R; ++j)
    for (int s = 0; s < Z; ++s) w.task(weigh, s, 0, 0, j, {}, {{WEIGHED, 0, 0, int32_t(Remote::PEER)}});
  for (int j = 0; j < R; ++j)
    for (int s = 0; s < S; ++s) w.task(put, s, 0, 0, j, {WEIGHED}, {{ARRIVED + s, 0, 0, int32_t(Remote::PEER)}});
}

inline void sum_relayed(ImageWriter& w) {
  const int back = w.op(Opcode::PUT_BACK, Domain::SLOTS,
                        {operand(RELAYED, Rows::RELAY_ENTRIES, Cols::ALL), own(D, Cols::ALL)});
  const int sum = w.op(Opcode::RELAY_SUM, Domain::SLOTS,
                       {own(SUMS), operand(RELAYED, Rows::RELAY_ENTRIES, Cols::OWN), own(CROSSED, Cols::ALL)});
  w.ops[sum].route = 1;  // and of the route 0 are the rows that are summed
  for (int j = 0; j < R; ++j)
    for (int s = 0; s < S; ++s) w.task(back, s, 0, 0, j, {DOWN + s}, {{DONE, 0, 0, int32_t(Remote::PEER)}});
  for (int s = 0; s < Z; ++s) w.task(sum, s, 0, H, -1, {CAME + s, DONE}, {{SUMMED + s, 0, 0, 0}});
}

inline void add_arrays(ImageWriter& w, const Variant& variant) {
  for (int i = 0; i < kNumArrays; ++i) {
    const int per_expert = i == W1 ? H : i == W2 ? I : 0;
    w.buffers.push_back({kCols[i], per_expert, int32_t(variant.dtype_of(i)), kRows[i]});
  }
  const int weights = variant.policy == DropPolicy::PROBS ? WEIGHTS : -1;
  w.routes.push_back({IDS, E, L, K, S, T, 0, int32_t(variant.policy), weights, 0, -1, variant.crosses() ? 1 : -1, -1,
                      w.tile_rows, variant.alignment, 1, variant.factor});
  if (variant.way() == 0) return;
  w.routes.push_back({IDS, R, 1, K, Z, T, 0, int32_t(DropPolicy::NONE), -1, 0, 0, -1, 0, w.tile_rows, 1, 1, 0});
  const int node = variant.node_size;
  for (int source = 0; source < R; ++source)
    for (int dest = 0; dest < R; ++dest) w.stops.push_back(variant.crosses() ? dest / node * node + source % node : dest);
}

inline void add_events(ImageWriter& w, const Variant& variant) {
  for (int kind = 0; kind < 4; ++kind) {
    const int mult = kind == 1 || (kind == 0 && variant.is_once) ? 2 : 1;  // halves are computed, and copied
    for (int s = 0; s < S; ++s) w.event_runs.push_back({kind * S + s, int32_t(Extent::SLOT), s, mult, 0});
  }
  for (int i = 0; i < kTiles; ++i) w.event_runs.push_back({HOME + i, int32_t(Extent::TILE_ENTRIES), i, 1, variant.way()});
  if (variant.way() == 0) return;
  for (int i = 0; i < 2 * Z; ++i) w.event_runs.push_back({CAME + i, int32_t(Extent::SLOT), i % Z, 1, 1});
  const bool crosses = variant.crosses();
  w.event_runs.push_back({WEIGHED, int32_t(Extent::RECEIVED), 0, crosses ? 2 : 1, crosses ? 1 : 0});
  w.event_runs.push_back({DONE, int32_t(crosses ? Extent::RELAYED : Extent::RECEIVED), 0, 1, 0});
}

struct Ops {
  int put, up, act, down, back, sum, keep, count;
};

inline Ops add_ops(ImageWriter& w, const Variant& variant) {
  const int way = variant.way();
  Ops ops;
  ops.put = w.op(Opcode::PUT, Domain::SLOTS,
                 {operand(way > 0 ? ONCE : A, Rows::PEER, Cols::ALL), operand(X, Rows::TOKENS, Cols::ALL)});
  ops.up = w.op(Opcode::GMM, Domain::SLOTS, {own(HALVES), own(A, Cols::ALL), operand(W1, Rows::SLOT_EXPERT, Cols::OWN)});
  ops.act = w.op(Opcode::SWIGLU, Domain::SLOTS, {own(C), own(HALVES), own(HALVES, Cols::OWN, I)});
  ops.down = w.op(Opcode::GMM, Domain::SLOTS, {own(D), own(C, Cols::ALL), operand(W2, Rows::SLOT_EXPERT, Cols::OWN)});
  ops.back = w.op(Opcode::PUT_BACK, Domain::SLOTS,
                  {operand(BACK, Rows::ENTRIES, Cols::ALL), own(way > 0 ? SUMS : D, Cols::ALL)});
  ops.sum = w.op(Opcode::REDUCE, Domain::TILES,
                 {own(OUT), operand(BACK, Rows::ENTRIES, Cols::OWN), own(WEIGHTS, Cols::ALL)});
  ops.keep = w.op(Opcode::KEEP, Domain::TILES, {own(KEPT, Cols::ALL), operand(ENTRIES, Rows::ENTRIES, Cols::ALL)});
  ops.count = w.op(Opcode::DROP_COUNTS, Domain::ONCE, {own(DROPPED, Cols::ALL)});
  for (int op : {ops.put, ops.back, ops.sum}) w.ops[op].route = way;
  for (int op : {ops.sum, ops.keep}) {
    w.ops[op].num_rows = T;
    w.ops[op].clipped = 1;
  }
  if (way > 0) w.ops[ops.sum].num_operands = 2;  // what comes back is weighted
  return ops;
}

inline void add_tasks(ImageWriter& w, const Variant& variant, const Ops& ops) {
  const auto peer = int32_t(Remote::PEER);
  const int sent = variant.way() > 0 ? Z : S;
  for (int j = 0; j < R; ++j) {
    for (int s = 0; s < sent; ++s) {
      if (variant.crosses()) {
        w.task(ops.put, s, 0, 0, j, {}, {{CAME + s, 0, 0, peer}, {WEIGHED, 0, 0, peer}});
      } else {
        w.task(ops.put, s, 0, 0, j, {}, {{(variant.is_once ? CAME : ARRIVED) + s, 0, 0, peer}});
      }
    }
  }
  if (variant.is_once) fan_tokens_out(w);
  if (variant.crosses()) pass_on(w);
  for (int s = 0; s < S; ++s) {
    w.task(ops.up, s, 0, I, -1, {ARRIVED + s}, {{UP + s, 0, 0, 0}});
    w.task(ops.up, s, I, I, -1, {ARRIVED + s}, {{UP + s, 0, 0, 0}});
    w.task(ops.act, s, 0, I, -1, {UP + s}, {{ACT + s, 0, 0, 0}});
    if (variant.is_once) {
      w.task(ops.down, s, 0, H, -1, {ACT + s}, {{DOWN + s, 0, 0, 0}, {DONE, 0, 0, 0}});
    } else {
      w.task(ops.down, s, 0, H, -1, {ACT + s}, {{DOWN + s, 0, 0, 0}});
    }
  }
  if (variant.is_once) fan_tokens_in(w);
  if (variant.crosses()) sum_relayed(w);
  const auto by_tile = int16_t(Index::ENTRY_TILE);
  for (int j = 0; j < R; ++j)
    for (int s = 0; s < sent; ++s)
      w.task(ops.back, s, 0, 0, j, {(variant.way() > 0 ? SUMMED : DOWN) + s}, {{HOME, by_tile, 0, peer}});
  for (int i = 0; i < kTiles; ++i) w.task(ops.sum, i, 0, H, -1, {HOME + i}, {});
  for (int i = 0; i < kTiles; ++i) w.task(ops.keep, i, 0, 0, -1, {}, {});
  w.task(ops.count, 0, 0, 0, -1, {}, {});
}

// num_aic: how many of the queues, the first ones, take all matmuls and nothing else; 0 where all take everything.
inline std::vector<int32_t> make_image(int num_queues, const Variant& variant = kPlain, int num_aic = 0) {
  ImageWriter w(R, B, num_queues, num_aic);
  add_arrays(w, variant);
  add_events(w, variant);
  add_tasks(w, variant, add_ops(w, variant));
  return w.pack();
}

struct Arrays {
  const Variant variant;
  std::vector<std::vector<char>> arrays[R];  // as stored
  std::vector<void*> pointers[R];
  int num_tokens[R];

  explicit Arrays(unsigned seed, const Variant& variant = kPlain) : variant(variant) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (int r = 0; r < R; ++r) {
      for (int i = 0; i < kNumArrays; ++i) {
        const int64_t size = int64_t{kRows[i]} * kCols[i];
        const Dtype dtype = variant.dtype_of(i);
        arrays[r].emplace_back(size * element_size(dtype));
        if (!is_float(dtype)) continue;
        std::vector<float> values(size);
        for (float& x : values) x = normal(random);
        from_float32(dtype, values.data(), size, arrays[r][i].data());
      }
      auto* ids = reinterpret_cast<int32_t*>(arrays[r][IDS].data());
      for (int i = 0; i < T; ++i) {
        ids[i * K] = int(random() % E) * int(random() % 2);  // half of them choose the first expert
        ids[i * K + 1] = (ids[i * K] + 1 + int(random() % (E - 1))) % E;
      }
      for (int i = 0; i < kNumArrays; ++i) pointers[r].push_back(arrays[r][i == ENTRIES ? WEIGHTS : i].data());
      num_tokens[r] = r == 0 ? T : T - 3;
    }
  }

  void clear_results() {
    for (auto& of_rank : arrays)
      for (int array : {OUT, KEPT, DROPPED}) std::fill(of_rank[array].begin(), of_rank[array].end(), 0);
  }

  int32_t integer(int r, int array, int index) const {
    return reinterpret_cast<const int32_t*>(arrays[r][array].data())[index];
  }

  std::vector<float> values(int r, int array) const {
    std::vector<float> out(size_t(kRows[array]) * kCols[array]);
    to_float32(variant.dtype, arrays[r][array].data(), int64_t(out.size()), out.data());
    return out;
  }

  // Which entries of a rank have a row, by counting for each those of its expert that go before it.
  std::vector<bool> kept(int r) const {
    const int num_entries = num_tokens[r] * K;
    const auto capacity = int(std::ceil(std::min(double(num_tokens[r]), double(num_entries) / E * variant.factor)));
    const std::vector<float> weights = values(r, WEIGHTS);
    std::vector<bool> out(T * K, true);
    for (int i = 0; variant.drops() && i < num_entries; ++i) {
      int before = 0;
      for (int j = 0; j < num_entries; ++j) {
        const bool by_weight = variant.policy == DropPolicy::PROBS && weights[j] != weights[i];
        before += integer(r, IDS, j) == integer(r, IDS, i) && (by_weight ? weights[j] > weights[i] : j < i);
      }
      out[i] = before < capacity;
    }
    return out;
  }

  void check_drops() const {
    for (int r = 0; r < R; ++r) check_drops(r);
  }

  void check_drops(int r) const {
    const std::vector<bool> is_kept = kept(r);
    const std::vector<float> weights = values(r, WEIGHTS), masked = values(r, KEPT);
    std::vector<int> dropped(E);
    for (int i = 0; i < num_tokens[r] * K; ++i) {
      dropped[integer(r, IDS, i)] += !is_kept[i];
      check(masked[i] == (is_kept[i] ? weights[i] : 0.0f), "the value of an entry, zero where it is dropped");
    }
    for (int e = 0; e < E; ++e) check(integer(r, DROPPED, e) == dropped[e], "the number of dropped entries");
  }

  void check_results() const {
    for (int r = 0; r < R; ++r) check_results(r);
  }

  void check_results(int r) const {
    const float tolerance = variant.dtype == Dtype::FLOAT32 ? 1e-5f : variant.dtype == Dtype::FLOAT16 ? 4e-3f : 3e-2f;
    const std::vector<bool> is_kept = kept(r);
    const std::vector<float> out = values(r, OUT);
    for (int i = 0; i < num_tokens[r] * H; ++i) {
      double size = 0;
      const double wanted = expected(r, i / H, i % H, is_kept, &size);
      check(std::fabs(out[i] - wanted) <= tolerance * (1 + size), "the layer's value");
    }
  }

  // An element of the output, and in *size the sum of the absolute values of its terms.
  double expected(int r, int token, int column, const std::vector<bool>& is_kept, double* size) const {
    const std::vector<float> x = values(r, X), weights = values(r, WEIGHTS);
    double sum = 0;
    for (int entry = token * K; entry < (token + 1) * K; ++entry) {
      if (!is_kept[entry]) continue;
      const int expert = integer(r, IDS, entry);
      const std::vector<float> up = values(expert / L, W1), down = values(expert / L, W2);
      const float *w1 = up.data() + expert % L * H * 2 * I, *w2 = down.data() + expert % L * I * H;
      for (int i = 0; i < I; ++i) {
        double gate = 0, value = 0, most = 0;
        for (int h = 0; h < H; ++h) {
          gate += double(x[token * H + h]) * w1[h * 2 * I + i];
          value += double(x[token * H + h]) * w1[h * 2 * I + I + i];
          most += std::fabs(double(x[token * H + h]) * w1[h * 2 * I + I + i]);
        }
        const double factor = weights[entry] / (1 + std::exp(-gate)) * w2[i * H + column];
        sum += factor * gate * value;
        *size += std::fabs(factor) * (1 + std::fabs(gate)) * most;
      }
    }
    return sum;
  }
};

inline std::vector<int32_t> lose_signal(std::vector<int32_t> image) {
  auto* header = reinterpret_cast<Header*>(image.data());
  auto* templates = reinterpret_cast<TaskTemplate*>(reinterpret_cast<char*>(image.data()) + header->templates_offset);
  templates[0].num_signals = 0;  // the first put
  return image;
}

}  // namespace hpmoe
