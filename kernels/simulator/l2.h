// What a task brings through an L2, and how much of that L2 does not hold.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "task_work.h"

namespace hpmoe {

// Bytes that go through L2; those that memory moves; bytes that memory could read in the time of these.
struct Passed {
  double bytes = 0, missed = 0, memory = 0;
};

// How much of the parts of its ranks' arrays L2 still holds: of those touched within its size of bytes.
class L2 {
 public:
  L2(int64_t num_parts, double size) : size_(size), parts_(num_parts) {}

  // All that a task touches, `rows` of them its own; the parts of its rank's arrays begin at `first_part`.
  Passed pass(const Frame& frame, const HpmoeWork& work, double rows, int64_t first_part) {
    const double fans = rows * rows_of_token(frame);
    Passed out;
    for (int64_t i = 0; i < work.num_footprints; ++i) {
      HpmoeFootprint t = work.footprints[i];
      t.first += first_part;
      const auto part = static_cast<HpmoePart>(t.part);
      const double bytes = t.fixed + (part == HPMOE_FAN ? fans : rows) * t.row;
      switch (part) {
        case HPMOE_UNIT:
          if (is_exchange(opcode_of(frame.op))) {
            for (int32_t e = 0; e < frame.routing->num_local_experts(); ++e) touch_slots_of_expert(frame, e, t, out);
          } else {
            const auto all = static_cast<double>(find_whole_unit<Unit>(frame).rows);
            touch(t.first + frame.task.row, bytes, all * t.whole, t.cost, out);
          }
          break;
        case HPMOE_WEIGHT:
          touch(t.first + frame.unit.expert * num_column_tiles(frame.op) + tile_of(frame), bytes, t.whole, t.cost, out);
          break;
        case HPMOE_DENSE: touch(t.first + tile_of(frame), bytes, t.whole, t.cost, out); break;
        case HPMOE_OF_EXPERT: touch_slots_of_expert(frame, frame.unit.expert, t, out); break;
        case HPMOE_TOGETHER: gather(t.first, bytes, t.whole, t.cost, out); break;
        case HPMOE_STREAM:
        case HPMOE_FAN: out.bytes += bytes; miss(bytes, t.cost, out);
      }
    }
    return out;
  }

  // Bytes from .. to of the weight that a task multiplies by, which a worker reads from its beginning on.
  Passed read(const Frame& frame, const HpmoeFootprint& weight, double from, double to, int64_t first_part) {
    const int64_t of_expert = weight.part == HPMOE_WEIGHT ? frame.unit.expert * num_column_tiles(frame.op) : 0;
    Part& part = look_at(first_part + weight.first + of_expert + tile_of(frame));
    Passed out{to - from};
    take(part, std::clamp(to - part.held, 0.0, out.bytes), weight.cost, out);
    return out;
  }

  // Rows of a segment that come in on rank `to`, the parts of whose arrays begin at `first_part`: bytes that memory could
  // read in the time of writing these.
  double land(const Frame& frame, const Segment& segment, int32_t to, const HpmoeFootprint& landing, int64_t first_part) {
    Passed out;
    const bool back = is_back(opcode_of(frame.op));
    const double bytes = static_cast<double>(back ? segment.num_entries() : segment.rows) * landing.row;
    const int64_t first = first_part + landing.first;
    if (landing.part == HPMOE_TOGETHER) {
      Part& all = look_at(first);
      take(all, bytes, landing.cost, out);
      all.held = std::min(all.held, landing.whole);
    } else if (!is_exchange(opcode_of(frame.op))) {
      const auto rows = static_cast<double>(frame.routing->slot(to, frame.task.row).rows);
      touch(first + frame.task.row, bytes, rows * landing.whole, landing.cost, out);
    } else {
      for_slots_of_expert(*frame.routing, to, segment.expert, [&](int32_t slot, double rows, double all) {
        touch(first + slot, bytes * rows / all, rows * landing.whole, landing.cost, out);
      });
    }
    return out.memory;
  }

 private:
  static int64_t tile_of(const Frame& frame) { return frame.op.tile_cols > 0 ? frame.task.col / frame.op.tile_cols : 0; }

  struct Part {
    double touched = -1, held = 0;  // what had come in when it was last touched; bytes of it
  };

  Part& look_at(int64_t index) {
    Part& part = parts_[index];
    if (passed_ - part.touched > size_) part.held = 0;
    return part;
  }

  static void miss(double bytes, double cost, Passed& out) {
    out.missed += bytes;
    out.memory += cost * bytes;
  }

  void take(Part& part, double missed, double cost, Passed& out) {
    miss(missed, cost, out);
    passed_ += missed;
    part.held += missed;
    part.touched = passed_;
  }

  // What tasks touch of a part one after the other is new until they have touched all of it.
  void touch(int64_t index, double bytes, double whole, double cost, Passed& out) {
    Part& part = look_at(index);
    out.bytes += bytes;
    take(part, std::clamp((whole > 0 ? whole : bytes) - part.held, 0.0, bytes), cost, out);
  }

  // Rows from all over a part: the share of it that is held, and fits, is.
  void gather(int64_t index, double bytes, double whole, double cost, Passed& out) {
    Part& part = look_at(index);
    out.bytes += bytes;
    take(part, whole > 0 ? bytes * (1 - std::min({part.held, size_, whole}) / whole) : bytes, cost, out);
  }

  // Calls visit(slot, its rows, those of the expert) for those of an expert that have rows.
  template <class Visit>
  static void for_slots_of_expert(const Routing& routing, int32_t rank, int32_t expert, Visit visit) {
    const int64_t all = routing.expert_rows(rank, expert);
    const ExpertSlots slots = routing.expert_slots(rank, expert);
    for (int32_t slot = slots.first; slot < slots.first + slots.count; ++slot)
      visit(slot, static_cast<double>(routing.slot(rank, slot).rows), static_cast<double>(all));
  }

  void touch_slots_of_expert(const Frame& frame, int32_t expert, const HpmoeFootprint& t, Passed& out) {
    for_slots_of_expert(*frame.routing, frame.rank, expert, [&](int32_t slot, double rows, double) {
      touch(t.first + slot, rows * t.row, rows * t.whole, t.cost, out);
    });
  }

  double size_, passed_ = 0;  // bytes that came in
  std::vector<Part> parts_;
};

}  // namespace hpmoe
