// One rank of a launch whose other ranks are processes: it puts into the heaps of this machine's ranks and into outboxes
// for the other ranks.
#pragma once

#include "link/peers.h"

namespace hpmoe {

class MappedPeers : public Peers {
 public:
  // `mine`: this rank's arrays. The arrays that other ranks put into, and its counters, one on each line, must be in its
  // heap. `counts`: for each route by ids, int32 [ranks, ranks * local experts], the rows of each rank for each expert.
  MappedPeers(Link& link, const Call& call, const Image& image, const HpmoeRank& mine, const int32_t* counts);
  ~MappedPeers() override { link_.landing().close(); }

  Code meet(std::vector<Routing>& routings, const InterruptWatch& watch, Status& status) override;
  Status end(const Status& status) override;

 private:
  Code check_counts(const std::vector<Routing>& routings, Status& status) const;
  Code check_shared(Status& status) const;
  int64_t rows_of(const Op& op, const std::vector<Routing>& routings) const;
  std::vector<LandingRows> landing_rows(const std::vector<Routing>& routings) const;
  void tell(const std::vector<Routing>& routings, int64_t* words) const;
  bool is_sound(int32_t rank, const std::vector<Routing>& routings) const;
  void hear(int32_t rank, const int64_t* words, std::vector<Routing>& routings);
  const int32_t* counts_of(int32_t route, int32_t rank) const;

  Link& link_;
  const Call call_;
  const Image image_;
  const int32_t* const counts_;
  std::vector<std::vector<void*>> buffers_;  // by rank
  bool has_failed_to_meet_ = false;
};

}  // namespace hpmoe
