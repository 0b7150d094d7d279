// Every rate that is shared in a simulated run: memory, L2 and links of each rank, and the cores of a host.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "shared_rate.h"
#include "simulate.h"

namespace hpmoe {

class Rates {
 public:
  Rates(const HpmoeMachine& machine, int32_t num_ranks, int32_t num_bins)
      : has_host_(machine.host_cores > 0), cores_(num_ranks * HPMOE_NUM_RATES), num_bins_(num_bins) {
    for (int32_t r = 0; r < num_ranks; ++r) {
      add(machine.l2.bytes_per_us, machine.l2.worker_bytes_per_us);
      add(machine.memory.bytes_per_us, machine.memory.worker_bytes_per_us);
      for (int i = 0; i < 2; ++i) add(machine.link.bytes_per_us, machine.link.worker_bytes_per_us);
      for (int i = 0; i < 2; ++i) add(machine.link.node_bytes_per_us, machine.link.worker_bytes_per_us);
    }
    add(machine.host_cores, 1.0);
  }

  SharedRate& operator[](int32_t index) { return rates_[index]; }
  bool has_host() const { return has_host_; }
  int32_t cores() const { return cores_; }  // of the host
  // On one computer L2 and memory are those of all ranks.
  int32_t of(int32_t rank, int32_t kind) const {
    const bool is_of_all = has_host_ && (kind == HPMOE_L2 || kind == HPMOE_MEMORY);
    return (is_of_all ? 0 : rank) * HPMOE_NUM_RATES + kind;
  }

  // Writes what each rate of a rank served until `end`; see simulate.h.
  void report(double end, double* totals, double* served) {
    for (int32_t i = 0; i < cores_; ++i) {
      totals[2 * i] = rates_[i].total();
      totals[2 * i + 1] = rates_[i].busy_us();
      AmountOverTime& amounts = rates_[i].over_time();
      amounts.cover(end);
      served[0] = amounts.width();
      std::copy(amounts.bins().begin(), amounts.bins().end(), served + 1 + int64_t{i} * num_bins_);
    }
  }

 private:
  void add(double rate, double cap) { rates_.emplace_back(rate, cap, num_bins_); }

  const bool has_host_;
  const int32_t cores_, num_bins_;
  std::vector<SharedRate> rates_;  // [num_ranks * HPMOE_NUM_RATES], then that of the host's cores
};

}  // namespace hpmoe
