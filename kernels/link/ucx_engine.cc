// An engine of UCX: each message is an active message, which UCX carries by the fastest network that both hosts have. The
// socket of a channel tells the addresses, who is gone, and what has arrived.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>

#include "link/engine.h"
#include "link/poller.h"
#include "link/ucx_api.h"
#include "link/watchdog.h"

namespace hpmoe {
namespace {

constexpr uint64_t kWorker = uint64_t{1} << 63;  // among the names of watched files, which channels else are
constexpr unsigned kMessage = 0;         // the only kind of active message
constexpr uint32_t kMostAddress = 4096;  // bytes of a worker's
constexpr char kAsk = 'a', kArrived = 'n';
constexpr int64_t kPatience = 300'000'000;  // for the end of a process to be seen that cannot be reached

// First on a socket, before the address.
struct Hello {
  int32_t channel;  // its number there, which messages to that end carry
  uint32_t address_bytes;
};

class UcxEngine;

// On its way: what it is made of stays until UCX has it.
struct Sending {
  UcxEngine* engine;
  int32_t channel, header;
  Bytes message;
};

struct Receiving {
  UcxEngine* engine;
  int32_t channel;
  Bytes message;
};

class UcxEngine final : public Engine {
 public:
  explicit UcxEngine(const ucx::Api& api) : api_(api) {}

  ~UcxEngine() override {
    while (!channels_.empty()) close(channels_.begin()->first);
    if (worker_) api_.ucp_worker_destroy(worker_);
    if (context_) api_.ucp_cleanup(context_);
  }

  bool open() {
    int events = -1;
    return poller_.open() && make_worker() && api_.ucp_worker_get_efd(worker_, &events) == ucx::kOk &&
           poller_.watch(events, kWorker);
  }

  int32_t connect(int32_t socket) override {
    ucx::Address* address = nullptr;
    size_t bytes = 0;
    if (api_.ucp_worker_get_address(worker_, &address, &bytes) != ucx::kOk) return -ENOMEM;
    const Hello hello = {next_, uint32_t(bytes)};
    Bytes words(sizeof hello + bytes);
    std::memcpy(words.data(), &hello, sizeof hello);
    std::memcpy(words.data() + sizeof hello, address, bytes);
    api_.ucp_worker_release_address(worker_, address);
    tell(socket, words.data(), words.size());  // where nobody is there any more, the socket says so
    if (!poller_.watch(socket, uint64_t(next_))) return -errno;
    channels_[next_].socket = socket;
    return next_++;
  }

  void close(int32_t number) override {
    const auto found = channels_.find(number);
    if (found == channels_.end()) return;
    if (found->second.endpoint) {
      ucx::RequestParam param{};
      param.op_attr_mask = ucx::RequestParam::FLAGS;
      param.flags = ucx::RequestParam::CLOSE_BY_FORCE;
      const ucx::Request request = api_.ucp_ep_close_nbx(found->second.endpoint, &param);
      if (request && !ucx::is_error(request)) api_.ucp_request_free(request);
    }
    ::close(found->second.socket);
    channels_.erase(found);
  }

  void send(int32_t number, Bytes&& message, EngineEvents&) override {
    Channel& channel = channels_.at(number);
    channel.out = std::move(message);
    channel.is_sending = true;
    if (channel.endpoint) post(number, channel);
  }

  bool is_sending(int32_t number) const override {
    const auto found = channels_.find(number);
    return found != channels_.end() && found->second.is_sending;
  }

  // Asks, where that is not known yet.
  bool has_arrived(int32_t number) override {
    const auto found = channels_.find(number);
    if (found == channels_.end()) return true;
    Channel& channel = found->second;
    if (channel.is_sending) return false;
    if (channel.num_asked != channel.num_sent && tell(channel.socket, &kAsk, sizeof kAsk))
      channel.num_asked = channel.num_sent;
    return channel.num_arrived == channel.num_sent;
  }

  void poll(int64_t longest_ns, EngineEvents& events) override {
    if (advance(events)) longest_ns = 0;
    if (longest_ns > 0 && api_.ucp_worker_arm(worker_) == ucx::kBusy) longest_ns = 0;
    const std::vector<epoll_event>& ready = poller_.wait(longest_ns);
    advance(events);  // what has come before an end is read first
    find_unreachable(events);
    for (const epoll_event& one : ready)
      if (one.data.u64 != kWorker) listen(int32_t(one.data.u64), events);
  }

