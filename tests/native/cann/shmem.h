// The functions of aclshmem 1.1 that host/cann_device.cc calls, among processes of one host that share `arena`. As there,
// the status after finalize is SHM_CREATED, the heap base of every rank is known, and only `topo_list` says who is reached.
#pragma once

#include <cstdint>
#include <cstring>

enum { ACLSHMEM_STATUS_NOT_INITIALIZED, ACLSHMEM_STATUS_SHM_CREATED, ACLSHMEM_STATUS_IS_INITIALIZED };
enum { ACLSHMEM_TRANSPORT_MTE = 1, ACLSHMEM_TRANSPORT_ROCE = 2, ACLSHMEMX_INIT_WITH_UNIQUEID = 8 };

struct aclshmem_device_host_state_t {
  int version;
  uint8_t topo_list[16];
  bool is_initialized, is_created;
};
struct aclshmemx_uniqueid_t {
  int number;
};
struct aclshmemx_init_attr_t {
  int my_pe, n_pes;
  int64_t local_mem_size;
};
#define ACLSHMEM_UNIQUEID_INITIALIZER \
  {                                   \
  }

extern aclshmem_device_host_state_t g_state;
extern int library_minor, lost_rank;  // the library's version, and a rank that words are not written to
extern uint8_t* arena;                // a heap of kHeap bytes for each rank
constexpr size_t kHeap = 1 << 23;

void aclshmem_info_get_version(int* major, int* minor);
int aclshmemx_init_status();
int aclshmemx_get_uniqueid(aclshmemx_uniqueid_t* id);
int aclshmemx_set_attr_uniqueid_args(int rank, int num_ranks, int64_t bytes, aclshmemx_uniqueid_t* id,
                                     aclshmemx_init_attr_t* attributes);
int aclshmemx_init_attr(int flags, aclshmemx_init_attr_t* attributes);
int aclshmem_finalize();
void* aclshmem_align(size_t alignment, size_t bytes);
void aclshmemx_putmem_on_stream(void* to, void* from, size_t bytes, int rank, void* stream);
void aclshmemx_getmem_on_stream(void* to, void* from, size_t bytes, int rank, void* stream);
