#include "core/stuck.h"

namespace hpmoe {
namespace {

// Returns true if a task of rank `from` is for rank `to`.
bool is_for(const Image& image, const Task& task, int32_t from, int32_t to) {
  const Op& op = image.ops[task.op];
  for (int32_t i = 0; i < num_task_peers(op, task, image.header->ep_size); ++i)
    if (image.peer(from, position_of(op, task, i), goes_back(op)) == to) return true;
  return false;
}

// Returns true if `signal` of a task of rank `from` may add to counter `event` of rank `to`. A computed index may select
// any later event.
bool may_reach(const Image& image, const Task& task, const Signal& signal, int32_t from, int32_t to, int32_t event) {
  const auto kind = static_cast<Index>(signal.kind);
  const bool is_found_later = kind == Index::SLOT_EXPERT || kind == Index::ENTRY_TILE;
  const int64_t first = image.event_of(signal, task);
  if (is_found_later ? first > event : first != event) return false;
  switch (static_cast<Remote>(signal.remote)) {
    case Remote::LOCAL: return from == to;
    case Remote::PEER: return is_for(image, task, from, to);
    case Remote::EVERY: return true;
  }
  return true;
}

bool is_still_due(const Image& image, const std::vector<Stand>& stands, const Status& wait) {
  for (const Stand& stand : stands) {
    for (int32_t t = stand.next_task; t < image.queues[stand.queue + 1]; ++t) {
      const Task task = image.task(t);
      for (const Signal& signal : image.signals_of(task)) {
        if (may_reach(image, task, signal, stand.rank, wait.rank, wait.event)) return true;
      }
    }
  }
  return false;
}

}  // namespace

Status find_lost_signal(const Image& image, const std::vector<Stand>& stands, const Status& first) {
  for (const Stand& stand : stands) {
    if (stand.wait.event < 0 || is_still_due(image, stands, stand.wait)) continue;
    Status lost = stand.wait;
    lost.code = first.code;
    return lost;
  }
  return first;
}

}  // namespace hpmoe
