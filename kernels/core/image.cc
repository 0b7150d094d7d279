#include "core/image.h"

namespace hpmoe {
namespace {

template <class T>
const T* section(const void* bytes, int32_t offset) {
  return reinterpret_cast<const T*>(static_cast<const char*>(bytes) + offset);
}

}  // namespace

Image::Image(const void* bytes) : header(static_cast<const Header*>(bytes)) {
  if (!bytes) return;
  tasks = section<TaskWord>(bytes, header->tasks_offset);
  queues = section<int32_t>(bytes, header->queues_offset);
  templates = section<TaskTemplate>(bytes, header->templates_offset);
  ops = section<Op>(bytes, header->ops_offset);
  buffers = section<Buffer>(bytes, header->buffers_offset);
  event_runs = section<EventRun>(bytes, header->event_runs_offset);
  waits = section<Wait>(bytes, header->waits_offset);
  signals = section<Signal>(bytes, header->signals_offset);
  routes = section<Route>(bytes, header->routes_offset);
  shares = section<Share>(bytes, header->shares_offset);
  stops = section<int32_t>(bytes, header->stops_offset);
  peer_order = section<int32_t>(bytes, header->peer_order_offset);
}

}  // namespace hpmoe
