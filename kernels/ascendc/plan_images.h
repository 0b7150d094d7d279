// Splits an image of several plans into its plans, and converts timeouts; for the host and the emulator.
#pragma once

#include <vector>

#include "core/image.h"
#include "plans.h"

namespace hpmoe {

struct PlanImage {
  Image image;
  PlanPlace place;
};

inline std::vector<PlanImage> plans_of(const void* images) {
  std::vector<PlanImage> plans{{Image(images), PlanPlace{}}};
  while (plans.back().image.header->num_behind > 0) {
    const PlanPlace place = plans.back().place.behind(*plans.back().image.header);
    plans.push_back({Image(static_cast<const uint8_t*>(images) + place.first_byte), place});
  }
  return plans;
}

// Returns the total of all plans: where a plan after the last one would begin.
inline PlanPlace end_of(const std::vector<PlanImage>& plans) {
  return plans.back().place.behind(*plans.back().image.header);
}

// Returns the largest number of events of a plan.
inline int32_t most_events(const std::vector<PlanImage>& plans) {
  int32_t most = 0;
  for (const PlanImage& plan : plans) most = std::max(most, plan.image.header->num_events);
  return most;
}

constexpr double kLongestTimeout = 1e9;  // seconds

inline int64_t in_microseconds(double seconds) {
  return static_cast<int64_t>((seconds < kLongestTimeout ? seconds : kLongestTimeout) * 1e6);
}

}  // namespace hpmoe