  void wake() override { poller_.wake(); }

 private:
  struct Channel {
    int socket = -1;
    ucx::Endpoint endpoint = nullptr;  // once the other end has told its address
    int32_t theirs = -1;
    int64_t failed_ns = 0;  // when it could not be reached
    bool is_sending = false;
    Bytes out;
    Bytes told;  // by the socket, and not understood yet
    uint64_t num_sent = 0, num_asked = 0, num_arrived = 0, num_came = 0;
  };

  // What UCX has said in a callback, where nothing is done; in order.
  struct Happening {
    enum class Kind { MESSAGE, RENDEZVOUS, RECEIVED, SENT, FAULT } kind;
    int32_t channel;
    void* data;
    size_t bytes;
    const char* fault;
  };

  bool make_worker() {
    ucx::Config config = nullptr;
    if (api_.ucp_config_read(nullptr, nullptr, &config) != ucx::kOk) return false;
    // Hosts have no memory in common, also where they are declared or network namespaces; what the user has set counts.
    if (!std::getenv("UCX_TLS")) api_.ucp_config_modify(config, "TLS", "^sm");
    // Its TCP else connects while an endpoint is made, and frees one whose peer ends just then, which it goes on to use.
    api_.ucp_config_modify(config, "TCP_CONN_NB", "y");
    ucx::ContextParams context{};
    context.field_mask = ucx::ContextParams::FEATURES;
    context.features = ucx::ContextParams::ACTIVE_MESSAGES | ucx::ContextParams::WAKEUP;
    const ucx::Status made = api_.ucp_init_version(1, 12, &context, config, &context_);
    api_.ucp_config_release(config);
    ucx::WorkerParams worker{};
    worker.field_mask = ucx::WorkerParams::THREAD_MODE;
    worker.thread_mode = ucx::WorkerParams::SERIALIZED;
    if (made != ucx::kOk || api_.ucp_worker_create(context_, &worker, &worker_) != ucx::kOk) return false;
    ucx::MessageHandlerParam handler{};
    handler.field_mask = ucx::MessageHandlerParam::ID | ucx::MessageHandlerParam::FLAGS |
                         ucx::MessageHandlerParam::CALLBACK | ucx::MessageHandlerParam::ARGUMENT;
    handler.id = kMessage;
    handler.flags = ucx::MessageHandlerParam::WHOLE | ucx::MessageHandlerParam::PERSISTENT_DATA;
    handler.cb = note_message;
    handler.arg = this;
    return api_.ucp_worker_set_am_recv_handler(worker_, &handler) == ucx::kOk;
  }

  // A few bytes, for which a socket has room.
  static bool tell(int socket, const void* words, size_t bytes) {
    return ::send(socket, words, bytes, MSG_NOSIGNAL | MSG_DONTWAIT) == ssize_t(bytes);
  }

  // By UCX, from inside ucp_worker_progress.

  static ucx::Status note_message(void* of, const void* header, size_t header_bytes, void* data, size_t bytes,
                                  const ucx::MessageParam* param) {
    auto* const engine = static_cast<UcxEngine*>(of);
    int32_t number = -1;
    if (header_bytes == sizeof number) std::memcpy(&number, header, sizeof number);
    if (engine->channels_.find(number) == engine->channels_.end()) return ucx::kOk;  // of nobody, and let go
    const bool is_rendezvous = param->recv_attr & ucx::MessageParam::IS_RENDEZVOUS;
    const auto kind = is_rendezvous ? Happening::Kind::RENDEZVOUS : Happening::Kind::MESSAGE;
    engine->happened_.push_back({kind, number, data, bytes, nullptr});
    return ucx::kInProgress;  // its data stay
  }

  static void note_sent(void* request, ucx::Status, void* of) {
    auto* const sending = static_cast<Sending*>(of);
    sending->engine->happened_.push_back({Happening::Kind::SENT, sending->channel, sending, 0, nullptr});
    sending->engine->api_.ucp_request_free(request);
  }

