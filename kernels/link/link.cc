#include "link/link.h"

#include <algorithm>

#include "link/process.h"
#include "link/watchdog.h"

namespace hpmoe {
namespace {

constexpr int64_t kBetweenLooks = 1'000'000;
constexpr int64_t kLastWords = 2'000'000'000;  // for what is on its way when the program ends

Status status_of(Code code, int32_t rank) { return {static_cast<int32_t>(code), rank, -1, -1, -1, -1, 0, 0}; }

}  // namespace

Link::Link(int32_t rank, const std::vector<Member>& members)
    : rank_(rank),
      members_(members),
      heaps_(members.size()),
      distant_(members.size()),
      waited_ns_(members.size()),
      seen_ns_(members.size()) {}

std::unique_ptr<Link> Link::open(int32_t rank, const std::vector<Member>& members, const Messages& messages) {
  std::unique_ptr<Link> link(new Link(rank, members));
  for (int32_t i = 0; i < link->size(); ++i)
    if (members[i].socket < 0 && !link->open_heap(i)) return nullptr;
  link->space_ = std::make_unique<HeapSpace>(*link->heaps_[rank], members[rank].heap_fd, sizeof(Control));
  for (int32_t i = 0; i < link->size(); ++i)
    if (members[i].socket >= 0 && !link->reach(i, messages)) return nullptr;
  return link->space_->take(1) < 0 ? nullptr : std::move(link);
}

bool Link::open_heap(int32_t rank) {
  heaps_[rank] = std::make_unique<Heap>(members_[rank].heap_fd);
  return heaps_[rank]->data();
}

bool Link::reach(int32_t rank, const Messages& messages) {
  distant_[rank] = std::make_unique<Distant>(rank, messages.secret, messages.most_bytes, mine(), landing_);
  proxy_ = Proxy::get();
  return proxy_ && proxy_->add(*distant_[rank], mine(), members_[rank].socket);
}

Link::~Link() {
  for (const auto& distant : distant_)
    if (distant && proxy_) proxy_->remove(*distant);
}

template <class Post>
void Link::tell_others(Post post) const {
  for (const auto& distant : distant_)
    if (distant) post(distant->outbox());
  send();
}

Code Link::begin(const Call& call, int64_t bytes, const InterruptWatch& watch, char** payload) {
  ++number_;
  phase_ = Phase::MEETING;
  if (has_skipped_) {
    const Code code = wait(call, watch, [this] { return have_all_read(); });
    if (code != Code::OK) return code;
  }
  has_skipped_ = false;
  auto& own = payloads_[number_ % 2];
  if (own.room < bytes) {
    const int64_t offset = space_->take(2 * bytes);
    if (offset < 0) {
      --number_;
      phase_ = Phase::BETWEEN;
      return Code::OUT_OF_MEMORY;
    }
    space_->give(own.offset);  // of the first one nothing
    own = {offset, 0, 2 * bytes};
  }
  own.bytes = bytes;
  *payload = heap(rank_).at(own.offset);
  return Code::OK;
}

Code Link::meet(const Call& call, const InterruptWatch& watch) {
  Notice& notice = mine().notices[number_ % 2];
  const auto& payload = payloads_[number_ % 2];
  notice = {number_, call.key, payload.offset, payload.bytes, {}};
  copy_text(call.what, notice.what);
  mine().told.store(number_, std::memory_order_seq_cst);
  wake_all();
  tell_others(
      [&](Outbox& outbox) { outbox.tell(number_, &notice, sizeof notice, heap(rank_).at(payload.offset), payload.bytes); });
  std::fill(seen_ns_.begin(), seen_ns_.end(), 0);
  const int64_t began = now_ns();
  const Code code = wait(call, watch, [&] { return have_all_come(began); });
  if (code != Code::OK) return code;
  phase_ = Phase::BETWEEN;
  return Code::OK;
}

// What this rank waits for in a meeting; where it does not come about, the rank has failed in it.
template <class Ready>
Code Link::wait(const Call& call, const InterruptWatch& watch, Ready ready) {
  const std::atomic<bool> has_failed{false};
  const Watchdog watchdog(call.timeout_s, watch, has_failed, this);
  Code code = watchdog.wait_until(ready);
  if (code == Code::OK && mine().told.load(std::memory_order_relaxed) == number_) code = compare_notices();
  if (code == Code::TIMEOUT) {
    int32_t late = 0;
    while (late + 1 < size() && has_come(late)) ++late;
    code = note_failure({status_of(Code::PEER_LATE, late), rank_, {}});
  }
  if (code == Code::INTERRUPTED) note_failure({status_of(code, rank_), rank_, {}});
  if (code != Code::OK) fail(failure());
  return code;
}

// Whether nobody reads any more what this rank told in the meeting before the last. Who has come to one has read it; this
// rank failed before all had come to the last, so that some may be there still.
bool Link::have_all_read() const {
  const int64_t last = number_ - 1;
  for (int32_t rank = 0; rank < size(); ++rank) {
    const Control& peer = control(rank);
    if (rank != rank_ && peer.told.load(std::memory_order_seq_cst) < last && peer.failed[last % 2].load() < last)
      return false;
  }
  return true;
}

bool Link::have_all_come(int64_t began) {
  bool have_all = true;
  for (int32_t rank = 0; rank < size(); ++rank) {
    if (seen_ns_[rank]) continue;
    if (!has_come(rank)) {
      have_all = false;
      continue;
    }
    seen_ns_[rank] = now_ns();
    waited_ns_[rank] += rank == rank_ ? 0 : seen_ns_[rank] - began;
  }
  return have_all;
}

// Whether all are at the same call: what each says itself comes before what a failed one says of others. One may have
// failed without a word, or after it, and be at a later call now.
Code Link::compare_notices() {
  const int64_t number = number_;
  for (int32_t rank = 0; rank < size(); ++rank) {
    const Notice notice = control(rank).notices[number % 2];
    if (notice.number != number || notice.key == mine().notices[number % 2].key) continue;
    Failure other{status_of(Code::OTHER_CALL, rank), rank_, {}};
    copy_text(notice.what, other.text);
    return note_failure(other);
  }
  for (int32_t rank = 0; rank < size(); ++rank) {
    if (control(rank).failed[number % 2].load(std::memory_order_acquire) >= number) return find_trouble(now_ns());
  }
  return Code::OK;
}

const char* Link::told(int32_t rank) const {
  if (distant(rank)) return distant(rank)->told(number_);
  return heap(rank).at(control(rank).notices[number_ % 2].payload);
}

int64_t Link::told_bytes(int32_t rank) const { return control(rank).notices[number_ % 2].payload_bytes; }

void Link::fail(const Failure& failure) {
  if (phase_ == Phase::BETWEEN) ++number_;
  has_skipped_ = true;
  phase_ = Phase::BETWEEN;
  mine().failures[number_ % 2] = failure;
  mine().failed[number_ % 2].store(number_, std::memory_order_seq_cst);
  wake_all();
  tell_others([&](Outbox& outbox) { outbox.post(MessageKind::FAILED, number_, &failure, sizeof failure); });
}

void Link::begin_launch() {
  phase_ = Phase::LAUNCHING;
  tell_others([&](Outbox& outbox) { outbox.begin_launch(number_); });
}

void Link::end_launch() {
  phase_ = Phase::BETWEEN;
  mine().ended.store(number_, std::memory_order_release);
}

void Link::leave(const char* last_words) {
  copy_text(last_words, mine().last_words);
  mine().has_left.store(1, std::memory_order_seq_cst);
  wake_all();
  if (!proxy_) return;
  tell_others([&](Outbox& outbox) { outbox.post(MessageKind::LEFT, number_, mine().last_words, sizeof mine().last_words); });
  std::vector<Distant*> all;
  for (const auto& distant : distant_)
    if (distant) all.push_back(distant.get());
  proxy_->flush(all, kLastWords);
}

void Link::wake_all() const {
  for (int32_t rank = 0; rank < size(); ++rank)
    if (rank != rank_ && !distant(rank)) wake(rank);
}

Code Link::find_trouble(int64_t now) {
  const int64_t number = number_;
  for (int32_t rank = 0; rank < size(); ++rank) {
    if (rank == rank_ || control(rank).failed[number % 2].load(std::memory_order_acquire) < number) continue;
    return note_failure(distant(rank) ? distant(rank)->failure(number) : control(rank).failures[number % 2]);
  }
  int64_t last = looked_ns_.load(std::memory_order_relaxed);
  if (now - last < kBetweenLooks || !looked_ns_.compare_exchange_strong(last, now)) return Code::OK;
  int32_t left = -1;
  for (int32_t rank = 0; rank < size(); ++rank) {
    const Control& peer = control(rank);
    const bool is_launching = phase_ == Phase::LAUNCHING;
    if (rank == rank_ || (is_launching ? peer.ended : peer.told).load(std::memory_order_acquire) >= number) continue;
    const bool has_left = peer.has_left.load(std::memory_order_acquire) != 0;
    if (!has_left && !has_died(rank)) continue;
    if (peer.failed[number % 2].load(std::memory_order_acquire) >= number) return find_trouble(now);  // it said why
    if (!has_left) return note_failure(end_of(rank));
    if (left < 0) left = rank;  // maybe as another one has died
  }
  return left < 0 ? Code::OK : note_failure(end_of(left));
}

// The code that this rank ends with: what another one says of a third is as true here, what it did itself is its own.
Code Link::note_failure(const Failure& failure) {
  const std::lock_guard<std::mutex> lock(mutex_);
  failure_ = failure;
  failure_.text[sizeof failure_.text - 1] = 0;
  const auto code = static_cast<Code>(failure_.status.code);
  const bool is_theirs = failure_.origin != rank_ && code != Code::PEER_DIED && code != Code::PEER_LEFT &&
                         code != Code::PEER_LOST;
  return is_theirs ? Code::PEER_FAILED : code;
}

Failure Link::failure() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return failure_;
}

