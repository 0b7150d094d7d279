#include "link/link.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "link/process.h"
#include "link/watchdog.h"

namespace hpmoe {
namespace {

constexpr int64_t kBetweenLooks = 1'000'000;
constexpr int64_t kLastWords = 2'000'000'000;  // for the other ranks to process them

}  // namespace

Link::Link(int32_t rank, const std::vector<Member>& members)
    : rank_(rank),
      members_(members),
      heaps_(members.size()),
      distant_(members.size()),
      waited_ns_(members.size()),
      seen_ns_(members.size()) {}

std::unique_ptr<Link> Link::open(int32_t rank, const std::vector<Member>& members, const HpmoeHosts* hosts) {
  std::unique_ptr<Link> link(new Link(rank, members));
  for (int32_t i = 0; i < link->size(); ++i)
    if (members[i].socket < 0 && !link->open_heap(i)) return nullptr;
  link->space_ = std::make_unique<HeapSpace>(*link->heaps_[rank], members[rank].heap_fd, sizeof(Control));
  for (int32_t i = 0; i < link->size(); ++i)
    if (members[i].socket >= 0 && !link->reach(i, *hosts)) return nullptr;
  return link->space_->take(1) < 0 ? nullptr : std::move(link);
}

bool Link::open_heap(int32_t rank) {
  heaps_[rank] = std::make_unique<Heap>(members_[rank].heap_fd);
  return heaps_[rank]->data();
}

bool Link::reach(int32_t rank, const HpmoeHosts& hosts) {
  uint64_t secret[2];
  std::memcpy(secret, hosts.secret, sizeof secret);
  distant_[rank] = std::make_unique<Distant>(rank, secret, hosts.most_bytes, mine(), landing_);
  proxy_ = Proxy::get(hosts.ucx).proxy;
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

// After a failure ranks may be at different meetings. Each waits until all have failed in the same one, and continues
// with the largest number of any rank. Earlier payloads are not read afterwards.
Code Link::begin(const Call& call, int64_t bytes, const InterruptWatch& watch, char** payload) {
  if (has_failed_) {
    phase_ = Phase::RECOVERING;
    const int64_t failures = mine().failures.load();
    const Code code = wait(call, watch, [&] { return have_all_failed(failures); });
    if (code != Code::OK) return code;
    for (int32_t rank = 0; rank < size(); ++rank)
      number_ = std::max(number_, control(rank).failed_at[failures % 2].load(std::memory_order_acquire));
    has_failed_ = false;
  }
  ++number_;
  phase_ = Phase::MEETING;
  auto& own = payloads_[number_ % 2];
  if (own.capacity < bytes) {
    const int64_t offset = space_->take(2 * bytes);
    if (offset < 0) {
      --number_;
      phase_ = Phase::BETWEEN;
      return Code::OUT_OF_MEMORY;
    }
    space_->give(own.offset);  // no-op for the first payload
    own = {offset, 0, 2 * bytes};
  }
  own.bytes = bytes;
  *payload = heap(rank_).at(own.offset);
  return Code::OK;
}

Code Link::meet(const Call& call, const void* payload, int64_t bytes, const InterruptWatch& watch) {
  char* to = nullptr;
  const Code code = begin(call, bytes, watch, &to);
  if (code != Code::OK) return code;
  std::memcpy(to, payload, bytes);
  return meet(call, watch);
}

Code Link::meet(const Call& call, const InterruptWatch& watch) {
  Exchange& exchange = mine().exchanges[number_ % 2];
  const auto& payload = payloads_[number_ % 2];
  exchange = {number_, call.key, payload.offset, payload.bytes, {}};
  copy_text(call.what, exchange.what);
  mine().told.store(number_, std::memory_order_seq_cst);
  wake_all();
  tell_others([&](Outbox& outbox) {
    outbox.tell(number_, &exchange, sizeof exchange, heap(rank_).at(payload.offset), payload.bytes);
  });
  std::fill(seen_ns_.begin(), seen_ns_.end(), 0);
  const int64_t began = now_ns();
  const Code code = wait(call, watch, [&] { return have_all_come(began); });
  if (code != Code::OK) return code;
  phase_ = Phase::BETWEEN;
  return Code::OK;
}

// Waits in a meeting until ready() holds; otherwise the rank has failed in the meeting.
template <class Ready>
Code Link::wait(const Call& call, const InterruptWatch& watch, Ready ready) {
  const std::atomic<bool> has_failed{false};
  Code code = Watchdog(call.timeout_s, watch, has_failed, this).wait_until(ready);
  if (phase_ == Phase::MEETING) {
    const InterruptWatch unwatched(false);
    const Watchdog patient(call.timeout_s, unwatched, has_failed, this);
    if (code == Code::INTERRUPTED || code == Code::TIMEOUT) code = leave_or_go_on(patient, code);
    if (code == Code::OK) code = patient.wait_until(ready);
    if (code == Code::OK) code = go_on(patient);
  }
  if (code == Code::TIMEOUT) {
    int32_t late = 0;
    while (late + 1 < size() && !is_awaited(late)) ++late;
    code = note_failure({status_of(Code::PEER_LATE, late), rank_, {}});
  }
  if (code == Code::INTERRUPTED) note_failure({status_of(code, rank_), rank_, {}});
  if (code != Code::OK) fail(failure());
  return code;
}

// A rank that is interrupted in a barrier, or has waited too long, announces that it leaves and then checks if any rank goes
// on. A rank that goes on announces that and then checks if any leaves; if so, it waits for that rank's decision. The
// sequential order guarantees that if a rank leaves, no rank has gone on or will.
Code Link::leave_or_go_on(const Watchdog& patient, Code why) {
  mine().leaving.store(number_, std::memory_order_seq_cst);
  tell_others([&](Outbox& outbox) { outbox.post(MessageKind::LEAVING, number_, 0, nullptr, 0); });
  const Code code = patient.wait_until([&] {
    return std::all_of(distant_.begin(), distant_.end(), [&](const auto& each) {
      return !each || each->is_gone() || each->control().answered.load(std::memory_order_seq_cst) == number_;
    });
  });
  if (code != Code::OK) return code;
  int32_t rank = 0;
  while (rank < size() && control(rank).goes_on.load(std::memory_order_seq_cst) < number_) ++rank;
  if (rank == size()) return why;
  mine().leaving.store(0, std::memory_order_seq_cst);
  wake_all();
  tell_others([&](Outbox& outbox) { outbox.post(MessageKind::LEAVING, 0, 0, nullptr, 0); });
  return Code::OK;
}

Code Link::go_on(const Watchdog& patient) {
  mine().goes_on.store(number_, std::memory_order_seq_cst);
  phase_ = Phase::GOING_ON;
  const Code code = patient.wait_until([&] {
    for (int32_t rank = 0; rank < size(); ++rank)
      if (control(rank).leaving.load(std::memory_order_seq_cst) == number_) return false;
    return true;
  });
  return code == Code::OK ? compare_exchanges() : code;
}

bool Link::have_all_failed(int64_t times) const {
  for (int32_t rank = 0; rank < size(); ++rank)
    if (control(rank).failures.load(std::memory_order_seq_cst) < times) return false;
  return true;
}

// Returns true if this rank waits for a step of `rank`.
bool Link::is_awaited(int32_t rank) const {
  const Control& peer = control(rank);
  if (rank == rank_) return false;
  if (phase_ == Phase::GOING_ON) return peer.leaving.load(std::memory_order_acquire) == number_;
  if (phase_ == Phase::RECOVERING) return peer.failures.load(std::memory_order_acquire) < mine().failures.load();
  return (phase_ == Phase::LAUNCHING ? peer.ended : peer.told).load(std::memory_order_acquire) < number_;
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

// Checks that all ranks make the same call. A failure that a rank reports about itself takes precedence over one that a
// failed rank reports about others.
Code Link::compare_exchanges() {
  const int64_t number = number_;
  for (int32_t rank = 0; rank < size(); ++rank) {
    const Exchange exchange = control(rank).exchanges[number % 2];
    if (exchange.number != number || exchange.key == mine().exchanges[number % 2].key) continue;
    Failure other{status_of(Code::OTHER_CALL, rank), rank_, {}};
    copy_text(exchange.what, other.text);
    return note_failure(other);
  }
  return find_failure();
}

const char* Link::told(int32_t rank) const {
  if (distant(rank)) return distant(rank)->told(number_);
  return heap(rank).at(control(rank).exchanges[number_ % 2].payload);
}

int64_t Link::told_bytes(int32_t rank) const { return control(rank).exchanges[number_ % 2].payload_bytes; }

void Link::fail(const Failure& failure) {
  remember(failure);
  if (phase_ == Phase::BETWEEN && !has_failed_) ++number_;
  phase_ = Phase::BETWEEN;
  has_failed_ = true;
  const int64_t count = mine().failures.load() + 1;
  if (have_all_failed(count - 2)) mine().reasons[count % 2] = failure;  // else still to be read
  mine().failed_at[count % 2].store(number_, std::memory_order_release);
  mine().failures.store(count, std::memory_order_seq_cst);
  wake_all();
  const Failure& reason = mine().reasons[count % 2];
  tell_others([&](Outbox& outbox) { outbox.post(MessageKind::FAILED, number_, count, &reason, sizeof reason); });
}

void Link::begin_launch() {
  phase_ = Phase::LAUNCHING;
  tell_others([&](Outbox& outbox) { outbox.begin_launch(number_); });
}

Status Link::end_launch(const Status& status, bool is_known) {
  const auto code = static_cast<Code>(status.code);
  if (code == Code::OK) {
    phase_ = Phase::BETWEEN;
    mine().ended.store(number_, std::memory_order_release);
    return status;
  }
  Status end = status;
  Failure found{status, rank_, {}};
  switch (code) {
    case Code::PEER_DIED:
    case Code::PEER_LEFT:
    case Code::PEER_LOST:
    case Code::PEER_LATE:
    case Code::OTHER_CALL:
      found = failure();
      end = found.status;
      break;
    case Code::PEER_FAILED:
      found = failure();
      end.rank = found.origin;
      break;
    default: break;
  }
  if (!is_known) fail(found);
  return end;
}

void Link::leave(const char* last_words) {
  copy_text(last_words, mine().last_words);
  mine().has_left.store(1, std::memory_order_seq_cst);
  wake_all();
  if (!proxy_) return;
  tell_others(
      [&](Outbox& outbox) { outbox.post(MessageKind::LEFT, number_, 0, mine().last_words, sizeof mine().last_words); });
  const auto is_known = [](const auto& each) { return !each || each->is_gone() || each->outbox().has_arrived(); };
  const int64_t until = now_ns() + kLastWords;
  while (now_ns() < until && !std::all_of(distant_.begin(), distant_.end(), is_known))
    std::this_thread::sleep_for(std::chrono::microseconds(200));
}

void Link::wake_all() const {
  for (int32_t rank = 0; rank < size(); ++rank)
    if (rank != rank_ && !distant(rank)) wake(rank);
}

// Finds a failure of another rank that this rank does not share, in this rank's current meeting or an earlier one. A rank
// that failed in the next meeting has ended this one, like every rank in it.
Code Link::find_failure() {
  const int64_t next = mine().failures.load(std::memory_order_relaxed) + 1;
  for (int32_t rank = 0; rank < size(); ++rank) {
    const Control& peer = control(rank);
    if (peer.failures.load(std::memory_order_acquire) < next || peer.failed_at[next % 2].load() > number_) continue;
    return note_failure(peer.reasons[next % 2]);
  }
  return Code::OK;
}

Code Link::find_trouble(int64_t now) {
  if (const Code code = find_failure(); code != Code::OK) return code;
  int64_t last = looked_ns_.load(std::memory_order_relaxed);
  if (now - last < kBetweenLooks || !looked_ns_.compare_exchange_strong(last, now)) return Code::OK;
  int32_t left = -1;
  for (int32_t rank = 0; rank < size(); ++rank) {
    if (!is_awaited(rank)) continue;
    const bool has_left = control(rank).has_left.load(std::memory_order_acquire) != 0;
    if (!has_left && !has_died(rank)) continue;
    if (const Code code = find_failure(); code != Code::OK) return code;  // it explains the end
    if (!is_awaited(rank)) continue;
    if (!has_left) return note_failure(end_of(rank));
    if (left < 0) left = rank;  // it may have left because another rank died
  }
  return left < 0 ? Code::OK : note_failure(end_of(left));
}

// Returns the code that this rank ends with: another rank's report about a third rank is valid here too, a report about
// itself becomes PEER_FAILED.
Code Link::note_failure(const Failure& failure) {
  remember(failure);
  const auto code = static_cast<Code>(failure.status.code);
  const bool is_theirs = failure.origin != rank_ && code != Code::PEER_DIED && code != Code::PEER_LEFT &&
                         code != Code::PEER_LOST;
  return is_theirs ? Code::PEER_FAILED : code;
}

void Link::remember(const Failure& failure) {
  const std::lock_guard<std::mutex> lock(mutex_);
  failure_ = failure;
  failure_.text[sizeof failure_.text - 1] = 0;
}

Failure Link::failure() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return failure_;
}

bool Link::has_died(int32_t rank) const {
  return distant(rank) ? distant(rank)->is_gone() : has_ended(members_[rank].pidfd);
}

// Describes the end of a rank: its last words if it left, otherwise how its process ended, as far as known.
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

// A rank of another machine that has been silent counts as stopped, until it is declared dead.
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
