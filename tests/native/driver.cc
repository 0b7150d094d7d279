// A program for the sanitizers: packs a MoE layer by hand, runs it many times on several ranks and queues, compares
// with plain loops, loses a signal, interrupts a launch, and launches images with random words changed.
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
#include "image_writer.h"

namespace {

using namespace hpmoe;

// R ranks, E experts, K a token, T tokens, H hidden, I inner, B rows a tile, S slots a rank.
constexpr int R = 2, E = 4, L = E / R, K = 2, T = 10, H = 6, I = 5, B = 4, S = (R * T * K + B - 1) / B + L;
constexpr int kManyThreads = 64;
constexpr int kTiles = (T + B - 1) / B;
enum Arrays { IDS, X, WEIGHTS, W1, W2, A, HALVES, C, D, BACK, OUT, kNumArrays };

void check(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "failed: %s\n", what);
  std::exit(1);
}

Operand own(int buffer, Cols cols = Cols::OWN, int offset = 0) { return operand(buffer, Rows::OWN, cols, offset); }

// Events: per slot arrived, up (two halves), act, down; per token tile home.
enum Events { ARRIVED = 0, UP = S, ACT = 2 * S, DOWN = 3 * S, HOME = 4 * S, kNumEvents = 4 * S + kTiles };

std::vector<int32_t> make_image(int num_queues) {
  ImageWriter w(R, B, num_queues);
  const int cols[kNumArrays] = {K, H, K, 2 * I, H, H, 2 * I, I, H, H, H};
  const int rows[kNumArrays] = {T, T, T, L * H, L * I, S * B, S * B, S * B, S * B, T * K, T};
  for (int i = 0; i < kNumArrays; ++i) {
    const int per_expert = i == W1 ? H : i == W2 ? I : 0;
    w.buffers.push_back({cols[i], per_expert, int32_t(i == IDS ? Dtype::INT32 : Dtype::FLOAT32), rows[i]});
  }
  w.routes.push_back({IDS, E, L, K, S, T, 0, 0, -1, 0, 0.0});
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
  w.ops[sum].num_rows = T;
  w.ops[sum].clipped = 1;
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
  return w.pack();
}

struct Host {
  std::vector<std::vector<float>> arrays[R];
  std::vector<int32_t> ids[R];
  std::vector<void*> pointers[R];
  std::vector<int64_t> counters[R], bases[R];
  HpmoeRank ranks[R];

  explicit Host(unsigned seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    const size_t sizes[kNumArrays] = {
        0, T * H, T * K, L * H * 2 * I, L * I * H, S * B * H, S * B * 2 * I, S * B * I, S * B * H, T * K * H, T * H};
    for (int r = 0; r < R; ++r) {
      for (int i = 0; i < T; ++i) {
        const int first = int(random() % E);
        ids[r].push_back(first);
        ids[r].push_back((first + 1 + int(random() % (E - 1))) % E);
      }
      for (size_t size : sizes) {
        arrays[r].emplace_back(size);
        for (float& x : arrays[r].back()) x = normal(random);
      }
      pointers[r].push_back(ids[r].data());
      for (int i = 1; i < kNumArrays; ++i) pointers[r].push_back(arrays[r][i].data());
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

  float expected(int r, int token, int column) const {
    double sum = 0;
    for (int k = 0; k < K; ++k) {
      const int expert = ids[r][token * K + k];
      const float* w1 = arrays[expert / L][W1].data() + expert % L * H * 2 * I;
      const float* w2 = arrays[expert / L][W2].data() + expert % L * I * H;
      for (int i = 0; i < I; ++i) {
        double gate = 0, value = 0;
        for (int h = 0; h < H; ++h) {
          gate += double(arrays[r][X][token * H + h]) * w1[h * 2 * I + i];
          value += double(arrays[r][X][token * H + h]) * w1[h * 2 * I + I + i];
        }
        sum += arrays[r][WEIGHTS][token * K + k] * (gate / (1 + std::exp(-gate)) * value * w2[i * H + column]);
      }
    }
    return float(sum);
  }
};

void test_layer(int num_queues, int num_threads, int launches) {
  const auto image = make_image(num_queues);
  check(!hpmoe_image_fault(image.data(), int64_t(image.size()) * 4), "the image is sound");
  Host host(7);
  host.num_threads = num_threads;
  for (int i = 0; i < launches; ++i) {
    for (auto& arrays : host.arrays) std::fill(arrays[OUT].begin(), arrays[OUT].end(), 0.0f);
    HpmoeStatus status;
    check(host.run(image, 30, &status) == 0, "a launch succeeds");
    for (int r = 0; r < R; ++r) {
      for (int t = 0; t < host.ranks[r].num_tokens; ++t) {
        for (int c = 0; c < H; ++c) {
          const float wanted = host.expected(r, t, c);
          check(std::fabs(host.arrays[r][OUT][t * H + c] - wanted) < 1e-4f * (1 + std::fabs(wanted)),
                "the layer's value");
        }
      }
    }
  }
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

[[maybe_unused]] void test_random_images(int rounds) {
  const auto image = make_image(1);
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
    Host host(5);
    HpmoeStatus status;
    ++(host.run(changed, 0.001, &status) == int(Code::BAD_IMAGE) ? refused : ended);
  }
  check(refused > rounds / 10 && ended > rounds / 10, "some images are refused and some are run");
}

}  // namespace

int main(int argc, char** argv) {
  const int scale = argc > 1 ? std::atoi(argv[1]) : 1;
  for (int num_queues : {1, 2, 3}) {
    for (int num_threads : {1, 3, kManyThreads}) test_layer(num_queues, num_threads, 10 * scale);
  }
  test_failures();
#if !defined(__SANITIZE_THREAD__)  // an image with a wrong threshold races by definition
  test_random_images(500 * scale);
#endif
  std::puts("native driver: ok");
}
