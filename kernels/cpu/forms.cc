// Packs the waits and signals of a taskflow's tables: tasks of one op whose events lie alike around their place share a form.
//
// Between an op and a block of events one relation usually holds for all tasks, such as event = first + unit; where none
// does, the event stands as it is. Either way every task keeps exactly its waits and signals, in order.
#include "forms.h"

#include <algorithm>
#include <array>
#include <unordered_map>

#include "image.h"

namespace hpmoe {
namespace {

constexpr std::array<Index, 5> kRelations{Index::UNIT, Index::STATIC, Index::EXPERT, Index::PEER, Index::PEER_UNIT};
constexpr size_t kStatic = 1;
static_assert(kRelations[kStatic] == Index::STATIC, "an event as it stands");

// What each relation adds to an event for one task.
using Offsets = std::array<int64_t, kRelations.size()>;

Offsets offsets_of(const Op& op, const Task& task) {
  Offsets offsets;
  for (size_t i = 0; i < kRelations.size(); ++i) offsets[i] = event_offset(static_cast<int32_t>(kRelations[i]), op, task);
  return offsets;
}

// Which of the relations hold for all that one op waits for (or signals) of one block of events.
struct Group {
  Offsets first{};
  uint8_t holds = (1u << kRelations.size()) - 1;
  bool is_seen = false;

  void see(const Offsets& offsets, int64_t event) {
    for (size_t i = 0; i < kRelations.size(); ++i) {
      if (!(holds >> i & 1)) continue;
      if (!is_seen) first[i] = event - offsets[i];
      if (first[i] != event - offsets[i]) holds &= ~(1u << i);
    }
    is_seen = true;
  }

  // Index in kRelations; that of STATIC where none holds.
  size_t relation() const {
    for (size_t i = 0; i < kRelations.size(); ++i)
      if (holds >> i & 1) return i;
    return kStatic;
  }
};

// Blocks of events numbered from 0.
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

// The rows of a table task by task, and how the events of each op and block lie around their tasks.
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

  // The rows of the next task, which is number t.
  Range<Row> take(int32_t t) {
    const Row* const first = next_;
    while (next_ != end_ && next_->task == t) ++next_;
    return {first, next_};
  }

  void see(Range<Row> rows, int32_t op, const Offsets& offsets) {
    for (const Row& row : rows)
      if (row.kind == 0) group_of(op, row).see(offsets, row.event);
  }

  // The rows with their events relative to the task's place.
  const std::vector<Row>& relative(Range<Row> rows, int32_t op, const Offsets& offsets) {
    mine_.assign(rows.first, rows.last);
    for (Row& row : mine_) {
      if (row.kind != 0) continue;
      const size_t relation = group_of(op, row).relation();
      row.kind = static_cast<decltype(row.kind)>(kRelations[relation]);
      row.event -= static_cast<int32_t>(offsets[relation]);
    }
    return mine_;
  }

 private:
  Group& group_of(int32_t op, const Row& row) { return groups_[op * blocks_.count + blocks_.of_event[row.event]]; }

