// Packs the waits and signals of a taskflow's tables: tasks of one op whose events lie alike around their place share a form.
//
// Between an op and a block of events one relation usually holds for all tasks, such as event = first + unit; where none
// does, the event stands as it is. Either way every task keeps exactly its waits and signals, in order.
#include "forms.h"

#include <array>
#include <new>
#include <unordered_map>

#include "decode.h"

namespace hpmoe {
namespace {

constexpr std::array<Index, 5> kRelations{Index::UNIT, Index::STATIC, Index::EXPERT, Index::PEER, Index::PEER_UNIT};

// Which of the relations hold for all that one op waits for (or signals) of one block of events.
struct Group {
  std::array<int64_t, kRelations.size()> first{};
  uint8_t holds = 0;
  bool is_seen = false;

  void see(const Op& op, const Task& task, int64_t event) {
    for (size_t i = 0; i < kRelations.size(); ++i) {
      const int64_t left = event - event_offset(static_cast<int32_t>(kRelations[i]), op, task);
      if (!is_seen) {
        first[i] = left;
        holds |= 1u << i;
      } else if (first[i] != left) {
        holds &= ~(1u << i);
      }
    }
    is_seen = true;
  }

  Index relation() const {
    for (size_t i = 0; i < kRelations.size(); ++i)
      if (holds >> i & 1) return kRelations[i];
    return Index::STATIC;
  }
};

// A table sorted by task, and the relation of each (op, block) of it.
template <class Row>
class Table {
 public:
  Table(const HpmoeTables& tables, const Row* rows, int64_t count, const std::vector<Task>& tasks)
      : tables_(tables), rows_(rows), starts_(tasks.size() + 1), order_(count) {
    for (int64_t i = 0; i < count; ++i) {
      if (rows[i].task < 0 || rows[i].task >= tables.num_tasks || rows[i].event < 0 || rows[i].event >= tables.num_events)
        throw BadTable();
      ++starts_[rows[i].task + 1];
    }
    for (size_t t = 0; t < tasks.size(); ++t) starts_[t + 1] += starts_[t];
    std::vector<int64_t> next(starts_.begin(), starts_.end() - 1);
    for (int64_t i = 0; i < count; ++i) order_[next[rows[i].task]++] = i;
    for (int64_t i = 0; i < count; ++i) {
      if (rows[i].kind != 0) continue;
      const Task& task = tasks[rows[i].task];
      groups_[key(task.op, rows[i].event)].see(tables.ops[task.op], task, rows[i].event);
    }
  }

  // Calls visit(row, kind, event) for each row of a task, the event relative to its place.
  template <class Visit>
  void for_each(int32_t t, const Task& task, Visit visit) const {
    for (int64_t i = starts_[t]; i < starts_[t + 1]; ++i) {
      const Row& row = rows_[order_[i]];
      int32_t kind = row.kind;
      if (kind == 0) kind = static_cast<int32_t>(groups_.at(key(task.op, row.event)).relation());
      visit(row, kind, static_cast<int32_t>(row.event - event_offset(kind, tables_.ops[task.op], task)));
    }
  }

 private:
  int64_t key(int32_t op, int32_t event) const { return int64_t{op} << 32 | static_cast<uint32_t>(tables_.block_of[event]); }

  const HpmoeTables& tables_;
  const Row* rows_;
  std::vector<int64_t> starts_, order_;
  std::unordered_map<int64_t, Group> groups_;
};

struct Hash {
  size_t operator()(const std::vector<int32_t>& words) const {
    uint64_t hash = words.size();
    for (int32_t word : words) hash = (hash ^ static_cast<uint32_t>(word)) * 0x9E3779B97F4A7C15u, hash ^= hash >> 29;
    return hash;
  }
};

}  // namespace

PackedForms find_forms(const HpmoeTables& tables) {
  std::vector<Task> tasks;
  tasks.reserve(tables.num_tasks);
  int64_t most = 1;
  for (int32_t op = 0; op < tables.num_ops; ++op) {
    const Form form{op, 0, 0, 0, 0};
    const int64_t size = grid_size(tables.ops[op]);
    most = std::max(most, size);
    for (int64_t i = 0; i < size; ++i) {
      tasks.push_back(task_at(&form, tables.ops, 0, static_cast<int32_t>(i)));
    }
  }
  if (static_cast<int64_t>(tasks.size()) != tables.num_tasks) throw BadTable();
  PackedForms packed;
  while (int64_t{1} << packed.index_bits < most) ++packed.index_bits;
  const Table<HpmoeTableWait> waits(tables, tables.waits, tables.num_waits, tasks);
  const Table<HpmoeTableSignal> signals(tables, tables.signals, tables.num_signals, tasks);
  std::unordered_map<std::vector<int32_t>, uint32_t, Hash> known;
  std::vector<int32_t> words;
  int32_t op = -1, first_of_op = 0;
  for (int32_t t = 0; t < tables.num_tasks; ++t) {
    const Task& task = tasks[t];
    if (task.op != op) op = task.op, first_of_op = t;
    words.assign(1, op);
    waits.for_each(t, task, [&](const HpmoeTableWait&, int32_t kind, int32_t event) {
      words.insert(words.end(), {kind, event});
    });
    words.push_back(-1);  // no kind
    signals.for_each(t, task, [&](const HpmoeTableSignal& row, int32_t kind, int32_t event) {
      words.insert(words.end(), {kind, event, row.amount, row.remote});
    });
    const auto [found, is_new] = known.emplace(words, static_cast<uint32_t>(packed.forms.size()));
    if (is_new) packed.add_form(words);
    packed.tasks.push_back(found->second << packed.index_bits | static_cast<uint32_t>(t - first_of_op));
  }
  if (static_cast<int64_t>(packed.forms.size()) << packed.index_bits > int64_t{UINT32_MAX}) throw TooManyForms();
  return packed;
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
