// The thread of this process that carries messages to and from ranks of other hosts, of all its links, and minds whether
// anything is heard of them.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "link/engine.h"
#include "link/distant.h"

namespace hpmoe {

// Who has nothing to say gives a sign of life so often.
constexpr int64_t kBeat = 250'000'000;

class Proxy : private EngineEvents {
 public:
  // The proxy of this process for one engine, which ends with the process; or NULL, and why.
  struct Started {
    Proxy* proxy;
    std::string why;
  };
  // With the engine UCX, whose libraries are in a folder, or TCP if `ucx` is NULL.
  static const Started& get(const char* ucx);

  // Serves a rank from now on, over a connected socket, which the engine then owns. `mine`: of this process's rank. False
  // if the engine does not take it.
  bool add(Distant& distant, const Control& mine, int32_t socket);
  // Returns when it is served no more.
  void remove(Distant& distant);
  // Something waits in an outbox.
  void wake() {
    if (!is_awake_.exchange(true, std::memory_order_seq_cst)) engine_->wake();
  }

 private:
  struct Served {
    Distant* distant;
    const Control* mine;
    int64_t sent_ns;
    bool is_sending;
  };

  static Started start(const char* ucx);
  explicit Proxy(std::unique_ptr<Engine> engine) : engine_(std::move(engine)) {}

  // Locks mutex_, which run() holds while the engine waits.
  std::unique_lock<std::mutex> interrupt();
  void run();
  // A message for each rank that takes one; whether there was any.
  bool send_waiting(int64_t now);
  void send(int32_t channel, Served& served, Bytes&& message, int64_t now);
  void find_silent(int64_t now);

  void received(int32_t channel, const char* message, int64_t bytes) override;
  void heard(int32_t channel) override;
  void sent(int32_t channel, Bytes&& message) override;
  void ended(int32_t channel, const char* fault) override;

  const std::unique_ptr<Engine> engine_;
  std::mutex mutex_;  // held by whoever uses the engine or what is served
  std::atomic<int32_t> num_interrupting_{0};
  std::atomic<bool> is_awake_{false};  // it will look at all outboxes
  std::map<int32_t, Served> served_;  // by channel
};

}  // namespace hpmoe
