#include "link/tcp_engine.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace hpmoe {
namespace {

constexpr size_t kReadBytes = 1 << 20;  // at most at once: a false length allocates no more memory
constexpr size_t kHead = sizeof(uint64_t);

}  // namespace

TcpEngine::~TcpEngine() {
  for (const auto& [number, channel] : channels_) ::close(channel.socket);
}

int32_t TcpEngine::connect(int32_t socket) {
  const int one = 1;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  fcntl(socket, F_SETFL, fcntl(socket, F_GETFL) | O_NONBLOCK);
  if (!poller_.watch(socket, uint64_t(next_))) {
    const int error = errno;
    ::close(socket);
    return -error;
  }
  channels_[next_].socket = socket;
  return next_++;
}

void TcpEngine::close(int32_t channel) {
  const auto found = channels_.find(channel);
  if (found == channels_.end()) return;
  ::close(found->second.socket);
  channels_.erase(found);
}

void TcpEngine::send(int32_t number, Bytes&& message, EngineEvents& events) {
  Channel& channel = channels_.at(number);
  channel.out = std::move(message);
  channel.out_length = channel.out.size();
  channel.num_sent = 0;
  channel.is_sending = true;
  push(number, events);
  if (channel.is_sending) watch_writable(number, channel);
}

void TcpEngine::poll(int64_t longest_ns, EngineEvents& events) {
  for (const epoll_event& ready : poller_.wait(longest_ns)) {
    if (ready.data.u64 == kFile) continue;
    const auto number = static_cast<int32_t>(ready.data.u64);
    if (ready.events & EPOLLOUT) push(number, events);
    if (ready.events & ~uint32_t{EPOLLOUT}) pull(number, events);
  }
}

void TcpEngine::watch_writable(int32_t number, Channel& channel) {
  channel.is_watched = channel.is_sending;
  poller_.watch_also_writable(channel.socket, uint64_t(number), channel.is_sending);
}

void TcpEngine::end(int32_t number, const char* fault, EngineEvents& events) {
  close(number);
  events.ended(number, fault);
}

void TcpEngine::push(int32_t number, EngineEvents& events) {
  const auto found = channels_.find(number);
  if (found == channels_.end() || !found->second.is_sending) return;
  Channel& channel = found->second;
  while (channel.num_sent < kHead + channel.out.size()) {
    iovec parts[2];
    int count = 0;
    if (channel.num_sent < kHead)
      parts[count++] = {reinterpret_cast<char*>(&channel.out_length) + channel.num_sent, kHead - channel.num_sent};
    const size_t done = std::max(channel.num_sent, kHead) - kHead;
    parts[count++] = {channel.out.data() + done, channel.out.size() - done};
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = count;
    const ssize_t sent = sendmsg(channel.socket, &message, MSG_NOSIGNAL);
    if (sent < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (sent < 0) {  // pull() reads the rest, then finds the end
      channel.is_sending = false;
      return watch_writable(number, channel);
    }
    channel.num_sent += sent;
  }
  channel.is_sending = false;
  if (channel.is_watched) watch_writable(number, channel);
  events.sent(number, std::move(channel.out));
}

// Reads about one message at most, so that all channels are served in turn.
void TcpEngine::pull(int32_t number, EngineEvents& events) {
  const auto found = channels_.find(number);
  if (found == channels_.end()) return;
  Channel& channel = found->second;
  for (size_t most = 2 * kReadBytes; most > 0;) {
    const ssize_t bytes = read_some(channel);
    if (bytes < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (bytes <= 0) return end(number, nullptr, events);
    channel.num_read += bytes;
    events.heard(number);
    most -= std::min<size_t>(most, bytes);
    if (channel.num_read < kHead) continue;
    if (!is_possible_length(channel.in_length)) return end(number, kImpossibleLength, events);
    if (channel.num_read - kHead < channel.in_length) continue;
    channel.num_read = 0;
    events.received(number, channel.in.data(), int64_t(channel.in_length));
    if (channels_.find(number) == channels_.end()) return;
  }
}

ssize_t TcpEngine::read_some(Channel& channel) {
  if (channel.num_read < kHead)
    return read(channel.socket, reinterpret_cast<char*>(&channel.in_length) + channel.num_read, kHead - channel.num_read);
  const size_t done = channel.num_read - kHead, some = std::min<size_t>(kReadBytes, channel.in_length - done);
  if (channel.in.size() < done + some) channel.in.resize(done + some);
  return read(channel.socket, channel.in.data() + done, some);
}

std::unique_ptr<Engine> make_tcp_engine(std::string& why) {
  auto engine = std::make_unique<TcpEngine>();
  if (engine->open()) return engine;
  why = "the system has no more files";
  return nullptr;
}

}  // namespace hpmoe
