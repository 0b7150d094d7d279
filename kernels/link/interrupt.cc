#include "interrupt.h"

#include <pthread.h>

#include <csignal>
#include <mutex>

namespace hpmoe {
namespace {

constexpr int64_t kBetweenLooks = 5'000'000;

// A handler on another thread may count while the watch ends; the next watch reports an interrupt that was not reported.
std::atomic<int32_t> num_interrupts{0}, num_told{0}, num_watches{0};
std::mutex mutex;  // guards the changes of the variables below, and num_watches

// The action of SIGINT before a watch. A handler may read one at any time and takes no mutex, so none is changed or
// freed.
struct Known {
  const struct sigaction action;
  const Known* const next;
};
std::atomic<const Known*> all_known{nullptr}, before{nullptr};  // before: of the first of the living watches

bool is_same(const struct sigaction& a, const struct sigaction& b) {
  if (a.sa_flags != b.sa_flags || a.sa_sigaction != b.sa_sigaction) return false;
  for (int signal = 1; signal < NSIG; ++signal)
    if (sigismember(&a.sa_mask, signal) != sigismember(&b.sa_mask, signal)) return false;
  return true;
}

// Keeps each action once; a program has few different handlers.
void remember(const struct sigaction& found) {
  const Known* known = all_known.load();
  while (known && !is_same(known->action, found)) known = known->next;
  if (!known) all_known.store(known = new Known{found, all_known.load()});
  before.store(known);
}

void put_back() { sigaction(SIGINT, &before.load()->action, nullptr); }

// Forwards a signal. Libraries that save and restore handlers on their own threads may leave this handler installed after
// a watch.
void hand_on(int signal, siginfo_t* info, void* context) {
  const struct sigaction& action = before.load()->action;
  if (action.sa_flags & SA_SIGINFO) {
    action.sa_sigaction(signal, info, context);
  } else if (action.sa_handler == SIG_DFL) {
    sigaction(signal, &action, nullptr);
    raise(signal);
  } else if (action.sa_handler != SIG_IGN) {
    action.sa_handler(signal);
  }
}

void count_interrupt(int signal, siginfo_t* info, void* context) {
  if (num_watches.load() == 0) return hand_on(signal, info, context);
  num_interrupts.fetch_add(1);
}

// Returns true if this file's handler is installed; `found` is the installed action.
bool is_ours(struct sigaction& found) {
  sigaction(SIGINT, nullptr, &found);
  return found.sa_sigaction == count_interrupt;
}

void take() {
  struct sigaction ours{};
  ours.sa_sigaction = count_interrupt;
  ours.sa_flags = SA_RESTART | SA_SIGINFO;
  sigemptyset(&ours.sa_mask);
  sigaction(SIGINT, &ours, nullptr);
}

// Ends all watches in a forked process, which has no threads of launches.
void stop_watching() {
  if (num_watches.exchange(0) > 0) put_back();
  mutex.unlock();
}

const int kForkHandled = pthread_atfork([] { mutex.lock(); }, [] { mutex.unlock(); }, stop_watching);

}  // namespace

InterruptWatch::InterruptWatch(bool is_wanted) : is_wanted_(is_wanted), seen_(num_told.load()) {
  if (!is_wanted_) return;
  const std::lock_guard<std::mutex> lock(mutex);
  struct sigaction found;
  if (num_watches == 0 && !is_ours(found)) remember(found);
  if (num_watches++ == 0) take();
}

InterruptWatch::~InterruptWatch() { end(); }

bool InterruptWatch::end() {
  if (!is_wanted_) return false;
  const std::lock_guard<std::mutex> lock(mutex);
  if (--num_watches == 0) put_back();
  const bool told = is_interrupted();
  num_told = num_interrupts.load();
  is_wanted_ = false;
  return told;
}

bool InterruptWatch::is_interrupted() const { return is_wanted_ && num_interrupts.load(std::memory_order_relaxed) != seen_; }

void InterruptWatch::keep(int64_t now) const {
  int64_t last = looked_.load(std::memory_order_relaxed);
  if (!is_wanted_ || now - last < kBetweenLooks || !looked_.compare_exchange_strong(last, now)) return;
  const std::lock_guard<std::mutex> lock(mutex);
  struct sigaction found;
  if (!is_ours(found)) take();
}

}  // namespace hpmoe
