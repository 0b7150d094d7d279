#include "core/routing.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/radix_sort.h"

namespace hpmoe {
namespace {

// Moves the `rows` heaviest entries of one expert to the front, in their order; of equal weights the first entry wins.
void keep_heaviest(int32_t* first, int32_t* last, int64_t rows, const float* topk_weights) {
  const auto is_heavier = [&](int32_t a, int32_t b) {
    return topk_weights[a] != topk_weights[b] ? topk_weights[a] > topk_weights[b] : a < b;
  };
  std::nth_element(first, first + rows, last, is_heavier);
  std::sort(first, first + rows);
}

// Sorts the `present` entries whose key is not kAbsent, stably by key.
void sort_present(const std::vector<int32_t>& keys, int32_t present, std::vector<int32_t>& entries) {
  const auto n = static_cast<int64_t>(keys.size());
  sort_stably(keys.data(), n, entries.data(), nullptr, undivided());
  if (present < n) std::copy(entries.data() + n - present, entries.data() + n, entries.data());
}

}  // namespace

Routing::Routing(const Image& image, const Route& route, const Routing* experts)
    : route_(route),
      experts_(experts),
      ep_size_(image.header->ep_size),
      tile_rows_(image.header->tile_rows),
      stops_(image.stops_of(route)),
      shards_(shards_of(route, ep_size_)),
      shares_(image.shares_of(route)),
      ranks_(ep_size_) {
  for (RankRoute& rank : ranks_) {
    rank.dropped.resize(route.num_experts);
    rank.sent_start.resize(static_cast<size_t>(route.num_experts) + 1);
    rank.sent_entries.resize(static_cast<size_t>(route.num_tokens) * route.top_k);
    rank.source_start.resize(static_cast<size_t>(route.num_local_experts) * ep_size_ + 1);
    rank.slots.resize(route.num_slots);
    rank.first_slot.resize(static_cast<size_t>(route.num_local_experts) + 1);
    rank.padding.resize(route.num_local_experts);
    rank.expert.resize(entries_of_experts());
    rank.place.resize(rank.expert.size());
  }
}

Code Routing::sort_entries(int32_t rank, const int32_t* topk_ids, int64_t num_tokens, Status& status) {
  RankRoute& mine = ranks_[rank];
  std::vector<int32_t> ids(topk_ids, topk_ids + num_tokens * shards_.num_choices());  // the caller may write to topk_ids
  for (const int32_t id : ids) {
    if (id == kAbsent || shards_.is_model_expert(id)) continue;
    status.value = id;
    status.threshold = shards_.num_model_experts();
    return Code::INDEX_OUT_OF_RANGE;
  }
  ids = of_entries(std::move(ids));
  for (size_t i = 0; route_.tp_size > 1 && i < ids.size(); ++i) ids[i] = shards_.shard_of(ids[i], static_cast<int32_t>(i));
  for (const int32_t id : ids) ++mine.sent_start[id + 1];
  mine.sent_start[0] = 0;  // entries with kAbsent
  for (int32_t e = 0; e < route_.num_experts; ++e) mine.sent_start[e + 1] += mine.sent_start[e];
  sort_present(ids, mine.sent_start.back(), mine.sent_entries);
  note_kept(mine, num_tokens);
  return Code::OK;
}

Code Routing::drop_entries(int32_t rank, const float* topk_weights, int64_t num_tokens, Status& status) {
  const auto policy = static_cast<DropPolicy>(route_.drop_policy);
  if (policy == DropPolicy::NONE) return Code::OK;
  RankRoute& mine = ranks_[rank];
  const int64_t capacity = capacity_of_expert(route_, num_tokens), num_entries = num_tokens * route_.top_k;
  if (policy == DropPolicy::ERROR) {
    const auto entries = [&](int32_t e) { return mine.sent_start[e + 1] - mine.sent_start[e]; };
    return check_capacity(entries, shards_, capacity, status);
  }
  const bool by_weight = policy == DropPolicy::PROBS;
  for (int64_t i = 0; by_weight && i < num_entries; ++i) {
    if (!std::isnan(topk_weights[i]) || !is_kept(rank, i)) continue;
    status.value = i / route_.top_k;
    status.threshold = i % route_.top_k % shards_.num_choices();
    return Code::NOT_A_NUMBER;
  }
  int32_t first = 0, kept = 0;
  for (int32_t e = 0; e < route_.num_experts; ++e) {
    const int32_t last = mine.sent_start[e + 1];
    const auto rows = static_cast<int32_t>(std::min<int64_t>(last - first, capacity));
    mine.dropped[e] = last - first - rows;
    int32_t* const entries = mine.sent_entries.data();
    if (by_weight && mine.dropped[e] > 0) keep_heaviest(entries + first, entries + last, rows, topk_weights);
    std::copy(entries + first, entries + first + rows, entries + kept);
    kept += rows;
    mine.sent_start[e + 1] = kept;
    first = last;
  }
  note_kept(mine, num_tokens);
  return Code::OK;
}

// Notes which entries are kept, unless all are.
void Routing::note_kept(RankRoute& mine, int64_t num_tokens) const {
  const int32_t kept = mine.sent_start.back();
  if (kept == num_tokens * route_.top_k) return;
  mine.is_kept.assign(num_tokens * route_.top_k, 0);
  for (int32_t i = 0; i < kept; ++i) mine.is_kept[mine.sent_entries[i]] = 1;
  count_kept(mine, num_tokens);
}

void Routing::count_kept(RankRoute& mine, int64_t num_tokens) const {
  mine.kept_start.resize(num_tokens + 1);
  for (int64_t t = 0; t < num_tokens; ++t) {
    mine.kept_start[t + 1] = mine.kept_start[t];
    for (int32_t k = 0; k < route_.top_k; ++k) mine.kept_start[t + 1] += mine.is_kept[t * route_.top_k + k];
  }
}

// Keeps the first of a token's entries for each stop, which stands for the token.
void Routing::sort_once(int32_t rank, int64_t num_tokens) {
  const RankRoute& all = experts_->ranks_[rank];
  RankRoute& mine = ranks_[rank];
  const int32_t top_k = route_.top_k, num_local = experts_->route_.num_local_experts;
  std::fill(mine.expert.begin(), mine.expert.end(), -1);
  for (int32_t e = 0; e < num_local * ep_size_; ++e) {
    for (int32_t i = all.sent_start[e]; i < all.sent_start[e + 1]; ++i) {
      mine.expert[all.sent_entries[i]] = e;
      mine.place[all.sent_entries[i]] = i - all.sent_start[e];
    }
  }
  const auto peer = [&](int64_t entry) {
    return mine.expert[entry] < 0 ? kAbsent : stops_(rank, mine.expert[entry] / num_local);
  };
  std::vector<int32_t> peers(num_tokens * top_k, kAbsent);
  mine.is_kept.resize(num_tokens * top_k);
  for (int64_t i = 0; i < num_tokens * top_k; ++i) {
    bool is_first = peer(i) >= 0;
    for (int64_t j = i - i % top_k; j < i; ++j) is_first = is_first && peer(j) != peer(i);
    mine.is_kept[i] = is_first;
    if (!is_first) continue;
    peers[i] = peer(i);
    ++mine.sent_start[peers[i] + 1];
  }
  for (int32_t r = 0; r < ep_size_; ++r) mine.sent_start[r + 1] += mine.sent_start[r];
  sort_present(peers, mine.sent_start.back(), mine.sent_entries);
  count_kept(mine, num_tokens);
}

// Divides entries by expert into entries by local expert: each replica takes the run of its expert's entries given by its
// share.
void Routing::divide_entries(int32_t rank) {
  if (!shares_) return;
  RankRoute& mine = ranks_[rank];
  std::vector<int32_t> start{0}, entries(mine.sent_entries.size());
  for (int32_t e = 0; e < num_destinations(); ++e) {
    const Share& share = shares_[e];
    start.push_back(start.back());
    if (share.expert < 0) continue;
    const int32_t first = mine.sent_start[share.expert], end = mine.sent_start[share.expert + 1];
    const auto [low, high] = run_of(share, end - first, rank, ep_size_);
    std::copy_n(mine.sent_entries.data() + first + low, high - low, entries.data() + start.back());
    start.back() += high - low;
  }
  mine.sent_start.swap(start);
  mine.sent_entries.swap(entries);
}

int64_t Routing::told_words() const {
  return num_entries() + (experts_ ? 2 * entries_of_experts() + num_destinations() : 0);
}

void Routing::tell(int32_t rank, int32_t* words) const {
  const RankRoute& mine = ranks_[rank];
  words = std::copy_n(mine.sent_entries.begin(), num_entries(), words);
  if (!experts_) return;
  words = std::copy_n(mine.expert.begin(), entries_of_experts(), words);
  words = std::copy_n(mine.place.begin(), entries_of_experts(), words);
  std::adjacent_difference(mine.sent_start.begin() + 1, mine.sent_start.end(), words);
}

void Routing::hear(int32_t rank, const int32_t* words, const int32_t* counts) {
  RankRoute& theirs = ranks_[rank];
  const int32_t* const experts = words + num_entries();
  theirs.told = {words, experts, experts + entries_of_experts()};
  theirs.sent_start.assign(num_destinations() + 1, 0);
  const int32_t* const first = counts ? counts : experts + 2 * entries_of_experts();
  std::partial_sum(first, first + num_destinations(), theirs.sent_start.begin() + 1);
}

bool Routing::is_sound(int32_t rank) const {
  const RankRoute& theirs = ranks_[rank];
  const auto count = [](const std::vector<int32_t>& start, int32_t e) { return start[e + 1] - start[e]; };
  int64_t sum = 0;
  for (int32_t e = 0; e < num_destinations(); sum += count(theirs.sent_start, e++))
    if (count(theirs.sent_start, e) < 0) return false;
  for (int64_t i = 0; i < num_entries(); ++i)
    if (theirs.told.entries[i] < 0 || theirs.told.entries[i] >= num_entries()) return false;
  for (int64_t i = 0; i < entries_of_experts(); ++i) {
    const int32_t expert = theirs.told.expert[i], place = theirs.told.place[i];
    if (expert < -1 || expert >= experts_->num_destinations()) return false;
    if (expert >= 0 && (place < 0 || place >= count(experts_->ranks_[rank].sent_start, expert))) return false;
  }
  return sum <= num_entries();
}

bool Routing::has_counts(int32_t rank, const int32_t* counts) const {
  const std::vector<int32_t>& start = ranks_[rank].sent_start;
  for (int32_t e = 0; e < num_destinations(); ++e)
    if (start[e + 1] - start[e] != counts[e]) return false;
  return true;
}

Code Routing::place_rows(int32_t rank, Status& status) {
  RankRoute& mine = ranks_[rank];
  if (!mine.told.entries) mine.told = {mine.sent_entries.data(), mine.expert.data(), mine.place.data()};
  int64_t row = 0, slots = 0;
  for (int32_t e = 0; e < route_.num_local_experts; ++e) {
    const int64_t first = row;
    for (int32_t source = 0; source < ep_size_; ++source) {
      mine.source_start[static_cast<size_t>(e) * ep_size_ + source] = static_cast<int32_t>(row);
      row += entries_for(source, rank, e, e + 1);
    }
    const int64_t filled = ceil_div(row - first, route_.alignment) * route_.alignment;
    mine.padding[e] = static_cast<int32_t>(filled - (row - first));
    row = first + filled;
    slots += ceil_div(filled, tile_rows_);
    mine.first_slot[e + 1] = static_cast<int32_t>(slots);
  }
  mine.source_start.back() = static_cast<int32_t>(row);
  const Code code = check_received(route_, tile_rows_, row, slots, status);
  if (code == Code::OK) list_slots(rank);
  return code;
}

void Routing::list_slots(int32_t rank) {
  RankRoute& mine = ranks_[rank];
  const int32_t num_experts = route_.num_local_experts;
  for (int32_t e = 0; e < num_experts; ++e) {
    const ExpertSlots slots = expert_slots(rank, e);
    const auto end = static_cast<int32_t>(expert_start(rank, e + 1));
    for (int32_t i = slots.first; i < slots.first + slots.count; ++i) mine.slots[i] = slots.unit(i, end);
  }
  const Slot empty{static_cast<int32_t>(received(rank)), 0, num_experts - 1};
  std::fill(mine.slots.begin() + num_used_slots(rank), mine.slots.end(), empty);
}

void Routing::find_rows_of_experts(int32_t source, int32_t dest, int32_t entry, std::vector<ExpertRow>& rows) const {
  const RankRoute& from = ranks_[source];
  const int32_t num_local = experts_->route_.num_local_experts, first = entry - entry % route_.top_k;
  rows.clear();
  for (int32_t i = first; i < first + route_.top_k; ++i) {
    const int32_t e = from.told.expert[i] - dest * num_local;
    if (from.told.expert[i] < 0 || e < 0 || e >= num_local) continue;
    rows.push_back({e, experts_->source_start(source, dest, e) + from.told.place[i]});
  }
}

}  // namespace hpmoe
