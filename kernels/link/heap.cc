#include "link/heap.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace hpmoe {
namespace {

constexpr int64_t kPage = 4096;
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;  // reading past the end of a shrunk file ends a process

}  // namespace

int make_heap_file(int64_t bytes) {
  const int fd = memfd_create("hpmoe", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return -errno;
  if (ftruncate(fd, bytes) == 0 && fcntl(fd, F_ADD_SEALS, kSeals) == 0) return fd;
  const int error = errno;
  close(fd);
  return -error;
}

Heap::Heap(int fd) {
  struct stat found;
  if (fcntl(fd, F_GET_SEALS) != kSeals || fstat(fd, &found) != 0) return;
  void* const data = mmap(nullptr, found.st_size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (data == MAP_FAILED) return;
  data_ = static_cast<char*>(data);
  size_ = found.st_size;
}

Heap::~Heap() {
  if (data_) munmap(data_, size_);
}

HeapSpace::HeapSpace(const Heap& heap, int fd, int64_t first) : heap_(heap), fd_(fd) {
  const int64_t start = (first + kPage - 1) / kPage * kPage;
  free_[start] = heap.size() / kPage * kPage - start;
}

int64_t HeapSpace::take(int64_t bytes) {
  const int64_t wanted = (bytes + kPage - 1) / kPage * kPage;
  const std::lock_guard<std::mutex> lock(mutex_);
  auto found = free_.begin();
  while (found != free_.end() && found->second < wanted) ++found;
  if (found == free_.end()) return -1;
  const auto [offset, size] = *found;
  // Allocates the pages now: a page that is missing at a write would end the process.
  int failed = 0;
  while ((failed = posix_fallocate(fd_, offset, wanted)) == EINTR) {
  }
  if (failed) {
    fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, wanted);
    return -1;
  }
  free_.erase(found);
  if (size > wanted) free_[offset + wanted] = size - wanted;
  taken_[offset] = wanted;
  return offset;
}

void HeapSpace::give(int64_t offset) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = taken_.find(offset);
  if (found == taken_.end()) return;
  const int64_t bytes = found->second;
  taken_.erase(found);
  fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, bytes);
  free_block(offset, bytes);
}

void HeapSpace::free_block(int64_t offset, int64_t bytes) {
  auto next = free_.lower_bound(offset);
  if (next != free_.end() && offset + bytes == next->first) {
    bytes += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == offset) {
      before->second += bytes;
      return;
    }
  }
  free_[offset] = bytes;
}

}  // namespace hpmoe
