// aclshmem: where an address of the symmetric heap lies on another rank.
#pragma once

#include "tensors.h"

inline __gm__ void* aclshmem_ptr(__gm__ void* pointer, int pe) {
  return emulator::current().global.translate(pointer, emulator::current().rank, pe);
}
