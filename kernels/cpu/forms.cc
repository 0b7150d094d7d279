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

// Which of the relations hold for all that one op waits for (or signals) of one block of events.
struct Group {
  std::array<int64_t, kRelations.size()> first{};
  uint8_t holds = (1u << kRelations.size()) - 1;
  bool is_seen = false;

  void see(const Op& op, const Task& task, int64_t event) {
    for (size_t i = 0; i < kRelations.size(); ++i) {
      if (!(holds >> i & 1)) continue;
      const int64_t left = event - event_offset(static_cast<int32_t>(kRelations[i]), op, task);
      if (!is_seen) first[i] = left;
      if (first[i] != left) holds &= ~(1u << i);
    }
    is_seen = true;
  }

  Index relation() const {
    for (size_t i = 0; i < kRelations.size(); ++i)
      if (holds >> i & 1) return kRelations[i];
    return Index::STATIC;
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

// A table sorted by task, its events relative to the place of their tasks.
template <class Row>
class Table {
 public:
  Table(const HpmoeTables& tables, const Blocks& blocks, const Row* rows, int64_t count, const std::vector<Task>& tasks)
      : starts_(tasks.size() + 1), rows_(count) {
    std::vector<Group> groups(tables.num_ops * blocks.count);
    const auto group_of = [&](const Row& row) -> Group& {
      return groups[tasks[row.task].op * blocks.count + blocks.of_event[row.event]];
    };
    for (int64_t i = 0; i < count; ++i) {
      const Row& row = rows[i];
      if (row.task < 0 || row.task >= tables.num_tasks || row.event < 0 || row.event >= tables.num_events) throw BadTable();
      ++starts_[row.task + 1];
      const Task& task = tasks[row.task];
      if (row.kind == 0) group_of(row).see(tables.ops[task.op], task, row.event);
    }
    for (size_t t = 0; t < tasks.size(); ++t) starts_[t + 1] += starts_[t];
    std::vector<int64_t> next(starts_.begin(), starts_.end() - 1);
    for (int64_t i = 0; i < count; ++i) {
      Row row = rows[i];
      const Task& task = tasks[row.task];
      if (row.kind == 0) row.kind = static_cast<decltype(row.kind)>(group_of(row).relation());
      row.event -= static_cast<int32_t>(event_offset(row.kind, tables.ops[task.op], task));
      rows_[next[row.task]++] = row;
    }
  }

  Range<Row> operator[](int32_t task) const { return {rows_.data() + starts_[task], rows_.data() + starts_[task + 1]}; }

 private:
  std::vector<int64_t> starts_;
  std::vector<Row> rows_;
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

std::vector<Task> all_tasks(const HpmoeTables& tables) {
  std::vector<Task> tasks;
  tasks.reserve(tables.num_tasks);
  for (int32_t op = 0; op < tables.num_ops; ++op) {
    if (tables.ops[op].blocks < 1 || (tables.ops[op].cols > 0 && tables.ops[op].tile_cols < 1)) throw BadTable();
    const Op& grid = tables.ops[op];
    const int32_t columns = num_column_tiles(grid), peers = std::max(grid.num_peers, 1);
    for (int32_t unit = 0; unit < grid.num_units; ++unit) {
      for (int32_t peer = 0; peer < peers; ++peer) {
        for (int32_t i = 0; i < columns; ++i) {
          const int32_t col = i * grid.tile_cols;
          tasks.push_back({op, grid.num_peers > 0 ? peer : -1, grid.first_row + unit, col,
                           std::min(grid.tile_cols, grid.cols - col), 0});
        }
      }
    }
  }
  if (static_cast<int64_t>(tasks.size()) != tables.num_tasks) throw BadTable();
  return tasks;
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
  const std::vector<Task> tasks = all_tasks(tables);
  const Blocks blocks(tables);
  const Table<HpmoeTableWait> waits(tables, blocks, tables.waits, tables.num_waits, tasks);
  const Table<HpmoeTableSignal> signals(tables, blocks, tables.signals, tables.num_signals, tasks);
  PackedForms packed;
  packed.index_bits = count_index_bits(tables);
  packed.tasks.reserve(tasks.size());
  std::unordered_map<std::vector<int32_t>, uint32_t, Hash> known;
  std::vector<int32_t> words;
  int32_t first_of_op = 0;
  for (int32_t t = 0; t < tables.num_tasks; ++t) {
    if (t > 0 && tasks[t].op != tasks[t - 1].op) first_of_op = t;
    const auto add_task = [&](uint32_t form) {
      packed.tasks.push_back(form << packed.index_bits | static_cast<uint32_t>(t - first_of_op));
    };
    const int32_t alike = t - stride_of(tables.ops[tasks[t].op]);  // of the same peer and columns
    if (alike >= first_of_op) {
      const uint32_t form = packed.tasks[alike] >> packed.index_bits;
      if (packed.is(packed.forms[form], waits[t], signals[t])) {
        add_task(form);
        continue;
      }
    }
    words.assign(1, tasks[t].op);
    for (const auto& row : waits[t]) words.insert(words.end(), {row.kind, row.event});
    words.push_back(-1);  // no kind
    for (const auto& row : signals[t]) words.insert(words.end(), {row.kind, row.event, row.amount, row.remote});
    const auto [found, is_new] = known.try_emplace(words, static_cast<uint32_t>(packed.forms.size()));
    if (is_new) packed.add_form(words);
    if (static_cast<int64_t>(packed.forms.size()) << packed.index_bits > int64_t{UINT32_MAX}) throw TooManyForms();
    add_task(found->second);
  }
  return packed;
}

bool PackedForms::is(const Form& form, Range<HpmoeTableWait> wanted, Range<HpmoeTableSignal> added) const {
  const auto same_wait = [](const Wait& a, const HpmoeTableWait& b) { return a.event == b.event && a.kind == b.kind; };
  const auto same_signal = [](const Signal& a, const HpmoeTableSignal& b) {
    return a.event == b.event && a.kind == b.kind && a.amount == b.amount && a.remote == b.remote;
  };
  const Wait* const wait = waits.data() + form.first_wait;
  const Signal* const signal = signals.data() + form.first_signal;
  return std::equal(wait, wait + form.num_waits, wanted.first, wanted.last, same_wait) &&
         std::equal(signal, signal + form.num_signals, added.first, added.last, same_signal);
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
