// Checks an image before it runs; an invalid one is refused with a sentence.
#include "core/check_events.h"
#include "core/check_ops.h"
#include "core/check_routes.h"
#include "core/image.h"

namespace hpmoe {
namespace {

class Checker {
 public:
  Checker(const void* bytes, int64_t num_bytes) : bytes_(bytes), num_bytes_(num_bytes) {}

  const char* check() {
    if (num_bytes_ < static_cast<int64_t>(sizeof(Header)) || reinterpret_cast<uintptr_t>(bytes_) % alignof(Route)) {
      return "the image is shorter than its header, or not aligned to eight bytes";
    }
    const Header& h = *static_cast<const Header*>(bytes_);
    if (h.magic != kMagic) return "the magic number is wrong: this is no packed image";
    if (h.version != kVersion) return "the image has another version than this library";
    if (h.image_bytes != num_bytes_) return "the header states another size than the image has";
    if (h.ep_size < 1 || h.tile_rows < 1 || h.num_queues < 1) return "ep_size, tile_rows and num_queues are at least 1";
    if (!in_range(h.index_bits, 32)) return "a word has no such number of index bits";
    if (!sections_fit(h)) return "a section lies outside the image or is not aligned";
    image_ = Image(bytes_);
    if (const char* fault = check_order()) return fault;
    for (int32_t i = 0; i < h.num_buffers; ++i) {
      const Buffer& b = image_.buffers[i];
      if (b.cols < 1 || b.rows_per_expert < 0 || b.rows < 0) return "a buffer has a negative size or no columns";
      if (!in_range(b.dtype, kNumDtype)) return "a buffer's dtype is unknown";
    }
    for (int32_t i = 0; i < h.num_routes; ++i)
      if (!is_route_ok(image_, image_.routes[i])) return "a route's sizes do not fit together";
    for (int32_t i = 0; i < h.num_ops; ++i)
      if (const char* fault = check_op(image_, image_.ops[i])) return fault;
    if (const char* fault = check_events(image_)) return fault;
    for (int32_t i = 0; i < h.num_templates; ++i)
      if (const char* fault = check_template(image_.templates[i])) return fault;
    for (int32_t i = 0; i < h.num_tasks; ++i)
      if (const char* fault = check_task(image_.tasks[i])) return fault;
    return nullptr;
  }

 private:
  bool sections_fit(const Header& h) const {
    const auto fits = [&](int32_t offset, int64_t count, int64_t size) {
      return offset >= static_cast<int32_t>(sizeof(Header)) && offset % kSectionAlignment == 0 && offset <= num_bytes_ &&
             count >= 0 && count <= (num_bytes_ - offset) / size;
    };
    return fits(h.tasks_offset, h.num_tasks, sizeof(TaskWord)) && fits(h.queues_offset, h.num_queues + int64_t{1}, 4) &&
           fits(h.templates_offset, h.num_templates, sizeof(TaskTemplate)) && fits(h.ops_offset, h.num_ops, sizeof(Op)) &&
           fits(h.buffers_offset, h.num_buffers, sizeof(Buffer)) &&
           fits(h.event_runs_offset, h.num_event_runs, sizeof(EventRun)) &&
           fits(h.waits_offset, h.num_waits, sizeof(Wait)) && fits(h.signals_offset, h.num_signals, sizeof(Signal)) &&
           fits(h.routes_offset, h.num_routes, sizeof(Route)) && fits(h.shares_offset, h.num_shares, sizeof(Share)) &&
           fits(h.stops_offset, h.num_stops, 4) && fits(h.peer_order_offset, int64_t{2} * h.ep_size * h.ep_size, 4);
  }

  const char* check_order() const {
    const Header& h = *image_.header;
    if (image_.queues[0] != 0 || image_.queues[h.num_queues] != h.num_tasks) return "the queues do not cover the tasks";
    for (int32_t q = 0; q < h.num_queues; ++q) {
      if (image_.queues[q] > image_.queues[q + 1]) return "the queues do not cover the tasks";
    }
    for (int64_t i = 0; i < int64_t{2} * h.ep_size * h.ep_size; ++i) {
      if (!in_range(image_.peer_order[i], h.ep_size)) return "the peer order names a rank outside ep_size";
    }
    return nullptr;
  }

  const char* check_template(const TaskTemplate& task_template) const {
    const Header& h = *image_.header;
    if (!in_range(task_template.op, h.num_ops)) return "a task names an op that does not exist";
    if (task_template.num_waits < 0 || task_template.first_wait < 0 ||
        int64_t{task_template.first_wait} + task_template.num_waits > h.num_waits || task_template.num_signals < 0 ||
        task_template.first_signal < 0 || int64_t{task_template.first_signal} + task_template.num_signals > h.num_signals) {
      return "a template's waits or signals lie outside their tables";
    }
    return check_events_of_template(image_, task_template);
  }

  const char* check_task(TaskWord word) const {
    const Header& h = *image_.header;
    if (word >> h.index_bits >= static_cast<uint32_t>(h.num_templates)) return "a task has a template that does not exist";
    const TaskTemplate& task_template = image_.templates[word >> h.index_bits];
    const Op& op = image_.ops[task_template.op];
    if (place_of(word, h.index_bits) >= grid_size(op)) return "a task is outside the grid of its op";
    return check_events_of_task(image_, op, image_.decode(word));
  }

  const void* bytes_;
  const int64_t num_bytes_;
  Image image_{nullptr};
};

}  // namespace

const char* find_fault(const void* bytes, int64_t num_bytes) { return Checker(bytes, num_bytes).check(); }

}  // namespace hpmoe
