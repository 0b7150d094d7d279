// Queues from the order in which tasks begin, and whether queues hold each task once.
#include "queues.h"

#include <algorithm>
#include <vector>

#include "graph.h"

namespace hpmoe {
namespace {

// Tasks by their number in `sequence`, those without one first.
std::vector<int32_t> in_order(const int32_t* sequence, int64_t num_tasks) {
  const auto num_left = static_cast<int32_t>(std::count_if(sequence, sequence + num_tasks, [](int32_t s) { return s < 0; }));
  std::vector<int32_t> order(num_tasks, -1);
  int32_t next = 0;
  for (int32_t t = 0; t < num_tasks; ++t) {
    if (sequence[t] >= num_tasks - num_left) throw BadTable();
    order[sequence[t] < 0 ? next++ : num_left + sequence[t]] = t;
  }
  if (std::count(order.begin(), order.end(), -1) > 0) throw BadTable();  // two have one number
  return order;
}

}  // namespace

void deal(const HpmoeFlow& flow, const int32_t* sequence, const HpmoeDealt* of_op, int64_t num_ops, int32_t* queue,
          int32_t num_queues, int32_t* queue_starts, int32_t* queue_tasks) {
  const std::vector<int32_t> order = in_order(sequence, flow.num_tasks);
  std::vector<int32_t> turn(num_ops), next(num_queues + 1);
  for (const int32_t t : order) {
    if (queue[t] < 0) {
      const int32_t op = flow.tasks[t].op;
      if (op < 0 || op >= num_ops || of_op[op].num_queues < 1) throw BadTable();
      queue[t] = of_op[op].first_queue + turn[op];
      turn[op] = turn[op] + 1 == of_op[op].num_queues ? 0 : turn[op] + 1;
    }
    if (queue[t] < 0 || queue[t] >= num_queues) throw BadTable();
    ++next[queue[t] + 1];
  }
  for (int32_t q = 0; q < num_queues; ++q) next[q + 1] += next[q];
  std::copy(next.begin(), next.end(), queue_starts);
  for (const int32_t t : order) queue_tasks[next[queue[t]]++] = t;
}

bool are_queues(const HpmoeFlow& flow, const uint8_t* unit_of_op, int64_t num_ops, const uint8_t* units_of_queue) {
  check_queues(flow);
  std::vector<uint8_t> is_seen(flow.num_tasks);
  for (int32_t q = 0; q < flow.num_queues; ++q) {
    for (int32_t i = flow.queue_starts[q]; i < flow.queue_starts[q + 1]; ++i) {
      const int32_t t = flow.queue_tasks[i], op = flow.tasks[t].op;
      if (op < 0 || op >= num_ops) throw BadTable();
      if (is_seen[t] || !(units_of_queue[q] & unit_of_op[op])) return false;
      is_seen[t] = 1;
    }
  }
  return flow.queue_starts[flow.num_queues] == flow.num_tasks;
}

}  // namespace hpmoe
