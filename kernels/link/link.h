// The processes that launch together: what each tells the others, how they wait for each other, and how they learn that one
// has failed, died or left. Those of this machine map each other's heaps; to those of others the proxy carries it.
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

// A process of this machine: its heap's file, and a descriptor that becomes readable when it ends. One of another machine:
// a connected socket, and no heap.
struct Member {
  int32_t heap_fd, pid, pidfd, socket;
};

// Joint call of all ranks: `key` is equal on all of them, `what` describes the call.
struct Call {
  const char* what;
  uint64_t key;
  double timeout_s;
};

// Calls come one at a time; waits and wakes from any thread.
class Link {
 public:
  // NULL where a heap cannot be mapped, or a socket cannot be served. Sockets are the link's from then on.
  static std::unique_ptr<Link> open(int32_t rank, const std::vector<Member>& members, const HpmoeHosts* hosts);
  ~Link();

  int32_t rank() const { return rank_; }
  int32_t size() const { return static_cast<int32_t>(members_.size()); }
  // Of a rank of this machine.
  const Heap& heap(int32_t rank) const { return *heaps_[rank]; }
  // A rank of another machine, or NULL.
  Distant* distant(int32_t rank) const { return distant_[rank].get(); }
  // What was put for ranks of other machines is to be sent.
  void send() const {
    if (proxy_) proxy_->wake();
  }
  // Whether this process shares each of its cores with another one.
  bool is_crowded() const { return is_crowded_; }
  void set_crowded(bool is_crowded) { is_crowded_ = is_crowded; }
  // Where those put.
  Landing& landing() { return landing_; }
  // The meeting that this rank has come to last, or is about to.
  int64_t number() const { return number_; }
  HeapSpace& space() { return *space_; }

  // A meeting begins with where its payload goes. OUT_OF_MEMORY: there is none, as if it had not begun; else as meet().
  Code begin(const Call& call, int64_t bytes, const InterruptWatch& watch, char** payload);
  // Returns when every rank has come to the same call. What one tells before, the others see after.
  // Otherwise this rank has failed in it: PEER_LATE, PEER_DIED, PEER_LEFT, PEER_FAILED, OTHER_CALL or INTERRUPTED.
  Code meet(const Call& call, const InterruptWatch& watch);
  // Both, with a payload of these bytes.
  Code meet(const Call& call, const void* payload, int64_t bytes, const InterruptWatch& watch);
  // The payload of a rank in the last meeting, until the one after the next.
  const char* told(int32_t rank) const;
  int64_t told_bytes(int32_t rank) const;

  // From the last meeting on this rank is in a launch, until it has ended it or failed.
  void begin_launch();
  // It has ended so; returns how, as far as other processes know more of it. `is_known`: the ranks' meeting has failed,
  // which counts as this failure.
  Status end_launch(const Status& status, bool is_known);
  // It has failed in the meeting or the launch it is in, or between two: each other rank learns why in what it is in, or
  // comes to next, and has failed too then. What all do next begins when all have.
  void fail(const Failure& failure);
  // Its program has ended, and says so.
  void leave(const char* last_words);

  Control& mine() const { return control(rank_); }
  // Of a rank of this machine.
  void wake(int32_t rank) const { ring(control(rank)); }
  // The same where it counts what it has been told.
  void tell_news(int32_t rank) const {
    control(rank).news.fetch_add(1, std::memory_order_seq_cst);
    wake(rank);
  }
  // In waits: OK, or why nothing more will come; failure() says more.
  Code find_trouble(int64_t now);
  // The last one that was found.
  Failure failure() const;
  // When any rank last ended a task.
  int64_t latest_progress() const;
  // Whether a rank is stopped, as by SIGSTOP: it is slow then, not stuck.
  bool is_any_stopped() const;
  // Nanoseconds that this rank has waited for each to come to meetings.
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
  // Hands each rank of another machine what post(outbox) puts there.
  template <class Post>
  void tell_others(Post post) const;

  const int32_t rank_;
  const std::vector<Member> members_;
  std::vector<std::unique_ptr<Heap>> heaps_;
  std::vector<std::unique_ptr<Distant>> distant_;
  Proxy* proxy_ = nullptr;  // where there are any
  Landing landing_;
  std::unique_ptr<HeapSpace> space_;

  enum class Phase { BETWEEN, RECOVERING, MEETING, GOING_ON, LAUNCHING } phase_ = Phase::BETWEEN;
  bool is_crowded_ = false;
  int64_t number_ = 0;  // of the meeting that this rank has come to last, or failed in
  bool has_failed_ = false;  // since it last came to one
  struct {
    int64_t offset = 0, bytes = 0, capacity = 0;
  } payloads_[2];
  std::vector<int64_t> waited_ns_, seen_ns_;

  std::atomic<int64_t> looked_ns_{0};
  mutable std::mutex mutex_;  // of the failure
  Failure failure_{};
};

}  // namespace hpmoe
