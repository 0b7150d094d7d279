// Detects a core whose other hardware thread is busy: only few tile registers are free on it beyond the eight named ones.
#pragma once

namespace hpmoe {

// Returns true if this core's other hardware thread is busy, measured at most about a millisecond ago. Writing a tile
// takes a physical register until all reads of its old value are done. On a shared core few registers are free, and
// products that use three or four tiles are twice as fast as products that use eight, despite more loads. Overwrites
// tiles; needs has_amx().
bool core_is_shared();

// Fixes the result of core_is_shared() for tests, or restores the measurement.
enum class Sharing { MEASURED = -1, NO, YES };
void assume_sharing(Sharing sharing);

}  // namespace hpmoe
