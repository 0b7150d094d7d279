// Tells the sanitizers when a fiber's stack is entered and left; empty without sanitizers.
#pragma once

#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#elif defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace emulator {

#if defined(__SANITIZE_ADDRESS__)

class StackSwitch {
 public:
  StackSwitch(void* stack, size_t bytes) : stack_(stack), bytes_(bytes) {}
  void enter_fiber() { __sanitizer_start_switch_fiber(&of_caller_, stack_, bytes_); }
  void back_in_caller() { __sanitizer_finish_switch_fiber(of_caller_, nullptr, nullptr); }
  void leave_fiber() { __sanitizer_start_switch_fiber(&of_fiber_, caller_stack_, caller_bytes_); }
  void back_in_fiber() { __sanitizer_finish_switch_fiber(of_fiber_, &caller_stack_, &caller_bytes_); }
  void end_fiber() { __sanitizer_start_switch_fiber(nullptr, caller_stack_, caller_bytes_); }

 private:
  void *stack_, *of_caller_ = nullptr, *of_fiber_ = nullptr;
  size_t bytes_, caller_bytes_ = 0;
  const void* caller_stack_ = nullptr;
};

#elif defined(__SANITIZE_THREAD__)

// Always inlined: otherwise the sanitizer would see a function begin on one stack and end on another.
#define HPMOE_EMULATOR_INLINE __attribute__((always_inline))

class StackSwitch {
 public:
  StackSwitch(void*, size_t) : fiber_(__tsan_create_fiber(0)) {}
  ~StackSwitch() { __tsan_destroy_fiber(fiber_); }
  HPMOE_EMULATOR_INLINE void enter_fiber() {
    caller_ = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(fiber_, 0);
  }
  void back_in_caller() {}
  HPMOE_EMULATOR_INLINE void leave_fiber() { __tsan_switch_to_fiber(caller_, 0); }
  void back_in_fiber() {}
  HPMOE_EMULATOR_INLINE void end_fiber() { leave_fiber(); }

 private:
  void *fiber_, *caller_ = nullptr;
};

#undef HPMOE_EMULATOR_INLINE

#else

struct StackSwitch {
  StackSwitch(void*, size_t) {}
  void enter_fiber() {}
  void back_in_caller() {}
  void leave_fiber() {}
  void back_in_fiber() {}
  void end_fiber() {}
};

#endif

}  // namespace emulator
