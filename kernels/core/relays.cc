// The rows that a relay forwards, their places among its received rows, and the rows that come back to it.
#include <algorithm>

#include "core/routing.h"

namespace hpmoe {

int64_t Routing::relay_row(int32_t source, int32_t relay, int32_t entry) const {
  const Segment received = segment(source, relay, 0);
  const auto comes_before = [&](int32_t one, int32_t token) { return one / route_.top_k < token; };
  const int32_t token = entry / experts_->route_.top_k;
  const int32_t* const entries = entries_of(received);
  return received.first_row + (std::lower_bound(entries, entries + received.rows, token, comes_before) - entries);
}

bool Routing::comes_back(int32_t source, int32_t relay, int32_t entry) const {
  const int32_t num_local = experts_->route_.num_local_experts;
  const int32_t* const expert = ranks_[source].told.expert;
  if (expert[entry] < 0) return false;
  const int32_t dest = expert[entry] / num_local;
  if (stops_(source, dest) != relay) return false;
  if (!passed_on_->experts_) return true;
  const Stops& next = passed_on_->stops_;
  for (int32_t i = entry - entry % experts_->route_.top_k; i < entry; ++i)
    if (expert[i] >= 0 && next(source, expert[i] / num_local) == next(source, dest)) return false;
  return true;
}

}  // namespace hpmoe
