// A program for the sanitizers: runs a MoE layer packed by hand many times on several ranks and queues, compares with plain
// loops, simulates it, loses a signal, interrupts launches, changes ids meanwhile, and launches and simulates images with
// random words changed.
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "core/abi.h"
#include "link/interrupt.h"
#include "layer.h"
#include "simulator/simulate.h"

namespace {

using namespace hpmoe;

constexpr int kManyThreads = 64;

struct Host : Arrays {
  std::vector<int64_t> counters[R], bases[R];
  HpmoeRank ranks[R];
  int64_t row_capacity[R];
  int num_threads = kManyThreads;  // more than queues: each has a thread of its own

  explicit Host(unsigned seed, const Variant& variant = kPlain) : Arrays(seed, variant) {
    for (int r = 0; r < R; ++r) {
      counters[r].resize(kNumEvents);
      bases[r].resize(kNumEvents);
      ranks[r] = {pointers[r].data(), nullptr, num_tokens[r], counters[r].data(), bases[r].data()};
    }
  }

  // Makes the arrays of received rows as large as its ids ask for.
  void fit() {
    for (int r = 0; r < R; ++r) {
      row_capacity[r] = 0;
      for (int source = 0; source < R; ++source)
        for (int i = 0; i < num_tokens[source] * K; ++i) row_capacity[r] += integer(source, IDS, i) / L == r;
      for (int array : {A, HALVES, C, D}) {
        arrays[r][array] = std::vector<char>(row_capacity[r] * kCols[array] * element_size(variant.dtype));
        pointers[r][array] = arrays[r][array].data();
      }
      ranks[r].row_capacity = &row_capacity[r];
    }
  }

  int32_t* ids(int r) { return reinterpret_cast<int32_t*>(arrays[r][IDS].data()); }

  int run(const std::vector<int32_t>& image, double timeout, HpmoeStatus* status, bool interruptible = false) {
    const auto size = int64_t(image.size()) * 4;
    return hpmoe_launch(image.data(), size, ranks, R, num_threads, timeout, nullptr, nullptr, interruptible, status);
  }

