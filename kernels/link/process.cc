#include "link/process.h"

#include <poll.h>
#include <sys/ioctl.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace hpmoe {
namespace {

// A struct of linux/pidfd.h, which older systems lack; Linux fills it from 6.15 on.
struct PidfdInfo {
  uint64_t mask, cgroup;
  uint32_t ids[11];
  int32_t exit_code;
};
constexpr uint64_t kWantsExit = 1 << 3;
static_assert(sizeof(PidfdInfo) == 64, "the first version of what PIDFD_GET_INFO fills");
#define HPMOE_PIDFD_GET_INFO _IOWR(0xFF, 11, PidfdInfo)

// Parses /proc/PID/stat: the state follows the name in parentheses, and the last number is the exit status.
struct Stat {
  char state = '?';
  int32_t end = -1;
};

Stat stat_of(int32_t pid) {
  char path[32], text[1024];
  std::snprintf(path, sizeof path, "/proc/%d/stat", pid);
  std::FILE* const file = std::fopen(path, "re");
  if (!file) return {};
  const size_t size = std::fread(text, 1, sizeof text - 1, file);
  std::fclose(file);
  text[size] = 0;
  const char *const bracket = std::strrchr(text, ')'), *const last = std::strrchr(text, ' ');
  if (!bracket || !bracket[1]) return {};
  return {bracket[2], last ? std::atoi(last) : -1};
}

}  // namespace

bool has_ended(int32_t pidfd) {
  pollfd end = {pidfd, POLLIN, 0};
  return poll(&end, 1, 0) > 0;
}

// Reads /proc until the process is waited for, and its pidfd afterwards.
int32_t how_it_ended(int32_t pid, int32_t pidfd) {
  const Stat stat = stat_of(pid);
  if (stat.state == 'Z') return stat.end;
  PidfdInfo info{};
  info.mask = kWantsExit;
  return ioctl(pidfd, HPMOE_PIDFD_GET_INFO, &info) == 0 && info.mask & kWantsExit ? info.exit_code : -1;
}

bool is_stopped(int32_t pid) {
  const char state = stat_of(pid).state;
  return state == 'T' || state == 't';
}

}  // namespace hpmoe
