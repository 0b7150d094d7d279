// An engine of TCP sockets: each message goes as its length and its bytes.
#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>

#include "link/engine.h"
#include "link/poller.h"

namespace hpmoe {
namespace {

constexpr size_t kReadBytes = 1 << 20;  // at most at once, so that a length that lies takes no memory

class TcpEngine final : public Engine {
 public:
  ~TcpEngine() override {
    for (const auto& [number, channel] : channels_) ::close(channel.socket);
  }

  bool open() const { return poller_.open(); }

  int32_t connect(int32_t socket) override {
    const int one = 1;
    setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    fcntl(socket, F_SETFL, fcntl(socket, F_GETFL) | O_NONBLOCK);
    if (!poller_.watch(socket, uint64_t(next_))) return -errno;
    channels_[next_].socket = socket;
    return next_++;
  }

  void close(int32_t channel) override {
    const auto found = channels_.find(channel);
    if (found == channels_.end()) return;
    ::close(found->second.socket);
    channels_.erase(found);
  }

  void send(int32_t number, Bytes&& message, EngineEvents& events) override {
    Channel& channel = channels_.at(number);
    channel.out = std::move(message);
    channel.out_length = channel.out.size();
    channel.num_sent = 0;
    channel.is_sending = true;
    push(number, events);
    if (channel.is_sending) watch(number, channel);
  }

  bool is_sending(int32_t number) const override {
    const auto found = channels_.find(number);
    return found != channels_.end() && found->second.is_sending;
  }

  bool has_arrived(int32_t number) override {
    const auto found = channels_.find(number);
    int waiting = 0;
    return found == channels_.end() ||
           (!found->second.is_sending && ioctl(found->second.socket, SIOCOUTQ, &waiting) == 0 && waiting == 0);
  }

  void poll(int64_t longest_ns, EngineEvents& events) override {
    for (const epoll_event& ready : poller_.wait(longest_ns)) {
      const auto number = static_cast<int32_t>(ready.data.u64);
      if (ready.events & EPOLLOUT) push(number, events);
      if (ready.events & ~uint32_t{EPOLLOUT}) pull(number, events);
    }
  }

  void wake() override { poller_.wake(); }

 private:
  struct Channel {
    int socket = -1;
    bool is_sending = false, is_watched = false;
    Bytes out, in;
    uint64_t out_length = 0, in_length = 0;
    size_t num_sent = 0, num_came = 0;  // with the length before the bytes
  };

  void watch(int32_t number, Channel& channel) {
    channel.is_watched = channel.is_sending;
    poller_.watch_also_for_room(channel.socket, uint64_t(number), channel.is_sending);
  }

  void end(int32_t number, const char* fault, EngineEvents& events) {
    close(number);
    events.ended(number, fault);
  }

  void push(int32_t number, EngineEvents& events) {
    const auto found = channels_.find(number);
    if (found == channels_.end() || !found->second.is_sending) return;
    Channel& channel = found->second;
    const size_t whole = sizeof channel.out_length + channel.out.size();
    while (channel.num_sent < whole) {
      iovec parts[2];
      int count = 0;
      if (channel.num_sent < sizeof channel.out_length)
        parts[count++] = {reinterpret_cast<char*>(&channel.out_length) + channel.num_sent,
                          sizeof channel.out_length - channel.num_sent};
      const size_t done = std::max(channel.num_sent, sizeof channel.out_length) - sizeof channel.out_length;
      parts[count++] = {channel.out.data() + done, channel.out.size() - done};
      msghdr message{};
      message.msg_iov = parts;
      message.msg_iovlen = count;
      const ssize_t sent = sendmsg(channel.socket, &message, MSG_NOSIGNAL);
      if (sent < 0 && (errno == EAGAIN || errno == EINTR)) return;
      if (sent < 0) {  // what has come before is read first
        channel.is_sending = false;
        return watch(number, channel);
      }
      channel.num_sent += sent;
    }
    channel.is_sending = false;
    if (channel.is_watched) watch(number, channel);
    events.sent(number, std::move(channel.out));
  }

  // Reads what is there; at most about a message, so that all channels take turns.
  void pull(int32_t number, EngineEvents& events) {
    const auto found = channels_.find(number);
    if (found == channels_.end()) return;
    Channel& channel = found->second;
    for (size_t most = 2 * kReadBytes; most > 0;) {
      const ssize_t came = read_some(channel);
      if (came < 0 && (errno == EAGAIN || errno == EINTR)) return;
      if (came <= 0) return end(number, nullptr, events);
      channel.num_came += came;
      events.heard(number);
      most -= std::min<size_t>(most, came);
      if (channel.num_came < sizeof channel.in_length) continue;
      if (channel.in_length == 0 || channel.in_length > uint64_t{kMostMessageBytes})
        return end(number, "a message has no possible length", events);
      if (channel.num_came - sizeof channel.in_length < channel.in_length) continue;
      channel.num_came = 0;
      events.came(number, channel.in.data(), int64_t(channel.in_length));
      if (channels_.find(number) == channels_.end()) return;
    }
  }

  ssize_t read_some(Channel& channel) {
    constexpr size_t kHead = sizeof channel.in_length;
    if (channel.num_came < kHead)
      return read(channel.socket, reinterpret_cast<char*>(&channel.in_length) + channel.num_came, kHead - channel.num_came);
    const size_t done = channel.num_came - kHead, some = std::min<size_t>(kReadBytes, channel.in_length - done);
    if (channel.in.size() < done + some) channel.in.resize(done + some);
    return read(channel.socket, channel.in.data() + done, some);
  }

  Poller poller_;
  std::map<int32_t, Channel> channels_;
  int32_t next_ = 0;
};

}  // namespace

std::unique_ptr<Engine> make_tcp_engine() {
  auto engine = std::make_unique<TcpEngine>();
  return engine->open() ? std::move(engine) : nullptr;
}

}  // namespace hpmoe
