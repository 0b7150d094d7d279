// What a task brings through an L2, and how much of that L2 does not hold.
#pragma once

#include <cstdint>
#include <vector>

#include "task_work.h"

namespace hpmoe {

// Bytes that go through L2; those that memory has to bring.
struct Passed {
  double bytes = 0, missed = 0;
};

// Which parts of its ranks' arrays L2 still holds: those touched within its size of bytes.
class L2 {
 public:
  L2(int64_t num_parts, double size) : size_(size), last_touch_(num_parts, -1.0) {}

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
        case HPMOE_UNIT: touch(t.first + frame.task.row, bytes, out); break;
        case HPMOE_WEIGHT: {
          const int64_t tile = frame.op.tile_cols > 0 ? frame.task.col / frame.op.tile_cols : 0;
          touch(t.first + frame.unit.expert * num_column_tiles(frame.op) + tile, bytes, out);
          break;
        }
        case HPMOE_OF_EXPERT: touch_slots_of_expert(frame, t, out); break;
        case HPMOE_TOGETHER: touch(t.first, bytes, out); break;
        case HPMOE_STREAM:
        case HPMOE_FAN: out.bytes += bytes; out.missed += bytes;
      }
    }
    return out;
  }

 private:
  // From now on the part is held.
  void touch(int64_t part, double bytes, Passed& out) {
    out.bytes += bytes;
    const double last = last_touch_[part];
    if (last < 0 || passed_ - last > size_) {
      passed_ += bytes;
      out.missed += bytes;
    }
    last_touch_[part] = passed_;
  }

  void touch_slots_of_expert(const Frame& frame, const HpmoeFootprint& t, Passed& out) {
    if (frame.unit.rows == 0) return;  // it may have no slot at all
    int32_t slot = 0;
    while (frame.routing->slot(frame.rank, slot).expert < frame.unit.expert) ++slot;
    for (int64_t done = 0; done < frame.unit.rows; ++slot) {  // the one that is not full may be any of them
      const int64_t rows = frame.routing->slot(frame.rank, slot).rows;
      touch(t.first + slot, static_cast<double>(rows) * t.row, out);
      done += rows;
    }
  }

  double size_, passed_ = 0;  // bytes that came in
  std::vector<double> last_touch_;
};

}  // namespace hpmoe
