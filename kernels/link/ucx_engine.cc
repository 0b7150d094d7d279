// An engine that sends each message as an active message of UCX, over the fastest network that both hosts have. Sockets are
// left to the TCP engine: the first message there is the address of the other end, and its end is the end of the channel.
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>

#include "link/tcp_engine.h"
#include "link/ucx_api.h"
#include "link/watchdog.h"

namespace hpmoe {
namespace {

constexpr unsigned kMessage = 0;  // the only kind of active message
constexpr int64_t kMostAddress = 4096;  // bytes of a worker's address
constexpr int64_t kPatience = 300'000'000;  // until the socket of an ended process reports its end

class UcxEngine;

// A message that UCX sends or receives, with what its callback needs.
struct Transfer {
  UcxEngine* engine;
  int32_t channel;  // in this process
  int32_t header;  // of a sent message: the channel's number in the other process
  Bytes message;
};

class UcxEngine final : public Engine, private EngineEvents {
 public:
  explicit UcxEngine(const ucx::Api& api) : api_(api) {}

  ~UcxEngine() override {
    while (!channels_.empty()) close(channels_.begin()->first);
    if (worker_) api_.ucp_worker_destroy(worker_);
    if (context_) api_.ucp_cleanup(context_);
  }

  bool open() {
    int file = -1;
    return sockets_.open() && make_worker() && api_.ucp_worker_get_efd(worker_, &file) == ucx::kOk && sockets_.watch(file);
  }

  int32_t connect(int32_t socket) override {
    const int32_t number = sockets_.connect(socket);
    if (number < 0) return number;
    ucx::Address* address = nullptr;
    size_t bytes = 0;
    if (api_.ucp_worker_get_address(worker_, &address, &bytes) != ucx::kOk) {
      sockets_.close(number);
      return -ENOMEM;
    }
    Bytes words(sizeof number + bytes);
    std::memcpy(words.data(), &number, sizeof number);
    std::memcpy(words.data() + sizeof number, address, bytes);
    api_.ucp_worker_release_address(worker_, address);
    channels_[number] = {};
    sockets_.send(number, std::move(words), *this);
    return number;
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
    sockets_.close(number);
    channels_.erase(found);
  }

  void send(int32_t number, Bytes&& message, EngineEvents&) override {
    Channel& channel = channels_.at(number);
    channel.out = std::move(message);
    if (channel.endpoint) post(number, channel);
  }

  void poll(int64_t longest_ns, EngineEvents& events) override {
    events_ = &events;
    if (advance()) longest_ns = 0;
    if (longest_ns > 0 && api_.ucp_worker_arm(worker_) == ucx::kBusy) longest_ns = 0;
    sockets_.poll(longest_ns, *this);
    advance();
    find_unreachable();
  }

  void wake() override { sockets_.wake(); }

 private:
  struct Channel {
    ucx::Endpoint endpoint = nullptr;  // set once the other process has sent its address
    int32_t theirs = -1;
    int64_t failed_ns = 0;  // when the address could not be reached
    Bytes out;  // waits for the endpoint
  };

  // Handles events of the sockets.

  void received(int32_t number, const char* words, int64_t bytes) override {
    Channel& channel = channels_.at(number);
    if (channel.theirs >= 0) return end(number, "its socket sends a second address");
    std::memcpy(&channel.theirs, words, std::min<size_t>(bytes, sizeof channel.theirs));
    const auto head = int64_t{sizeof channel.theirs};
    ucx::EndpointParams param{};
    param.field_mask = ucx::EndpointParams::REMOTE_ADDRESS | ucx::EndpointParams::ERROR_MODE |
                       ucx::EndpointParams::ERROR_HANDLER;
    param.address = reinterpret_cast<const ucx::Address*>(words + head);
    param.err_mode = ucx::EndpointParams::PEER;
    param.err_handler = {note_error, this};
    const bool is_possible = bytes > head && bytes <= head + kMostAddress && channel.theirs >= 0;
    if (!is_possible || api_.ucp_ep_create(worker_, &param, &channel.endpoint) != ucx::kOk) {
      channel.endpoint = nullptr;
      channel.failed_ns = now_ns();
    } else if (!channel.out.empty()) {
      post(number, channel);
    }
  }

  void heard(int32_t number) override { events_->heard(number); }
  void sent(int32_t, Bytes&&) override {}

  void ended(int32_t number, const char* fault) override {
    advance();  // messages that have already arrived
    if (channels_.count(number)) end(number, fault);
  }

