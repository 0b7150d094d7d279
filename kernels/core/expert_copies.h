// Expert replicas: their ranks, and the entries that each takes.
#pragma once

#include "core/generated/rules.h"
#include "core/generated/structs.h"

namespace hpmoe {

// Replica slot `slot` of rank `host`, a copy of its owner's local expert `expert`; host is -1 if there is no such copy.
struct Copy {
  int32_t expert, host, slot;
};

// Returns true if ranks have replica slots.
template <class Route>
HPMOE_DEVICE inline bool has_copies(const Route& route, int32_t ep_size) {
  return route.num_local_experts * ep_size > route.num_experts;
}

// Entries low .. high - 1 of a rank's list for an expert.
struct EntryRun {
  int32_t low, high;
};

// Returns the run of an expert's entries that a share takes. Rounding is offset by the rank, so that the runs of all
// ranks add up to the shares.
HPMOE_DEVICE inline EntryRun run_of(const Share& share, int32_t entries, int32_t rank, int32_t ep_size) {
  const int64_t offset = int64_t{kWhole} * (2 * rank + 1) / (2 * ep_size), all = entries;
  return {static_cast<int32_t>((all * share.low + offset) / kWhole),
          static_cast<int32_t>((all * share.high + offset) / kWhole)};
}

// Answers questions about the replicas of a Route, which derives from this class and reads:
//
// ep_size(), num_local_experts(), num_own_experts() (without replica slots)
//
// share(rank, e): the share of a local expert
template <class Route>
class ExpertCopies {
 public:
  HPMOE_DEVICE inline bool is_copy(int32_t rank, int32_t expert) const {
    return expert >= route().num_own_experts() && expert < route().num_local_experts() &&
           route().share(rank, expert).expert >= 0;
  }
  // The replicas of a rank's experts, ordered by host: the first, the one after a given one, and one by its number.
  HPMOE_DEVICE inline Copy first_copy(int32_t rank) const { return copy_from(rank, 0, 0); }
  HPMOE_DEVICE inline Copy next_copy(int32_t rank, const Copy& copy) const {
    return copy_from(rank, copy.host, copy.slot + 1);
  }
  HPMOE_DEVICE inline Copy copy(int32_t rank, int32_t number) const {
    Copy copy = first_copy(rank);
    for (int32_t i = 0; i < number && copy.host >= 0; ++i) copy = next_copy(rank, copy);
    return copy;
  }
  // Returns the number of the replica in a slot of a rank, among the replicas of its owner.
  HPMOE_DEVICE inline int32_t place_of_copy(int32_t rank, int32_t slot) const {
    const int32_t own = route().num_own_experts(), owner = route().share(rank, own + slot).expert / own;
    int32_t place = 0;
    for (Copy copy = first_copy(owner); copy.host != rank || copy.slot != slot; copy = next_copy(owner, copy)) ++place;
    return place;
  }
  HPMOE_DEVICE inline int32_t num_copies(int32_t rank, int32_t expert) const {
    int32_t count = 0;
    for (Copy copy = first_copy(rank); copy.host >= 0; copy = next_copy(rank, copy)) count += copy.expert == expert ? 1 : 0;
    return count;
  }

 private:
  HPMOE_DEVICE inline const Route& route() const { return static_cast<const Route&>(*this); }
  HPMOE_DEVICE inline Copy copy_from(int32_t rank, int32_t host, int32_t slot) const {
    const int32_t own = route().num_own_experts();
    for (; host < route().ep_size(); ++host, slot = 0) {
      for (; own + slot < route().num_local_experts(); ++slot) {
        const int32_t expert = route().share(host, own + slot).expert;
        if (expert >= 0 && expert / own == rank) return {expert % own, host, slot};
      }
    }
    return {-1, -1, -1};
  }
};

}  // namespace hpmoe
