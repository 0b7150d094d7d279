#include "core/check_events.h"

#include "core/check_routes.h"

namespace hpmoe {
namespace {

bool is_event_ok(const Image& image, const EventRun& run, int64_t index) {
  const Header& h = *image.header;
  const Route* route = find_route(image, run.route);
  if (run.mult < 0 || index > INT32_MAX) return false;
  switch (static_cast<Extent>(run.extent)) {
    case Extent::ONE:
    case Extent::STATIC_TILE:
    case Extent::TOKENS: return true;
    case Extent::TILE: return index >= 0;
    case Extent::TILE_ENTRIES: return route && index >= 0;
    case Extent::RECEIVED:
    case Extent::ENTRIES: return route;
    case Extent::RELAYED: return route && route->over >= 0;
    case Extent::SLOT: return route && in_range(index, route->num_slots);
    case Extent::EXPERT:
    case Extent::REPLICA:
    case Extent::REPLICAS: return route && in_range(index, route->num_local_experts);
    case Extent::SENT_TO:
    case Extent::RETURNED_TO: return route && in_range(index, h.ep_size);
    case Extent::SENT_TO_EXPERT:
    case Extent::RETURNED_TO_FROM_EXPERT: return route && in_range(index, int64_t{route->num_local_experts} * h.ep_size);
  }
  return false;
}

const char* check_signal(const Op& op, const Signal& signal) {
  const auto opcode = opcode_of(op);
  if (!in_range(signal.kind, kNumIndex) || !in_range(signal.amount, kNumAmount) || !in_range(signal.remote, kNumRemote)) {
    return "a signal's kind is unknown";
  }
  const bool by_tile = signal.kind == int32_t(Index::ENTRY_TILE), by_fan = fans_out(opcode);
  if (by_fan && (signal.remote != int32_t(Remote::LOCAL) || signal.kind == int32_t(Index::SLOT_EXPERT)))
    return "a FAN_OUT signals its own rank, by slot or for all";
  if (by_tile && ((!is_transfer(opcode) && !by_fan) || moves_copies(opcode) || signal.amount != int16_t(Amount::ROWS)))
    return "only a transfer signals rows by token tile";
  const bool finds_peer = (is_exchange(opcode) || moves_copies(opcode)) && signal.amount == int16_t(Amount::ROWS);
  if (signal.remote == int32_t(Remote::PEER) && op.num_peers == 0 && !finds_peer) return "a local task signals a peer";
  return nullptr;
}

// Number of events that a row may be counted in: one for each tile of tokens, or one for each slot of an expert.
int64_t num_arrivals(const Image& image, const Op& op, const Route& route) {
  if (fans_out(opcode_of(op))) return image.routes[route.of].num_slots;
  return ceil_div(route.num_tokens, route.return_tokens);
}

// Returns true if every counter that a wait or signal of a task can select exists.
template <class Row>
bool is_reached(const Image& image, const Op& op, const Task& task, const Row& row) {
  const Route* route = find_route(image, op.route);
  int64_t more = 0;
  if (row.kind == int32_t(Index::SLOT_EXPERT) && route) more = route->num_local_experts - 1;
  if (row.kind == int32_t(Index::ENTRY_TILE) && route) more = num_arrivals(image, op, *route) - 1;
  const int64_t event = image.event_of(row, task);
  return in_range(event, image.header->num_events) && event + more < image.header->num_events;
}

}  // namespace

const char* check_events(const Image& image) {
  const Header& h = *image.header;
  if (h.num_event_runs == 0) return h.num_events == 0 ? nullptr : "the runs do not cover the events";
  if (image.event_runs[0].first != 0) return "the runs do not cover the events";
  for (int32_t i = 0; i < h.num_event_runs; ++i) {
    const EventRun& run = image.event_runs[i];
    const int64_t count = int64_t{image.end_of_run(i)} - run.first;
    if (count < 1) return "the runs do not cover the events";
    if (!is_event_ok(image, run, run.index) || !is_event_ok(image, run, run.index + count - 1))
      return "an event's extent has no such kind, index or route";
  }
  return nullptr;
}

const char* check_events_of_template(const Image& image, const TaskTemplate& task_template) {
  for (int32_t i = 0; i < task_template.num_waits; ++i) {
    const int32_t kind = image.waits[task_template.first_wait + i].kind;
    if (!in_range(kind, kNumIndex) || kind == int32_t(Index::ENTRY_TILE)) return "a wait's kind is unknown";
  }
  for (int32_t i = 0; i < task_template.num_signals; ++i) {
    if (const char* fault = check_signal(image.ops[task_template.op], image.signals[task_template.first_signal + i]))
      return fault;
  }
  return nullptr;
}

const char* check_events_of_task(const Image& image, const Op& op, const Task& task) {
  for (const Wait& wait : image.waits_of(task))
    if (!is_reached(image, op, task, wait)) return "a wait names an event that does not exist";
  for (const Signal& signal : image.signals_of(task))
    if (!is_reached(image, op, task, signal)) return "a signal names an event that does not exist";
  return nullptr;
}

}  // namespace hpmoe
