// Fault: the error that the emulator raises if a kernel breaks a rule of the hardware.
#pragma once

#include <stdexcept>
#include <string>

namespace emulator {

struct Fault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

template <class... Parts>
std::string text(const Parts&... parts) {
  std::string out;
  const auto add = [&out](const auto& part) {
    if constexpr (std::is_arithmetic_v<std::decay_t<decltype(part)>>) {
      out += std::to_string(part);
    } else {
      out += part;
    }
  };
  (add(parts), ...);
  return out;
}

// Throws a Fault unless a rule of the hardware holds.
template <class... Parts>
void require(bool holds, const Parts&... parts) {
  if (!holds) throw Fault(text(parts...));
}

}  // namespace emulator
