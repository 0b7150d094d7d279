// The host side of the Ascend kernel on the emulator: ranks bind a kernel without tasks and launch it, and too few
// cores are refused.
#include <cstdio>
#include <cstring>

#include "ascendc/emulator/api.h"
#include "layer.h"

extern "C" int bind_and_launch(const char* image, int64_t image_bytes, int32_t num_ranks, int64_t num_counters,
                               int64_t table_words, uint32_t num_cores, char* said);

int main() {
  constexpr int kRanks = 2, kTileRows = 4, kQueues = 3;
  const std::vector<int32_t> image = hpmoe::ImageWriter(kRanks, kTileRows, kQueues, 1).pack();
  char said[4096] = "";
  const auto launch = [&](uint32_t num_cores) {
    return bind_and_launch(reinterpret_cast<const char*>(image.data()), int64_t(image.size()) * 4, kRanks,
                           hpmoe_emulator_counters(image.data()), hpmoe_emulator_table_words(image.data()), num_cores, said);
  };
  for (int i = 0; i < 20; ++i) hpmoe::check(launch(24) == 0, said);
  hpmoe::check(launch(0) == -1 && std::strstr(said, "the device has 0 AIC cores"), "too few cores are named");
  std::puts("host driver: ok");
}
