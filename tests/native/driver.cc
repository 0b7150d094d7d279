// A program for the sanitizers: packs a MoE layer by hand, in every dtype and with every way to drop what is over a capacity,
// runs it many times on several ranks and queues, compares with plain loops, loses a signal, interrupts a launch, and launches
// images with random words changed.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "cpu/abi.h"
#include "cpu/convert.h"
#include "image_writer.h"

namespace {

using namespace hpmoe;

// R ranks, E experts, K a token, T tokens, H hidden, I inner, B rows a tile, S slots a rank.
constexpr int R = 2, E = 4, L = E / R, K = 2, T = 10, H = 6, I = 5, B = 4, S = (R * T * K + B - 1) / B + L;
constexpr int kManyThreads = 64;
constexpr int kTiles = (T + B - 1) / B;
// ENTRIES is WEIGHTS, a row for each entry.
enum Arrays { IDS, X, WEIGHTS, W1, W2, A, HALVES, C, D, BACK, OUT, KEPT, ENTRIES, DROPPED, kNumArrays };
constexpr int kCols[kNumArrays] = {K, H, K, 2 * I, H, H, 2 * I, I, H, H, H, K, 1, E};
constexpr int kRows[kNumArrays] = {T, T, T, L * H, L * I, S * B, S * B, S * B, S * B, T * K, T, T, T * K, 1};

struct Variant {
  Dtype dtype;
  DropPolicy policy;
  double factor;  // of the capacity

  bool drops() const { return policy == DropPolicy::POSITION || policy == DropPolicy::PROBS; }
  Dtype dtype_of(int array) const { return array == IDS || array == DROPPED ? Dtype::INT32 : dtype; }
};
constexpr Variant kPlain = {Dtype::FLOAT32, DropPolicy::NONE, 0};

void check(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "failed: %s\n", what);
  std::exit(1);
}

Operand own(int buffer, Cols cols = Cols::OWN, int offset = 0) { return operand(buffer, Rows::OWN, cols, offset); }

// Events: per slot arrived, up (two halves), act, down; per token tile home.
enum Events { ARRIVED = 0, UP = S, ACT = 2 * S, DOWN = 3 * S, HOME = 4 * S, kNumEvents = 4 * S + kTiles };

std::vector<int32_t> make_image(int num_queues, const Variant& variant = kPlain) {
  ImageWriter w(R, B, num_queues);
  for (int i = 0; i < kNumArrays; ++i) {
    const int per_expert = i == W1 ? H : i == W2 ? I : 0;
    w.buffers.push_back({kCols[i], per_expert, int32_t(variant.dtype_of(i)), kRows[i]});
  }
  const int weights = variant.policy == DropPolicy::PROBS ? WEIGHTS : -1;
  w.routes.push_back({IDS, E, L, K, S, T, 0, int32_t(variant.policy), weights, 0, variant.factor});
  for (int kind = 0; kind < 4; ++kind) {
    for (int s = 0; s < S; ++s) w.event_runs.push_back({kind * S + s, int32_t(Extent::SLOT), s, kind == 1 ? 2 : 1, 0});
  }
  for (int i = 0; i < kTiles; ++i) w.event_runs.push_back({HOME + i, int32_t(Extent::TILE_ENTRIES), i, 1, 0});
  const int put =
      w.op(Opcode::PUT, Domain::SLOTS, {operand(A, Rows::PEER, Cols::ALL), operand(X, Rows::TOKENS, Cols::ALL)});
  const int up =
      w.op(Opcode::GMM, Domain::SLOTS, {own(HALVES), own(A, Cols::ALL), operand(W1, Rows::SLOT_EXPERT, Cols::OWN)});
  const int act = w.op(Opcode::SWIGLU, Domain::SLOTS, {own(C), own(HALVES), own(HALVES, Cols::OWN, I)});
  const int down =
      w.op(Opcode::GMM, Domain::SLOTS, {own(D), own(C, Cols::ALL), operand(W2, Rows::SLOT_EXPERT, Cols::OWN)});
  const int back = w.op(Opcode::PUT_BACK, Domain::SLOTS, {operand(BACK, Rows::ENTRIES, Cols::ALL), own(D, Cols::ALL)});
  const int sum = w.op(Opcode::REDUCE, Domain::TILES,
                       {own(OUT, Cols::ALL), operand(BACK, Rows::ENTRIES, Cols::ALL), own(WEIGHTS, Cols::ALL)});
  const int keep =
      w.op(Opcode::KEEP, Domain::TILES, {own(KEPT, Cols::ALL), operand(ENTRIES, Rows::ENTRIES, Cols::ALL)});
  const int count = w.op(Opcode::DROP_COUNTS, Domain::ONCE, {own(DROPPED, Cols::ALL)});
  for (int op : {sum, keep}) {
    w.ops[op].num_rows = T;
    w.ops[op].clipped = 1;
  }
  const auto peer = int32_t(Remote::PEER);
  for (int j = 0; j < R; ++j)
    for (int s = 0; s < S; ++s) w.task(put, s, 0, 0, j, {}, {{ARRIVED + s, 0, 0, peer}});
  for (int s = 0; s < S; ++s) {
    w.task(up, s, 0, I, -1, {ARRIVED + s}, {{UP + s, 0, 0, 0}});
    w.task(up, s, I, I, -1, {ARRIVED + s}, {{UP + s, 0, 0, 0}});
    w.task(act, s, 0, I, -1, {UP + s}, {{ACT + s, 0, 0, 0}});
    w.task(down, s, 0, H, -1, {ACT + s}, {{DOWN + s, 0, 0, 0}});
  }
  const auto by_tile = int16_t(Index::ENTRY_TILE);
  for (int j = 0; j < R; ++j)
    for (int s = 0; s < S; ++s) w.task(back, s, 0, 0, j, {DOWN + s}, {{HOME, by_tile, 0, peer}});
  for (int i = 0; i < kTiles; ++i) w.task(sum, i, 0, 0, -1, {HOME + i}, {});
  for (int i = 0; i < kTiles; ++i) w.task(keep, i, 0, 0, -1, {}, {});
  w.task(count, 0, 0, 0, -1, {}, {});
  return w.pack();
}

