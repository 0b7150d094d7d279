#pragma once

#include <cstdint>

#include "planner.h"

namespace hpmoe {

// See planner.h. Throws BadTable or std::bad_alloc.
bool is_reduced(const HpmoeFlow& flow, const HpmoeFlow& derived, const int32_t* number, const int32_t* spans, uint8_t* has);

}  // namespace hpmoe
