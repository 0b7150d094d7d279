// Places of rows, computed from topk_ids at the start of a launch. Places are equal on every rank and independent of the
// order of arrival.
//
// Letters: E experts, L local experts, R ranks, S slots, T tokens, K experts per token; an entry is token * K + k. Once
// entries are divided among replicas, E counts replicas too.
//
// Received rows of a rank are ordered by (local expert, source rank, entry) and cut, expert by expert, into slots. The
// slot with the rank's own first rows has the first number, and numbers wrap around within the expert. A rank that
// processes slots in order therefore finds its own rows first, then the rows of the ranks after it.
//
// Padding rows come last. They count as rows that the rank sends to itself, and on the way back as entries of its first
// tokens.
#pragma once

#include <cstdint>
#include <vector>

#include "core/image.h"
#include "core/route_counts.h"
#include "core/shards.h"

namespace hpmoe {

using Slot = UnitOf<int32_t>;

// One rank's part of a route.
struct RankRoute {
  std::vector<int32_t> sent_start;  // [E + 1] where each expert's entries begin in sent_entries
  std::vector<int32_t> sent_entries;  // [T * K] first this rank's kept entries, sorted stably by expert
  std::vector<int32_t> dropped;  // [E] this rank's entries that each expert has no capacity for
  std::vector<uint8_t> is_kept;  // [T * K] where not all entries are kept, else empty
  std::vector<int32_t> kept_start;  // [T + 1] kept entries of the tokens before, where not all are kept
  std::vector<int32_t> source_start;  // [L * R + 1] first received row of (local expert, source rank)
  std::vector<Slot> slots;  // [S]
  std::vector<int32_t> first_slot;  // [L + 1]
  std::vector<int32_t> padding;  // [L] rows of zeros at the end of each local expert's
  // For a route to ranks: each entry's expert, counted over all ranks, or -1; and its place among this rank's entries for
  // the expert.
  std::vector<int32_t> expert, place;  // [T * K], K of the route to experts
  // The last three that peers read: the vectors above, or the memory of a rank of another process. NULL until placed.
  struct {
    const int32_t *entries = nullptr, *expert = nullptr, *place = nullptr;
  } told;
};

using Segment = SegmentOf<int64_t>;

// A received row and its local expert.
struct ExpertRow {
  int32_t expert;
  int64_t row;
};

class Routing : public RouteCounts<Routing, int64_t>, public ExpertCopies<Routing> {
 public:
  // `experts`: the routing that a route to ranks is derived from, else NULL.
  Routing(const Image& image, const Route& route, const Routing* experts);

  // The prologue. All ranks sort, drop and divide before any rank places rows, and all place before any asks a question.
  // An entry with id kAbsent is masked: it is not sorted and not kept. Each step returns an error code and writes its
  // numbers to `status`. For a route to ranks, sort_once replaces all steps before place_rows.
  void sort_once(int32_t rank, int64_t num_tokens);
  Code sort_entries(int32_t rank, const int32_t* topk_ids, int64_t num_tokens, Status& status);
  Code drop_entries(int32_t rank, const float* topk_weights, int64_t num_tokens, Status& status);
  void divide_entries(int32_t rank);
  Code place_rows(int32_t rank, Status& status);

  // Between processes, a process sends `told_words` words about its sorted rank; the others read them before they place
  // rows. `counts`, sent earlier, are the rank's rows for all experts; empty for a route to ranks.
  int64_t told_words() const;
  void tell(int32_t rank, int32_t* words) const;
  void hear(int32_t rank, const int32_t* words, const int32_t* counts);
  // Returns true if the words received from a rank refer only to existing entries; a faulty rank of another machine may
  // send others.
  bool is_sound(int32_t rank) const;
  // Returns true if those counts match what the rank has sorted.
  bool has_counts(int32_t rank, const int32_t* counts) const;

