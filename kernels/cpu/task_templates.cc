// Packs the waits and signals of a taskflow's tables into templates, which tasks of one op share if their events have the
// same relation to the task's place in the grid.
//
// Usually one relation, such as event = first + unit, holds between all tasks of an op and a block of events. If none
// holds, the event itself is stored. Packing keeps all waits and signals of every task, in order.
#include "task_templates.h"

#include <algorithm>
#include <array>
#include <unordered_map>

namespace hpmoe {
namespace {

constexpr std::array<Index, 5> kRelations{Index::UNIT, Index::STATIC, Index::EXPERT, Index::PEER, Index::PEER_UNIT};
constexpr size_t kStatic = 1;
static_assert(kRelations[kStatic] == Index::STATIC, "an event as it stands");

// The offset that each relation adds to an event for one task.
using Offsets = std::array<int64_t, kRelations.size()>;

// Returns, as bits, the relations to try for an op: those whose offsets differ from all earlier relations by more than a
// constant.
uint8_t relations_of(const Op& op) {
  uint8_t bits = 0;
  for (size_t i = 0; i < kRelations.size(); ++i) {
    const bool is_new = kRelations[i] == Index::EXPERT ? op.blocks > 1 : i <= kStatic || op.num_peers > 0;
    bits |= is_new << i;
  }
  return bits;
}

// The relations that hold for all waits (or signals) of one op on one block of events.
struct Group {
  Offsets first{};
  uint8_t holds = 0;
  bool is_seen = false;

  void see(const Offsets& offsets, int64_t event, const Op& op) {
    if (!is_seen) {
      is_seen = true;
      holds = relations_of(op);
      for (size_t i = 0; i < kRelations.size(); ++i) first[i] = event - offsets[i];
      return;
    }
    for (uint8_t left = holds; left != 0; left &= left - 1) {
      const int i = __builtin_ctz(left);
      if (first[i] != event - offsets[i]) holds &= ~(1u << i);
    }
  }

  // Returns an index into kRelations; STATIC if no relation holds.
  size_t relation() const { return holds == 0 ? kStatic : __builtin_ctz(holds); }
};

// Numbers the blocks of events from 0.
struct Blocks {
  std::vector<int32_t> of_event;
  int64_t count = 0;

  explicit Blocks(const HpmoeTables& tables) : of_event(tables.num_events) {
    std::unordered_map<int32_t, int32_t> numbers;
    for (int64_t e = 0; e < tables.num_events; ++e) {
      const bool goes_on = e > 0 && tables.block_of[e] == tables.block_of[e - 1];
      of_event[e] = goes_on ? of_event[e - 1]
                            : numbers.emplace(tables.block_of[e], static_cast<int32_t>(numbers.size())).first->second;
    }
    count = static_cast<int64_t>(numbers.size());
  }
};

// Iterates over the rows of a table by task, and finds the relations of each op and block.
template <class Row>
class Table {
 public:
  Table(const HpmoeTables& tables, const Blocks& blocks, const Row* rows, int64_t count)
      : blocks_(blocks), next_(rows), end_(rows + count), groups_(tables.num_ops * blocks.count) {
    for (const Row& row : Range<Row>{rows, rows + count})
      if (row.task < 0 || row.task >= tables.num_tasks || row.event < 0 || row.event >= tables.num_events) throw BadTable();
    const auto is_before = [](const Row& a, const Row& b) { return a.task < b.task; };
    if (!std::is_sorted(rows, rows + count, is_before)) {
      sorted_.assign(rows, rows + count);
      std::stable_sort(sorted_.begin(), sorted_.end(), is_before);
      next_ = sorted_.data();
      end_ = next_ + count;
    }
    first_ = next_;
  }

  void rewind() { next_ = first_; }

  // Returns the rows of task t, which must be the next one.
  Range<Row> take(int32_t t) {
    const Row* const first = next_;
    while (next_ != end_ && next_->task == t) ++next_;
    return {first, next_};
  }

  void see(Range<Row> rows, int32_t op, const Op& grid, const Offsets& offsets) {
    for (const Row& row : rows)
      if (row.kind == 0) group_of(op, row).see(offsets, row.event, grid);
  }

  // Returns a row with its event relative to the task's place.
  Row relative(Row row, int32_t op, const Offsets& offsets) const {
    if (row.kind != 0) return row;
    const size_t relation = groups_[group_at(op, row)].relation();
    row.kind = static_cast<decltype(row.kind)>(kRelations[relation]);
    row.event -= static_cast<int32_t>(offsets[relation]);
    return row;
  }

 private:
  size_t group_at(int32_t op, const Row& row) const { return op * blocks_.count + blocks_.of_event[row.event]; }
  Group& group_of(int32_t op, const Row& row) { return groups_[group_at(op, row)]; }

