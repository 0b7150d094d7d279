// The state of another process of the machine.
#pragma once

#include <cstdint>

namespace hpmoe {

// Returns true if the process of a pidfd has ended.
bool has_ended(int32_t pidfd);

// Returns how a process has ended, in the format of waitpid(); -1 if the system does not tell.
int32_t how_it_ended(int32_t pid, int32_t pidfd);

// Returns true if a process is stopped, as by SIGSTOP or a debugger.
bool is_stopped(int32_t pid);

}  // namespace hpmoe
