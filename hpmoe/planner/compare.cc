// Whether an assigned taskflow is the derived one with fewer events and waits.
#include "compare.h"

#include "graph.h"

namespace hpmoe {
namespace {

// Where each derived event is in the flow, or -1.
std::vector<int32_t> place_events(const int32_t* number, int64_t num_events, int64_t num_derived) {
  std::vector<int32_t> place(num_derived, -1);
  for (int64_t e = 0; e < num_events; ++e) {
    if (number[e] < 0 || number[e] >= num_derived) throw BadTable();
    place[number[e]] = static_cast<int32_t>(e);
  }
  return place;
}

// Whether of `span` events from `first` on all are in the flow, one after another, or none.
bool is_whole(const std::vector<int32_t>& place, int64_t first, int64_t span) {
  if (first < 0 || span < 1 || first + span > static_cast<int64_t>(place.size())) return false;
  for (int64_t i = 1; i < span; ++i) {
    if (place[first] < 0 ? place[first + i] >= 0 : place[first + i] != place[first] + i) return false;
  }
  return true;
}

template <class Row>
bool are_whole(const HpmoeTask* tasks, const Row* rows, int64_t num_rows, const int32_t* spans,
               const std::vector<int32_t>& place) {
  int32_t event = -1, last_span = 1;  // the last that was looked at
  for (int64_t i = 0; i < num_rows; ++i) {
    if (rows[i].kind == 0) continue;
    const int32_t span = spans[HPMOE_NUM_KINDS * tasks[rows[i].task].op + rows[i].kind];
    if (rows[i].event == event && span == last_span) continue;
    event = rows[i].event;
    last_span = span;
    if (!is_whole(place, event, span)) return false;
  }
  return true;
}

bool same_signals(const HpmoeFlow& flow, const HpmoeFlow& derived, const std::vector<int32_t>& place) {
  int64_t next = 0;
  for (int64_t i = 0; i < derived.num_signals; ++i) {
    const HpmoeSignal& wanted = derived.signals[i];
    if (place[wanted.event] < 0) continue;
    if (next == flow.num_signals) return false;
    const HpmoeSignal& got = flow.signals[next++];
    if (got.task != wanted.task || got.event != place[wanted.event] || got.kind != wanted.kind ||
        got.amount != wanted.amount || got.remote != wanted.remote)
      return false;
  }
  return next == flow.num_signals;
}

// Whether every wait of the flow, in order, is a derived one; has[w] = 1 for each derived wait that is there.
bool fewer_waits(const HpmoeFlow& flow, const HpmoeFlow& derived, const std::vector<int32_t>& place, uint8_t* has) {
  int64_t next = 0;
  for (int64_t i = 0; i < derived.num_waits; ++i) {
    const HpmoeWait& wanted = derived.waits[i];
    has[i] = next < flow.num_waits && flow.waits[next].task == wanted.task && place[wanted.event] >= 0 &&
             flow.waits[next].event == place[wanted.event] && flow.waits[next].kind == wanted.kind;
    next += has[i];
  }
  return next == flow.num_waits;
}

}  // namespace

bool is_reduced(const HpmoeFlow& flow, const HpmoeFlow& derived, const int32_t* number, const int32_t* spans, uint8_t* has) {
  const std::vector<int32_t> place = place_events(number, flow.num_events, derived.num_events);
  return are_whole(derived.tasks, derived.signals, derived.num_signals, spans, place) &&
         are_whole(derived.tasks, derived.waits, derived.num_waits, spans, place) && same_signals(flow, derived, place) &&
         fewer_waits(flow, derived, place, has);
}

}  // namespace hpmoe
