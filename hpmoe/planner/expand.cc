// Tables of waits and signals from rules, each about tasks of one op: written in the order of the tasks.
#include "expand.h"

#include <algorithm>
#include <tuple>

#include "graph.h"

namespace hpmoe {
namespace {

HpmoeWait make_row(const HpmoeRule& rule, int32_t task, int32_t event, const HpmoeWait*) { return {task, event, rule.kind}; }

HpmoeSignal make_row(const HpmoeRule& rule, int32_t task, int32_t event, const HpmoeSignal*) {
  return {task, event, static_cast<int16_t>(rule.kind), static_cast<int16_t>(rule.amount), rule.remote};
}

// The rules of one op, column tile by column tile.
struct ByColumn {
  std::vector<std::vector<const HpmoeRule*>> of_column;

  ByColumn(const HpmoeGrid& grid, const HpmoeRule* first, const HpmoeRule* last) : of_column(grid.num_cols) {
    for (const HpmoeRule* rule = first; rule != last; ++rule) {
      if (rule->first_col < 0 || rule->last_col > grid.num_cols || rule->units < 1) throw BadTable();
      for (int32_t c = rule->first_col; c < rule->last_col; ++c) of_column[c].push_back(rule);
    }
  }
};

// Calls finish(first) after the rows of each task, which begin at `first`; it returns where they end.
template <class Row, class Finish>
int64_t expand(const HpmoeGrid* grids, int64_t num_ops, const HpmoeRule* rules, int64_t num_rules, Row* rows,
               int64_t capacity, Finish finish) {
  int64_t count = 0;
  int32_t task = 0;
  const HpmoeRule* rule = rules;
  for (int32_t op = 0; op < num_ops; ++op) {
    const HpmoeGrid& grid = grids[op];
    const HpmoeRule* const first = rule;
    while (rule != rules + num_rules && rule->op == op) ++rule;
    const int32_t num_peers = std::max(grid.num_peers, 1);
    if (grid.blocks < 1) throw BadTable();
    if (first == rule) {
      task += grid.num_units * num_peers * grid.num_cols;
      continue;
    }
    const ByColumn mine(grid, first, rule);
    for (int32_t unit = grid.first_unit; unit < grid.first_unit + grid.num_units; ++unit) {
      for (int32_t peer = 0; peer < num_peers; ++peer) {
        for (const auto& of_column : mine.of_column) {
          const int64_t begin = count;
          for (const HpmoeRule* r : of_column) {
            if (r->block >= 0 && unit % grid.blocks != r->block) continue;
            const int32_t event = r->event + unit / r->units * r->by_unit + unit / grid.blocks * r->by_expert +
                                  peer * r->by_peer;
            if (count == capacity) throw BadTable();
            rows[count++] = make_row(*r, task, event, rows);
          }
          if (count - begin > 1) count = finish(begin, count);
          ++task;
        }
      }
    }
  }
  if (rule != rules + num_rules) throw BadTable();  // not sorted by op, or of an op that does not exist
  return count;
}

}  // namespace

int64_t expand_waits(const HpmoeGrid* grids, int64_t num_ops, const HpmoeRule* rules, int64_t num_rules, HpmoeWait* rows,
                     int64_t capacity) {
  return expand(grids, num_ops, rules, num_rules, rows, capacity, [rows](int64_t first, int64_t last) {
    const auto key = [](const HpmoeWait& w) { return std::tie(w.event, w.kind); };
    std::sort(rows + first, rows + last, [&](const HpmoeWait& a, const HpmoeWait& b) { return key(a) < key(b); });
    return std::unique(rows + first, rows + last, [&](const HpmoeWait& a, const HpmoeWait& b) { return key(a) == key(b); }) -
           rows;
  });
}

int64_t expand_signals(const HpmoeGrid* grids, int64_t num_ops, const HpmoeRule* rules, int64_t num_rules, HpmoeSignal* rows,
                       int64_t capacity) {
  return expand(grids, num_ops, rules, num_rules, rows, capacity, [](int64_t, int64_t last) { return last; });
}

}  // namespace hpmoe
