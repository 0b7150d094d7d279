// The thread of this process that carries messages to and from ranks of other hosts, for all links, and watches for
// silent ranks.
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

// An idle rank sends a heartbeat at this interval.
constexpr int64_t kBeat = 250'000'000;

class Proxy : private EngineEvents {
 public:
  // The proxy of this process for one engine, or NULL and the reason. It ends with the process.
  struct Started {
    Proxy* proxy;
    std::string why;
  };
  // Starts the proxy with the engine UCX, whose libraries are in the folder `ucx`, or TCP if `ucx` is NULL.
  static const Started& get(const char* ucx);

  // Serves a rank over a connected socket, which the engine then owns. `mine`: this process's rank. Returns false if the
  // engine does not take the socket.
  bool add(Distant& distant, const Control& mine, int32_t socket);
  // Returns when the rank is no longer served.
  void remove(Distant& distant);
  // Reports that an outbox has a message.
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
  // Sends a message to each rank whose channel is free. Returns true if any was sent.
  bool send_waiting(int64_t now);
  void send(int32_t channel, Served& served, Bytes&& message, int64_t now);
  void find_silent(int64_t now);

  void received(int32_t channel, const char* message, int64_t bytes) override;
  void heard(int32_t channel) override;
  void sent(int32_t channel, Bytes&& message) override;
  void ended(int32_t channel, const char* fault) override;

  const std::unique_ptr<Engine> engine_;
  std::mutex mutex_;  // held while the engine or the served ranks are used
  std::atomic<int32_t> num_interrupting_{0};
  std::atomic<bool> is_awake_{false};  // it will check all outboxes
  std::map<int32_t, Served> served_;  // by channel
};

}  // namespace hpmoe
