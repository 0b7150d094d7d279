// What carries messages between this process and those of other hosts: whole, and in the order in which they were sent.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "link/outbox.h"

namespace hpmoe {

// What an engine tells of its channels while it is polled.
class EngineEvents {
 public:
  virtual ~EngineEvents() = default;
  virtual void came(int32_t channel, const char* message, int64_t bytes) = 0;
  // Some bytes have come, of whatever.
  virtual void heard(int32_t channel) = 0;
  virtual void sent(int32_t channel, Bytes&& message) = 0;
  // Nothing comes any more: the other end has closed, or is at fault where `fault` is given.
  virtual void ended(int32_t channel, const char* fault) = 0;
};

// One thread calls, but for wake().
class Engine {
 public:
  virtual ~Engine() = default;
  // A new channel over a connected socket, which the engine then owns; negative: -errno.
  virtual int32_t connect(int32_t socket) = 0;
  virtual void close(int32_t channel) = 0;
  // Begins to send; one message at a time for each channel.
  virtual void send(int32_t channel, Bytes&& message, EngineEvents& events) = 0;
  virtual bool is_sending(int32_t channel) const = 0;
  // Whether the other host has all that was sent.
  virtual bool has_arrived(int32_t channel) = 0;
  // Carries on until something happens, for so long at most.
  virtual void poll(int64_t longest_ns, EngineEvents& events) = 0;
  // Ends a poll early, from any thread.
  virtual void wake() = 0;
};

// Over TCP sockets. NULL where the system has no more files.
std::unique_ptr<Engine> make_tcp_engine();
// By UCX, whose libraries are in a folder. NULL where that cannot be, and `why` says in words why.
std::unique_ptr<Engine> make_ucx_engine(const char* folder, std::string& why);

}  // namespace hpmoe
