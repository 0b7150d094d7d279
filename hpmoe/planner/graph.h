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

// Whether the rows of a table are sorted by task, and whether some have a kind: an event that is found at run time.
struct RowFacts {
  bool is_sorted, has_kinds;
};
struct TableFacts {
  RowFacts waits, signals;
};

// Throws BadTable where a queue names a task that does not exist.
void check_queues(const HpmoeFlow& flow);

// Which gate each event is.
struct Gates {
  Gates(const HpmoeFlow& flow, const TableFacts& facts);

  std::vector<int32_t> of_event;  // [num_events]
  std::vector<uint8_t> is_block;  // [num_events] the gate is a whole block
};

// The tables of a flow sorted by task.
struct Tables {
  explicit Tables(const HpmoeFlow& flow);  // throws BadTable

  TableFacts facts;
  std::vector<HpmoeWait> sorted_waits;  // where those of the flow are not sorted
  std::vector<HpmoeSignal> sorted_signals;
  const HpmoeWait* waits;
  const HpmoeSignal* signals;
  std::vector<int32_t> first_wait;  // [num_tasks + 1]
};

// Tasks in a row that wait for and signal the same events in the same way are one bundle: b is tasks starts[b] ..
// starts[b + 1] - 1.
struct Graph {
  explicit Graph(const HpmoeFlow& flow);  // throws BadTable

  Tables tables;
  std::vector<int32_t> gate_of;        // [num_events]
  std::vector<uint8_t> is_block;       // [num_events]
  std::vector<int32_t> num_producers;  // [num_events] signals that feed a gate
  std::vector<int32_t> starts, bundle_of;
  Lists feeds;  // gates that each task of a bundle signals, one for each signal
  Lists needs;  // gates that it waits for; one that nobody signals is open from the start

  int32_t num_bundles() const { return static_cast<int32_t>(starts.size() - 1); }
  int32_t size_of(int32_t bundle) const { return starts[bundle + 1] - starts[bundle]; }
};

// For each gate the bundles in whose list it stands: its producers of `feeds`, its consumers of `needs`.
Lists bundles_of(const Lists& gates, int64_t num_gates);

// Bundles in an order in which they may run, without queues; those on a cycle are left out.
std::vector<int32_t> find_order(const Graph& graph, const Lists& consumers);

}  // namespace hpmoe
