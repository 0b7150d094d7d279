// The interface of an engine, which carries messages between this process and processes of other hosts.
//
// An engine carries whole messages over channels, in the order in which they are sent, and reports the end of a channel.
// All other parts exist once, for every engine: hpmoe/ranks/hosts.py exchanges addresses and connects two ranks by a
// socket after both have proved the secret; message.h, outbox.h and landing.h frame and check rows and signals; outbox.h
// counts processed messages; proxy.h detects the death of a rank, by the end of its channel or by silence. A relay's rows
// are ordinary messages.
//
// A new engine is one file: derive from Engine, declare a make function below, start it in Proxy::start(), and add its
// name to ENGINES of hpmoe/ranks/link.py. The tests of tests/ranks/test_hosts.py run every engine of that list.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "link/message.h"

namespace hpmoe {

// What an engine reports. It calls these functions only from send() and poll(); they may call close() and send().
class EngineEvents {
 public:
  virtual ~EngineEvents() = default;
  // A whole message of the other rank. The bytes are valid until this function returns.
  virtual void received(int32_t channel, const char* message, int64_t bytes) = 0;
  // A part of a message: the other rank is alive.
  virtual void heard(int32_t channel) = 0;
  // The engine needs the message no longer and takes the next one of this channel.
  virtual void sent(int32_t channel, Bytes&& message) = 0;
  // The channel is closed: the other process has ended, or has broken the protocol if `fault` says how. Messages that had
  // reached this host are received first.
  virtual void ended(int32_t channel, const char* fault) = 0;
};

// One thread at a time calls an engine; any thread calls wake().
class Engine {
 public:
  virtual ~Engine() = default;
  // Opens a channel over a connected TCP socket and returns its number, or -errno. The engine owns the socket. The other
  // process passes the other end to its own engine of the same kind. The engine ends the channel if the socket closes.
  virtual int32_t connect(int32_t socket) = 0;
  // Closes a channel without an event; ignores a closed one.
  virtual void close(int32_t channel) = 0;
  // Sends a message of 1 to kMostMessageBytes bytes. The caller waits for sent() before the next message of a channel.
  virtual void send(int32_t channel, Bytes&& message, EngineEvents& events) = 0;
  // Makes progress on all channels; waits up to `longest_ns` if there is nothing to do.
  virtual void poll(int64_t longest_ns, EngineEvents& events) = 0;
  // Ends the wait of a poll.
  virtual void wake() = 0;
};

// An engine checks the length of a message with this function before it allocates memory for the message.
inline bool is_possible_length(uint64_t bytes) { return bytes > 0 && bytes <= uint64_t{kMostMessageBytes}; }
constexpr const char* kImpossibleLength = "a message has no possible length";

// Make an engine, or return NULL and set `why`. `folder` has UCX's libraries.
std::unique_ptr<Engine> make_tcp_engine(std::string& why);
std::unique_ptr<Engine> make_ucx_engine(const char* folder, std::string& why);

}  // namespace hpmoe
