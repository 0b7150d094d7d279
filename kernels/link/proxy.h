// The thread of this process that carries messages to and from ranks of other hosts, of all its links, and minds whether
// anything is heard of them.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "link/engine.h"
#include "link/distant.h"

namespace hpmoe {

// Who has nothing to say gives a sign of life so often.
constexpr int64_t kBeat = 250'000'000;

class Proxy : private EngineEvents {
 public:
  // The one of this process that has TCP carry messages, or UCX of a folder; it ends with the process. NULL where it cannot
  // be had.
  static Proxy* get(const char* ucx);
  // Why there is none that has UCX carry them; NULL where there is.
  static const char* ucx_fault(const char* folder);

  // Serves a rank from now on, over a connected socket, which the proxy then owns. `mine`: of this process's rank. False
  // where the engine does not take it.
  bool add(Distant& distant, const Control& mine, int32_t socket);
  // Returns when it is served no more.
  void remove(Distant& distant);
  // Something waits in an outbox.
  void wake() {
    if (!is_awake_.exchange(true, std::memory_order_seq_cst)) engine_->wake();
  }
  // Waits until the other hosts have what is on its way, for so long at most.
  void flush(const std::vector<Distant*>& all, int64_t longest_ns);

 private:
  struct Served {
    Distant* distant;
    const Control* mine;
    int64_t sent_ns;
  };

  struct ByUcx {
    Proxy* proxy;
    std::string why;  // not
  };
  static const ByUcx& by_ucx(const char* folder);
  static Proxy* start(std::unique_ptr<Engine> engine);
  explicit Proxy(std::unique_ptr<Engine> engine) : engine_(std::move(engine)) {}

  void run();
  // A message for each rank that takes one; whether there was any.
  bool send_waiting(int64_t now);
  void send(int32_t channel, Served& served, Bytes&& message, int64_t now);
  void find_silent(int64_t now);

  void came(int32_t channel, const char* message, int64_t bytes) override;
  void heard(int32_t channel) override;
  void sent(int32_t channel, Bytes&& message) override;
  void ended(int32_t channel, const char* fault) override;

  const std::unique_ptr<Engine> engine_;
  std::mutex mutex_;  // held by whoever uses the engine or what is served
  std::atomic<int32_t> num_asking_{0};  // threads that want it
  std::atomic<bool> is_awake_{false};  // it will look at all outboxes
  std::map<int32_t, Served> served_;  // by channel
};

}  // namespace hpmoe
