// The persistent kernel: one launch runs every queue of a rank, AIC and AIV, forward or backward as the image says.
#include "device.h"  // first: it marks the functions of core/ for the device
#include "prologue.h"
#include "tile_bodies.h"
#include "worker.h"

#ifndef HPMOE_KERNEL_ATTRIBUTES
#define HPMOE_KERNEL_ATTRIBUTES  // the device build requests all cores at once here, one AIC and two AIV a block
#endif
#ifndef HPMOE_KERNEL_TYPE
#define HPMOE_KERNEL_TYPE  // or here
#endif

namespace hpmoe {

// Lets overflow become infinite and NaN stay NaN, in half precision too. The register's default saturates to the largest
// number and 0, and an earlier kernel may have left it so.
__aicore__ inline void keep_inf_and_nan() { AscendC::SetSaturationFlag<AscendC::SaturationMode::FLOAT>(false); }

// Preloads the code that follows, as many blocks of 2 KB as one request may have.
__aicore__ inline void preload_code() {
  if ASCEND_IS_AIC {
    AscendC::ICachePreLoad(15);
  } else {
    AscendC::ICachePreLoad(7);
  }
}

__aicore__ inline Status nothing_wrong() { return {0, -1, -1, -1, -1, -1, 0, 0}; }

__aicore__ inline void run_aic(RankView& rank, const Counters& counters) {
  AscendC::TPipe pipe;
  CubeUnit unit;
  unit.init(&pipe);
  const Code chosen = take_chosen_plan(rank, counters);
  Worker<CubeUnit> worker(rank, counters, unit, static_cast<int32_t>(AscendC::GetBlockIdx()), nothing_wrong());
  const Code code = chosen == Code::OK ? worker.wait_until_ready() : chosen;
  if (code == Code::OK) {
    worker.run_queue();
  } else {
    worker.fail(code);
  }
  unit.end();
}

__aicore__ inline void run_aiv(RankView& rank, const Counters& counters) {
  AscendC::TPipe pipe;
  VectorUnit unit;
  unit.init(&pipe);
  const auto core = static_cast<int32_t>(AscendC::GetBlockIdx());
  Status status = nothing_wrong();
  Code code = Prologue(rank, counters, unit, core, status).run();
  Worker<VectorUnit> worker(rank, counters, unit, rank.args.num_blocks + core, status);
  if (code == Code::OK) code = worker.wait_until_ready();
  if (code == Code::OK) {
    worker.run_queue();
  } else {
    worker.fail(code);
  }
  unit.end();
}

}  // namespace hpmoe

extern "C" HPMOE_KERNEL_ATTRIBUTES __global__ __aicore__ void hpmoe_persistent(GM_ADDR args) {
  HPMOE_KERNEL_TYPE;
  const auto address = reinterpret_cast<uint64_t>(args);
  hpmoe::preload_code();
  hpmoe::forget_all_lines(address);
  hpmoe::keep_inf_and_nan();
  hpmoe::RankView rank;
  rank.args = hpmoe::read_row<hpmoe::LaunchArgs>(address);
  rank.num_aiv = 2 * rank.args.num_blocks;
  rank.image.init(rank.args.image);
  hpmoe::Counters counters;
  counters.init(rank.args, rank.image.header().ep_size);
  if ASCEND_IS_AIC {
    hpmoe::run_aic(rank, counters);
  } else {
    hpmoe::run_aiv(rank, counters);
  }
}
