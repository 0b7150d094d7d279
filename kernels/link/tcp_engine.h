// An engine that sends each message over the socket of its channel, as a length and the bytes.
#pragma once

#include <map>

#include "link/engine.h"
#include "link/poller.h"

namespace hpmoe {

class TcpEngine final : public Engine {
 public:
  ~TcpEngine() override;

  // Returns false if the system has no more files.
  bool open() const { return poller_.open(); }
  // Watches a file that ends a poll when it is readable, for an engine that uses this one for its sockets.
  bool watch(int file) const { return poller_.watch(file, kFile); }

  int32_t connect(int32_t socket) override;
  void close(int32_t channel) override;
  void send(int32_t channel, Bytes&& message, EngineEvents& events) override;
  void poll(int64_t longest_ns, EngineEvents& events) override;
  void wake() override { poller_.wake(); }

 private:
  static constexpr uint64_t kFile = uint64_t{1} << 63;  // a name that no channel has

  struct Channel {
    int socket = -1;
    bool is_sending = false, is_watched = false;
    Bytes out, in;
    uint64_t out_length = 0, in_length = 0;
    size_t num_sent = 0, num_read = 0;  // bytes of the message in transfer, including its length
  };

  void watch_writable(int32_t number, Channel& channel);
  void end(int32_t number, const char* fault, EngineEvents& events);
  void push(int32_t number, EngineEvents& events);
  void pull(int32_t number, EngineEvents& events);
  static ssize_t read_some(Channel& channel);

  Poller poller_;
  std::map<int32_t, Channel> channels_;
  int32_t next_ = 0;
};

}  // namespace hpmoe
