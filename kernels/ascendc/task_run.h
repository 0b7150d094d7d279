// The common part of the tasks of one template. A core reads it once and caches the last few templates, so that a task
// needs only its word and the targets of its waits.
#pragma once

#include "image_reader.h"

namespace hpmoe {

struct TaskRun {
  static constexpr int32_t kMostKept = 4;  // waits, and signals; further ones are read for each task

  int32_t number = -1, column_tiles = 1;
  TaskTemplate task_template;
  Op op;
  Buffer buffers[kMaxOperands];
  uint64_t bases[kMaxOperands];
  Wait waits[kMostKept];
  Signal signals[kMostKept];
};

class TaskRuns {
 public:
  __aicore__ inline TaskRuns(const ImageReader& image, uint64_t buffers) : image_(image), buffers_(buffers) {}

  // Returns the common part of a template; may replace any cached template except `used`.
  __aicore__ inline const TaskRun* find(int32_t number, const TaskRun* used) {
    for (const TaskRun& run : runs_)
      if (run.number == number) return &run;
    do next_ = (next_ + 1) % kCount;
    while (&runs_[next_] == used);
    read(runs_[next_], number);
    return &runs_[next_];
  }

  // Returns true if another template can be read without replacing one.
  __aicore__ inline bool has_capacity() const { return runs_[kCount - 1].number < 0; }

  __aicore__ inline Wait wait(const TaskRun& run, int32_t i) const {
    return i < TaskRun::kMostKept ? run.waits[i] : image_.wait(run.task_template.first_wait + i);
  }
  __aicore__ inline Signal signal(const TaskRun& run, int32_t i) const {
    return i < TaskRun::kMostKept ? run.signals[i] : image_.signal(run.task_template.first_signal + i);
  }

 private:
  static constexpr int32_t kCount = 8;

  __aicore__ inline void read(TaskRun& run, int32_t number) const {
    run.number = number;
    run.task_template = image_.task_template(number);
    image_.preload_op(run.task_template.op);
    for (int32_t i = 0; i < least(run.task_template.num_waits, TaskRun::kMostKept); ++i)
      run.waits[i] = image_.wait(run.task_template.first_wait + i);
    for (int32_t i = 0; i < least(run.task_template.num_signals, TaskRun::kMostKept); ++i)
      run.signals[i] = image_.signal(run.task_template.first_signal + i);
    image_.read_op(&run.op, run.task_template.op);
    run.column_tiles = num_column_tiles(run.op);
    for (int32_t i = 0; i < least(run.op.num_operands, 4); ++i)
      if (run.op.operands[i].buffer >= 0) image_.preload_buffer(run.op.operands[i].buffer);
    for (int32_t i = 0; i < run.op.num_operands; ++i) {
      const int32_t buffer = run.op.operands[i].buffer;
      if (buffer >= 0) run.bases[i] = global_at<uint64_t>(buffers_).GetValue(buffer);
    }
    for (int32_t i = 0; i < run.op.num_operands; ++i)
      if (run.op.operands[i].buffer >= 0) run.buffers[i] = image_.buffer(run.op.operands[i].buffer);
  }

  const ImageReader& image_;
  const uint64_t buffers_;
  TaskRun runs_[kCount];
  int32_t next_ = -1;
};

}  // namespace hpmoe