bool Link::has_died(int32_t rank) const {
  return distant(rank) ? distant(rank)->is_gone() : has_ended(members_[rank].pidfd);
}

// Of a rank that has left, its last words; of another one, how its process ended, or what is known of it.
Failure Link::end_of(int32_t rank) const {
  const Control& peer = control(rank);
  if (peer.has_left.load(std::memory_order_acquire) == 0) {
    if (distant(rank)) return distant(rank)->why();
    Failure end{status_of(Code::PEER_DIED, rank), rank_, {}};
    end.status.value = how_it_ended(members_[rank].pid, members_[rank].pidfd);
    return end;
  }
  Failure end{status_of(Code::PEER_LEFT, rank), rank_, {}};
  copy_text(peer.last_words, end.text);
  return end;
}

// One of another machine that was not heard of lately is slow, too, until it is taken for dead.
bool Link::is_any_stopped() const {
  const int64_t lately = now_ns() - 2 * kBeat;
  for (int32_t rank = 0; rank < size(); ++rank)
    if (distant(rank) ? distant(rank)->heard_ns() < lately : is_stopped(members_[rank].pid)) return true;
  return false;
}

int64_t Link::latest_progress() const {
  int64_t latest = 0;
  for (int32_t rank = 0; rank < size(); ++rank)
    latest = std::max(latest, control(rank).progress_ns.load(std::memory_order_relaxed));
  return latest;
}

}  // namespace hpmoe
