// Which rows a relay passes on, where it has received them, and what comes back to it.
#include <algorithm>

#include "core/routing.h"

namespace hpmoe {

int64_t Routing::relayed(int32_t relay) const {
  const int32_t node = relays_->node_size(), first = relay / node * node;
  int64_t rows = 0;
  for (int32_t source = relay % node; source < ep_size_; source += node)
    for (int32_t dest = first; dest < first + node; ++dest) rows += sent_to(source, dest);
  return rows;
}

int64_t Routing::relay_row(int32_t source, int32_t relay, int32_t entry) const {
  const Segment received = segment(source, relay, 0);
  const auto comes_before = [&](int32_t one, int32_t token) { return one / route_.top_k < token; };
  const int32_t token = entry / experts_->route_.top_k;
  return received.first_row +
         (std::lower_bound(received.entries, received.entries + received.rows, token, comes_before) - received.entries);
}

bool Routing::comes_back(int32_t source, int32_t relay, int32_t entry, bool once) const {
  const int32_t num_local = experts_->route_.num_local_experts;
  const int32_t* const expert = ranks_[source].told.expert;
  if (expert[entry] < 0) return false;
  const int32_t dest = expert[entry] / num_local;
  if (dest / route_.node_size != relay / route_.node_size) return false;
  for (int32_t i = entry - entry % experts_->route_.top_k; once && i < entry; ++i)
    if (expert[i] >= 0 && expert[i] / num_local == dest) return false;
  return true;
}

}  // namespace hpmoe