struct Host {
  const Variant variant;
  std::vector<std::vector<char>> arrays[R];  // as stored
  std::vector<void*> pointers[R];
  std::vector<int64_t> counters[R], bases[R];
  HpmoeRank ranks[R];

  explicit Host(unsigned seed, const Variant& variant = kPlain) : variant(variant) {
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
      counters[r].resize(kNumEvents);
      bases[r].resize(kNumEvents);
      ranks[r] = {pointers[r].data(), r == 0 ? T : T - 3, counters[r].data(), bases[r].data()};
    }
  }

  int num_threads = kManyThreads;  // more than queues: each has a thread of its own

  int run(const std::vector<int32_t>& image, double timeout, HpmoeStatus* status, bool interruptible = false) {
    const auto size = int64_t(image.size()) * 4;
    return hpmoe_launch(image.data(), size, ranks, R, num_threads, timeout, nullptr, interruptible, status);
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
    const int num_entries = int(ranks[r].num_tokens) * K;
    const auto capacity = int(std::ceil(std::min(double(ranks[r].num_tokens), double(num_entries) / E * variant.factor)));
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

  void check_results() const {
    const float tolerance = variant.dtype == Dtype::FLOAT32 ? 1e-5f : variant.dtype == Dtype::FLOAT16 ? 4e-3f : 3e-2f;
    for (int r = 0; r < R; ++r) {
      const std::vector<bool> is_kept = kept(r);
      const std::vector<float> out = values(r, OUT), weights = values(r, WEIGHTS), masked = values(r, KEPT);
      std::vector<int> dropped(E);
      for (int i = 0; i < ranks[r].num_tokens * K; ++i) {
        dropped[integer(r, IDS, i)] += !is_kept[i];
        check(masked[i] == (is_kept[i] ? weights[i] : 0.0f), "the value of an entry, zero where it is dropped");
      }
      for (int e = 0; e < E; ++e) check(integer(r, DROPPED, e) == dropped[e], "the number of dropped entries");
      for (int i = 0; i < ranks[r].num_tokens * H; ++i) {
        double size = 0;
        const double wanted = expected(r, i / H, i % H, is_kept, &size);
        check(std::fabs(out[i] - wanted) <= tolerance * (1 + size), "the layer's value");
      }
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

void test_layer(const Variant& variant, int num_queues, int num_threads, int launches) {
  const auto image = make_image(num_queues, variant);
  const char* fault = hpmoe_image_fault(image.data(), int64_t(image.size()) * 4);
  check(!fault, fault ? fault : "the image is sound");
  Host host(7, variant);
  host.num_threads = num_threads;
  for (int i = 0; i < launches; ++i) {
    for (auto& arrays : host.arrays)
      for (int array : {OUT, KEPT, DROPPED}) std::fill(arrays[array].begin(), arrays[array].end(), 0);
    HpmoeStatus status;
    check(host.run(image, 30, &status) == 0, "a launch succeeds");
    host.check_results();
  }
}

void test_capacity() {
  const Variant tight = {Dtype::FLOAT32, DropPolicy::ERROR, 0.5};
  Host host(7, tight);
  HpmoeStatus status;
  check(host.run(make_image(2, tight), 30, &status) == int(Code::OVER_CAPACITY), "a full expert is an error");
  check(status.value > status.threshold && status.threshold > 0, "which says what was chosen and what fits");
  const Variant by_weight = {Dtype::BFLOAT16, DropPolicy::PROBS, 0.5};
  Host other(7, by_weight);
  const float nan = std::nanf("");
  from_float32(Dtype::BFLOAT16, &nan, 1, other.arrays[1][WEIGHTS].data());
  check(other.run(make_image(2, by_weight), 30, &status) == int(Code::NOT_A_NUMBER), "a weight that is no number is an error");
}

std::vector<int32_t> lose_signal(std::vector<int32_t> image) {
  auto* header = reinterpret_cast<Header*>(image.data());
  auto* forms = reinterpret_cast<Form*>(reinterpret_cast<char*>(image.data()) + header->forms_offset);
  forms[0].num_signals = 0;  // the first put
  return image;
}

void test_failures() {
  const auto image = make_image(2), broken = lose_signal(image);
  Host host(3);
  HpmoeStatus status;
  check(host.run(broken, 0.02, &status) == int(Code::TIMEOUT), "a lost signal times out");
  check(status.event >= 0 && status.value < status.threshold, "a timeout names its event");
  check(host.run(image, 30, &status) == 0, "the launch after a failed one succeeds");
  std::thread other([] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    std::raise(SIGINT);
  });
  check(host.run(broken, 30, &status, true) == int(Code::INTERRUPTED), "an interrupted launch ends");
  other.join();
}

[[maybe_unused]] void test_random_images(const Variant& variant, int rounds) {
  const auto image = make_image(1, variant);
  std::mt19937 random(11);
  // What the image says of the arrays stays true: only the host can check it.
  const auto* header = reinterpret_cast<const Header*>(image.data());
  const size_t first_buffer = header->buffers_offset / 4, last_buffer = header->event_runs_offset / 4;
  int refused = 0, ended = 0;
  for (int i = 0; i < rounds; ++i) {
    auto changed = image;
    for (int j = 0; j < 2; ++j) {
      const size_t word = random() % changed.size();
      if (word < first_buffer || word >= last_buffer) changed[word] = int32_t(random() % 44) - 2;
    }
    Host host(5, variant);
    HpmoeStatus status;
    ++(host.run(changed, 0.001, &status) == int(Code::BAD_IMAGE) ? refused : ended);
  }
  check(refused > rounds / 10 && ended > rounds / 10, "some images are refused and some are run");
}

}  // namespace

int main(int argc, char** argv) {
  const int scale = argc > 1 ? std::atoi(argv[1]) : 1;
  const Variant dropping[] = {{Dtype::FLOAT32, DropPolicy::POSITION, 0.5}, {Dtype::FLOAT16, DropPolicy::PROBS, 0.5},
                              {Dtype::BFLOAT16, DropPolicy::PROBS, 1.0}, {Dtype::BFLOAT16, DropPolicy::ERROR, 4.0}};
  for (int num_queues : {1, 2, 3}) {
    for (int num_threads : {1, 3, kManyThreads}) {
      test_layer(kPlain, num_queues, num_threads, 5 * scale);
      for (const Variant& variant : dropping) test_layer(variant, num_queues, num_threads, 2 * scale);
    }
  }
  test_capacity();
  test_failures();
#if !defined(__SANITIZE_THREAD__)  // an image with a wrong threshold races by definition
  for (const Variant& variant : {kPlain, dropping[1]}) test_random_images(variant, 250 * scale);
#endif
  std::puts("native driver: ok");
}
