// Global memory: the regions a launch brings, each of one rank; an access outside of them is a fault.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fault.h"

namespace twin {

struct Region {
  std::string name;
  int rank;
  int symmetric;  // which symmetric array of the heap it is part of, or -1
  uint8_t* begin;
  uint64_t bytes;
};

class GlobalMemory {
 public:
  void add(Region region) { regions_.push_back(std::move(region)); }

  // Arrays may share memory, so whichever holds all of it will do.
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

  // The address of the same place of the symmetric heap on another rank.
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

}  // namespace twin
