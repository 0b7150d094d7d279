// How many rows stand behind a task and behind an event, once the routing is known.
#include <algorithm>

#include "frame.h"
#include "prologue.h"

namespace hpmoe {
namespace {

Unit cut(int64_t total, int64_t start, int64_t rows) {
  const int64_t first = std::min(start, total);
  return {first, std::min(rows, total - first), 0};
}

int64_t clip(int64_t rows, int32_t clipped, int64_t num_tokens) { return clipped ? std::min(rows, num_tokens) : rows; }

int64_t find_extent(const Image& image, const EventRun& run, int32_t index, const Routing* routing, int32_t rank,
                    int64_t num_tokens) {
  const int64_t tile_rows = image.header->tile_rows;
  const auto split = [&](int32_t* position, int32_t* expert) {
    *position = index / routing->num_local_experts();
    *expert = index % routing->num_local_experts();
  };
  int32_t position = 0, expert = 0;
  switch (static_cast<Extent>(run.extent)) {
    case Extent::ONE:
    case Extent::STATIC_TILE: return 1;
    case Extent::SLOT: return routing->slot(rank, index).rows;
    case Extent::EXPERT: return routing->expert_rows(rank, index);
    case Extent::RECEIVED: return routing->received(rank);
    case Extent::TILE: return cut(num_tokens, index * tile_rows, tile_rows).rows;
    case Extent::TOKENS: return num_tokens;
    case Extent::ENTRIES: return routing->kept_entries(rank, 0, num_tokens);
    case Extent::TILE_ENTRIES: {
      const int64_t return_tokens = image.routes[run.route].return_tokens;
      const Unit tokens = cut(num_tokens, index * return_tokens, return_tokens);
      return routing->kept_entries(rank, tokens.start, tokens.rows);
    }
    case Extent::SENT_TO: return routing->sent_to(rank, image.peer(rank, index));
    case Extent::RETURNED_TO: return routing->sent_to(image.peer(rank, index), rank);
    case Extent::SENT_TO_EXPERT:
      split(&position, &expert);
      return routing->sent_to_expert(rank, image.peer(rank, position), expert);
    case Extent::RETURNED_TO_FROM_EXPERT:
      split(&position, &expert);
      return routing->sent_to_expert(image.peer(rank, position), rank, expert);
    case Extent::REPLICA: return routing->is_copy(rank, index);
    case Extent::REPLICAS: return routing->num_copies(rank, index);
  }
  return 0;
}

// The rows a task stands for (for a PUT: the slot on the destination).
Unit find_unit(const Image& image, const HpmoeRank* ranks, const Routing* routing, int32_t rank, const Op& op,
               const Task& task) {
  const int64_t tile_rows = image.header->tile_rows, num_tokens = ranks[rank].num_tokens;
  switch (static_cast<Domain>(op.domain)) {
    case Domain::ONCE:
    case Domain::COPIES: return {0, 1, 0};
    case Domain::TILES: return cut(clip(op.num_rows, op.clipped, num_tokens), task.row * tile_rows, tile_rows);
    case Domain::SLOTS: {
      const bool on_peer = is_put(opcode_of(op)) && !is_back(opcode_of(op));
      const Slot& slot = routing->slot(on_peer ? image.peer(rank, task.peer) : rank, task.row);
      return {slot.start, slot.rows, slot.expert};
    }
    default: break;
  }
  if (static_cast<Rows>(op.operands[1].rows) == Rows::ALL) return {0, clip(op.param[1], op.param[2], num_tokens), 0};
  const int32_t expert = task.row / op.blocks;
  return {routing->expert_start(rank, expert), routing->expert_rows(rank, expert), expert};
}

}  // namespace

Frame make_frame(const Image& image, const HpmoeRank* ranks, const std::vector<Routing>& routings, int32_t rank,
                 const Task& task) {
  const Op& op = image.ops[task.op];
  const Routing* routing = op.route >= 0 ? &routings[op.route] : nullptr;
  return {image, ranks, routing, rank, op, task, find_unit(image, ranks, routing, rank, op, task)};
}

std::vector<int64_t> find_thresholds(const Image& image, const std::vector<Routing>& routings, int32_t rank,
                                     int64_t num_tokens) {
  std::vector<int64_t> thresholds(image.header->num_events);
  for (int32_t r = 0; r < image.header->num_event_runs; ++r) {
    const EventRun& run = image.event_runs[r];
    const bool routed = run.route >= 0 && run.route < image.header->num_routes;
    const Routing* routing = routed ? &routings[run.route] : nullptr;
    for (int32_t e = run.first; e < image.end_of_run(r); ++e) {
      thresholds[e] = run.mult * find_extent(image, run, run.index + e - run.first, routing, rank, num_tokens);
    }
  }
  return thresholds;
}

}  // namespace hpmoe