  // The span of a run in which a task takes a microsecond, a row and a byte one more, and every rate is shared; in `status`
  // what goes wrong.
  double simulate(const std::vector<int32_t>& image, HpmoeStatus* status) {
    const auto* h = reinterpret_cast<const Header*>(image.data());
    const HpmoeMachine machine = {{64, 2, 1}, {2, 1}, {2, 1, 1}, {1, 1, 1, 0, 1, 1, 2}, 0, 1, 1, 1};
    const std::vector<HpmoeWork> work(size_t(4) * h->num_ops,
                                      {0, 1, 0, 2, 1, 1, 3, 1, 1, {}, {{0, HPMOE_STREAM, 1, 1, 0, 1}}});
    const size_t rows = size_t(R) * h->num_tasks, bins = 8;
    std::vector<double> times(3 * rows);
    std::vector<int32_t> released_by(rows);
    std::vector<double> missed(rows), totals(R * HPMOE_NUM_RATES * 2), served(1 + R * HPMOE_NUM_RATES * bins), moved(R * R);
    std::vector<double> busy(1 + size_t(R) * h->num_queues), outline(busy.size());
    const auto run = [&](bool all, double* into) {
      hpmoe_simulate(image.data(), int64_t(image.size()) * 4, ranks, R, &machine, work.data(), 1,
                     all ? times.data() : nullptr, all ? released_by.data() : nullptr, all ? missed.data() : nullptr,
                     totals.data(), served.data(), moved.data(), into, all ? bins : 0, status);
    };
    run(false, outline.data());
    run(true, busy.data());
    check(busy == outline, "a run says the same of its workers where nothing is kept of tasks");
    const double end = times.empty() ? 0 : *std::max_element(times.begin(), times.end());
    check(end == busy[0], "the last task ends where its time says so");
    return end;
  }
};

void test_layer(const Variant& variant, int num_queues, int num_threads, int launches) {
  const auto image = make_image(num_queues, variant);
  const char* fault = hpmoe_image_fault(image.data(), int64_t(image.size()) * 4);
  check(!fault, fault ? fault : "the image is sound");
  Host host(7, variant);
  host.num_threads = num_threads;
  for (int i = 0; i < launches; ++i) {
    host.clear_results();
    HpmoeStatus status;
    check(host.run(image, 30, &status) == 0, "a launch succeeds");
    host.check_results();
    host.check_drops();
  }
  HpmoeStatus status;
  const double span = host.simulate(image, &status);
  check(status.code == 0 && span > 2 && span == host.simulate(image, &status), "it simulates, always the same");
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
  check(other.run(make_image(2, by_weight), 30, &status) == int(Code::NOT_A_NUMBER),
        "a weight that is no number is an error");
}

// As the host packs an image: it does not say how many rows are received.
std::vector<int32_t> without_received_rows(std::vector<int32_t> image) {
  auto* const bytes = reinterpret_cast<char*>(image.data());
  auto* const buffers = reinterpret_cast<Buffer*>(bytes + reinterpret_cast<Header*>(bytes)->buffers_offset);
  for (int array : {A, HALVES, C, D}) buffers[array].rows = 0;
  return image;
}

void test_room() {
  const auto image = without_received_rows(make_image(2));
  Host host(7);
  host.fit();
  HpmoeStatus status;
  check(host.run(image, 30, &status) == 0, "arrays of as many rows as are received are enough");
  host.check_results();
  std::vector<int32_t> before(host.ids(0), host.ids(0) + T * K);
  for (int rank = 0; rank < R; ++rank) {
    for (int i = 0; i < T * K; ++i) host.ids(0)[i] = rank * L + i % K;
    check(host.run(image, 30, &status) == int(Code::NO_ROW_CAPACITY), "more rows than there is room for are refused");
    check(status.rank == rank && status.wait == 0 && status.threshold == host.row_capacity[rank] &&
              status.value > host.row_capacity[rank],
          "which says whose, of which route, and how many");
    std::copy(before.begin(), before.end(), host.ids(0));
  }
  host.clear_results();
  check(host.run(image, 30, &status) == 0, "the launch after a refused one succeeds");
  host.check_results();
}

// Whoever writes to ids while launches read them gets an error or a result, and nothing is written where it does not belong.
[[maybe_unused]] void test_ids_that_change(int rounds) {
  const auto image = without_received_rows(make_image(1));
  Host host(7);
  host.fit();
  std::atomic<bool> is_over{false};
  std::thread other([&] {
    for (std::mt19937 random(5); !is_over;) {
      const int id = random() % 50 ? int(random() % E) : int(random());
      __atomic_store_n(&host.ids(int(random() % R))[random() % (T * K)], id, __ATOMIC_RELAXED);
    }
  });
  HpmoeStatus status;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  for (int i = 0; i < rounds && std::chrono::steady_clock::now() < deadline; ++i) {
    switch (Code(host.run(image, 30, &status))) {
      case Code::OK:
      case Code::NO_ROW_CAPACITY:
      case Code::INDEX_OUT_OF_RANGE: break;
      default: check(false, "a launch whose ids change ends, or says which of them it cannot take");
    }
  }
  is_over = true;
  other.join();
}

void test_failures() {
  const auto image = make_image(2), broken = lose_signal(image);
  Host host(3);
  HpmoeStatus status;
  check(host.run(broken, 0.02, &status) == int(Code::TIMEOUT), "a lost signal times out");
  check(status.event >= 0 && status.value < status.threshold, "a timeout names its event");
  const HpmoeStatus in_launch = status;
  host.simulate(broken, &status);
  check(status.code == int(Code::TIMEOUT) && status.event == in_launch.event, "a simulation gets stuck where a launch does");
  check(host.run(image, 30, &status) == 0, "the launch after a failed one succeeds");
  const auto before = std::signal(SIGINT, SIG_IGN);  // until the launch begins
  std::atomic<bool> has_ended{false};
  std::thread other([&] {
    for (; !has_ended; std::this_thread::sleep_for(std::chrono::milliseconds(1))) std::raise(SIGINT);
  });
  check(host.run(broken, 30, &status, true) == int(Code::INTERRUPTED), "an interrupted launch ends");
  has_ended = true;
  other.join();
  std::signal(SIGINT, before);
}

std::atomic<int> num_handled{0};

// Each is told by the launch that it came in, or goes to the handler that was there before.
void test_no_interrupt_is_lost(int rounds) {
  const auto image = make_image(1);
  Host host(3);
  HpmoeStatus status;
  host.num_threads = 1;
  const auto before = std::signal(SIGINT, [](int) { ++num_handled; });
  std::atomic<int> num_told{0}, num_sent{0};
  std::atomic<bool> is_over{false};
  const auto in_half_a_minute = [] { return std::chrono::steady_clock::now() + std::chrono::seconds(30); };
  std::thread other([&] {
    std::mt19937 random(13);
    const auto deadline = in_half_a_minute();
    for (int i = 0; i < rounds && std::chrono::steady_clock::now() < deadline; ++i) {
      while (num_told + num_handled < num_sent) std::this_thread::sleep_for(std::chrono::microseconds(10));
      for (int until = int(random() % 4000); until > 0; --until) std::atomic_signal_fence(std::memory_order_seq_cst);
      ++num_sent;
      kill(getpid(), SIGINT);
    }
    is_over = true;
  });
  for (auto [seen, deadline] = std::pair(0, in_half_a_minute()); !is_over || num_told + num_handled < num_sent;) {
    if (host.run(image, 30, &status, true) == int(Code::INTERRUPTED)) ++num_told;
    if (std::exchange(seen, num_told + num_handled) < num_told + num_handled) deadline = in_half_a_minute();
    check(std::chrono::steady_clock::now() < deadline, "no interrupt is lost");
  }
  check(num_told > 0, "launches are interrupted");
  other.join();
  std::signal(SIGINT, before);
}

// Watches begin and end on several threads while signals come: what there was before is read and written meanwhile.
void test_interrupts_of_many_threads(int num_threads, int rounds) {
  const auto before = std::signal(SIGINT, [](int) { ++num_handled; });
  std::atomic<bool> is_over{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < num_threads; ++i) {
    threads.emplace_back([&] {
      while (!is_over) InterruptWatch watch(true);
    });
  }
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  for (int i = 0; i < rounds && std::chrono::steady_clock::now() < deadline; ++i) {
    pthread_kill(threads[i % num_threads].native_handle(), SIGINT);
    std::this_thread::yield();
  }
  is_over = true;
  for (std::thread& thread : threads) thread.join();
  num_handled = 0;
  std::raise(SIGINT);
  check(num_handled == 1, "the handler that was there before is back");
  std::signal(SIGINT, before);
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
    if (!hpmoe_image_fault(changed.data(), int64_t(changed.size()) * 4)) host.simulate(changed, &status);
    ++(host.run(changed, 0.001, &status) == int(Code::BAD_IMAGE) ? refused : ended);
  }
  check(refused > rounds / 10 && ended > rounds / 10, "some images are refused and some are run");
}

}  // namespace

