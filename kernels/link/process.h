// What can be seen of another process of the machine.
#pragma once

#include <cstdint>

namespace hpmoe {

// A descriptor that becomes readable when its process ends.
bool has_ended(int32_t pidfd);

// How a process has ended, as waitpid() says it; -1 where the system does not tell.
int32_t how_it_ended(int32_t pid, int32_t pidfd);

// As by SIGSTOP, or by a debugger.
bool is_stopped(int32_t pid);

}  // namespace hpmoe
