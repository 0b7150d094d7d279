// Row counts of tasks and events, from the routing.
#include "frame.h"
#include "prologue.h"

namespace hpmoe {

Frame make_frame(const Image& image, const HpmoeRank* ranks, const std::vector<Routing>& routings, int32_t rank,
                 const Task& task) {
  const Op& op = image.ops[task.op];
  const Routing* routing = op.route >= 0 ? &routings[op.route] : nullptr;
  Frame frame{image, ranks, routing, rank, op, task, {}};
  frame.unit = find_unit<Unit>(frame);
  return frame;
}

std::vector<int64_t> find_thresholds(const Image& image, const std::vector<Routing>& routings, int32_t rank,
                                     int64_t num_tokens) {
  const Place place{image, rank, num_tokens};
  std::vector<int64_t> thresholds(image.header->num_events);
  for (int32_t r = 0; r < image.header->num_event_runs; ++r) {
    const EventRun& run = image.event_runs[r];
    const bool routed = run.route >= 0 && run.route < image.header->num_routes;
    const Routing* routing = routed ? &routings[run.route] : nullptr;
    for (int32_t e = run.first; e < image.end_of_run(r); ++e) {
      thresholds[e] = run.mult * find_extent<Unit>(place, run, run.index + e - run.first, routing);
    }
  }
  return thresholds;
}

}  // namespace hpmoe
