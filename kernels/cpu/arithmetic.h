// The floating-point mode of a thread.
#pragma once

#include <cfenv>

namespace hpmoe {

// During its lifetime its thread rounds to nearest and keeps subnormal numbers. Some threads of MindSpore flush subnormal
// numbers to 0, and so do the threads that those start.
class DefaultArithmetic {
 public:
  DefaultArithmetic() {
    std::fegetenv(&previous_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultArithmetic() { std::fesetenv(&previous_); }
  DefaultArithmetic(const DefaultArithmetic&) = delete;
  DefaultArithmetic& operator=(const DefaultArithmetic&) = delete;

 private:
  std::fenv_t previous_;
};

}  // namespace hpmoe
