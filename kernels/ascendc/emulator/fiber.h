// A core's program as a coroutine: it runs until it must wait, and the scheduler resumes another one. There are no
// threads, so a seed repeats a run exactly.
#pragma once

#include <ucontext.h>

#include <exception>
#include <functional>
#include <memory>
#include <utility>

#include "stacks.h"

namespace emulator {

class Fiber {
 public:
  explicit Fiber(std::function<void()> body)
      : body_(std::move(body)), stack_(new char[kStackBytes]), switch_(stack_.get(), kStackBytes) {
    getcontext(&own_);
    own_.uc_stack.ss_sp = stack_.get();
    own_.uc_stack.ss_size = kStackBytes;
    const auto self = reinterpret_cast<uintptr_t>(this);
    makecontext(&own_, reinterpret_cast<void (*)()>(&Fiber::enter), 2, static_cast<uint32_t>(self >> 32),
                static_cast<uint32_t>(self));
  }
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;
  // An unfinished body is abandoned; its objects are not destroyed.
  ~Fiber() {
    is_given_up_ = true;
    if (has_begun_ && !has_ended_) enter_fiber();
  }

  // Runs the body until it yields or ends; rethrows its exception.
  void resume() {
    enter_fiber();
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  }
  void yield() {
    switch_.leave_fiber();
    swapcontext(&own_, &caller_);
    switch_.back_in_fiber();
    if (is_given_up_) throw GivenUp();
  }
  bool has_ended() const { return has_ended_; }

 private:
  struct GivenUp {};
  static constexpr size_t kStackBytes = 256 * 1024;

  void enter_fiber() {
    has_begun_ = true;
    switch_.enter_fiber();
    swapcontext(&caller_, &own_);
    switch_.back_in_caller();
  }

  static void enter(uint32_t high, uint32_t low) {
    auto* self = reinterpret_cast<Fiber*>(uintptr_t{high} << 32 | low);
    self->switch_.back_in_fiber();
    try {
      self->body_();
    } catch (const GivenUp&) {
    } catch (...) {
      self->error_ = std::current_exception();
    }
    self->has_ended_ = true;
    self->switch_.end_fiber();
    setcontext(&self->caller_);
  }

  std::function<void()> body_;
  std::unique_ptr<char[]> stack_;
  StackSwitch switch_;
  ucontext_t own_{}, caller_{};
  std::exception_ptr error_;
  bool has_begun_ = false, has_ended_ = false, is_given_up_ = false;
};

}  // namespace emulator