int main(int argc, char** argv) {
  const double scale = argc > 1 ? std::atof(argv[1]) : 1;  // of how many rounds
  const Variant dropping[] = {{Dtype::FLOAT32, DropPolicy::POSITION, 0.5},
                              {Dtype::FLOAT16, DropPolicy::PROBS, 0.5},
                              {Dtype::BFLOAT16, DropPolicy::PROBS, 1.0},
                              {Dtype::BFLOAT16, DropPolicy::ERROR, 4.0},
                              {Dtype::FLOAT32, DropPolicy::NONE, 0, true},
                              {Dtype::BFLOAT16, DropPolicy::PROBS, 0.5, true},
                              {Dtype::FLOAT32, DropPolicy::NONE, 0, false, 3},
                              {Dtype::FLOAT16, DropPolicy::PROBS, 0.5, false, 4},
                              {Dtype::FLOAT32, DropPolicy::NONE, 0, false, 1, R / 2},
                              {Dtype::BFLOAT16, DropPolicy::PROBS, 0.5, false, 1, R / 2}};
  for (int num_queues : {1, 2, 3}) {
    for (int num_threads : {1, 3, kManyThreads}) {
      test_layer(kPlain, num_queues, num_threads, 1 + int(4 * scale));
      for (const Variant& variant : dropping) test_layer(variant, num_queues, num_threads, 1 + int(scale));
    }
  }
  test_capacity();
  if (R > 2) {  // what follows is of a launch, however many ranks it has
    std::puts("native driver: ok");
    return 0;
  }
  test_room();
  test_failures();
  test_no_interrupt_is_lost(int(40000 * scale));
  test_interrupts_of_many_threads(3, int(60000 * scale));
#if !defined(__SANITIZE_THREAD__)  // ids that change and an image with a wrong threshold race by definition
  test_ids_that_change(int(2000 * scale));
  for (const Variant& variant : {kPlain, dropping[1], dropping[5], dropping[7], dropping[9]})
    test_random_images(variant, int(250 * scale));
#endif
  std::puts("native driver: ok");
}