  static void note_received(void* request, ucx::Status status, size_t, void* of) {
    auto* const receiving = static_cast<Receiving*>(of);
    const auto kind = Happening::Kind::RECEIVED;
    receiving->engine->happened_.push_back({kind, receiving->channel, receiving, status == ucx::kOk, nullptr});
    receiving->engine->api_.ucp_request_free(request);
  }

  static void note_error(void* of, ucx::Endpoint endpoint, ucx::Status) {
    auto* const engine = static_cast<UcxEngine*>(of);
    for (const auto& [number, channel] : engine->channels_)
      if (channel.endpoint == endpoint) engine->happened_.push_back({Happening::Kind::FAULT, number, nullptr, 0, nullptr});
  }

  // Whether anything happened.
  bool advance(EngineEvents& events) {
    bool has_happened = false;
    while (api_.ucp_worker_progress(worker_) > 0) has_happened |= deliver(events);
    return deliver(events) || has_happened;
  }

  bool deliver(EngineEvents& events) {
    bool has_happened = false;
    for (; !happened_.empty(); has_happened = true) {
      const Happening one = happened_.front();
      happened_.pop_front();
      const bool is_served = channels_.find(one.channel) != channels_.end();
      switch (one.kind) {
        case Happening::Kind::MESSAGE:
          if (is_served) come(one.channel, static_cast<const char*>(one.data), one.bytes, events);
          api_.ucp_am_data_release(worker_, one.data);
          break;
        case Happening::Kind::RENDEZVOUS: receive(one, is_served, events); break;
        case Happening::Kind::RECEIVED: {
          const std::unique_ptr<Receiving> whole(static_cast<Receiving*>(one.data));
          if (is_served && one.bytes) come(one.channel, whole->message.data(), whole->message.size(), events);
          if (is_served && !one.bytes) end(one.channel, nullptr, events);
          break;
        }
        case Happening::Kind::SENT: {
          const std::unique_ptr<Sending> sent(static_cast<Sending*>(one.data));
          if (!is_served) break;
          channels_.at(one.channel).is_sending = false;
          events.sent(one.channel, std::move(sent->message));
          break;
        }
        case Happening::Kind::FAULT:
          if (is_served) end(one.channel, one.fault, events);
          break;
      }
    }
    return has_happened;
  }

  void come(int32_t number, const char* message, size_t bytes, EngineEvents& events) {
    if (bytes == 0 || bytes > size_t(kMostMessageBytes)) return end(number, "a message has no possible length", events);
    ++channels_.at(number).num_came;
    events.heard(number);
    events.came(number, message, int64_t(bytes));
  }

  // The bytes of a long message are fetched only now.
  void receive(const Happening& one, bool is_served, EngineEvents& events) {
    if (!is_served || one.bytes > size_t(kMostMessageBytes)) {
      api_.ucp_am_data_release(worker_, one.data);
      if (is_served) end(one.channel, "a message has no possible length", events);
      return;
    }
    auto receiving = std::make_unique<Receiving>(Receiving{this, one.channel, Bytes(one.bytes)});
    ucx::RequestParam param{};
    param.op_attr_mask = ucx::RequestParam::CALLBACK | ucx::RequestParam::USER_DATA;
    param.cb.recv_am = note_received;
    param.user_data = receiving.get();
    const ucx::Request request = api_.ucp_am_recv_data_nbx(worker_, one.data, receiving->message.data(), one.bytes, &param);
    if (!request) return come(one.channel, receiving->message.data(), one.bytes, events);
    if (ucx::is_error(request)) return end(one.channel, nullptr, events);
    receiving.release();  // comes back in note_received
  }

  void end(int32_t number, const char* fault, EngineEvents& events) {
    close(number);
    events.ended(number, fault);
  }

  void post(int32_t number, Channel& channel) {
    auto sending = std::make_unique<Sending>(Sending{this, number, channel.theirs, std::move(channel.out)});
    ucx::RequestParam param{};
    param.op_attr_mask = ucx::RequestParam::CALLBACK | ucx::RequestParam::USER_DATA;
    param.cb.send = note_sent;
    param.user_data = sending.get();
    ++channel.num_sent;
    const ucx::Request request = api_.ucp_am_send_nbx(channel.endpoint, kMessage, &sending->header, sizeof sending->header,
                                                      sending->message.data(), sending->message.size(), &param);
    if (ucx::is_error(request)) return happened_.push_back({Happening::Kind::FAULT, number, nullptr, 0, nullptr});
    Sending* const on_its_way = sending.release();  // comes back as SENT
    if (!request) happened_.push_back({Happening::Kind::SENT, number, on_its_way, 0, nullptr});
  }

