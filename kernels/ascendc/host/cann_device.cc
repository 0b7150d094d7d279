// The device of a rank with CANN: acl for memory, streams and events, aclshmem for the symmetric heap.
#include <cstring>
#include <stdexcept>

#include "acl/acl.h"
#include "device.h"
#include "shmem.h"

extern "C" void hpmoe_ascend_launch(uint32_t num_blocks, void* stream, void* args);

namespace hpmoe {
namespace {

constexpr size_t kAlignment = 512;  // of requests that contend, and of fast copies

void check(int code, const char* what) {
  if (code == 0) return;
  const char* const message = aclGetRecentErrMsg();
  throw std::runtime_error(std::string(what) + " returned " + std::to_string(code) +
                           (message ? std::string(": ") + message : ""));
}

void* check_memory(void* memory, const char* what, size_t bytes) {
  if (memory == nullptr) throw std::runtime_error(std::string(what) + " has no " + std::to_string(bytes) + " bytes left");
  return memory;
}

class CannDevice final : public Device {
 public:
  CannDevice(int32_t rank, int32_t num_ranks, const std::string& unique_id, uint64_t heap_bytes) {
    if (aclshmemx_init_status() != ACLSHMEM_STATUS_NOT_INITIALIZED) {
      throw std::runtime_error("aclshmem is in use by other code of this process");
    }
    if (unique_id.size() != sizeof(id_)) throw std::runtime_error("the unique id is of another version of aclshmem");
    std::memcpy(&id_, unique_id.data(), sizeof(id_));
    aclshmemx_init_attr_t attributes{};
    check(aclshmemx_set_attr_uniqueid_args(rank, num_ranks, static_cast<int64_t>(heap_bytes), &id_, &attributes),
          "aclshmemx_set_attr_uniqueid_args");
    check(aclshmemx_init_attr(ACLSHMEMX_INIT_WITH_UNIQUEID, &attributes), "aclshmemx_init_attr");
  }
  ~CannDevice() override {
    (void)aclrtSynchronizeDevice();
    (void)aclshmem_finalize();
  }

  void* allocate_symmetric(size_t bytes) override {
    return cleared(check_memory(aclshmem_align(kAlignment, bytes), "the symmetric heap", bytes), bytes);
  }
  void* allocate(size_t bytes) override {
    void* memory = nullptr;
    check(aclrtMalloc(&memory, bytes, ACL_MEM_MALLOC_HUGE_FIRST), "aclrtMalloc");
    return cleared(memory, bytes);
  }
  void free(void* memory) override { (void)aclrtFree(memory); }
  void* allocate_host(size_t bytes) override {
    void* memory = nullptr;
    check(aclrtMallocHost(&memory, bytes), "aclrtMallocHost");
    return memory;
  }
  void free_host(void* memory) override { (void)aclrtFreeHost(memory); }

  void fill(void* to, const void* from, size_t bytes) override {
    check(aclrtMemcpy(to, bytes, from, bytes, ACL_MEMCPY_HOST_TO_DEVICE), "aclrtMemcpy");
  }

  void copy_in(void* to, const void* from, size_t bytes, void* stream) override {
    check(aclrtMemcpyAsync(to, bytes, from, bytes, ACL_MEMCPY_HOST_TO_DEVICE, stream), "aclrtMemcpyAsync");
  }
  void copy_out(void* to, const void* from, size_t bytes, void* stream) override {
    check(aclrtMemcpyAsync(to, bytes, from, bytes, ACL_MEMCPY_DEVICE_TO_HOST, stream), "aclrtMemcpyAsync");
  }
  void copy(void* to, const void* from, size_t bytes, void* stream) override {
    check(aclrtMemcpyAsync(to, bytes, from, bytes, ACL_MEMCPY_DEVICE_TO_DEVICE, stream), "aclrtMemcpyAsync");
  }
  void launch(uint32_t num_blocks, void* stream, void* args, const std::vector<Span>&) override {
    hpmoe_ascend_launch(num_blocks, stream, args);
  }
  void hold(std::shared_ptr<void>, void*) override {}  // MindSpore gives memory out again in the order of the stream

  void* new_mark() override {
    aclrtEvent event = nullptr;
    check(aclrtCreateEvent(&event), "aclrtCreateEvent");
    return event;
  }
  void free_mark(void* mark) override { (void)aclrtDestroyEvent(mark); }
  void set(void* mark, void* stream) override { check(aclrtRecordEvent(mark, stream), "aclrtRecordEvent"); }
  bool has_passed(void* mark) override {
    aclrtEventRecordedStatus status = ACL_EVENT_RECORDED_STATUS_NOT_READY;
    check(aclrtQueryEventStatus(mark, &status), "aclrtQueryEventStatus");
    return status == ACL_EVENT_RECORDED_STATUS_COMPLETE;
  }
  void wait_for(void* mark) override { check(aclrtSynchronizeEvent(mark), "aclrtSynchronizeEvent"); }

  void synchronize() override { check(aclrtSynchronizeDevice(), "aclrtSynchronizeDevice"); }
  void meet() override { aclshmem_barrier_all(); }

  uint32_t num_cores() override {
    int32_t device = 0;
    int64_t number = 0;
    check(aclrtGetDevice(&device), "aclrtGetDevice");
    check(aclrtGetDeviceInfo(static_cast<uint32_t>(device), ACL_DEV_ATTR_CUBE_CORE_NUM, &number), "aclrtGetDeviceInfo");
    return static_cast<uint32_t>(number);
  }
  bool reaches(void* symmetric, int32_t rank) override { return aclshmem_ptr(symmetric, rank) != nullptr; }

 private:
  static void* cleared(void* memory, size_t bytes) {
    check(aclrtMemset(memory, bytes, 0, bytes), "aclrtMemset");
    return memory;
  }

  aclshmemx_uniqueid_t id_{};  // aclshmem keeps its address
};

}  // namespace

std::string make_unique_id() {
  aclshmemx_uniqueid_t id = ACLSHMEM_UNIQUEID_INITIALIZER;
  check(aclshmemx_get_uniqueid(&id), "aclshmemx_get_uniqueid");
  return std::string(reinterpret_cast<const char*>(&id), sizeof(id));
}

std::unique_ptr<Device> open_device(int32_t rank, int32_t num_ranks, const std::string& unique_id, uint64_t heap_bytes) {
  return std::make_unique<CannDevice>(rank, num_ranks, unique_id, heap_bytes);
}

}  // namespace hpmoe
