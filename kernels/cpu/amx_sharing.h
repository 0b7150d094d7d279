// Cores whose other hardware thread is busy, which then have few registers for tiles beyond the eight that have names.
#pragma once

namespace hpmoe {

// Whether this core's other hardware thread is busy, as measured at most about a millisecond ago. A tile that is written
// takes a register until what its name stood for before is read: then, the fewer tiles are in use, the more are free, and
// products in three or four tiles go twice as fast as in eight, though these take fewer loads. Overwrites tiles, on a
// machine that has_amx().
bool core_is_shared();

// What core_is_shared() then says without measuring, for tests of both ways.
enum class Sharing { MEASURED = -1, NO, YES };
void assume_sharing(Sharing sharing);

}  // namespace hpmoe
