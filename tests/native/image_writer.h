// Packs an image in C++, section by section, for programs that test the runtime without Python.
#pragma once

#include <cstring>
#include <initializer_list>
#include <vector>

#include "protocol.h"

namespace hpmoe {

inline Operand operand(int buffer, Rows rows, Cols cols, int offset = 0) {
  return {buffer, static_cast<int16_t>(rows), static_cast<int16_t>(cols), offset, 0.0f, {}};
}

struct ImageWriter {
  std::vector<Op> ops;
  std::vector<Buffer> buffers;
  std::vector<Event> events;
  std::vector<Wait> waits;
  std::vector<Signal> signals;
  std::vector<Route> routes;
  std::vector<std::vector<Task>> queues;
  const int ep_size, tile_rows;

  ImageWriter(int ep_size, int tile_rows, int num_queues)
      : queues(num_queues), ep_size(ep_size), tile_rows(tile_rows) {}

  int op(Opcode opcode, Domain domain, std::initializer_list<Operand> operands) {
    Op value{};
    value.opcode = static_cast<int32_t>(opcode);
    value.domain = static_cast<int32_t>(domain);
    value.blocks = 1;
    for (const Operand& each : operands) value.operands[value.num_operands++] = each;
    ops.push_back(value);
    return static_cast<int>(ops.size()) - 1;
  }

  // Tasks go to the queues in turn.
  void task(int op, int row, int col, int cols, int peer, std::initializer_list<int> events_waited,
            std::initializer_list<Signal> signalled) {
    queues[num_tasks_++ % queues.size()].push_back(
        {op, peer, row, col, cols, static_cast<int32_t>(waits.size()), static_cast<int32_t>(signals.size()),
         static_cast<int16_t>(events_waited.size()), static_cast<int16_t>(signalled.size())});
    for (int event : events_waited) waits.push_back({event, 0});
    signals.insert(signals.end(), signalled);
  }

  std::vector<int32_t> pack() {
    std::vector<Task> tasks;
    std::vector<int32_t> starts{0}, peer_order;
    for (const auto& queue : queues) {
      tasks.insert(tasks.end(), queue.begin(), queue.end());
      starts.push_back(static_cast<int32_t>(tasks.size()));
    }
    for (int r = 0; r < ep_size; ++r)
      for (int j = 0; j < ep_size; ++j) peer_order.push_back((r + j) % ep_size);
    words_.assign(kSectionAlignment / 4 * 2, 0);
    Header h{};
    h.magic = kMagic;
    h.version = kVersion;
    h.ep_size = ep_size;
    h.tile_rows = tile_rows;
    h.num_queues = static_cast<int32_t>(queues.size());
    int32_t ignored;
    add(tasks, &h.tasks_offset, &h.num_tasks);
    add(starts, &h.queues_offset, &ignored);
    add(ops, &h.ops_offset, &h.num_ops);
    add(buffers, &h.buffers_offset, &h.num_buffers);
    add(events, &h.events_offset, &h.num_events);
    add(waits, &h.waits_offset, &h.num_waits);
    add(signals, &h.signals_offset, &h.num_signals);
    add(routes, &h.routes_offset, &h.num_routes);
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

  std::vector<int32_t> words_;
  size_t num_tasks_ = 0;
};

}  // namespace hpmoe
