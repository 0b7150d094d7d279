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

// Who gives no sign of life for so long is taken for dead.
constexpr int64_t kSilence = 3'000'000'000;

}  // namespace

// Its thread goes on until the process ends.
Proxy* Proxy::start(std::unique_ptr<Engine> engine) {
  if (!engine) return nullptr;
  auto* const made = new Proxy(std::move(engine));
  const SignalsBlocked while_starting;
  try {
    std::thread([made] { made->run(); }).detach();
  } catch (const std::exception&) {
    delete made;
    return nullptr;
  }
  return made;
}

Proxy* Proxy::get(const char* ucx) {
  if (ucx) return by_ucx(ucx).proxy;
  static Proxy* const by_tcp = start(make_tcp_engine());
  return by_tcp;
}

const char* Proxy::ucx_fault(const char* folder) {
  const ByUcx& found = by_ucx(folder);
  return found.proxy ? nullptr : found.why.c_str();
}

const Proxy::ByUcx& Proxy::by_ucx(const char* folder) {
  static const ByUcx found = [&] {
    ByUcx one{nullptr, "its thread cannot be started"};
    auto engine = make_ucx_engine(folder, one.why);
    one.proxy = start(std::move(engine));
    return one;
  }();
  return found;
}

bool Proxy::add(Distant& distant, const Control& mine, int32_t socket) {
  ++num_asking_;
  engine_->wake();
  const std::lock_guard<std::mutex> lock(mutex_);
  --num_asking_;
  const int32_t channel = engine_->connect(socket);
  if (channel >= 0) {
    distant.note_heard(now_ns());
    served_[channel] = {&distant, &mine, 0};
  }
  engine_->wake();
  return channel >= 0;
}

void Proxy::remove(Distant& distant) {
  ++num_asking_;
  engine_->wake();
  const std::lock_guard<std::mutex> lock(mutex_);
  --num_asking_;
  for (auto at = served_.begin(); at != served_.end();) {
    if (at->second.distant == &distant) engine_->close(at->first);
    at = at->second.distant == &distant ? served_.erase(at) : std::next(at);
  }
}

void Proxy::flush(const std::vector<Distant*>& all, int64_t longest_ns) {
  const int64_t until = now_ns() + longest_ns;
  const auto is_done = [](Distant* distant) { return distant->is_gone() || distant->outbox().is_sent(); };
  ++num_asking_;  // it looks more often meanwhile
  engine_->wake();
  while (now_ns() < until && !std::all_of(all.begin(), all.end(), is_done))
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  --num_asking_;
}

void Proxy::run() {
  for (int64_t last = now_ns();;) {
    if (num_asking_ > 0) std::this_thread::sleep_for(std::chrono::microseconds(100));
    const std::lock_guard<std::mutex> lock(mutex_);
    is_awake_.store(false, std::memory_order_seq_cst);
    const bool has_more = send_waiting(now_ns()) || num_asking_ > 0;
    engine_->poll(has_more ? 0 : kBeat / 2, *this);
    const int64_t now = now_ns(), away = now - last - kBeat;
    if (away > 0) {  // as this process was stopped, or all of the machine: nothing could be heard
      for (auto& [channel, served] : served_) served.distant->note_heard(std::min(now, served.distant->heard_ns() + away));
    }
    last = now;
    find_silent(now);
  }
}

bool Proxy::send_waiting(int64_t now) {
  bool has_sent = false;
  for (auto& [channel, served] : served_) {
    if (engine_->is_sending(channel)) continue;
    Bytes message;
    if (served.distant->outbox().take(message)) {
      has_sent = true;
      send(channel, served, std::move(message), now);
    } else if (now - served.sent_ns > kBeat) {
      send(channel, served, served.distant->outbox().beat(), now);
    } else if (num_asking_ > 0 && !served.distant->outbox().is_sent() && engine_->has_arrived(channel)) {
      served.distant->outbox().note_sent();
    }
  }
  return has_sent;
}

void Proxy::send(int32_t channel, Served& served, Bytes&& message, int64_t now) {
  MessageHeader header;
  std::memcpy(&header, message.data(), sizeof header);
  header.ended = served.mine->ended.load(std::memory_order_acquire);
  header.idle_ns = now - served.mine->progress_ns.load(std::memory_order_relaxed);
  std::memcpy(message.data(), &header, sizeof header);
  served.sent_ns = now;
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

void Proxy::came(int32_t channel, const char* message, int64_t bytes) {
  const char* const fault = served_.at(channel).distant->take(message, bytes);
  if (!fault) return;
  engine_->close(channel);
  ended(channel, fault);
}

void Proxy::heard(int32_t channel) { served_.at(channel).distant->note_heard(now_ns()); }

void Proxy::sent(int32_t channel, Bytes&& message) { served_.at(channel).distant->outbox().give_back(std::move(message)); }

void Proxy::ended(int32_t channel, const char* fault) {
  Distant& distant = *served_.at(channel).distant;
  served_.erase(channel);
  char text[sizeof Failure::text] = {};
  if (fault) std::snprintf(text, sizeof text, "what it sent is refused, as %s", fault);
  distant.end(fault ? Code::PEER_FAILED : Code::PEER_DIED, -1, text);
}

}  // namespace hpmoe