  const Blocks& blocks_;
  const Row *next_, *end_, *first_;
  std::vector<Row> sorted_, mine_;
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

// Calls visit(number, task) for the tasks of all ops.
template <class Visit>
void for_each_task(const HpmoeTables& tables, Visit visit) {
  int32_t t = 0;
  for (int32_t op = 0; op < tables.num_ops; ++op) {
    const Op& grid = tables.ops[op];
    const int32_t columns = num_column_tiles(grid), peers = std::max(grid.num_peers, 1);
    for (int32_t unit = grid.first_row; unit < grid.first_row + grid.num_units; ++unit) {
      for (int32_t peer = 0; peer < peers; ++peer) {
        for (int32_t i = 0; i < columns; ++i, ++t) {
          const int32_t col = i * grid.tile_cols;
          visit(t, Task{op, grid.num_peers > 0 ? peer : -1, unit, col, std::min(grid.tile_cols, grid.cols - col), 0});
        }
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

// How many tasks of an op lie between two of the same peer and columns.
int32_t stride_of(const Op& op) { return std::max(op.num_peers, 1) * num_column_tiles(op); }

int32_t count_index_bits(const HpmoeTables& tables) {
  int64_t most = 1;
  int32_t bits = 0;
  for (int32_t op = 0; op < tables.num_ops; ++op) most = std::max(most, grid_size(tables.ops[op]));
  while (int64_t{1} << bits < most) ++bits;
  return bits;
}

}  // namespace

PackedForms find_forms(const HpmoeTables& tables) {
  check_grids(tables);
  const Blocks blocks(tables);
  Table<HpmoeTableWait> waits(tables, blocks, tables.waits, tables.num_waits);
  Table<HpmoeTableSignal> signals(tables, blocks, tables.signals, tables.num_signals);
  for_each_task(tables, [&](int32_t t, const Task& task) {
    const Offsets offsets = offsets_of(tables.ops[task.op], task);
    waits.see(waits.take(t), task.op, offsets);
    signals.see(signals.take(t), task.op, offsets);
  });
  waits.rewind();
  signals.rewind();
  PackedForms packed;
  packed.index_bits = count_index_bits(tables);
  packed.tasks.reserve(tables.num_tasks);
  std::unordered_map<std::vector<int32_t>, uint32_t, Hash> known;
  std::vector<int32_t> words;
  int32_t op = -1, first_of_op = 0, stride = 0;
  for_each_task(tables, [&](int32_t t, const Task& task) {
    if (task.op != op) {
      op = task.op;
      first_of_op = t;
      stride = stride_of(tables.ops[op]);
    }
    const Offsets offsets = offsets_of(tables.ops[op], task);
    const auto& waited = waits.relative(waits.take(t), op, offsets);
    const auto& signalled = signals.relative(signals.take(t), op, offsets);
    const int32_t alike = t - stride;  // of the same peer and columns
    uint32_t form = alike < first_of_op ? 0 : packed.tasks[alike] >> packed.index_bits;
    if (alike < first_of_op || !packed.is(packed.forms[form], waited, signalled)) {
      words.assign(1, op);
      for (const auto& row : waited) words.insert(words.end(), {row.kind, row.event});
      words.push_back(-1);  // no kind
      for (const auto& row : signalled) words.insert(words.end(), {row.kind, row.event, row.amount, row.remote});
      const auto [found, is_new] = known.try_emplace(words, static_cast<uint32_t>(packed.forms.size()));
      if (is_new) packed.add_form(words);
      if (static_cast<int64_t>(packed.forms.size()) << packed.index_bits > int64_t{UINT32_MAX}) throw TooManyForms();
      form = found->second;
    }
    packed.tasks.push_back(form << packed.index_bits | static_cast<uint32_t>(t - first_of_op));
  });
  return packed;
}

bool PackedForms::is(const Form& form, const std::vector<HpmoeTableWait>& wanted,
                     const std::vector<HpmoeTableSignal>& added) const {
  const auto same_wait = [](const Wait& a, const HpmoeTableWait& b) { return a.event == b.event && a.kind == b.kind; };
  const auto same_signal = [](const Signal& a, const HpmoeTableSignal& b) {
    return a.event == b.event && a.kind == b.kind && a.amount == b.amount && a.remote == b.remote;
  };
  const Wait* const wait = waits.data() + form.first_wait;
  const Signal* const signal = signals.data() + form.first_signal;
  return std::equal(wait, wait + form.num_waits, wanted.begin(), wanted.end(), same_wait) &&
         std::equal(signal, signal + form.num_signals, added.begin(), added.end(), same_signal);
}

void PackedForms::add_form(const std::vector<int32_t>& words) {
  Form form{words[0], static_cast<int32_t>(waits.size()), 0, static_cast<int32_t>(signals.size()), 0};
  size_t i = 1;
  for (; words[i] >= 0; i += 2, ++form.num_waits) waits.push_back({words[i + 1], words[i]});
  for (++i; i < words.size(); i += 4, ++form.num_signals) {
    signals.push_back({words[i + 1], static_cast<int16_t>(words[i]), static_cast<int16_t>(words[i + 2]), words[i + 3]});
  }
  forms.push_back(form);
}

}  // namespace hpmoe
