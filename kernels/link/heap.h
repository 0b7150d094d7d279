// The memory of a rank that the other processes of the machine write to: a file without a name, as large as the machine's
// memory and sparse. It never grows or moves; pages are taken and given back as blocks are.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>

namespace hpmoe {

// Makes a file for a heap of `bytes` bytes, sealed at its size; returns its descriptor or -errno.
int make_heap_file(int64_t bytes);

class Heap {
 public:
  // Maps the file; data() is NULL where it is none of make_heap_file's, or cannot be mapped.
  explicit Heap(int fd);
  ~Heap();
  Heap(const Heap&) = delete;

  char* data() const { return data_; }
  int64_t size() const { return size_; }
  char* at(int64_t offset) const { return data_ + offset; }
  // Where an address lies; -1 outside.
  int64_t offset_of(const void* address) const {
    const int64_t offset = static_cast<const char*>(address) - data_;
    return offset >= 0 && offset < size_ ? offset : -1;
  }

 private:
  int64_t size_ = 0;
  char* data_ = nullptr;
};

// Which parts of a heap are taken.
class HeapSpace {
 public:
  // Of the heap of `fd`, from the byte `first` on.
  HeapSpace(const Heap& heap, int fd, int64_t first);

  // The offset of a free block, whole pages that the system has; -1 where the heap or the system has no more.
  int64_t take(int64_t bytes);
  void give(int64_t offset);

 private:
  void free_block(int64_t offset, int64_t bytes);

  const Heap& heap_;
  const int fd_;
  std::mutex mutex_;
  std::map<int64_t, int64_t> free_, taken_;  // offset -> bytes
};

}  // namespace hpmoe
