// A program for the sanitizers: runs a MoE layer packed by hand many times on several ranks and queues, compares with plain
// loops, loses a signal, interrupts a launch, and launches images with random words changed.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>
#include <vector>

#include "cpu/abi.h"
#include "layer.h"

namespace {

using namespace hpmoe;

constexpr int kManyThreads = 64;

struct Host : Arrays {
  std::vector<int64_t> counters[R], bases[R];
  HpmoeRank ranks[R];
  int num_threads = kManyThreads;  // more than queues: each has a thread of its own

  explicit Host(unsigned seed, const Variant& variant = kPlain) : Arrays(seed, variant) {
    for (int r = 0; r < R; ++r) {
      counters[r].resize(kNumEvents);
      bases[r].resize(kNumEvents);
      ranks[r] = {pointers[r].data(), num_tokens[r], counters[r].data(), bases[r].data()};
    }
  }

  int run(const std::vector<int32_t>& image, double timeout, HpmoeStatus* status, bool interruptible = false) {
    const auto size = int64_t(image.size()) * 4;
    return hpmoe_launch(image.data(), size, ranks, R, num_threads, timeout, nullptr, interruptible, status);
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