  const Blocks& blocks_;
  const Row *next_, *end_, *first_;
  std::vector<Row> sorted_;
  std::vector<Group> groups_;
};

struct Hash {
  size_t operator()(const std::vector<int32_t>& words) const {
    uint64_t hash = words.size();
    for (int32_t word : words) {
      hash = (hash ^ static_cast<uint32_t>(word)) * 0x9E3779B97F4A7C15u;
      hash ^= hash >> 29;
    }
    return hash;
  }
};

// Calls visit(number, op, offsets) for the tasks of all ops.
template <class Visit>
void for_each_task(const HpmoeTables& tables, Visit visit) {
  int32_t t = 0;
  for (int32_t op = 0; op < tables.num_ops; ++op) {
    const Op& grid = tables.ops[op];
    const int32_t columns = num_column_tiles(grid), peers = std::max(grid.num_peers, 1);
    for (int32_t unit = grid.first_row; unit < grid.first_row + grid.num_units; ++unit) {
      for (int32_t peer = 0; peer < peers; ++peer) {
        const Task task{op, grid.num_peers > 0 ? peer : -1, unit, 0, 0, 0};
        Offsets offsets{};
        for (size_t i = 0; i < kRelations.size(); ++i)
          if (relations_of(grid) >> i & 1) offsets[i] = event_offset(static_cast<int32_t>(kRelations[i]), grid, task);
        for (int32_t i = 0; i < columns; ++i) visit(t++, op, offsets);
      }
    }
  }
}

void check_grids(const HpmoeTables& tables) {
  int64_t num_tasks = 0;
  for (int32_t op = 0; op < tables.num_ops; ++op) {
    if (tables.ops[op].blocks < 1 || (tables.ops[op].cols > 0 && tables.ops[op].tile_cols < 1)) throw BadTable();
    num_tasks += grid_size(tables.ops[op]);
  }
  if (num_tasks != tables.num_tasks) throw BadTable();
}

// Number of tasks between two tasks with the same peer and columns.
int32_t stride_of(const Op& op) { return std::max(op.num_peers, 1) * num_column_tiles(op); }

int32_t count_index_bits(const HpmoeTables& tables) {
  int64_t most = 1;
  int32_t bits = 0;
  for (int32_t op = 0; op < tables.num_ops; ++op) most = std::max(most, grid_size(tables.ops[op]));
  while (int64_t{1} << bits < most) ++bits;
  return bits;
}

// The templates of a packing, indexed by their contents.
class TemplateIndex {
 public:
  explicit TemplateIndex(PackedTemplates& packed) : packed_(packed) {}

  // Returns the template of an op with these waits and signals; adds a new one if needed.
  template <class WaitOf, class SignalOf>
  uint32_t find(int32_t op, const Range<HpmoeTableWait>& waits, WaitOf wait_of, const Range<HpmoeTableSignal>& signals,
                SignalOf signal_of) {
    words_.assign(1, op);
    for (const auto& each : waits) {
      const HpmoeTableWait row = wait_of(each);
      words_.insert(words_.end(), {row.kind, row.event});
    }
    words_.push_back(-1);  // no kind
    for (const auto& each : signals) {
      const HpmoeTableSignal row = signal_of(each);
      words_.insert(words_.end(), {row.kind, row.event, row.amount, row.remote});
    }
    const auto [found, is_new] = known_.try_emplace(words_, static_cast<uint32_t>(packed_.templates.size()));
    if (is_new) packed_.add_template(words_);
    if (static_cast<int64_t>(packed_.templates.size()) << packed_.index_bits > int64_t{UINT32_MAX}) throw TooManyTemplates();
    return found->second;
  }

 private:
  PackedTemplates& packed_;
  std::unordered_map<std::vector<int32_t>, uint32_t, Hash> known_;
  std::vector<int32_t> words_;
};

}  // namespace

PackedTemplates find_templates(const HpmoeTables& tables) {
  check_grids(tables);
  const Blocks blocks(tables);
  Table<HpmoeTableWait> waits(tables, blocks, tables.waits, tables.num_waits);
  Table<HpmoeTableSignal> signals(tables, blocks, tables.signals, tables.num_signals);
  for_each_task(tables, [&](int32_t t, int32_t op, const Offsets& offsets) {
    waits.see(waits.take(t), op, tables.ops[op], offsets);
    signals.see(signals.take(t), op, tables.ops[op], offsets);
  });
  waits.rewind();
  signals.rewind();
  PackedTemplates packed;
  packed.index_bits = count_index_bits(tables);
  packed.tasks.reserve(tables.num_tasks);
  TemplateIndex index(packed);
  int32_t last_op = -1, first_of_op = 0, stride = 0;
  for_each_task(tables, [&](int32_t t, int32_t op, const Offsets& offsets) {
    if (op != last_op) {
      last_op = op;
      first_of_op = t;
      stride = stride_of(tables.ops[op]);
    }
    const Range<HpmoeTableWait> waited = waits.take(t);
    const Range<HpmoeTableSignal> signalled = signals.take(t);
    const auto wait_of = [&](const HpmoeTableWait& row) { return waits.relative(row, op, offsets); };
    const auto signal_of = [&](const HpmoeTableSignal& row) { return signals.relative(row, op, offsets); };
    const int32_t previous = t - stride;  // task of the same peer and columns
    uint32_t task_template = previous < first_of_op ? 0 : packed.tasks[previous] >> packed.index_bits;
    if (previous < first_of_op || !packed.is(packed.templates[task_template], waited, wait_of, signalled, signal_of)) {
      task_template = index.find(op, waited, wait_of, signalled, signal_of);
    }
    packed.tasks.push_back(task_template << packed.index_bits | static_cast<uint32_t>(t - first_of_op));
  });
  return packed;
}

void PackedTemplates::add_template(const std::vector<int32_t>& words) {
  TaskTemplate task_template{words[0], static_cast<int32_t>(waits.size()), 0, static_cast<int32_t>(signals.size()), 0};
  size_t i = 1;
  for (; words[i] >= 0; i += 2, ++task_template.num_waits) waits.push_back({words[i + 1], words[i]});
  for (++i; i < words.size(); i += 4, ++task_template.num_signals) {
    signals.push_back({words[i + 1], static_cast<int16_t>(words[i]), static_cast<int16_t>(words[i + 2]), words[i + 3]});
  }
  templates.push_back(task_template);
}

}  // namespace hpmoe