  const Slot& slot(int32_t rank, int32_t index) const { return ranks_[rank].slots[index]; }
  int64_t expert_start(int32_t rank, int32_t expert) const { return source_start(0, rank, expert); }
  int64_t own_start(int32_t rank, int32_t expert) const {
    return source_start(rank, rank, expert) - expert_start(rank, expert);
  }
  int32_t first_slot(int32_t rank, int32_t expert) const { return ranks_[rank].first_slot[expert]; }
  int64_t source_start(int32_t source, int32_t dest, int32_t expert) const {
    return ranks_[dest].source_start[static_cast<size_t>(expert) * ep_size_ + source];
  }
  int64_t sent_start(int32_t source, int32_t expert) const { return ranks_[source].sent_start[expert]; }
  // Returns the entry numbers of a segment on the rank of its tokens.
  const int32_t* entries_of(const Segment& segment) const {
    return ranks_[segment.of_source < 0 ? segment.source : segment.of_source].told.entries + segment.first_entry;
  }

  bool is_kept(int32_t rank, int64_t entry) const { return ranks_[rank].is_kept.empty() || ranks_[rank].is_kept[entry]; }
  // Number of kept entries of tokens [first, first + num_tokens) of a rank.
  int64_t kept_entries(int32_t rank, int64_t first, int64_t num_tokens) const {
    const std::vector<int32_t>& start = ranks_[rank].kept_start;
    return start.empty() ? num_tokens * route_.top_k : start[first + num_tokens] - start[first];
  }
  int64_t expert_padding(int32_t rank, int32_t expert) const { return ranks_[rank].padding[expert]; }
  const std::vector<int32_t>& dropped(int32_t rank) const { return ranks_[rank].dropped; }

  // For a route to ranks: the routing to their experts; and the rows that experts of `dest` have of the token of an
  // entry, in the order of the token's choices.
  const Routing* experts() const { return experts_; }
  void find_rows_of_experts(int32_t source, int32_t dest, int32_t entry, std::vector<ExpertRow>& rows) const;

  // Sets the routing to the relays of this route.
  void set_relays(Routing* relays) {
    relays_ = relays;
    relays->passed_on_ = this;
  }
  const Routing& relays() const { return *relays_; }
  // For a route to relays: the routing of the forwarded rows, whose entries the next two functions take; the received row
  // of a relay with the token of an entry; and true if a row comes back to the relay for an entry itself, not only for
  // the first entry of its token with the same stop.
  const Routing* passed_on() const { return passed_on_; }
  int64_t relay_row(int32_t source, int32_t relay, int32_t entry) const;
  bool comes_back(int32_t source, int32_t relay, int32_t entry) const;
  // Returns the rank that receives a row of `source` for experts on `dest`.
  int32_t stop(int32_t source, int32_t dest) const { return stops_(source, dest); }

  const Share& share(int32_t rank, int32_t expert) const { return shares_[rank * route_.num_local_experts + expert]; }

  int32_t num_own_experts() const { return shards_.num_own; }
  const Shards& shards() const { return shards_; }
  // Expands values of choices to entries: a token's values, once for each shard.
  template <typename T>
  std::vector<T> of_entries(std::vector<T> given) const {
    if (route_.tp_size == 1) return given;
    std::vector<T> all(given.size() * route_.tp_size);
    for (size_t i = 0; i < all.size(); ++i) all[i] = given[shards_.choice_of(static_cast<int32_t>(i))];
    return all;
  }
  int32_t num_local_experts() const { return route_.num_local_experts; }
  int32_t ep_size() const { return ep_size_; }
  int32_t alignment() const { return route_.alignment; }
  int32_t tile_rows() const { return tile_rows_; }
  int32_t top_k() const { return route_.top_k; }
  int32_t return_tokens() const { return route_.return_tokens; }

 private:
  int32_t num_destinations() const { return ep_size_ * route_.num_local_experts; }
  int64_t num_entries() const { return int64_t{route_.num_tokens} * route_.top_k; }
  int64_t entries_of_experts() const { return experts_ ? experts_->num_entries() : 0; }
  void list_slots(int32_t rank);

  void note_kept(RankRoute& mine, int64_t num_tokens) const;
  void count_kept(RankRoute& mine, int64_t num_tokens) const;

  const Route route_;
  const Routing* const experts_;
  const Routing *relays_ = nullptr, *passed_on_ = nullptr;
  const int32_t ep_size_, tile_rows_;
  const Stops stops_;
  const Shards shards_;
  const Share* const shares_;  // [R * L], or NULL without replica slots
  std::vector<RankRoute> ranks_;
};

}  // namespace hpmoe
