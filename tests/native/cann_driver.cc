// Ranks in processes that open the device of host/cann_device.cc on a stand-in for CANN: cann_driver SCENARIO. Each prints
// how it ended.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <string>

#include "acl/acl.h"
#include "device.h"
#include "shmem.h"

constexpr int kRanks = 3, kVersion = (1 << 16) + static_cast<int>(sizeof(aclshmem_device_host_state_t));

aclshmem_device_host_state_t g_state{kVersion, {}, false, false};
int library_minor = 1, lost_rank = -1;
uint8_t* arena = nullptr;

namespace {

int my_rank = 0;
int num_openings = 0;
size_t used = 0, size = 0;

// As aclshmem does when it opens, for a while.
void all_come(int count) {
  auto* const come = reinterpret_cast<int*>(arena + kRanks * kHeap);
  __atomic_add_fetch(come, 1, __ATOMIC_ACQ_REL);
  for (int i = 0; i < 500 && __atomic_load_n(come, __ATOMIC_ACQUIRE) < count; ++i) usleep(1000);
}
uint8_t* on_rank(void* address, int rank) {
  return arena + rank * kHeap + (static_cast<uint8_t*>(address) - arena - my_rank * kHeap);
}

}  // namespace

void aclshmem_info_get_version(int* major, int* minor) { *major = 1, *minor = library_minor; }
int aclshmemx_init_status() {
  return g_state.is_initialized ? ACLSHMEM_STATUS_IS_INITIALIZED
         : g_state.is_created   ? ACLSHMEM_STATUS_SHM_CREATED
                                : ACLSHMEM_STATUS_NOT_INITIALIZED;
}
int aclshmemx_get_uniqueid(aclshmemx_uniqueid_t* id) { return id->number = 7, 0; }
int aclshmemx_set_attr_uniqueid_args(int rank, int num_ranks, int64_t bytes, aclshmemx_uniqueid_t*,
                                     aclshmemx_init_attr_t* attributes) {
  *attributes = {rank, num_ranks, bytes};
  return 0;
}
int aclshmemx_init_attr(int, aclshmemx_init_attr_t* attributes) {
  used = 0, size = attributes->local_mem_size;
  g_state.is_initialized = g_state.is_created = true;
  all_come(kRanks * ++num_openings);
  return size <= kHeap ? 0 : -2;
}
int aclshmem_finalize() { return g_state.is_initialized = false, 0; }
void* aclshmem_align(size_t alignment, size_t bytes) {
  const size_t begin = (used + alignment - 1) / alignment * alignment;
  if (begin + bytes > size) return nullptr;
  used = begin + bytes;
  return arena + my_rank * kHeap + begin;
}
void aclshmemx_putmem_on_stream(void* to, void* from, size_t bytes, int rank, void*) {
  if (rank != lost_rank) std::memcpy(on_rank(to, rank), from, bytes);
}
void aclshmemx_getmem_on_stream(void* to, void* from, size_t bytes, int rank, void*) {
  std::memcpy(to, on_rank(from, rank), bytes);
}
extern "C" void hpmoe_ascend_launch(uint32_t, void*, void*) {}

namespace {

void plant(const std::string& scenario) {
  if (scenario == "a version") library_minor = 2;
  if (scenario == "a state") ++g_state.version;
  if (scenario == "in use") g_state.is_initialized = g_state.is_created = true;
  if (scenario == "an unlisted rank" && my_rank == 0) g_state.topo_list[2] = ACLSHMEM_TRANSPORT_ROCE;
  if (scenario == "a lost word" && my_rank == 1) lost_rank = 2;
  if (scenario == "a failing copy" && my_rank == 1) failure_of_stream = 507;
}

std::string run(const std::string& scenario) {
  for (uint8_t& way : g_state.topo_list) way = ACLSHMEM_TRANSPORT_MTE;
  plant(scenario);
  if (scenario == "an absent rank" && my_rank == 2) return "absent";
  const auto open = [](int number, uint64_t bytes) {
    return hpmoe::open_device(my_rank, kRanks, std::string(reinterpret_cast<const char*>(&number), sizeof(number)), bytes);
  };
  auto device = open(1, 1 << 20);
  if (scenario == "two at once") open(2, 1 << 20);
  device->meet();
  if (scenario == "opened again") {
    device.reset();
    device = open(2, 1 << 21);
    device->allocate_symmetric(1 << 21);
    device->meet();
  }
  return "met";
}

}  // namespace

int main(int, char** argv) {
  void* const shared = mmap(nullptr, (kRanks + 1) * kHeap, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  arena = static_cast<uint8_t*>(shared);
  for (size_t i = 0; i < kRanks * kHeap; i += 512) arena[i] = 0xA5;  // of an earlier process
  for (my_rank = 0; my_rank < kRanks; ++my_rank) {
    if (fork() != 0) continue;
    std::string said;
    try {
      said = run(argv[1]);
    } catch (const std::exception& error) {
      said = error.what();
    }
    std::printf("%s\n", ("rank " + std::to_string(my_rank) + ": " + said).c_str());
    std::fflush(stdout);
    _exit(0);
  }
  while (wait(nullptr) > 0) {
  }
}
