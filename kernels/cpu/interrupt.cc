#include "interrupt.h"

#include <pthread.h>

#include <csignal>
#include <mutex>

namespace hpmoe {
namespace {

std::atomic<int32_t> num_interrupts{0};
struct sigaction previous;
std::mutex mutex;
int32_t num_watches = 0;

// A forked process has none of the threads whose launches are watched.
void stop_watching() {
  if (num_watches > 0) sigaction(SIGINT, &previous, nullptr);
  num_watches = 0;
  mutex.unlock();
}

const int kForkHandled = pthread_atfork([] { mutex.lock(); }, [] { mutex.unlock(); }, stop_watching);

void count_interrupt(int) { num_interrupts.fetch_add(1, std::memory_order_relaxed); }

}  // namespace

InterruptWatch::InterruptWatch(bool is_wanted) : is_wanted_(is_wanted), seen_(num_interrupts.load()) {
  if (!is_wanted_) return;
  const std::lock_guard<std::mutex> lock(mutex);
  if (num_watches++ > 0) return;
  struct sigaction ours{};
  ours.sa_handler = count_interrupt;
  ours.sa_flags = SA_RESTART;
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
