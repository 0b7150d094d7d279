// A read-only view of a packed image, and its validation.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "core/decode.h"
#include "core/expert_copies.h"
#include "core/row_capacity.h"

namespace hpmoe {

template <class Row>
struct Range {
  const Row *first, *last;

  const Row* begin() const { return first; }
  const Row* end() const { return last; }
};

// Finds the rank that receives a row of `source` for experts on `dest`.
struct Stops {
  const int32_t* table;  // [source][dest], or NULL for a route by ids
  int32_t ep_size;

  int32_t operator()(int32_t source, int32_t dest) const { return table ? table[int64_t{source} * ep_size + dest] : dest; }
};

struct Image {
  const Header* header;
  const TaskWord* tasks = nullptr;
  const int32_t* queues = nullptr;
  const TaskTemplate* templates = nullptr;
  const Op* ops = nullptr;
  const Buffer* buffers = nullptr;
  const EventRun* event_runs = nullptr;
  const Wait* waits = nullptr;
  const Signal* signals = nullptr;
  const Route* routes = nullptr;
  const Share* shares = nullptr;
  const int32_t* stops = nullptr;
  const int32_t* peer_order = nullptr;

  explicit Image(const void* bytes);

  // Returns the task at a place of the queues, and the range of its waits and signals.
  Task task(int32_t place) const { return decode(tasks[place]); }
  Task decode(TaskWord word) const {
    const int32_t task_template = template_of(word, header->index_bits), op = templates[task_template].op;
    return task_at(ops[op], op, task_template, place_of(word, header->index_bits), num_column_tiles(ops[op]));
  }
  Range<Wait> waits_of(const Task& task) const {
    const TaskTemplate& task_template = templates[task.task_template];
    return {waits + task_template.first_wait, waits + task_template.first_wait + task_template.num_waits};
  }
  Range<Signal> signals_of(const Task& task) const {
    const TaskTemplate& task_template = templates[task.task_template];
    return {signals + task_template.first_signal, signals + task_template.first_signal + task_template.num_signals};
  }
  // Returns the event of a wait or signal, without the offset that the routing adds.
  template <class Row>
  int64_t event_of(const Row& row, const Task& task) const {
    return row.event + event_offset(row.kind, ops[task.op], task);
  }

  // Returns the shares of all ranks' local experts, or NULL for a route without replica slots.
  const Share* shares_of(const Route& route) const {
    return has_copies(route, header->ep_size) ? shares + route.first_share : nullptr;
  }

  Stops stops_of(const Route& route) const {
    return {route.first_stop < 0 ? nullptr : stops + route.first_stop, header->ep_size};
  }

  // Returns the end of a run of events.
  int32_t end_of_run(int32_t run) const {
    return run + 1 < header->num_event_runs ? event_runs[run + 1].first : header->num_events;
  }

  // Returns the rank at a position of the order in which `rank` sends rows, or sends them back.
  int32_t peer(int32_t rank, int32_t position, bool back) const {
    return peer_order[(back * header->ep_size + rank) * header->ep_size + position];
  }
};

// Returns the first fault of an image as a sentence, or NULL. A launch of a valid image accesses nothing outside the
// image and nothing outside the buffers whose row counts it states.
const char* find_fault(const void* bytes, int64_t num_bytes);

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Returns the entries of one rank that an expert takes. The formula uses double precision in this order, so that host and
// kernel agree.
inline int64_t capacity_of_expert(const Route& route, int64_t num_tokens) {
  const double share = static_cast<double>(num_tokens * route.top_k) / route.num_experts * route.capacity_factor;
  return static_cast<int64_t>(std::ceil(std::min(share, static_cast<double>(num_tokens))));
}

}  // namespace hpmoe
