// A core's program as a coroutine: it runs until it has to wait, and the scheduler goes on elsewhere. No threads, so that
// a seed repeats a run exactly.
#pragma once

#include <ucontext.h>

#include <exception>
#include <functional>
#include <memory>
#include <utility>

namespace twin {

class Fiber {
 public:
  explicit Fiber(std::function<void()> body) : body_(std::move(body)), stack_(new char[kStackBytes]) {
    getcontext(&own_);
    own_.uc_stack.ss_sp = stack_.get();
    own_.uc_stack.ss_size = kStackBytes;
    own_.uc_link = &caller_;
    const auto self = reinterpret_cast<uintptr_t>(this);
    makecontext(&own_, reinterpret_cast<void (*)()>(&Fiber::enter), 2, static_cast<uint32_t>(self >> 32),
                static_cast<uint32_t>(self));
  }
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Runs until the body yields or ends; what the body throws is thrown here.
  void resume() {
    swapcontext(&caller_, &own_);
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  }
  void yield() { swapcontext(&own_, &caller_); }
  bool has_ended() const { return has_ended_; }

 private:
  static constexpr size_t kStackBytes = 256 * 1024;

  static void enter(uint32_t high, uint32_t low) {
    auto* self = reinterpret_cast<Fiber*>(uintptr_t{high} << 32 | low);
    try {
      self->body_();
    } catch (...) {
      self->error_ = std::current_exception();
    }
    self->has_ended_ = true;
  }

  std::function<void()> body_;
  std::unique_ptr<char[]> stack_;
  ucontext_t own_{}, caller_{};
  std::exception_ptr error_;
  bool has_ended_ = false;
};

}  // namespace twin
