// A program for the sanitizers: runs the Ascend kernel on its emulator, a MoE layer packed by hand in many orders, compares
// with plain loops, loses a signal, and brings arrays that are too small.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "ascendc/emulator/api.h"
#include "layer.h"

namespace {

using namespace hpmoe;

constexpr int kLineWords = 16, kFaultBytes = 4096;

// Words from a line of 64 bytes on.
struct Lines {
  std::vector<int32_t> words;
  explicit Lines(int64_t size) : words(size + kLineWords) {}
  int32_t* begin() {
    const auto address = reinterpret_cast<uintptr_t>(words.data());
    return reinterpret_cast<int32_t*>((address + 63) / 64 * 64);
  }
};

Header& header_of(std::vector<int32_t>& image) { return *reinterpret_cast<Header*>(image.data()); }

struct Emulator : Arrays {
  std::vector<int32_t> image;
  std::vector<Lines> lines;
  std::vector<int64_t> sizes[R];
  std::vector<uint8_t> is_symmetric;
  HpmoeEmulatorRank ranks[R];
  HpmoeStatus status{};
  char fault[kFaultBytes] = "";
  int epoch = 0;
  emulator::Counts counts;

  Emulator(const std::vector<int32_t>& image, const Variant& variant) : Arrays(7, variant), image(image) {
    for (int i = 0; i < kNumArrays; ++i)
      is_symmetric.push_back(i == A || i == BACK || i == ONCE || i == THERE || i == RELAYED || i == CROSSED);
    for (int r = 0; r < R; ++r) {
      for (int64_t count : {hpmoe_emulator_counters(image.data()) * hpmoe_emulator_counter_words(),
                            hpmoe_emulator_targets(image.data()), 2 * hpmoe_emulator_table_words(image.data())})
        lines.emplace_back(count);
      for (int i = 0; i < kNumArrays; ++i) sizes[r].push_back(int64_t(arrays[r][i == ENTRIES ? WEIGHTS : i].size()));
    }
    for (int r = 0; r < R; ++r)
      ranks[r] = {pointers[r].data(),
                  sizes[r].data(),
                  is_symmetric.data(),
                  lines[3 * r].begin(),
                  lines[3 * r + 1].begin(),
                  lines[3 * r + 2].begin(),
                  num_tokens[r],
                  nullptr,
                  nullptr};
  }

  int run(uint64_t seed) {
    return hpmoe_emulator_launch(image.data(), int64_t(image.size()) * 4, ranks, R, ++epoch, 1, 30.0, seed, &status, &counts,
                                 fault, kFaultBytes);
  }
};

// The image twice, of which launches take the second in turn: its buffers lie behind those of the first.
void test_plans(const Variant& variant) {
  const auto one = make_image(3, variant, 1);
  Emulator emulator(one, variant);
  emulator.image.insert(emulator.image.end(), one.begin(), one.end());
  header_of(emulator.image).num_behind = 1;
  const auto twice = [routes = header_of(emulator.image).num_routes](auto& of_buffers) {
    const auto first = of_buffers;
    of_buffers.resize(first.size() + routes);
    of_buffers.insert(of_buffers.end(), first.begin(), first.end());
  };
  twice(emulator.is_symmetric);
  for (int r = 0; r < R; ++r) {
    twice(emulator.sizes[r]);
    twice(emulator.pointers[r]);
    emulator.ranks[r].buffers = emulator.pointers[r].data();
    emulator.ranks[r].sizes = emulator.sizes[r].data();
    emulator.ranks[r].symmetric = emulator.is_symmetric.data();
  }
  for (int i = 0; i < 10; ++i) {
    header_of(emulator.image).most_received = i % 3 == 0 ? 0 : 1 << 20;
    emulator.clear_results();
    check(emulator.run(i) == 0 && emulator.counts.plan == (i % 3 == 0 ? 1 : 0),
          "a launch takes the plan for the rows there are");
    emulator.check_results();
  }
}

void test_layer(const Variant& variant, int num_blocks, int launches) {
  const auto image = make_image(3 * num_blocks, variant, num_blocks);
  Emulator emulator(image, variant);
  for (int i = 0; i < launches; ++i) {
    emulator.clear_results();
    const int code = emulator.run(i);
    check(code == 0, code == 2 ? emulator.fault : "a launch succeeds");
    emulator.check_results();
    if (variant.drops()) emulator.check_drops();
  }
}

void test_failures(const Variant& variant) {
  const auto image = make_image(3, variant, 1), broken = lose_signal(image);
  Emulator lost(broken, variant);
  check(lost.run(1) == 1 && lost.status.code == int(Code::TIMEOUT), "a lost signal times out");
  check(lost.status.event >= 0 && lost.status.value < lost.status.threshold, "a timeout names its event");
  const Variant tight = {variant.dtype, DropPolicy::ERROR, 0.5};
  const auto of_tight = make_image(3, tight, 1);
  Emulator full(of_tight, tight);
  check(full.run(1) == 1 && full.status.code == int(Code::OVER_CAPACITY), "a full expert is an error");
  Emulator small(image, variant);
  --small.sizes[0][OUT];
  check(small.run(1) == 2 && std::strstr(small.fault, "of rank 0"), "a write past an array is named");
}

}  // namespace

int main(int argc, char** argv) {
  const double scale = argc > 1 ? std::atof(argv[1]) : 1;  // of how many rounds
  const Variant variants[] = {{Dtype::BFLOAT16, DropPolicy::NONE, 0},
                              {Dtype::FLOAT16, DropPolicy::NONE, 0},
                              {Dtype::BFLOAT16, DropPolicy::ERROR, 4.0},
                              {Dtype::FLOAT16, DropPolicy::POSITION, 0.5},
                              {Dtype::BFLOAT16, DropPolicy::PROBS, 0.5},
                              {Dtype::BFLOAT16, DropPolicy::NONE, 0, true},
                              {Dtype::FLOAT32, DropPolicy::NONE, 0},
                              {Dtype::BFLOAT16, DropPolicy::NONE, 0, false, 3},
                              {Dtype::FLOAT32, DropPolicy::POSITION, 0.5, false, 4},
                              {Dtype::FLOAT32, DropPolicy::NONE, 0, false, 1, R / 2},
                              {Dtype::BFLOAT16, DropPolicy::PROBS, 0.5, false, 1, R / 2}};
  for (const Variant& variant : variants)
    for (int num_blocks : {1, 2}) test_layer(variant, num_blocks, 1 + int(2 * scale));
  test_failures(variants[0]);
  test_plans(variants[0]);
  std::puts("emulator driver: ok");
}
