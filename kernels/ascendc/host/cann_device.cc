// The device of a rank with CANN: acl for memory, streams and events, aclshmem for the symmetric heap.
#include <chrono>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <thread>

#include "acl/acl.h"
#include "device.h"
#include "shmem.h"

extern "C" void hpmoe_ascend_launch(uint32_t num_blocks, void* stream, void* args);
// The library's own state. Its heap bases name every rank; only its list of transports shows which ranks a core can
// access.
extern aclshmem_device_host_state_t g_state;

#ifndef HPMOE_MEETING_SECONDS
#define HPMOE_MEETING_SECONDS 600
#endif

namespace hpmoe {
namespace {

constexpr size_t kAlignment = 512;  // avoids contention of requests, and makes copies fast
constexpr size_t kPage = 2 << 20;
constexpr int kMajor = 1, kMinor = 1;  // the versions of aclshmem whose state and finalize are known
constexpr int32_t kCopyMs = 10'000;
constexpr std::chrono::seconds kMeeting{HPMOE_MEETING_SECONDS};

bool is_heap_open = false;  // aclshmem's own status remains "created" after finalize

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

void check_version() {
  int major = 0, minor = 0;
  aclshmem_info_get_version(&major, &minor);
  const auto name = [](int a, int b) { return std::to_string(a) + "." + std::to_string(b); };
  if (major == kMajor && minor == kMinor && g_state.version == (1 << 16) + static_cast<int>(sizeof(g_state))) return;
  throw std::runtime_error("the library of aclshmem is " + name(major, minor) + " with state " +
                           std::to_string(g_state.version) + "; expected " + name(kMajor, kMinor) + " with state " +
                           std::to_string((1 << 16) + sizeof(g_state)) + ": install that version and build again");
}

// The open heap of this process; only one may be open.
class OpenHeap {
 public:
  OpenHeap(int32_t rank, int32_t num_ranks, const std::string& unique_id, uint64_t bytes) {
    check_version();
    if (is_heap_open) throw std::runtime_error("this process has a symmetric heap open already");
    if (aclshmemx_init_status() == ACLSHMEM_STATUS_IS_INITIALIZED) {
      throw std::runtime_error("aclshmem is in use by other code of this process");
    }
    if (unique_id.size() != sizeof(id_)) throw std::runtime_error("the unique id is of another version of aclshmem");
    std::memcpy(&id_, unique_id.data(), sizeof(id_));
    aclshmemx_init_attr_t attributes{};
    check(aclshmemx_set_attr_uniqueid_args(rank, num_ranks, static_cast<int64_t>(bytes), &id_, &attributes),
          "aclshmemx_set_attr_uniqueid_args");
    check(aclshmemx_init_attr(ACLSHMEMX_INIT_WITH_UNIQUEID, &attributes), "aclshmemx_init_attr");
    is_heap_open = true;
  }
  ~OpenHeap() {
    (void)aclrtSynchronizeDevice();
    (void)aclshmem_finalize();
    is_heap_open = false;
  }

 private:
  aclshmemx_uniqueid_t id_{};  // aclshmem keeps its address
};

class CannDevice final : public Device {
 public:
  CannDevice(int32_t rank, int32_t num_ranks, const std::string& unique_id, uint64_t heap_bytes)
      : rank_(rank),
        num_ranks_(num_ranks),
        word_(static_cast<int64_t>(std::hash<std::string>()(unique_id) << 16)),
        heap_(rank, num_ranks, unique_id, heap_bytes + kPage * (num_ranks * kAlignment / kPage + 1)) {
    check(aclrtCreateStream(&stream_), "aclrtCreateStream");
    const size_t bytes = (num_ranks + 1) * kAlignment;
    words_ = static_cast<uint8_t*>(check_memory(aclshmem_align(kAlignment, bytes), "the symmetric heap", bytes));
    for (int32_t peer = 0; peer < num_ranks; ++peer) {
      if (peer != rank && (g_state.topo_list[peer] & ACLSHMEM_TRANSPORT_MTE) == 0)
        refuse(peer, "aclshmem lists no way for a core's copies");
    }
    meet();
  }
  ~CannDevice() override { (void)aclrtDestroyStream(stream_); }

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
  void hold(std::shared_ptr<void>, void*) override {}  // MindSpore reuses memory in stream order

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

  // aclshmem's barrier returns no error, so ranks put the number of the meeting to each other, with the engine that the
  // kernel uses. The first word, at the opening of the heap, is one that memory cannot hold by chance.
  void meet() override {
    synchronize();  // a kernel that waits for other ranks holds all cores
    ++word_;
    for (int32_t peer = 0; peer < num_ranks_; ++peer)
      if (peer != rank_) put_word(peer);
    const auto last = std::chrono::steady_clock::now() + kMeeting;
    for (int32_t peer = 0; peer < num_ranks_; ++peer) {
      while (peer != rank_ && !has_come(peer)) {
        if (std::chrono::steady_clock::now() > last) refuse_absent(peer);
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
  }

  uint32_t num_cores() override {
    int32_t device = 0;
    int64_t number = 0;
    check(aclrtGetDevice(&device), "aclrtGetDevice");
    check(aclrtGetDeviceInfo(static_cast<uint32_t>(device), ACL_DEV_ATTR_CUBE_CORE_NUM, &number), "aclrtGetDeviceInfo");
    return static_cast<uint32_t>(number);
  }

 private:
  static void* cleared(void* memory, size_t bytes) {
    check(aclrtMemset(memory, bytes, 0, bytes), "aclrtMemset");
    return memory;
  }

  // Puts this meeting's word to a rank and reads it back, by copies of a core.
  void put_word(int32_t peer) {
    uint8_t *const place = words_ + rank_ * kAlignment, *const spare = words_ + num_ranks_ * kAlignment;
    fill(place, &word_, sizeof(word_));
    aclshmemx_putmem_on_stream(place, place, sizeof(word_), peer, stream_);
    aclshmemx_getmem_on_stream(spare, place, sizeof(word_), peer, stream_);
    const int code = aclrtSynchronizeStreamWithTimeout(stream_, kCopyMs);
    if (code != 0) refuse(peer, "a copy of one word ended with " + std::to_string(code));
    if (read(spare) != word_) refuse(peer, "a word that was written there reads back as another");
  }
  bool has_come(int32_t peer) {
    const int64_t ahead = read(words_ + peer * kAlignment) - word_;
    return ahead == 0 || ahead == 1;  // a rank that has passed this meeting may be at the next
  }
  int64_t read(const void* from) {
    int64_t word = 0;
    check(aclrtMemcpy(&word, sizeof(word), from, sizeof(word), ACL_MEMCPY_DEVICE_TO_HOST), "aclrtMemcpy");
    return word;
  }
  [[noreturn]] void refuse(int32_t peer, const std::string& why) const {
    throw std::runtime_error("copies of rank " + std::to_string(rank_) + " do not reach rank " + std::to_string(peer) +
                             ": " + why + "; expected ranks in one node of an A2, or in one supernode of an A3");
  }
  [[noreturn]] void refuse_absent(int32_t peer) const {
    throw std::runtime_error("rank " + std::to_string(rank_) + " waited " + std::to_string(kMeeting.count()) +
                             " s for rank " + std::to_string(peer) + ", which launches other kernels or has ended");
  }

  const int32_t rank_, num_ranks_;
  int64_t word_;
  OpenHeap heap_;
  aclrtStream stream_ = nullptr;
  uint8_t* words_ = nullptr;  // a line for the word of each rank, and one for the words read back
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
