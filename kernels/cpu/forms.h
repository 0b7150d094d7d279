// The waits and signals of a taskflow's tasks as forms; see forms.cc.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <vector>

#include "abi.h"

namespace hpmoe {

struct BadTable : std::runtime_error {
  BadTable() : std::runtime_error("a table names a task or an event that does not exist") {}
};

struct TooManyForms : std::runtime_error {
  TooManyForms() : std::runtime_error("a word cannot name all forms") {}
};

struct PackedForms {
  int32_t index_bits = 0;
  std::vector<TaskWord> tasks;  // in the order of the ops' grids
  std::vector<Form> forms;
  std::vector<Wait> waits;
  std::vector<Signal> signals;

  void add_form(const std::vector<int32_t>& words);
  // Whether a form stands for these waits and signals, events relative to the task's place.
  bool is(const Form& form, const std::vector<HpmoeTableWait>& wanted, const std::vector<HpmoeTableSignal>& added) const;
};

// Throws BadTable, TooManyForms or std::bad_alloc.
PackedForms find_forms(const HpmoeTables& tables);

}  // namespace hpmoe
