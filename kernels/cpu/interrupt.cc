#include "interrupt.h"

#include <csignal>
#include <mutex>

namespace hpmoe {
namespace {

std::atomic<int32_t> num_interrupts{0};
struct sigaction previous;
std::mutex mutex;
int32_t num_watches = 0;

void count_and_pass_on(int number, siginfo_t* info, void* context) {
  num_interrupts.fetch_add(1, std::memory_order_relaxed);
  if (previous.sa_flags & SA_SIGINFO) {
    previous.sa_sigaction(number, info, context);
  } else if (previous.sa_handler != SIG_IGN && previous.sa_handler != SIG_DFL) {
    previous.sa_handler(number);
  }
}

}  // namespace

InterruptWatch::InterruptWatch(bool is_wanted) : is_wanted_(is_wanted), seen_(num_interrupts.load()) {
  if (!is_wanted_) return;
  const std::lock_guard<std::mutex> lock(mutex);
  if (num_watches++ > 0) return;
  struct sigaction ours{};
  ours.sa_sigaction = count_and_pass_on;
  ours.sa_flags = SA_SIGINFO | SA_RESTART;
  sigemptyset(&ours.sa_mask);
  sigaction(SIGINT, &ours, &previous);
}

InterruptWatch::~InterruptWatch() {
  if (!is_wanted_) return;
  const std::lock_guard<std::mutex> lock(mutex);
  if (--num_watches == 0) sigaction(SIGINT, &previous, nullptr);
}

bool InterruptWatch::is_interrupted() const {
  return is_wanted_ && num_interrupts.load(std::memory_order_relaxed) != seen_;
}

}  // namespace hpmoe
