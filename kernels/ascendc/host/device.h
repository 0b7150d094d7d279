// Device: the operations of a rank's device that the binding uses. cann_device.cc implements them with CANN, and
// emulator_device.cc on a CPU.
//
// A function with a stream argument runs in that stream's order, after the call. Any other function is done when it
// returns. Throws std::runtime_error if an operation fails.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace hpmoe {

// A buffer of a launch, for devices that check accesses.
struct Span {
  uint64_t bytes;
  bool is_symmetric;
};

class Device {
 public:
  virtual ~Device() = default;

  // Zeros in the symmetric heap, aligned to 64 bytes. All ranks allocate the same sizes in the same order.
  virtual void* allocate_symmetric(size_t bytes) = 0;
  // Zeros in memory that only this rank accesses.
  virtual void* allocate(size_t bytes) = 0;
  virtual void free(void* memory) = 0;
  // Host memory that copies in a stream can access.
  virtual void* allocate_host(size_t bytes) = 0;
  virtual void free_host(void* memory) = 0;
  // Copies from the host; must precede all launches that use the destination.
  virtual void fill(void* to, const void* from, size_t bytes) = 0;

  virtual void copy_in(void* to, const void* from, size_t bytes, void* stream) = 0;
  virtual void copy_out(void* to, const void* from, size_t bytes, void* stream) = 0;
  virtual void copy(void* to, const void* from, size_t bytes, void* stream) = 0;
  // `args`: the address of LaunchArgs in device memory.
  virtual void launch(uint32_t num_blocks, void* stream, void* args, const std::vector<Span>& buffers) = 0;
  // Keeps `owner` alive until the stream reaches this point.
  virtual void hold(std::shared_ptr<void> owner, void* stream) = 0;

  // Makes a mark of a stream. set() puts it at the end of a stream; has_passed() is true if the stream has passed
  // it.
  virtual void* new_mark() = 0;
  virtual void free_mark(void* mark) = 0;
  virtual void set(void* mark, void* stream) = 0;
  virtual bool has_passed(void* mark) = 0;
  virtual void wait_for(void* mark) = 0;

  virtual void synchronize() = 0;  // with all streams
  virtual void meet() = 0;  // with all ranks, for a bounded time

  // AIC cores of the device; it has twice as many AIV.
  virtual uint32_t num_cores() = 0;
};

// Makes, on rank 0, the id with which every rank opens its device.
std::string make_unique_id();

// heap_bytes: size of the symmetric heap on each rank. All ranks open their devices together; a process may have one at a
// time. Throws std::runtime_error if a core cannot copy to the heap of another rank.
std::unique_ptr<Device> open_device(int32_t rank, int32_t num_ranks, const std::string& unique_id, uint64_t heap_bytes);

}  // namespace hpmoe
