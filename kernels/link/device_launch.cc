#include "link/device_launch.h"

namespace hpmoe {

Status DeviceLaunch::run(const void* payload, int64_t bytes, HpmoeRunRank run_rank_of, void* of) {
  const Code code = link_.meet(call_, payload, bytes, watch_);
  if (code == Code::OUT_OF_MEMORY) return status_of(code, -1);
  if (code != Code::OK) return link_.end_launch(status_of(code, link_.rank()), true);
  link_.begin_launch();
  for (int32_t rank = 0; rank < link_.size(); ++rank) {
    if (link_.distant(rank) || link_.told_bytes(rank) != bytes)
      return link_.end_launch(status_of(Code::BAD_IMAGE, rank), false);
    heaps_.push_back(link_.heap(rank).data());
    told_.push_back(link_.told(rank));
  }
  return run_rank(run_rank_of, of);
}

Status DeviceLaunch::run_rank(HpmoeRunRank run_rank_of, void* of) {
  const auto look_at = [](void* launch, int32_t is_idle) {
    return static_cast<int32_t>(static_cast<DeviceLaunch*>(launch)->look(is_idle != 0));
  };
  const auto wake = [](void* launch, int32_t rank) { static_cast<DeviceLaunch*>(launch)->link_.tell_news(rank); };
  const HpmoePeers peers = {link_.rank(), link_.size(), heaps_.data(), told_.data(), look_at, wake, this};
  watchdog_.note_progress(now_ns());
  Status status{};
  char fault[sizeof Failure::text] = "";
  const int has_failed = run_rank_of(of, &peers, &status, fault, sizeof fault);
  return has_failed ? end(status, fault) : link_.end_launch({}, false);
}

// A kernel that was told of another rank's failure does not know its kind; the link does.
Status DeviceLaunch::end(Status status, const char* fault) {
  if (fault[0]) {
    Failure failure{status_of(Code::PEER_FAILED, link_.rank()), link_.rank(), {}};
    copy_text(fault, failure.text);
    link_.fail(failure);
    return failure.status;
  }
  if (status.code == static_cast<int32_t>(Code::ABORTED_PEER)) {
    const Code found = watchdog_.wait_until([] { return false; });
    status = status_of(found, link_.rank());
  }
  return link_.end_launch(status, false);
}

Code DeviceLaunch::look(bool is_idle) {
  const int64_t now = now_ns();
  if (is_idle) {
    const Code code = watchdog_.wait_until([this] { return news() != heard_; });
    heard_ = news();
    return code;
  }
  watchdog_.note_progress(now);
  watch_.keep(now);
  return watch_.is_interrupted() ? Code::INTERRUPTED : link_.find_trouble(now);
}

}  // namespace hpmoe