  // A process that has just ended cannot be reached either, and its socket is about to say so.
  void find_unreachable(EngineEvents& events) {
    std::vector<int32_t> found;
    for (const auto& [number, channel] : channels_)
      if (channel.failed_ns && now_ns() - channel.failed_ns > kPatience) found.push_back(number);
    for (const int32_t number : found) end(number, "its address is none that UCX reaches from here", events);
  }

  // Reads what a socket tells.
  void listen(int32_t number, EngineEvents& events) {
    const auto found = channels_.find(number);
    if (found == channels_.end()) return;
    Channel& channel = found->second;
    char some[512];
    const ssize_t came = recv(channel.socket, some, sizeof some, MSG_DONTWAIT);
    if (came < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (came <= 0) return end(number, nullptr, events);
    events.heard(number);
    channel.told.insert(channel.told.end(), some, some + came);
    if (channel.failed_ns || (!channel.endpoint && !reach(number, channel))) return;
    size_t done = 0;
    for (uint64_t count = 0; done < channel.told.size();) {
      const char word = channel.told[done];
      if (word == kAsk) {
        char answer[1 + sizeof channel.num_came] = {kArrived};
        std::memcpy(answer + 1, &channel.num_came, sizeof channel.num_came);
        tell(channel.socket, answer, sizeof answer);
        ++done;
      } else if (word != kArrived) {
        return end(number, "a socket says what there is not", events);
      } else if (channel.told.size() - done <= sizeof count) {
        break;
      } else {
        std::memcpy(&channel.num_arrived, channel.told.data() + done + 1, sizeof count);
        done += 1 + sizeof count;
      }
    }
    channel.told.erase(channel.told.begin(), channel.told.begin() + std::ptrdiff_t(done));
  }

  // Makes the endpoint once the whole hello is there; whether it is.
  bool reach(int32_t number, Channel& channel) {
    Hello hello;
    if (channel.told.size() < sizeof hello) return false;
    std::memcpy(&hello, channel.told.data(), sizeof hello);
    const bool is_possible = hello.address_bytes > 0 && hello.address_bytes <= kMostAddress;
    if (is_possible && channel.told.size() < sizeof hello + hello.address_bytes) return false;
    ucx::EndpointParams param{};
    param.field_mask = ucx::EndpointParams::REMOTE_ADDRESS | ucx::EndpointParams::ERROR_MODE |
                       ucx::EndpointParams::ERROR_HANDLER;
    param.address = reinterpret_cast<const ucx::Address*>(channel.told.data() + sizeof hello);
    param.err_mode = ucx::EndpointParams::PEER;
    param.err_handler = {note_error, this};
    if (!is_possible || api_.ucp_ep_create(worker_, &param, &channel.endpoint) != ucx::kOk) {
      channel.endpoint = nullptr;
      channel.failed_ns = now_ns();
      return false;
    }
    channel.theirs = hello.channel;
    channel.told.erase(channel.told.begin(), channel.told.begin() + std::ptrdiff_t(sizeof hello + hello.address_bytes));
    if (channel.is_sending) post(number, channel);
    return true;
  }

  const ucx::Api& api_;
  Poller poller_;
  ucx::Context context_ = nullptr;
  ucx::Worker worker_ = nullptr;
  std::map<int32_t, Channel> channels_;
  std::deque<Happening> happened_;
  int32_t next_ = 0;
};

}  // namespace

std::unique_ptr<Engine> make_ucx_engine(const char* folder, std::string& why) {
  const ucx::Api* const api = ucx::load(folder, why);
  if (!api) return nullptr;
  auto engine = std::make_unique<UcxEngine>(*api);
  if (engine->open()) return engine;
  why = "it finds no network that it can use";
  return nullptr;
}

}  // namespace hpmoe
