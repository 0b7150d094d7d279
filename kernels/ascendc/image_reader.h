// The packed image in global memory: the device's version of core/image.h.
#pragma once

#include "device.h"

namespace hpmoe {

class ImageReader {
 public:
  __aicore__ inline void init(uint64_t image) {
    image_ = image;
    header_ = read_row<Header>(image);
    last_route_ = -1;
  }

  __aicore__ inline const Header& header() const { return header_; }
  __aicore__ inline int32_t queue_start(int32_t queue) const { return word(header_.queues_offset, queue); }
  __aicore__ inline TaskTemplate task_template(int32_t i) const { return read<TaskTemplate>(header_.templates_offset, i); }
  __aicore__ inline Op op(int32_t i) const { return read<Op>(header_.ops_offset, i); }
  // Preloads the start of an op, as many lines as may be requested at once.
  __aicore__ inline void preload_op(int32_t i) const {
    for (uint64_t line = 0; line < 4; ++line) preload(image_ + header_.ops_offset + i * sizeof(Op) + line * kLineBytes);
  }
  __aicore__ inline void preload_buffer(int32_t i) const { preload(image_ + header_.buffers_offset + i * sizeof(Buffer)); }
  // Preloads the line after that of a place's word; the words after the last one are the queues.
  __aicore__ inline void preload_tasks_after(int32_t place) const {
    const uint64_t next = image_ + header_.tasks_offset + place * sizeof(TaskWord) + kLineBytes;
    if (place % (kLineBytes / sizeof(TaskWord)) == 0) preload(next);
  }
  // Reads an op with only the operands that it has.
  __aicore__ inline void read_op(Op* op, int32_t i) const {
    constexpr uint32_t num_words = offsetof(Op, operands) / sizeof(uint64_t),
                       of_operand = sizeof(Operand) / sizeof(uint64_t);
    union {
      uint64_t words[sizeof(Op) / sizeof(uint64_t)];
      Op op;
    } both;
    const AscendC::GlobalTensor<uint64_t> from = global_at<uint64_t>(image_ + header_.ops_offset + i * sizeof(Op));
    for (uint32_t w = 0; w < num_words; ++w) both.words[w] = from.GetValue(w);
    const uint32_t end = num_words + both.op.num_operands * of_operand;
    for (uint32_t w = num_words; w < end; ++w) both.words[w] = from.GetValue(w);
    *op = both.op;
  }
  __aicore__ inline Buffer buffer(int32_t i) const { return read<Buffer>(header_.buffers_offset, i); }
  __aicore__ inline EventRun event_run(int32_t i) const { return read<EventRun>(header_.event_runs_offset, i); }
  __aicore__ inline Wait wait(int32_t i) const { return read<Wait>(header_.waits_offset, i); }
  __aicore__ inline Signal signal(int32_t i) const { return read<Signal>(header_.signals_offset, i); }
  __aicore__ inline int32_t peer(int32_t rank, int32_t position, bool back) const {
    return word(header_.peer_order_offset, (back * header_.ep_size + rank) * header_.ep_size + position);
  }
  // Returns a route; the last one is cached.
  __aicore__ inline const RouteWords& route(int32_t i) const {
    if (i != last_route_) route_ = read_row<RouteWords>(image_ + header_.routes_offset + i * sizeof(Route));
    last_route_ = i;
    return route_;
  }
  // Returns the route whose rows the relays of route i forward, or -1.
  __aicore__ inline int32_t passed_on(int32_t i) const {
    for (int32_t other = 0; other < header_.num_routes; ++other)
      if (route(other).over == i) return other;
    return -1;
  }
  // Returns the rank that receives a row of `source` for experts on `dest`.
  __aicore__ inline int32_t stop(const RouteWords& route, int32_t source, int32_t dest) const {
    return route.of < 0 ? dest : word(header_.stops_offset, route.first_stop + source * header_.ep_size + dest);
  }
  __aicore__ inline Share share(int32_t i) const { return read<Share>(header_.shares_offset, i); }
  __aicore__ inline TaskWord task_word(int32_t place) const {
    return static_cast<TaskWord>(word(header_.tasks_offset, place));
  }
  // Returns the end of a run of events.
  __aicore__ inline int32_t end_of_run(int32_t run) const {
    return run + 1 < header_.num_event_runs ? event_run(run + 1).first : header_.num_events;
  }
  // Returns the tables of route i, which follow those of the routes before it.
  __aicore__ inline RouteTables tables(int32_t i, int32_t num_aiv) const {
    RouteTables t{};
    for (int32_t r = 0; r <= i; ++r) {
      t = lay_out(route(r), header_.ep_size, num_aiv, r > 0 ? t.end : kFirstTables);
    }
    return t;
  }

 private:
  template <class Row>
  __aicore__ inline Row read(int32_t section, int32_t i) const {
    return read_row<Row>(image_ + section + static_cast<uint64_t>(i) * sizeof(Row));
  }
  __aicore__ inline int32_t word(int32_t section, int32_t i) const {
    return global_at<int32_t>(image_ + section).GetValue(i);
  }

  uint64_t image_ = 0;
  Header header_;
  mutable RouteWords route_{};
  mutable int32_t last_route_ = -1;
};

}  // namespace hpmoe
