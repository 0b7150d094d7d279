// What hosts of the kernel share: several plans in one image, and timeouts.
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

// Where one that followed all of them would lie: what they take together.
inline PlanPlace end_of(const std::vector<PlanImage>& plans) {
  return plans.back().place.behind(*plans.back().image.header);
}

// Of the plan that has the most.
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
