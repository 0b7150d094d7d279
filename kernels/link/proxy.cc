#include "link/proxy.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <exception>
#include <thread>

#include "cpu/signals_blocked.h"
#include "link/watchdog.h"

namespace hpmoe {
namespace {

// A rank without a heartbeat for so long is declared dead.
constexpr int64_t kSilence = 3'000'000'000;

}  // namespace

// The thread runs until the process ends.
Proxy::Started Proxy::start(const char* ucx) {
  Started started{nullptr, ""};
  auto engine = ucx ? make_ucx_engine(ucx, started.why) : make_tcp_engine(started.why);
  if (!engine) return started;
  auto made = std::unique_ptr<Proxy>(new Proxy(std::move(engine)));
  const SignalsBlocked while_starting;
  try {
    std::thread([proxy = made.get()] { proxy->run(); }).detach();
    started.proxy = made.release();
  } catch (const std::exception&) {
    started.why = "its thread cannot be started";
  }
  return started;
}

const Proxy::Started& Proxy::get(const char* ucx) {
  if (!ucx) {
    static const Started by_tcp = start(nullptr);
    return by_tcp;
  }
  static const Started by_ucx = start(ucx);
  return by_ucx;
}

std::unique_lock<std::mutex> Proxy::interrupt() {
  ++num_interrupting_;
  engine_->wake();
  std::unique_lock<std::mutex> lock(mutex_);
  --num_interrupting_;
  return lock;
}

bool Proxy::add(Distant& distant, const Control& mine, int32_t socket) {
  const auto lock = interrupt();
  const int32_t channel = engine_->connect(socket);
  if (channel >= 0) {
    distant.note_heard(now_ns());
    served_[channel] = {&distant, &mine, 0, false};
  }
  engine_->wake();
  return channel >= 0;
}

void Proxy::remove(Distant& distant) {
  const auto lock = interrupt();
  for (auto at = served_.begin(); at != served_.end();) {
    if (at->second.distant == &distant) engine_->close(at->first);
    at = at->second.distant == &distant ? served_.erase(at) : std::next(at);
  }
}

void Proxy::run() {
  for (int64_t last = now_ns();;) {
    if (num_interrupting_ > 0) std::this_thread::sleep_for(std::chrono::microseconds(100));
    const std::lock_guard<std::mutex> lock(mutex_);
    is_awake_.store(false, std::memory_order_seq_cst);
    const bool has_more = send_waiting(now_ns()) || num_interrupting_ > 0;
    engine_->poll(has_more ? 0 : kBeat / 2, *this);
    const int64_t now = now_ns(), away = now - last - kBeat;
    if (away > 0) {  // this process or the machine was stopped, and could receive nothing
      for (auto& [channel, served] : served_) served.distant->note_heard(std::min(now, served.distant->heard_ns() + away));
    }
    last = now;
    find_silent(now);
  }
}

bool Proxy::send_waiting(int64_t now) {
  bool has_sent = false;
  for (auto& [channel, served] : served_) {
    if (served.is_sending) continue;
    Outbox& outbox = served.distant->outbox();
    Bytes message;
    bool has_message = outbox.take(message);
    if (!has_message && now - served.sent_ns > kBeat) {
      outbox.post(MessageKind::BEAT, 0, 0, nullptr, 0);
      has_message = outbox.take(message);
    }
    if (!has_message) continue;
    has_sent = true;
    send(channel, served, std::move(message), now);
  }
  return has_sent;
}

void Proxy::send(int32_t channel, Served& served, Bytes&& message, int64_t now) {
  MessageHeader header;
  std::memcpy(&header, message.data(), sizeof header);
  header.num_taken = served.distant->num_taken();
  header.ended = served.mine->ended.load(std::memory_order_acquire);
  header.idle_ns = now - served.mine->progress_ns.load(std::memory_order_relaxed);
  std::memcpy(message.data(), &header, sizeof header);
  served.sent_ns = now;
  served.is_sending = true;
  engine_->send(channel, std::move(message), *this);
}

void Proxy::find_silent(int64_t now) {
  std::vector<int32_t> silent;
  for (const auto& [channel, served] : served_)
    if (now - served.distant->heard_ns() > kSilence) silent.push_back(channel);
  for (const int32_t channel : silent) {
    engine_->close(channel);
    Distant& distant = *served_.at(channel).distant;
    distant.end(Code::PEER_LOST, (now - distant.heard_ns()) / 1'000'000, "");
    served_.erase(channel);
  }
}

void Proxy::received(int32_t channel, const char* message, int64_t bytes) {
  heard(channel);
  const char* const fault = served_.at(channel).distant->take(message, bytes);
  if (!fault) return;
  engine_->close(channel);
  ended(channel, fault);
}

void Proxy::heard(int32_t channel) { served_.at(channel).distant->note_heard(now_ns()); }

void Proxy::sent(int32_t channel, Bytes&& message) {
  Served& served = served_.at(channel);
  served.is_sending = false;
  served.distant->outbox().give_back(std::move(message));
}

void Proxy::ended(int32_t channel, const char* fault) {
  Distant& distant = *served_.at(channel).distant;
  served_.erase(channel);
  char text[sizeof Failure::text] = {};
  if (fault) std::snprintf(text, sizeof text, "what it sent is refused, as %s", fault);
  distant.end(fault ? Code::PEER_FAILED : Code::PEER_DIED, -1, text);
}

}  // namespace hpmoe
