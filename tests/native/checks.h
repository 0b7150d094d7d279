// What drivers check with: a condition that ends the program, and memory that ends where an unmapped page begins.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace hpmoe {

inline void check(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "failed: %s\n", what);
  std::exit(1);
}

// Memory whose last byte is the last of its page.
class Guarded {
 public:
  explicit Guarded(int64_t bytes) {
    const int64_t page = sysconf(_SC_PAGESIZE);
    size_ = (bytes + page - 1) / page * page + page;
    start_ = static_cast<char*>(mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (start_ == MAP_FAILED || mprotect(start_ + size_ - page, page, PROT_NONE) != 0) std::abort();
    data = start_ + size_ - page - bytes;
  }
  ~Guarded() { munmap(start_, size_); }
  Guarded(const Guarded&) = delete;

  char* data;

 private:
  char* start_;
  int64_t size_;
};

}  // namespace hpmoe
