// Launches that another library runs, here a few lines: each rank adds to a counter of its neighbour and waits for its own,
// as often as it says, or one of them ends otherwise, which all learn.
#include "link_ranks.h"

namespace {

using namespace hpmoe;

constexpr int64_t kTurns = 50;
enum class End { WELL, FAULT, STATUS, STUCK };

std::atomic<int64_t>& counter_of(const HpmoePeers& peers, int rank) {
  const int64_t offset = *static_cast<const int64_t*>(peers.told[rank]);
  return *reinterpret_cast<std::atomic<int64_t>*>(static_cast<char*>(peers.heaps[rank]) + offset);
}

int run_rank(void* of, const HpmoePeers* peers, HpmoeStatus* status, char* fault, int64_t fault_bytes) {
  const End end = *static_cast<End*>(of);
  const int next = (peers->rank + 1) % peers->size;
  for (int64_t turn = 1; turn <= kTurns; ++turn) {
    if (peers->rank == kOdd && turn == kTurns / 2 && end != End::WELL) {
      if (end == End::FAULT) std::snprintf(fault, fault_bytes, "a rule is broken");
      status->code = int32_t(end == End::STUCK ? Code::TIMEOUT : Code::BAD_IMAGE);
      return 1;
    }
    counter_of(*peers, next) += 1;
    peers->wake(peers->launch, next);
    int32_t code = peers->look(peers->launch, 0);
    while (code == 0 && counter_of(*peers, peers->rank) < turn) code = peers->look(peers->launch, 1);
    if (code == 0) continue;
    status->code = int32_t(Code::ABORTED_PEER);
    return 1;
  }
  return 0;
}

void test_ends() {
  Run([](Rank& mine, Board&, int rank) {
    for (int launch = 0; launch < 40; ++launch) {
      const int64_t offset = hpmoe_link_take(mine.link(), 64);
      auto end = End(launch % 4);
      HpmoeStatus status{};
      const int code = hpmoe_link_launch_by(mine.link(), run_rank, &end, "a kernel", uint64_t(launch), &offset,
                                            sizeof offset, kTimeout_s, 0, &status);
      HpmoeFailure failure{};
      hpmoe_link_failure(mine.link(), &failure);
      if (end == End::WELL) {
        check(code == 0, "a launch ends well");
      } else if (rank != kOdd) {
        check(code == int(Code::PEER_FAILED) && status.rank == kOdd, "the others learn who failed");
        check(end != End::FAULT || std::strcmp(failure.text, "a rule is broken") == 0, "and why");
      } else {
        const Code own = end == End::FAULT ? Code::PEER_FAILED : end == End::STUCK ? Code::TIMEOUT : Code::BAD_IMAGE;
        check(code == int(own), "who failed is told how");
      }
    }
  }).wait();
}

}  // namespace

int main() {
  test_ends();
  std::printf("device launch driver, %d ranks: ok\n", R);
}
