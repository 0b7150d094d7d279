// The processes of a joint launch: how they exchange payloads, wait for each other, and learn that one has failed, died
// or left. Processes of this machine map each other's heaps; the proxy carries messages to other machines.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "link/bell.h"
#include "link/control.h"
#include "link/heap.h"
#include "link/interrupt.h"
#include "link/proxy.h"
#include "link/distant.h"

namespace hpmoe {

class Watchdog;

// A process of this machine has the file of its heap, and a descriptor that becomes readable when it ends. A process of
// another machine has a connected socket.
struct Member {
  int32_t heap_fd, pid, pidfd, socket;
};

// Joint call of all ranks: `key` is equal on all of them, `what` describes the call.
struct Call {
  const char* what;
  uint64_t key;
  double timeout_s;
};

// Calls are made one at a time; waits and wakes come from any thread.
class Link {
 public:
  // Returns NULL if a heap cannot be mapped or a socket cannot be served. The link owns the sockets.
  static std::unique_ptr<Link> open(int32_t rank, const std::vector<Member>& members, const HpmoeHosts* hosts);
  ~Link();

  int32_t rank() const { return rank_; }
  int32_t size() const { return static_cast<int32_t>(members_.size()); }
  // The heap of a rank of this machine.
  const Heap& heap(int32_t rank) const { return *heaps_[rank]; }
  // A rank of another machine, or NULL.
  Distant* distant(int32_t rank) const { return distant_[rank].get(); }
  // Sends the records that were put for ranks of other machines.
  void send() const {
    if (proxy_) proxy_->wake();
  }
  // Returns true if this process shares its cores with another one.
  bool is_crowded() const { return is_crowded_; }
  void set_crowded(bool is_crowded) { is_crowded_ = is_crowded; }
  // The memory that ranks of other machines put to.
  Landing& landing() { return landing_; }
  // The meeting that this rank has come to last, or is about to come to.
  int64_t number() const { return number_; }
  HeapSpace& space() { return *space_; }

  // Begins a meeting and allocates its payload. Returns OUT_OF_MEMORY, as if the meeting had not begun, or a code of
  // meet().
  Code begin(const Call& call, int64_t bytes, const InterruptWatch& watch, char** payload);
  // Returns when every rank has come to the same call; writes before it are visible to all ranks after it. On failure
  // returns PEER_LATE, PEER_DIED, PEER_LEFT, PEER_FAILED, OTHER_CALL or INTERRUPTED.
  Code meet(const Call& call, const InterruptWatch& watch);
  // Begins a meeting with this payload, and meets.
  Code meet(const Call& call, const void* payload, int64_t bytes, const InterruptWatch& watch);
  // The payload of a rank in the last meeting, valid until the meeting after the next.
  const char* told(int32_t rank) const;
  int64_t told_bytes(int32_t rank) const;

  // The last meeting begins a launch, which lasts until end_launch() or fail().
  void begin_launch();
  // Ends the launch with this status; returns the status with what other processes know about it. `is_known`: the ranks'
  // meeting has failed, and that failure is this one.
  Status end_launch(const Status& status, bool is_known);
  // Reports a failure of this rank in its meeting or launch, or between two. Every other rank fails with the reason in
  // its current or next call. The next joint call begins when all ranks have failed.
  void fail(const Failure& failure);
  // Reports that the program has ended.
  void leave(const char* last_words);

  Control& mine() const { return control(rank_); }
  // Wakes a rank of this machine.
  void wake(int32_t rank) const { ring(control(rank)); }
  // Wakes a rank that counts additions.
  void tell_news(int32_t rank) const {
    control(rank).news.fetch_add(1, std::memory_order_seq_cst);
    wake(rank);
  }
  // For waits: returns OK, or why the wait cannot end; failure() has the details.
  Code find_trouble(int64_t now);
  // The failure that was found last.
  Failure failure() const;
  // When any rank last ended a task.
  int64_t latest_progress() const;
  // Returns true if a rank is stopped, as by SIGSTOP: it is slow, not stuck.
  bool is_any_stopped() const;
  // Nanoseconds that this rank has waited for each rank to come to meetings.
  int64_t waited_ns(int32_t rank) const { return waited_ns_[rank]; }

 private:
  Link(int32_t rank, const std::vector<Member>& members);

  bool open_heap(int32_t rank);
  bool reach(int32_t rank, const HpmoeHosts& hosts);
  Control& control(int32_t rank) const {
    return distant_[rank] ? distant_[rank]->control() : *reinterpret_cast<Control*>(heaps_[rank]->data());
  }
  bool has_come(int32_t rank) const { return control(rank).told.load(std::memory_order_seq_cst) >= number_; }
  bool have_all_come(int64_t began);
  bool have_all_failed(int64_t times) const;
  template <class Ready>
  Code wait(const Call& call, const InterruptWatch& watch, Ready ready);
  Code leave_or_go_on(const Watchdog& patient, Code why);
  Code go_on(const Watchdog& patient);
  Code compare_exchanges();
  bool has_died(int32_t rank) const;
  Code find_failure();
  bool is_awaited(int32_t rank) const;
  Failure end_of(int32_t rank) const;
  Code note_failure(const Failure& failure);
  void remember(const Failure& failure);
  void wake_all() const;
  // Calls post(outbox) for each rank of another machine.
  template <class Post>
  void tell_others(Post post) const;

  const int32_t rank_;
  const std::vector<Member> members_;
  std::vector<std::unique_ptr<Heap>> heaps_;
  std::vector<std::unique_ptr<Distant>> distant_;
  Proxy* proxy_ = nullptr;  // NULL without other machines
  Landing landing_;
  std::unique_ptr<HeapSpace> space_;

  enum class Phase { BETWEEN, RECOVERING, MEETING, GOING_ON, LAUNCHING } phase_ = Phase::BETWEEN;
  bool is_crowded_ = false;
  int64_t number_ = 0;  // the meeting that this rank has come to last, or failed in
  bool has_failed_ = false;  // since it last came to a meeting
  struct {
    int64_t offset = 0, bytes = 0, capacity = 0;
  } payloads_[2];
  std::vector<int64_t> waited_ns_, seen_ns_;

  std::atomic<int64_t> looked_ns_{0};
  mutable std::mutex mutex_;  // guards the failure
  Failure failure_{};
};

}  // namespace hpmoe
