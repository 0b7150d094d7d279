// Wakes the sleeping threads of a rank from a thread of any process.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

#include "link/control.h"

namespace hpmoe {

// Call it after a sequentially consistent store of the awaited change: a sleeper then has seen the change, or ring() sees
// the sleeper.
inline void ring(Control& control) {
  if (control.sleepers.load(std::memory_order_seq_cst) == 0) return;
  control.rung.fetch_add(1, std::memory_order_seq_cst);
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&control.rung), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// Sleeps until the bell rings, at most `longest_ns`, unless ready() holds. Returns ready().
template <class Ready>
bool sleep_until_rung(Control& control, int64_t longest_ns, Ready ready) {
  control.sleepers.fetch_add(1, std::memory_order_seq_cst);
  const uint32_t before = control.rung.load(std::memory_order_seq_cst);
  const bool is_ready = ready();
  if (!is_ready) {
    const timespec longest = {0, static_cast<long>(longest_ns)};
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&control.rung), FUTEX_WAIT, before, &longest, nullptr, 0);
  }
  control.sleepers.fetch_sub(1, std::memory_order_seq_cst);
  return is_ready;
}

}  // namespace hpmoe
