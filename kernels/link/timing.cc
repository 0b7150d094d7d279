// How long an exchange of a line with every other rank takes: as a meeting, and as stores and loads without anything more.
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "core/abi.h"
#include "link/link.h"
#include "link/watchdog.h"

namespace {

using namespace hpmoe;

struct alignas(kLine) Mailbox {
  alignas(kLine) std::atomic<int64_t> number;
  alignas(kLine) char lines[2][kLine];  // by parity
};

// What a rank writes, all others read; who waits for long gives its core away.
void exchange(const std::vector<Mailbox*>& boxes, int32_t me, int64_t number, char* read) {
  char line[kLine];
  std::memset(line, static_cast<int>(number), kLine);
  std::memcpy(boxes[me]->lines[number % 2], line, kLine);
  boxes[me]->number.store(number, std::memory_order_release);
  for (const Mailbox* const box : boxes) {
    for (int64_t looks = 0; box->number.load(std::memory_order_acquire) < number; ++looks)
      if (looks > 200) sched_yield();
    std::memcpy(read, box->lines[number % 2], kLine);
  }
}

int meet(HpmoeLink* link, const void* payload) {
  HpmoeStatus status;
  return hpmoe_link_meet(link, "a line", 0, payload, kLine, 60, 0, &status);
}

}  // namespace

extern "C" double hpmoe_link_time(HpmoeLink* handle, int64_t times, int32_t is_bare) {
  const Link& link = *reinterpret_cast<Link*>(handle);
  for (int32_t rank = 0; rank < link.size() && is_bare; ++rank)
    if (link.distant(rank)) return -1;
  const int64_t offset = hpmoe_link_take(handle, sizeof(Mailbox));
  if (offset < 0) return -1;
  char line[kLine] = {};
  std::memcpy(line, &offset, sizeof offset);
  if (meet(handle, line) != 0) return -1;
  std::vector<Mailbox*> boxes;
  for (int32_t rank = 0; rank < link.size(); ++rank) {
    int64_t theirs = 0;
    std::memcpy(&theirs, link.told(rank), sizeof theirs);
    boxes.push_back(reinterpret_cast<Mailbox*>(link.heap(rank).at(theirs)));
  }
  if (meet(handle, line) != 0) return -1;
  const int64_t began = now_ns();
  for (int64_t i = 1; i <= times; ++i) {
    if (is_bare) {
      exchange(boxes, link.rank(), i, line);
    } else if (meet(handle, line) != 0) {
      return -1;
    }
  }
  const int64_t ended = now_ns();
  if (meet(handle, line) != 0) return -1;
  hpmoe_link_give(handle, offset);
  return double(ended - began) * 1e-9 / double(times);
}
