#include "scratch.h"

#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <new>
#include <tuple>
#include <utility>
#include <vector>

namespace hpmoe {
namespace {

constexpr size_t kLine = 64, kHugePage = size_t{1} << 21;

// Allocates a large block as one huge page if possible: a block smaller than L2 then fits into it for every page layout.
char* allocate(size_t bytes) {
  const size_t alignment = bytes >= kHugePage ? kHugePage : kLine;
  void* const data = std::aligned_alloc(alignment, bytes);
  if (!data) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
  if (alignment == kHugePage) madvise(data, bytes, MADV_HUGEPAGE);  // a hint
#endif
  return static_cast<char*>(data);
}

class Pool {
 public:
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

  // Takes the smallest free block of at least `bytes`. If there is none, frees the largest of the smaller blocks.
  std::pair<char*, size_t> take(size_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto is_smaller = [](const auto& block, size_t size) { return block.second < size; };
    const auto found = std::lower_bound(blocks_.begin(), blocks_.end(), bytes, is_smaller);
    std::pair<char*, size_t> block{nullptr, 0};
    if (found != blocks_.end()) {
      block = *found;
      blocks_.erase(found);
    } else if (!blocks_.empty()) {
      std::free(blocks_.back().first);
      blocks_.pop_back();
    }
    return block;
  }

  void give(char* data, size_t size) noexcept {
    try {
      const std::lock_guard<std::mutex> lock(mutex_);
      const auto is_larger = [](size_t bytes, const auto& block) { return bytes < block.second; };
      blocks_.insert(std::upper_bound(blocks_.begin(), blocks_.end(), size, is_larger), {data, size});
    } catch (const std::exception&) {
      std::free(data);
    }
  }

 private:
  std::mutex mutex_;
  std::vector<std::pair<char*, size_t>> blocks_;  // sorted by size
};

Pool& pool() {
  static Pool* const forever = new Pool;  // threads may end after the program's static objects
  return *forever;
}

// A forked process finds the mutex unlocked.
const int kForkHandled = pthread_atfork([] { pool().lock(); }, [] { pool().unlock(); }, [] { pool().unlock(); });

}  // namespace

char* ScratchBlock::at_least(size_t bytes) {
  if (size_ >= bytes && data_) return data_;
  const size_t unit = bytes >= kHugePage / 4 ? kHugePage : kLine;
  const size_t size = (std::max<size_t>(bytes, 1) + unit - 1) / unit * unit;
  if (data_) pool().give(data_, size_);
  data_ = nullptr;
  std::tie(data_, size_) = pool().take(size);
  if (!data_) {
    data_ = allocate(size);
    size_ = size;
  }
  return data_;
}

ScratchBlock::~ScratchBlock() {
  if (data_) pool().give(data_, size_);
}

}  // namespace hpmoe
