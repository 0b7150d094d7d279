// Global memory: the regions of a launch, each of one rank; an access outside of them is a fault.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "core/abi.h"
#include "clock.h"
#include "fault.h"

namespace emulator {

struct Region {
  std::string name;
  int rank;
  int symmetric;  // the symmetric array of the heap that contains it, or -1
  uint8_t* begin;
  uint64_t bytes;
};

// The contents of memory before each store of a launch, so that a load can be emulated as early as synchronization
// permits. Stores of other processes take effect when they occur.
class Journal {
 public:
  // Number of stores so far.
  size_t now() const { return stores_.size(); }

  // Notes that core `by` is about to store these bytes.
  void note(const void* by, const uint8_t* at, uint64_t bytes) { stores_.push_back({by, at, {at, at + bytes}}); }

  // Returns bytes as a load of core `by` finds them if it precedes other cores' stores from number `since` on; its own
  // stores precede the load.
  std::vector<uint8_t> read(const void* by, size_t since, const uint8_t* at, uint64_t bytes) const {
    std::vector<uint8_t> found(at, at + bytes);
    std::vector<bool> is_own(bytes);
    for (size_t i = stores_.size(); i > since; --i) {
      const Store& store = stores_[i - 1];
      const uint8_t *first = std::max(store.at, at), *last = std::min(store.at + store.before.size(), at + bytes);
      for (const uint8_t* byte = first; byte < last; ++byte) {
        if (store.by == by) is_own[byte - at] = true;
        if (!is_own[byte - at]) found[byte - at] = store.before[byte - store.at];
      }
    }
    return found;
  }

 private:
  struct Store {
    const void* by;
    const uint8_t* at;
    std::vector<uint8_t> before;
  };

  std::vector<Store> stores_;
};

class GlobalMemory {
 public:
  Journal journal;
  Arrivals arrivals;
  const HpmoePeers* peers = nullptr;  // serve the ranks of other processes

  // Notifies another rank of an addition to a counter.
  void wake(int rank) const {
    if (peers) peers->wake(peers->launch, rank);
  }

  void add(Region region) { regions_.push_back(std::move(region)); }

  // Regions may overlap; returns any that contains all bytes.
  const Region& region_of(const void* pointer, uint64_t bytes, const char* what) const {
    const auto* at = static_cast<const uint8_t*>(pointer);
    const Region* partial = nullptr;
    for (const Region& region : regions_) {
      if (at < region.begin || at >= region.begin + region.bytes) continue;
      if (at + bytes <= region.begin + region.bytes) return region;
      partial = &region;
    }
    require(partial != nullptr, what, " touches ", bytes, " bytes of global memory that belongs to no array");
    throw Fault(text(what, " touches ", bytes, " bytes of ", partial->name, " of rank ", partial->rank, " from byte ",
                     at - partial->begin, " on, and it has ", partial->bytes));
  }

  // Returns the address of the same place of the symmetric heap on another rank.
  uint8_t* translate(const void* pointer, int mine, int rank) const {
    const auto* at = static_cast<const uint8_t*>(pointer);
    for (const Region& region : regions_) {
      if (region.rank != mine || region.symmetric < 0 || at < region.begin || at >= region.begin + region.bytes) continue;
      for (const Region& other : regions_)
        if (other.rank == rank && other.symmetric == region.symmetric) return other.begin + (at - region.begin);
      throw Fault(text("aclshmem_ptr: there is no rank ", rank));
    }
    throw Fault("aclshmem_ptr: the address is not in this rank's symmetric heap");
  }

 private:
  std::vector<Region> regions_;
};

}  // namespace emulator
