// Packs an image in C++, section by section, for programs that test the runtime without Python.
#pragma once

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <vector>

#include "core/decode.h"

namespace hpmoe {

inline Operand operand(int buffer, Rows rows, Cols cols, int offset = 0) {
  return {buffer, static_cast<int16_t>(rows), static_cast<int16_t>(cols), offset, 0.0f, {}};
}

struct ImageWriter {
  std::vector<Op> ops;
  std::vector<Buffer> buffers;
  std::vector<EventRun> event_runs;
  std::vector<TaskTemplate> templates;
  std::vector<Wait> waits;
  std::vector<Signal> signals;
  std::vector<Route> routes;
  std::vector<int32_t> stops;
  std::vector<std::vector<Task>> queues;  // a task has a template of its own
  const int ep_size, tile_rows, num_aic;

  ImageWriter(int ep_size, int tile_rows, int num_queues, int num_aic = 0)
      : queues(num_queues), ep_size(ep_size), tile_rows(tile_rows), num_aic(num_aic) {}

  int op(Opcode opcode, Domain domain, std::initializer_list<Operand> operands) {
    Op value{};
    value.opcode = static_cast<int32_t>(opcode);
    value.domain = static_cast<int32_t>(domain);
    value.blocks = 1;
    for (const Operand& each : operands) value.operands[value.num_operands++] = each;
    value.num_outputs = static_cast<int16_t>(find_rule(value.opcode)->num_outputs);
    ops.push_back(value);
    return static_cast<int>(ops.size()) - 1;
  }

  // Tasks go to the queues in turn, those of an AIC to the first num_aic and all others to the rest; the grid of an op grows
  // to hold its tasks.
  void task(int op, int row, int col, int cols, int peer, std::initializer_list<int> events_waited,
            std::initializer_list<Signal> signalled) {
    const auto task_template = static_cast<int32_t>(templates.size());
    const int num_queues = static_cast<int>(queues.size());
    const bool is_product = num_aic > 0 && ops[op].opcode == static_cast<int32_t>(Opcode::GMM);
    const int first = num_aic > 0 && !is_product ? num_aic : 0, count = is_product ? num_aic : num_queues - first;
    queues[first + task_template % count].push_back({op, peer, row, col, cols, task_template});
    templates.push_back({op, static_cast<int32_t>(waits.size()), static_cast<int32_t>(events_waited.size()),
                         static_cast<int32_t>(signals.size()), static_cast<int32_t>(signalled.size())});
    for (int event : events_waited) waits.push_back({event, 0});
    signals.insert(signals.end(), signalled);
    Op& grid = ops[op];
    grid.num_units = std::max(grid.num_units, row + 1);
    grid.num_peers = std::max(grid.num_peers, peer + 1);
    grid.cols = std::max(grid.cols, col + cols);
    grid.tile_cols = std::max(grid.tile_cols, cols);
  }

  std::vector<int32_t> pack() {
    std::vector<TaskWord> tasks;
    std::vector<int32_t> starts{0}, peer_order;
    for (const auto& queue : queues) {
      for (const Task& task : queue) {
        const Op& op = ops[task.op];
        const int place = task.row * std::max(op.num_peers, 1) + std::max(task.peer, 0);
        const int index = place * num_column_tiles(op) + (op.cols > 0 ? task.col / op.tile_cols : 0);
        tasks.push_back(static_cast<TaskWord>(task.task_template) << kIndexBits | static_cast<TaskWord>(index));
      }
      starts.push_back(static_cast<int32_t>(tasks.size()));
    }
    for (int r = 0; r < 2 * ep_size; ++r)
      for (int j = 0; j < ep_size; ++j) peer_order.push_back((r + j) % ep_size);
    words_.assign(kSectionAlignment / 4 * 2, 0);
    Header h{};
    h.magic = kMagic;
    h.version = kVersion;
    h.ep_size = ep_size;
    h.tile_rows = tile_rows;
    h.num_queues = static_cast<int32_t>(queues.size());
    h.num_events = static_cast<int32_t>(event_runs.size());  // runs of one
    h.index_bits = kIndexBits;
    int32_t ignored;
    add(tasks, &h.tasks_offset, &h.num_tasks);
    add(starts, &h.queues_offset, &ignored);
    add(templates, &h.templates_offset, &h.num_templates);
    add(ops, &h.ops_offset, &h.num_ops);
    add(buffers, &h.buffers_offset, &h.num_buffers);
    add(event_runs, &h.event_runs_offset, &h.num_event_runs);
    add(waits, &h.waits_offset, &h.num_waits);
    add(signals, &h.signals_offset, &h.num_signals);
    add(routes, &h.routes_offset, &h.num_routes);
    add(std::vector<Share>(), &h.shares_offset, &h.num_shares);
    add(stops, &h.stops_offset, &h.num_stops);
    add(peer_order, &h.peer_order_offset, &ignored);
    h.image_bytes = static_cast<int32_t>(words_.size() * 4);
    std::memcpy(words_.data(), &h, sizeof(h));
    return words_;
  }

 private:
  template <class T>
  void add(const std::vector<T>& section, int32_t* offset, int32_t* count) {
    *offset = static_cast<int32_t>(words_.size() * 4);
    *count = static_cast<int32_t>(section.size());
    const size_t begin = words_.size(), words = section.size() * sizeof(T) / 4;
    words_.resize(begin + (words + 15) / 16 * 16);
    if (words > 0) std::memcpy(words_.data() + begin, section.data(), words * 4);
  }

  static constexpr int kIndexBits = 16;
  std::vector<int32_t> words_;
};

}  // namespace hpmoe
