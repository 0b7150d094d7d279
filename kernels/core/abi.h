// The C ABI of the native runtime. No exception crosses it; every error is a code (hpmoe::Code) and a status.
#pragma once

#include <cstdint>

#include "core/generated/structs.h"

extern "C" {

typedef hpmoe::Status HpmoeStatus;

// What one rank brings to a launch. The caller keeps counters and bases (num_events each) from launch to launch.
// room: for each route, how many received rows the buffers that hold them can hold; NULL: as many as the image says.
struct HpmoeRank {
  void** buffers;
  const int64_t* row_capacity;
  int64_t num_tokens;
  int64_t* counters;
  int64_t* bases;
};

// The tables of a taskflow, as hpmoe/ir/taskflow.py lays them out; tasks are those of the ops' grids, one op after the
// other.
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

// Packs waits and signals into templates. sizes: {index_bits, num_templates, num_waits, num_signals}; tasks has num_tasks
// words in the order of the grids, and no section needs more rows than num_tasks, num_waits and num_signals of the tables.
// 0 ok, 1 not enough memory, 2 a table points nowhere, 3 a word cannot name all templates.
int hpmoe_pack_templates(const HpmoeTables* tables, hpmoe::TaskWord* tasks, hpmoe::TaskTemplate* templates,
                         hpmoe::Wait* waits, hpmoe::Signal* signals, int64_t* sizes);

// Runs the image on all ranks and returns when every thread has left.
// num_threads: these serve the queues of all ranks, the calling one among them; 0: one for each core that it may run on.
// Never more than queues.
// trace: NULL or [num_ranks][num_tasks][3] steady-clock nanoseconds: wait begins, body begins, signals are out.
// moved: NULL or [num_ranks][num_ranks], to which is added how many bytes transfers of a rank have copied to arrays of each.
// interruptible: SIGINT ends the launch with INTERRUPTED, of rank -1 where all had ended, and reaches no handler: the host
// passes it on. timeout_s: a wait fails when no task of the launch has ended for that long.
int hpmoe_launch(const void* image, int64_t image_bytes, const HpmoeRank* ranks, int32_t num_ranks, int32_t num_threads,
                 double timeout_s, int64_t* trace, int64_t* moved, int32_t interruptible, HpmoeStatus* status);

// Ranks that are processes; see link/link.h, which these hand over to. One call of a link at a time, in the same order on
// every rank.
struct HpmoeLink;

// Connections to processes of other machines. sockets: one connected to each rank, or -1 for a rank of this machine; the
// link owns them. secret: 16 bytes, equal on all ranks. most_bytes: limit of a message, 4096 to 256 MiB. ucx: the folder of
// UCX's libraries, which then carry messages; NULL: TCP carries them.
struct HpmoeHosts {
  const int32_t* sockets;
  const void* secret;
  int64_t most_bytes;
  const char* ucx;
};

// What a link has sent to other machines so far: messages, and their bytes; those of them that carry rows or signals, the
// rows in these, and the bytes of the rows by themselves.
struct HpmoeTraffic {
  int64_t messages, bytes, row_messages, rows, row_bytes;
};

// How a rank failed: what it says of itself or of another one. `text` is of an error of the host, or the call that another
// rank was at where the code is OTHER_CALL, or the last words of one that left. PEER_DIED: the value is as of waitpid(), or
// -1.
struct HpmoeFailure {
  HpmoeStatus status;
  int32_t origin;
  char text[212];
};

// A new file for a rank's heap, or -errno.
int32_t hpmoe_heap_make(int64_t bytes);

// heap_fds, pids, pidfds: of every rank of this machine; a descriptor of pidfds becomes readable when its process ends. They
// stay the caller's, and open. hosts: NULL where there is but this machine. NULL where a heap cannot be mapped, or a socket
// cannot be served.
HpmoeLink* hpmoe_link_open(int32_t rank, int32_t size, const int32_t* heap_fds, const int32_t* pids, const int32_t* pidfds,
                           const HpmoeHosts* hosts);
void hpmoe_link_close(HpmoeLink* link);
// Why UCX, whose libraries are in a folder, cannot carry messages of this process; NULL where it can.
const char* hpmoe_ucx_fault(const char* folder);

// Whether this process has no core to itself: who waits does not keep another one from computing then.
void hpmoe_link_set_crowded(HpmoeLink* link, int32_t is_crowded);

// A rank's heap, NULL if it is on another machine. take allocates bytes of the own heap and returns their offset, -1 if
// full; give frees them.
void* hpmoe_link_heap(HpmoeLink* link, int32_t rank);
int64_t hpmoe_link_take(HpmoeLink* link, int64_t bytes);
void hpmoe_link_give(HpmoeLink* link, int64_t offset);

// meet: a barrier of all ranks; `key` must be equal on all. told: a rank's payload of the last barrier, until the next.
int hpmoe_link_meet(HpmoeLink* link, const char* what, uint64_t key, const void* payload, int64_t bytes, double timeout_s,
                    int32_t interruptible, HpmoeStatus* status);
const void* hpmoe_link_told(HpmoeLink* link, int32_t rank, int64_t* bytes);

// This rank has failed outside of a meeting and a launch; the others' next call says so. And how the last call failed.
void hpmoe_link_fail(HpmoeLink* link, const char* text);
void hpmoe_link_failure(HpmoeLink* link, HpmoeFailure* failure);
// This rank's program has ended; `last_words`: how, where that is known, for the others' errors.
void hpmoe_link_leave(HpmoeLink* link, const char* last_words);
// How long this rank has waited for another one to come to meetings.
int64_t hpmoe_link_waited_ns(HpmoeLink* link, int32_t rank);
void hpmoe_link_traffic(HpmoeLink* link, HpmoeTraffic* traffic);

// hpmoe_launch of this process's rank. `mine`: what others put into and the counters, each 64 bytes after the one before,
// lie in its heap. counts: of each route by ids, int32 [size, size * local experts], the rows of each rank for every expert.
// trace: NULL or [size][num_tasks][3], moved: NULL or [size][size], of which this rank's part is filled. After a launch that
// failed the next has counters of its own, zeros: until all have met again, others may still add to these.
int hpmoe_link_launch(HpmoeLink* link, const char* what, uint64_t key, const void* image, int64_t image_bytes,
                      const HpmoeRank* mine, const int32_t* counts, int32_t num_threads, double timeout_s, int64_t* trace,
                      int64_t* moved, int32_t interruptible, HpmoeStatus* status);

// Ranks of other processes, as a launch sees them that another library runs, such as the emulator of an NPU. heaps: the
// address of each rank's heap in this process. told: the payload of each rank, of the same size as this rank's payload.
struct HpmoePeers {
  int32_t rank, size;
  void* const* heaps;
  const void* const* told;
  // Now and then while this rank gets on, and when it can only wait for others (is_idle), which returns when one has woken
  // it. 0, or why it gets no further: hpmoe::Code, TIMEOUT where no rank has got on for timeout_s.
  int32_t (*look)(void* launch, int32_t is_idle);
  // A counter of a rank was added to.
  void (*wake)(void* launch, int32_t rank);
  void* launch;
};

// Runs this rank's kernel; `of` is the library's own data. Returns 0 if it succeeded; else writes the status, or a text of
// up to fault_bytes to `fault`.
typedef int (*HpmoeRunRank)(void* of, const HpmoePeers* peers, HpmoeStatus* status, char* fault, int64_t fault_bytes);

// A launch of all ranks of this machine, run by run_rank on each: they meet first, with a payload of the same size each.
int hpmoe_link_launch_by(HpmoeLink* link, HpmoeRunRank run_rank, void* of, const char* what, uint64_t key,
                         const void* payload, int64_t bytes, double timeout_s, int32_t interruptible, HpmoeStatus* status);

// Grows with every change of this file; the host refuses a library of another number.
int32_t hpmoe_abi_version(void);

// NULL for a sound image, else a sentence naming its first fault.
const char* hpmoe_image_fault(const void* image, int64_t image_bytes);

// Takes dnnl_sgemm from a shared library (NULL: back to our own loop). 0 ok, 1 library not loadable, 2 symbol missing.
int hpmoe_use_blas(const char* path);
const char* hpmoe_gemm_name(void);

// Whether bfloat16 products may use AMX (they do from the start where the machine has it). Returns whether they do now.
// core_is_shared: 0 or 1 for what they assume of the core's other hardware thread, -1 where they measure it.
int hpmoe_uses_amx(void);
int hpmoe_use_amx(int allowed, int core_is_shared);

// Up to how many rows a product takes a way of its own, with a matrix that is transposed or not, and up to how many rows a
// weight's gradient; 0 where none does.
int64_t hpmoe_skinny_rows(int32_t dtype, int transposed);
int64_t hpmoe_few_terms(int32_t dtype);

// Tokens' rows outside of launches, on all cores; see core/radix_sort.h and cpu/token_rows.h, which these hand over to.
// HpmoeRows: the rows of entries, top_k of each token. All but copy_streamed return 0, -1 where memory is short, or 1 + a
// row that two entries have.
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
