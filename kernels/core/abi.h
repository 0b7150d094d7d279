// The C ABI of the native runtime. No exception crosses it; every error is a code (hpmoe::Code) and a status.
#pragma once

#include <cstdint>

#include "core/generated/structs.h"

extern "C" {

typedef hpmoe::Status HpmoeStatus;

// Arguments of one rank for a launch. The caller keeps counters and bases (num_events each) from launch to launch. `room`:
// for each route, the capacity in rows of the buffers that hold its received rows; NULL means the capacity in the image.
struct HpmoeRank {
  void** buffers;
  const int64_t* row_capacity;
  int64_t num_tokens;
  int64_t* counters;
  int64_t* bases;
};

// The tables of a taskflow, laid out as in hpmoe/ir/taskflow.py. Tasks are numbered by the grids of the ops, one op after
// another.
struct HpmoeTableWait {
  int32_t task, event, kind;
};
struct HpmoeTableSignal {
  int32_t task, event;
  int16_t kind, amount;
  int32_t remote;
};
struct HpmoeTables {
  const hpmoe::Op* ops;
  const int32_t* block_of;  // [num_events]
  const HpmoeTableWait* waits;
  const HpmoeTableSignal* signals;
  int64_t num_ops, num_tasks, num_events, num_waits, num_signals;
};

// Packs waits and signals into templates. sizes: {index_bits, num_templates, num_waits, num_signals}. `tasks` has
// num_tasks words in the order of the grids; no section needs more rows than num_tasks, num_waits and num_signals of the
// tables. Returns 0 ok, 1 not enough memory, 2 an index of a table is out of range, 3 a word has too few bits to name all
// templates.
int hpmoe_pack_templates(const HpmoeTables* tables, hpmoe::TaskWord* tasks, hpmoe::TaskTemplate* templates,
                         hpmoe::Wait* waits, hpmoe::Signal* signals, int64_t* sizes);

// Runs the image on all ranks and returns when every thread has left.
//
// num_threads: threads that serve the queues of all ranks, the calling one included; 0 means one for each core that the
// caller may run on. At most one thread for each queue is used.
//
// trace: NULL or [num_ranks][num_tasks][3], steady-clock nanoseconds at which the wait begins, the body begins, and the
// signals are sent.
//
// moved: NULL or [num_ranks][num_ranks]; the launch adds the bytes that transfers of a rank have copied to arrays of each
// rank.
//
// interruptible: SIGINT ends the launch with INTERRUPTED (rank -1 if all tasks had ended) and reaches no handler; the
// host passes it on.
//
// timeout_s: a wait fails if no task of the launch has ended for that long.
int hpmoe_launch(const void* image, int64_t image_bytes, const HpmoeRank* ranks, int32_t num_ranks, int32_t num_threads,
                 double timeout_s, int64_t* trace, int64_t* moved, int32_t interruptible, HpmoeStatus* status);

// Ranks that are processes; link/link.h implements these functions. Calls of a link are made one at a time, in the same
// order on every rank.
struct HpmoeLink;

// Connections to processes of other machines. sockets: a connected socket for each rank, or -1 for a rank of this
// machine; the link owns them. secret: 16 bytes, equal on all ranks. most_bytes: limit of a message, 4096 to 256 MiB.
// ucx: the folder of UCX's libraries, which then carry messages; NULL means TCP.
struct HpmoeHosts {
  const int32_t* sockets;
  const void* secret;
  int64_t most_bytes;
  const char* ucx;
};

// Traffic of a link to other machines so far: messages and their bytes; the messages that carry rows or signals; the rows
// in these, and the bytes of the rows alone.
struct HpmoeTraffic {
  int64_t messages, bytes, row_messages, rows, row_bytes;
};

// Failure of a rank: the one that it reports about itself or about another rank. `text` is the error of the host, the
// call that another rank made (OTHER_CALL), or the last words of a rank that left. For PEER_DIED the value is like that
// of waitpid(), or -1.
struct HpmoeFailure {
  HpmoeStatus status;
  int32_t origin;
  char text[212];
};

// Makes a file for a rank's heap. Returns its descriptor or -errno.
int32_t hpmoe_heap_make(int64_t bytes);

// Opens a link. heap_fds, pids, pidfds: of every rank of this machine; a pidfd becomes readable when its process ends.
// The caller keeps these descriptors open. hosts: NULL if all ranks are on this machine. Returns NULL if a heap cannot be
// mapped or a socket cannot be served.
HpmoeLink* hpmoe_link_open(int32_t rank, int32_t size, const int32_t* heap_fds, const int32_t* pids, const int32_t* pidfds,
                           const HpmoeHosts* hosts);
void hpmoe_link_close(HpmoeLink* link);
// Returns why UCX, whose libraries are in `folder`, cannot carry messages of this process; NULL if it can.
const char* hpmoe_ucx_fault(const char* folder);

// Tells the link if this process shares its cores with another one; waiting threads then yield their core at once.
void hpmoe_link_set_crowded(HpmoeLink* link, int32_t is_crowded);

// heap: the address of a rank's heap, NULL if the rank is on another machine. take: allocates bytes of this rank's heap
// and returns their offset, or -1 if the heap is full. give: frees them.
void* hpmoe_link_heap(HpmoeLink* link, int32_t rank);
int64_t hpmoe_link_take(HpmoeLink* link, int64_t bytes);
void hpmoe_link_give(HpmoeLink* link, int64_t offset);

// meet: a barrier of all ranks; `key` must be equal on all. told: the payload of a rank in the last barrier, valid until
// the next barrier.
int hpmoe_link_meet(HpmoeLink* link, const char* what, uint64_t key, const void* payload, int64_t bytes, double timeout_s,
                    int32_t interruptible, HpmoeStatus* status);
const void* hpmoe_link_told(HpmoeLink* link, int32_t rank, int64_t* bytes);

// fail: reports that this rank has failed outside of a barrier and a launch; the next call of every other rank returns
// this failure. failure: how the last call failed.
void hpmoe_link_fail(HpmoeLink* link, const char* text);
void hpmoe_link_failure(HpmoeLink* link, HpmoeFailure* failure);
// Reports that this rank's program has ended; `last_words`, if known, describe how, for the errors of other ranks.
void hpmoe_link_leave(HpmoeLink* link, const char* last_words);
// Nanoseconds that this rank has waited for another rank to come to barriers.
int64_t hpmoe_link_waited_ns(HpmoeLink* link, int32_t rank);
void hpmoe_link_traffic(HpmoeLink* link, HpmoeTraffic* traffic);

// hpmoe_launch for this process's rank. `mine`: the counters, 64 bytes apart, and all buffers that other ranks put into
// must be in its heap. counts: for each route by ids, int32 [size, size * local experts], the rows of each rank for every
// expert. trace: NULL or [size][num_tasks][3], moved: NULL or [size][size]; this rank's part is filled. After a failed
// launch pass new counters, set to zero: other ranks may still add to the old ones until all have met again.
int hpmoe_link_launch(HpmoeLink* link, const char* what, uint64_t key, const void* image, int64_t image_bytes,
                      const HpmoeRank* mine, const int32_t* counts, int32_t num_threads, double timeout_s, int64_t* trace,
                      int64_t* moved, int32_t interruptible, HpmoeStatus* status);

// The ranks of other processes, for a launch that another library runs, such as the emulator of an NPU. heaps: the
// address of each rank's heap in this process. told: the payload of each rank; all payloads have the same size.
struct HpmoePeers {
  int32_t rank, size;
  void* const* heaps;
  const void* const* told;
  // Must be called regularly while this rank advances, and with is_idle if it can only wait; it then returns when another
  // rank has woken it. Returns 0, or the hpmoe::Code for which the rank cannot continue; TIMEOUT means that no rank has
  // advanced for timeout_s.
  int32_t (*look)(void* launch, int32_t is_idle);
  // Wakes a rank after an addition to one of its counters.
  void (*wake)(void* launch, int32_t rank);
  void* launch;
};

// Runs this rank's kernel; `of` is the library's own data. Returns 0 if it succeeded. Otherwise it writes the status, or
// a text of at most fault_bytes to `fault`.
typedef int (*HpmoeRunRank)(void* of, const HpmoePeers* peers, HpmoeStatus* status, char* fault, int64_t fault_bytes);

// Launches all ranks of this machine; each calls run_rank after a barrier with payloads of equal size.
int hpmoe_link_launch_by(HpmoeLink* link, HpmoeRunRank run_rank, void* of, const char* what, uint64_t key,
                         const void* payload, int64_t bytes, double timeout_s, int32_t interruptible, HpmoeStatus* status);

// Grows with every change of this file; the host refuses a library with another number.
int32_t hpmoe_abi_version(void);

// Returns NULL for a valid image, otherwise a sentence that names its first fault.
const char* hpmoe_image_fault(const void* image, int64_t image_bytes);

// Uses dnnl_sgemm of a shared library, or with NULL the product of this library. Returns 0 ok, 1 library not loadable, 2
// symbol missing.
int hpmoe_use_blas(const char* path);
const char* hpmoe_gemm_name(void);

// uses_amx: 1 if bfloat16 products use AMX, as they do by default on a machine with AMX. use_amx allows or forbids it.
// core_is_shared: 0 or 1 sets whether products assume that the core's other hardware thread is busy; -1 measures it.
int hpmoe_uses_amx(void);
int hpmoe_use_amx(int allowed, int core_is_shared);

// Largest number of rows for which products of few rows have their own code, for a transposed matrix or not, and for
// which a weight gradient has; 0 if there is no such code.
int64_t hpmoe_skinny_rows(int32_t dtype, int transposed);
int64_t hpmoe_few_terms(int32_t dtype);

// Moves rows of tokens outside of launches, on all cores; core/radix_sort.h and cpu/token_rows.h implement these
// functions. HpmoeRows: the rows of entries, top_k for each token. All functions but copy_streamed return 0, -1 if memory
// is short, or 1 + a row that two entries have.
struct HpmoeRows {
  const int32_t* place;
  int64_t num_entries, top_k, start, num_rows;
};
int64_t hpmoe_sort(const int32_t* keys, int64_t n, int32_t* order, int32_t* place, int32_t* scratch);
int64_t hpmoe_spread_rows(const HpmoeRows* rows, const void* x, int64_t row_bytes, void* out);
int64_t hpmoe_collect_rows(const HpmoeRows* rows, const int64_t* first, int64_t num_tokens, const float* weights,
                           int32_t dtype, const void* from, int64_t cols, void* out);
int64_t hpmoe_collect_rows_grad(const HpmoeRows* rows, const float* weights, int32_t dtype, const void* from,
                                const void* d_out, int64_t cols, void* d_from, float* d_weights);
void hpmoe_copy_streamed(const void* from, int64_t bytes, void* to);

}  // extern "C"
