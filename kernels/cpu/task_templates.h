// Packs the waits and signals of a taskflow's tasks into templates; see task_templates.cc.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <vector>

#include "core/abi.h"
#include "core/image.h"

namespace hpmoe {

struct BadTable : std::runtime_error {
  BadTable() : std::runtime_error("a table names a task or an event that does not exist") {}
};

struct TooManyTemplates : std::runtime_error {
  TooManyTemplates() : std::runtime_error("a word cannot name all templates") {}
};

struct PackedTemplates {
  int32_t index_bits = 0;
  std::vector<TaskWord> tasks;  // in the order of the ops' grids
  std::vector<TaskTemplate> templates;
  std::vector<Wait> waits;
  std::vector<Signal> signals;

  void add_template(const std::vector<int32_t>& words);

  // Returns true if a template has these waits and signals; wait_of and signal_of make them relative to the task's place.
  template <class WaitOf, class SignalOf>
  bool is(const TaskTemplate& task_template, Range<HpmoeTableWait> waited, WaitOf wait_of, Range<HpmoeTableSignal> signalled,
          SignalOf signal_of) const {
    if (task_template.num_waits != waited.last - waited.first ||
        task_template.num_signals != signalled.last - signalled.first)
      return false;
    const Wait* wait = waits.data() + task_template.first_wait;
    for (const HpmoeTableWait& each : waited) {
      const HpmoeTableWait row = wait_of(each);
      if (row.event != wait->event || row.kind != wait->kind) return false;
      ++wait;
    }
    const Signal* signal = signals.data() + task_template.first_signal;
    for (const HpmoeTableSignal& each : signalled) {
      const HpmoeTableSignal row = signal_of(each);
      if (row.event != signal->event || row.kind != signal->kind || row.amount != signal->amount ||
          row.remote != signal->remote)
        return false;
      ++signal;
    }
    return true;
  }
};

// Throws BadTable, TooManyTemplates or std::bad_alloc.
PackedTemplates find_templates(const HpmoeTables& tables);

}  // namespace hpmoe
