// Kernels of an image without buffers, bound by all ranks of this process one after the other and then launched.
#include <cstring>
#include <exception>

#include "bound_kernel.h"

namespace {

using namespace hpmoe;

// A device of few cores.
class LimitedDevice final : public Device {
 public:
  LimitedDevice(std::unique_ptr<Device> device, uint32_t num_cores) : device_(std::move(device)), num_cores_(num_cores) {}

  void* allocate_symmetric(size_t bytes) override { return device_->allocate_symmetric(bytes); }
  void* allocate(size_t bytes) override { return device_->allocate(bytes); }
  void free(void* memory) override { device_->free(memory); }
  void* allocate_host(size_t bytes) override { return device_->allocate_host(bytes); }
  void free_host(void* memory) override { device_->free_host(memory); }
  void fill(void* to, const void* from, size_t bytes) override { device_->fill(to, from, bytes); }
  void copy_in(void* to, const void* from, size_t bytes, void* stream) override {
    device_->copy_in(to, from, bytes, stream);
  }
  void copy_out(void* to, const void* from, size_t bytes, void* stream) override {
    device_->copy_out(to, from, bytes, stream);
  }
  void copy(void* to, const void* from, size_t bytes, void* stream) override { device_->copy(to, from, bytes, stream); }
  void launch(uint32_t num_blocks, void* stream, void* args, const std::vector<Span>& buffers) override {
    device_->launch(num_blocks, stream, args, buffers);
  }
  void hold(std::shared_ptr<void> owner, void* stream) override { device_->hold(std::move(owner), stream); }
  void* new_mark() override { return device_->new_mark(); }
  void free_mark(void* mark) override { device_->free_mark(mark); }
  void set(void* mark, void* stream) override { device_->set(mark, stream); }
  bool has_passed(void* mark) override { return device_->has_passed(mark); }
  void wait_for(void* mark) override { device_->wait_for(mark); }
  void synchronize() override { device_->synchronize(); }
  void meet() override { device_->meet(); }
  uint32_t num_cores() override { return num_cores_; }

 private:
  const std::unique_ptr<Device> device_;
  const uint32_t num_cores_;
};

}  // namespace

// The code of the first status that a rank finds, 0 where all launches end well, -1 where the host threw what is in `said`.
extern "C" int bind_and_launch(const char* image, int64_t image_bytes, int32_t num_ranks, int64_t num_counters,
                               int64_t table_words, uint32_t num_cores, char* said) {
  try {
    const std::string id = make_unique_id();
    std::vector<std::shared_ptr<BoundKernel>> kernels;
    for (int32_t rank = 0; rank < num_ranks; ++rank) {
      auto device = std::make_shared<LimitedDevice>(open_device(rank, num_ranks, id, 1 << 22), num_cores);
      kernels.push_back(std::make_shared<BoundKernel>(device, std::string(image, image_bytes), rank, 100.0,
                                                      Layout{{}, {}, 0, num_counters, table_words}));
    }
    for (const auto& kernel : kernels) kernel->launch({}, 0, nullptr, nullptr);
    for (const auto& kernel : kernels) {
      Failure failure;
      if (!kernel->find_failure(true, &failure)) continue;
      if (!failure.fault.empty()) throw std::runtime_error(failure.fault);
      return failure.status.code;
    }
    return 0;
  } catch (const std::exception& error) {
    std::strcpy(said, error.what());
    return -1;
  }
}
