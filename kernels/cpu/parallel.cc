#include "parallel.h"

#include <algorithm>
#include <atomic>

#include "thread_pool.h"

namespace hpmoe {

Parts on_all_cores(int32_t count) {
  if (count <= 1) return undivided();
  return {count, [count](const std::function<void(int32_t)>& job) {
            std::atomic<int32_t> next{0};
            ThreadPool pool([&](int32_t) {
              for (int32_t part; (part = next.fetch_add(1, std::memory_order_relaxed)) < count;) job(part);
            });
            for (int32_t thread = 1; thread < std::min(count, num_cores()); ++thread) {
              if (!pool.start(thread)) break;  // the threads that run take the remaining parts
            }
            pool.work();
          }};
}

Parts parts_for(int64_t n, int64_t grain) {
  const int64_t most = std::max<int64_t>(1, n / grain);
  return on_all_cores(static_cast<int32_t>(std::min<int64_t>(most, 8 * num_cores())));
}

}  // namespace hpmoe
