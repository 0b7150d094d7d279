#include "link/mapped_peers.h"

#include "core/dtypes.h"

namespace hpmoe {
namespace {

// The payload of a launch's meeting: these words, the offset of each buffer in the heap or -1, then the words of each
// routing.
enum Word { NUM_TOKENS, COUNTERS, BUFFERS };

constexpr int64_t kCounterWords = kLine / int64_t{sizeof(int64_t)};

std::vector<HpmoeRank> only(const HpmoeRank& mine, int32_t rank, int32_t size) {
  std::vector<HpmoeRank> ranks(size);
  ranks[rank] = mine;
  return ranks;
}

}  // namespace

MappedPeers::MappedPeers(Link& link, const Call& call, const Image& image, const HpmoeRank& mine, const int32_t* counts)
    : Peers(only(mine, link.rank(), link.size()), link.rank(), link.rank() + 1, kCounterWords, &link),
      link_(link),
      call_(call),
      image_(image),
      counts_(counts),
      buffers_(link.size(), std::vector<void*>(image.header->num_buffers)) {}

Code MappedPeers::meet(std::vector<Routing>& routings, const InterruptWatch& watch, Status& status) {
  for (const Code code : {check_counts(routings, status), check_shared(status)})
    if (code != Code::OK) return code;
  int64_t bytes = (BUFFERS + int64_t{image_.header->num_buffers}) * int64_t{sizeof(int64_t)};
  for (const Routing& routing : routings) bytes += routing.told_words() * int64_t{sizeof(int32_t)};
  char* payload = nullptr;
  Code code = link_.begin(call_, bytes, watch, &payload);
  if (code == Code::OUT_OF_MEMORY) return code;
  if (code == Code::OK) {
    tell(routings, reinterpret_cast<int64_t*>(payload));
    link_.landing().open(link_.number(), landing_rows(routings), ranks()[first()].counters, kCounterWords,
                         image_.header->num_events);
    code = link_.meet(call_, watch);
  }
  has_failed_to_meet_ = code != Code::OK;
  if (has_failed_to_meet_) return code;
  link_.begin_launch();
  for (int32_t rank = 0; rank < size(); ++rank) {
    if (rank == first()) continue;
    const bool is_whole = link_.told_bytes(rank) == bytes;
    if (is_whole) hear(rank, reinterpret_cast<const int64_t*>(link_.told(rank)), routings);
    if (is_whole && (!link_.distant(rank) || is_sound(rank, routings))) continue;
    status.rank = rank;
    return Code::BAD_IMAGE;
  }
  return Code::OK;
}

// Checks the words of a rank of another machine.
bool MappedPeers::is_sound(int32_t rank, const std::vector<Routing>& routings) const {
  const int64_t num_tokens = ranks()[rank].num_tokens;
  for (int32_t i = 0; i < image_.header->num_routes; ++i)
    if (num_tokens < 0 || num_tokens > image_.routes[i].num_tokens || !routings[i].is_sound(rank)) return false;
  return true;
}

Status MappedPeers::end(const Status& status) { return link_.end_launch(status, has_failed_to_meet_); }

// Checks counts again: the ids are read a second time here, and the program may have changed them.
Code MappedPeers::check_counts(const std::vector<Routing>& routings, Status& status) const {
  for (int32_t i = 0; i < image_.header->num_routes; ++i) {
    const int32_t* const counts = counts_of(i, first());
    if (!counts || routings[i].has_counts(first(), counts)) continue;
    status.wait = i;
    return Code::IDS_CHANGED;
  }
  return Code::OK;
}

Code MappedPeers::check_shared(Status& status) const {
  for (int32_t i = 0; i < image_.header->num_ops; ++i) {
    const Op& op = image_.ops[i];
    if (!is_transfer(opcode_of(op)) || is_completion_flag(opcode_of(op))) continue;
    const int32_t buffer = op.operands[0].buffer;
    if (link_.heap(first()).offset_of(ranks()[first()].buffers[buffer]) >= 0) continue;
    status.value = buffer;
    return Code::NOT_SHARED;
  }
  return Code::OK;
}

// Rows that the destination of a transfer has memory for: the rows of a route, or the rows that a relay has received.
int64_t MappedPeers::rows_of(const Op& op, const std::vector<Routing>& routings) const {
  const Operand& target = op.operands[0];
  const int64_t* const row_capacity = ranks()[first()].row_capacity;
  if (const int32_t rows = image_.buffers[target.buffer].rows) return rows;
  if (!row_capacity || op.route < 0) return 0;
  const int32_t relays = image_.routes[op.route].over;
  switch (static_cast<Rows>(target.rows)) {
    case Rows::RELAY_ROWS: return row_capacity[relays];
    case Rows::RELAY_ENTRIES: return row_capacity[relays] * routings[op.route].top_k();
    default: return row_capacity[op.route];
  }
}

// Returns, for each buffer that receives transfers, its address, stride and capacity in rows for this launch.
std::vector<LandingRows> MappedPeers::landing_rows(const std::vector<Routing>& routings) const {
  const HpmoeRank& mine = ranks()[first()];
  std::vector<LandingRows> landing(image_.header->num_buffers, {nullptr, 0, 0});
  for (int32_t i = 0; i < image_.header->num_ops; ++i) {
    const Op& op = image_.ops[i];
    if (!is_transfer(opcode_of(op)) || is_completion_flag(opcode_of(op))) continue;
    const int32_t b = op.operands[0].buffer;
    const Buffer& buffer = image_.buffers[b];
    const int64_t stride = buffer.cols * element_size(static_cast<Dtype>(buffer.dtype));
    landing[b] = {static_cast<char*>(mine.buffers[b]), stride, rows_of(op, routings)};
  }
  return landing;
}

void MappedPeers::tell(const std::vector<Routing>& routings, int64_t* words) const {
  const HpmoeRank& mine = ranks()[first()];
  const Heap& heap = link_.heap(first());
  words[NUM_TOKENS] = mine.num_tokens;
  words[COUNTERS] = heap.offset_of(mine.counters);
  words += BUFFERS;
  for (int32_t b = 0; b < image_.header->num_buffers; ++b) *words++ = heap.offset_of(mine.buffers[b]);
  auto* table = reinterpret_cast<int32_t*>(words);
  for (const Routing& routing : routings) {
    routing.tell(first(), table);
    table += routing.told_words();
  }
}

// Notes the addresses of a rank's arrays; the heap of another machine has no address here.
void MappedPeers::hear(int32_t rank, const int64_t* words, std::vector<Routing>& routings) {
  const auto at = [&](int64_t offset) { return offset < 0 || link_.distant(rank) ? nullptr : link_.heap(rank).at(offset); };
  ranks_[rank] = {buffers_[rank].data(), nullptr, words[NUM_TOKENS], reinterpret_cast<int64_t*>(at(words[COUNTERS])),
                  nullptr};
  words += BUFFERS;
  for (void*& buffer : buffers_[rank]) buffer = at(*words++);
  const auto* table = reinterpret_cast<const int32_t*>(words);
  for (int32_t i = 0; i < image_.header->num_routes; ++i) {
    routings[i].hear(rank, table, counts_of(i, rank));
    table += routings[i].told_words();
  }
}

// Returns NULL for a route to ranks, whose counts are part of the payload.
const int32_t* MappedPeers::counts_of(int32_t route, int32_t rank) const {
  if (image_.routes[route].of >= 0) return nullptr;
  const int32_t* counts = counts_;
  const auto row = [&](int32_t i) { return int64_t{size()} * image_.routes[i].num_local_experts; };
  for (int32_t i = 0; i < route; ++i) counts += image_.routes[i].of < 0 ? size() * row(i) : 0;
  return counts + rank * row(route);
}

}  // namespace hpmoe
