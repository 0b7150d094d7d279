// The order that events impose on tasks, the same for every routing: a graph of tasks and gates.
//
// A gate is an event, or a whole block of events where the kernel finds the index at run time: then every producer may feed
// every one of them. Ranks are folded onto one: what is acyclic here is acyclic on any number of ranks.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <vector>

#include "planner.h"

namespace hpmoe {

struct Span {
  const int32_t *first, *last;

  const int32_t* begin() const { return first; }
  const int32_t* end() const { return last; }
};

// Lists of ints: list i is items[starts[i]] .. items[starts[i + 1] - 1].
struct Lists {
  std::vector<int32_t> starts, items;

  Span operator[](int32_t i) const { return {items.data() + starts[i], items.data() + starts[i + 1]}; }
  int32_t size_of(int32_t i) const { return starts[i + 1] - starts[i]; }
};

// An index of a table points outside the table it names.
struct BadTable : std::runtime_error {
  BadTable() : std::runtime_error("bad table") {}
};

// Groups `count` items by key: visit(i, add) calls add(key, item) for those that take part.
template <class Visit>
Lists group(int64_t num_lists, int64_t count, Visit visit) {
  Lists lists;
  lists.starts.assign(num_lists + 1, 0);
  for (int64_t i = 0; i < count; ++i) visit(i, [&](int32_t key, int32_t) { ++lists.starts[key + 1]; });
  for (int64_t i = 0; i < num_lists; ++i) lists.starts[i + 1] += lists.starts[i];
  lists.items.resize(lists.starts[num_lists]);
  std::vector<int32_t> next(lists.starts.begin(), lists.starts.end() - 1);
  for (int64_t i = 0; i < count; ++i) visit(i, [&](int32_t key, int32_t item) { lists.items[next[key]++] = item; });
  return lists;
}

// Which gate each event is.
struct Gates {
  explicit Gates(const HpmoeFlow& flow);  // throws BadTable

  std::vector<int32_t> of_event;  // [num_events]
  std::vector<uint8_t> is_block;  // [num_events] the gate is a whole block
};

struct Graph {
  explicit Graph(const HpmoeFlow& flow);  // throws BadTable

  std::vector<int32_t> gate_of;        // [num_events]
  std::vector<uint8_t> is_block;       // [num_events]
  std::vector<int32_t> num_producers;  // [num_events] signals that feed a gate
  Lists feeds;                         // gates that a task signals, one for each signal
  Lists needs;                         // gates that a task waits for; one that nobody signals is open from the start
};

// The tasks on both sides of each gate.
struct Users {
  Users(const HpmoeFlow& flow, const Graph& graph);

  Lists producers, consumers;
};

// Tasks in an order in which they may run, without queues; those on a cycle are left out.
std::vector<int32_t> find_order(const Graph& graph, const Users& users, int64_t num_tasks);

}  // namespace hpmoe
