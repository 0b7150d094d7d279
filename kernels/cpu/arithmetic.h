// How a thread computes with floating-point numbers.
#pragma once

#include <cfenv>

namespace hpmoe {

// While one of these lives, its thread rounds to nearest and keeps subnormal numbers, whatever its program chose: some
// threads of MindSpore take them for 0, and so do the threads that those start.
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