  bool make_worker() {
    ucx::Config config = nullptr;
    if (api_.ucp_config_read(nullptr, nullptr, &config) != ucx::kOk) return false;
    // Hosts share no memory, even if they are network namespaces of one machine. A variable of the user takes precedence.
    if (!std::getenv("UCX_TLS")) api_.ucp_config_modify(config, "TLS", "^sm");
    // With a blocking connect, UCX's TCP frees the endpoint of a process that ends at that moment, and then uses it.
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

  // Callbacks of UCX inside ucp_worker_progress; each notes work for advance().

  static ucx::Status note_message(void* of, const void* header, size_t header_bytes, void* data, size_t bytes,
                                  const ucx::MessageParam* param) {
    auto* const engine = static_cast<UcxEngine*>(of);
    int32_t number = -1;
    if (header_bytes == sizeof number) std::memcpy(&number, header, sizeof number);
    if (!engine->channels_.count(number)) return ucx::kOk;  // no such channel: dropped
    const bool is_rendezvous = param->recv_attr & ucx::MessageParam::IS_RENDEZVOUS;
    engine->noted_.push_back([=] { engine->take(number, data, bytes, is_rendezvous); });
    return ucx::kInProgress;  // keeps the data
  }

  static void note_sent(void* request, ucx::Status, void* of) {
    auto* const transfer = static_cast<Transfer*>(of);
    transfer->engine->api_.ucp_request_free(request);
    transfer->engine->note_end_of(transfer);
  }

  static void note_fetched(void* request, ucx::Status status, size_t, void* of) {
    auto* const transfer = static_cast<Transfer*>(of);
    UcxEngine* const engine = transfer->engine;
    engine->api_.ucp_request_free(request);
    engine->noted_.push_back([=] { engine->take_fetched(std::unique_ptr<Transfer>(transfer), status == ucx::kOk); });
  }

  static void note_error(void* of, ucx::Endpoint endpoint, ucx::Status) {
    auto* const engine = static_cast<UcxEngine*>(of);
    for (const auto& [number, channel] : engine->channels_)
      if (channel.endpoint == endpoint) engine->noted_.push_back([engine, n = number] { engine->end(n, nullptr); });
  }

  void note_end_of(Transfer* transfer) {
    noted_.push_back([=] {
      const std::unique_ptr<Transfer> done(transfer);
      if (channels_.count(done->channel)) events_->sent(done->channel, std::move(done->message));
    });
  }

  // Returns true if anything happened.
  bool advance() {
    bool has_happened = false;
    for (bool has_more = true; has_more;) {
      has_more = api_.ucp_worker_progress(worker_) > 0;
      for (; !noted_.empty(); has_happened = true) {
        const std::function<void()> act = std::move(noted_.front());
        noted_.pop_front();
        act();
      }
    }
    return has_happened;
  }

  void take(int32_t number, void* data, size_t bytes, bool is_rendezvous) {
    const bool is_open = channels_.count(number), is_possible = is_possible_length(bytes);
    if (is_open && is_possible && is_rendezvous) return fetch(number, data, bytes);
    if (is_open && is_possible) events_->received(number, static_cast<const char*>(data), int64_t(bytes));
    api_.ucp_am_data_release(worker_, data);
    if (is_open && !is_possible) end(number, kImpossibleLength);
  }

  // Fetches the bytes of a long message from the other process.
  void fetch(int32_t number, void* data, size_t bytes) {
    auto transfer = std::make_unique<Transfer>(Transfer{this, number, -1, Bytes(bytes)});
    ucx::RequestParam param = calling(transfer.get());
    param.cb.recv_am = note_fetched;
    const ucx::Request request = api_.ucp_am_recv_data_nbx(worker_, data, transfer->message.data(), bytes, &param);
    if (!request || ucx::is_error(request)) return take_fetched(std::move(transfer), !request);
    transfer.release();  // note_fetched() deletes it
  }

  void take_fetched(std::unique_ptr<Transfer> transfer, bool is_whole) {
    if (!channels_.count(transfer->channel)) return;
    if (!is_whole) return end(transfer->channel, nullptr);
    events_->received(transfer->channel, transfer->message.data(), int64_t(transfer->message.size()));
  }

  static ucx::RequestParam calling(Transfer* transfer) {
    ucx::RequestParam param{};
    param.op_attr_mask = ucx::RequestParam::CALLBACK | ucx::RequestParam::USER_DATA;
    param.user_data = transfer;
    return param;
  }

  void post(int32_t number, Channel& channel) {
    auto transfer = std::make_unique<Transfer>(Transfer{this, number, channel.theirs, std::move(channel.out)});
    channel.out.clear();
    ucx::RequestParam param = calling(transfer.get());
    param.cb.send = note_sent;
    const ucx::Request request = api_.ucp_am_send_nbx(channel.endpoint, kMessage, &transfer->header, sizeof transfer->header,
                                                      transfer->message.data(), transfer->message.size(), &param);
    if (ucx::is_error(request)) return noted_.push_back([=] { end(number, nullptr); });
    Transfer* const under_way = transfer.release();  // the end of the transfer deletes it
    if (!request) note_end_of(under_way);
  }

  // Ends channels whose address UCX could not reach, unless their socket reports the end of the process first.
  void find_unreachable() {
    std::vector<int32_t> found;
    for (const auto& [number, channel] : channels_)
      if (channel.failed_ns && now_ns() - channel.failed_ns > kPatience) found.push_back(number);
    for (const int32_t number : found) end(number, "UCX does not reach its address from this host");
  }

  void end(int32_t number, const char* fault) {
    if (!channels_.count(number)) return;
    close(number);
    events_->ended(number, fault);
  }

  const ucx::Api& api_;
  TcpEngine sockets_;
  ucx::Context context_ = nullptr;
  ucx::Worker worker_ = nullptr;
  std::map<int32_t, Channel> channels_;
  std::deque<std::function<void()>> noted_;
  EngineEvents* events_ = nullptr;  // of the current poll
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
