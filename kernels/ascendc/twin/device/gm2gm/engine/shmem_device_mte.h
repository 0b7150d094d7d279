// aclshmem: where an address of the symmetric heap lies on another rank.
#pragma once

#include "tensors.h"

inline __gm__ void* aclshmem_ptr(__gm__ void* pointer, int pe) {
  return twin::current().global.translate(pointer, twin::current().rank, pe);
}
