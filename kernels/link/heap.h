// The memory of a rank that other processes of the machine write to: an unnamed sparse file of the size of the machine's
// memory. The file never grows or moves; pages are allocated and freed with blocks.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>

namespace hpmoe {

// Makes a file for a heap of `bytes` bytes, sealed at its size. Returns its descriptor or -errno.
int make_heap_file(int64_t bytes);

class Heap {
 public:
  // Maps the file. data() is NULL if the file is not from make_heap_file(), or cannot be mapped.
  explicit Heap(int fd);
  ~Heap();
  Heap(const Heap&) = delete;

  char* data() const { return data_; }
  int64_t size() const { return size_; }
  char* at(int64_t offset) const { return data_ + offset; }
  // Returns the offset of an address, or -1 outside the heap.
  int64_t offset_of(const void* address) const {
    const int64_t offset = static_cast<const char*>(address) - data_;
    return offset >= 0 && offset < size_ ? offset : -1;
  }

 private:
  int64_t size_ = 0;
  char* data_ = nullptr;
};

// Allocates blocks of a heap.
class HeapSpace {
 public:
  // Manages the heap of `fd` from byte `first` on.
  HeapSpace(const Heap& heap, int fd, int64_t first);

  // Returns the offset of a free block of whole, allocated pages; -1 if the heap or the system has no memory left.
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
