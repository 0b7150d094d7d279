// Ranks that are processes, without Python: a rank with its heap and what it launches, and a run of all, to which a driver
// lets things happen.
#pragma once

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "core/abi.h"
#include "layer.h"
#include "link/control.h"
#include "link/watchdog.h"

namespace hpmoe {

constexpr int64_t kHeapBytes = 32 << 20, kSecond = 1'000'000'000;
constexpr double kTimeout_s = 30;  // of what is to end by other means
constexpr int64_t kSoon = 10 * kSecond;  // long before that
constexpr int kCalls = 400;
constexpr int kOdd = 1;  // the rank that something happens to
const Variant kVariants[] = {kPlain,
                             {Dtype::BFLOAT16, DropPolicy::POSITION, 0.5},
                             {Dtype::FLOAT32, DropPolicy::NONE, 0, true},
                             {Dtype::FLOAT32, DropPolicy::NONE, 0, false, 3},
                             {Dtype::FLOAT32, DropPolicy::NONE, 0, false, 1, R / 2},
                             {Dtype::BFLOAT16, DropPolicy::PROBS, 0.5, false, 1, R / 2}};

// What all processes of a test see. `ran_ns`: nanoseconds in which the machine has run: of a pause next to nothing counts.
struct Board {
  std::atomic<int64_t> ran_ns;
  std::atomic<int32_t> num_started, pids[R];
  std::atomic<int64_t> steps[R], turns[R], told_ns[R];
  std::atomic<int32_t> codes[R], blamed[R], ends[R], goes_on, num_ended;
  std::atomic<int64_t> last_step;
  std::atomic<bool> outcomes[R][kCalls];
};

// Neighbouring ranks on one machine, and the folder of UCX where that carries messages to the others.
inline int node_size = R;
inline const char* ucx = nullptr;

// A socket between each two ranks of different machines; mine[r] is this rank's end of that to r.
struct Sockets {
  int ends[R][R];

  Sockets() {
    for (int a = 0; a < R; ++a) {
      for (int b = 0; b <= a; ++b) {
        int pair[2] = {-1, -1};
        if (a / node_size != b / node_size) check(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0, "a socket");
        ends[a][b] = pair[0];
        ends[b][a] = pair[1];
      }
    }
  }
  // Those of all ranks but one.
  void close_but_of(int rank) const {
    for (int a = 0; a < R; ++a)
      for (int b = 0; b < R; ++b)
        if (a != rank && ends[a][b] >= 0) close(ends[a][b]);
  }
};

inline void sleep_for(int64_t ns) { std::this_thread::sleep_for(std::chrono::nanoseconds(ns)); }

inline const Control* control_of(int heap) {
  void* const first = mmap(nullptr, sizeof(Control), PROT_READ, MAP_SHARED, heap, 0);
  check(first != MAP_FAILED, "a heap is mapped");
  return static_cast<const Control*>(first);
}

// A rank in its process: the arrays that others put into lie in its heap.
class Rank {
 public:
  Rank(int rank, const std::vector<int>& heaps, const Sockets& sockets, const Board& board) : rank_(rank) {
    for (const int heap : heaps) controls_.push_back(control_of(heap));
    std::vector<int32_t> pids, pidfds;
    for (const auto& pid : board.pids) {
      pids.push_back(pid);
      pidfds.push_back(static_cast<int32_t>(syscall(SYS_pidfd_open, pids.back(), 0)));
    }
    const HpmoeHosts hosts = {sockets.ends[rank], "secret of the run", 4096, ucx};
    link_ = hpmoe_link_open(rank, R, heaps.data(), pids.data(), pidfds.data(), node_size < R ? &hosts : nullptr);
    check(link_, "a link opens");
  }

  // Everything that a launch needs, once.
  void prepare() {
    for (const Variant& variant : kVariants) {
      layers_.push_back({std::make_unique<Arrays>(7, variant), make_image(2, variant), {}, {}, {}});
      Layer& layer = layers_.back();
      for (int i = 0; i < kNumArrays; ++i) {
        const std::vector<char>& array = layer.arrays->arrays[rank_][i == ENTRIES ? WEIGHTS : i];
        layer.pointers.push_back(take(int64_t(array.size())));
        std::memcpy(layer.pointers[i], array.data(), array.size());
      }
      layer.pointers[ENTRIES] = layer.pointers[WEIGHTS];
      layer.bases.resize(kNumEvents);
      renew_counters(layer);
      for (int source = 0; source < R; ++source) add_counts(layer, source);
    }
  }

  // One launch of a layer; 0, or why not.
  int launch(int which, HpmoeStatus* status, double timeout = kTimeout_s, bool interruptible = false) {
    Layer& layer = layers_[which];
    const HpmoeRank mine = {layer.pointers.data(), nullptr, layer.arrays->num_tokens[rank_], layer.counters,
                            layer.bases.data()};
    for (int array : {OUT, KEPT, DROPPED}) std::memset(layer.pointers[array], 0, bytes(layer, array));
    const auto size = int64_t(layer.image.size()) * 4;
    const int code = hpmoe_link_launch(link_, "a layer", which, layer.image.data(), size, &mine, layer.counts.data(), 2,
                                       timeout, nullptr, nullptr, interruptible, status);
    if (code != 0) {
      renew_counters(layer);
      return code;
    }
    for (int array : {OUT, KEPT, DROPPED})
      std::memcpy(layer.arrays->arrays[rank_][array].data(), layer.pointers[array], bytes(layer, array));
    layer.arrays->check_results(rank_);
    layer.arrays->check_drops(rank_);
    return 0;
  }

  // A meeting in which each tells a number and its own.
  int meet(int64_t number, HpmoeStatus* status, double timeout = kTimeout_s, const char* what = "numbers",
           int64_t bytes = 16, bool interruptible = false) {
    std::vector<int64_t> words(bytes / 8, number);
    words.back() = rank_;
    const auto key = static_cast<uint64_t>(std::strlen(what));
    const int code = hpmoe_link_meet(link_, what, key, words.data(), bytes, timeout, interruptible, status);
    const bool has_met = code == int(Code::INTERRUPTED) && status->rank < 0;  // and then came an interrupt
    if (code != 0 && !has_met) return code;
    for (int rank = 0; rank < R; ++rank) {
      int64_t told = 0;
      const auto* theirs = static_cast<const int64_t*>(hpmoe_link_told(link_, rank, &told));
      check(told == bytes && theirs[0] == number && theirs[bytes / 8 - 1] == rank, "each rank is heard");
    }
    return code;
  }

  // A call of all: a launch, and its end, so that it fails on all ranks or on none. As of hpmoe.kernels.link.Link.calling.
  int call(int which, int64_t number, HpmoeStatus* status, double timeout, bool interruptible) {
    int code = launch(which, status, timeout, interruptible);
    if (code == 0) {
      code = meet(number, status, timeout, "the end", 16, interruptible);
      return status->rank < 0 ? 0 : code;  // the interrupt is one after the call
    }
    if (status->rank < 0) hpmoe_link_fail(link_, "interrupted");
    return code;
  }

  HpmoeLink* link() { return link_; }

  // Whether so many ranks have come to more meetings than this one.
  bool are_ahead(int num_ranks) const {
    for (const Control* control : controls_) num_ranks -= control->told > controls_[rank_]->told;
    return num_ranks <= 0;
  }

 private:
  struct Layer {
    std::unique_ptr<Arrays> arrays;
    std::vector<int32_t> image;
    std::vector<void*> pointers;
    int64_t* counters;
    std::vector<int64_t> bases;
    std::vector<int32_t> counts{};
  };

  static size_t bytes(const Layer& layer, int array) { return layer.arrays->arrays[0][array].size(); }

  void* take(int64_t bytes) {
    const int64_t offset = hpmoe_link_take(link_, bytes);
    check(offset >= 0, "a heap has room");
    return static_cast<char*>(hpmoe_link_heap(link_, rank_)) + offset;
  }

  void renew_counters(Layer& layer) {
    layer.counters = static_cast<int64_t*>(take(kNumEvents * kLine));
    std::fill(layer.bases.begin(), layer.bases.end(), 0);
  }

  static void add_counts(Layer& layer, int source) {
    std::vector<int32_t> of_expert(E);
    const std::vector<bool> kept = layer.arrays->kept(source);
    for (int i = 0; i < layer.arrays->num_tokens[source] * K; ++i)
      of_expert[layer.arrays->integer(source, IDS, i)] += kept[i];
    layer.counts.insert(layer.counts.end(), of_expert.begin(), of_expert.end());
  }

  const int rank_;
  HpmoeLink* link_;
  std::vector<const Control*> controls_;  // also of ranks of other machines
  std::vector<Layer> layers_;
};

using Program = std::function<void(Rank&, Board&, int)>;

// A run of R processes: their heaps, what they write, and how they end.
class Run {
 public:
  explicit Run(const Program& program, int64_t odd_heap_bytes = kHeapBytes) {
    void* const shared = mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    board_ = new (shared) Board{};
    for (int r = 0; r < R; ++r) {
      heaps_.push_back(hpmoe_heap_make(r == kOdd ? odd_heap_bytes : kHeapBytes));
      controls_.push_back(control_of(heaps_[r]));
    }
    for (int rank = 0; rank < R; ++rank) {
      const pid_t pid = fork();
      if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);  // a run that is ended leaves nobody who waits for it
        while (!board_->goes_on) sleep_for(10'000);
        sockets_.close_but_of(rank);
        Rank mine(rank, heaps_, sockets_, *board_);
        program(mine, *board_, rank);
        if (node_size < R) hpmoe_link_leave(mine.link(), "");
        std::_Exit(0);
      }
      board_->pids[rank] = pid;
    }
    sockets_.close_but_of(-1);
    clock_ = std::thread([this] { count(); });
    board_->goes_on = 1;
  }

  ~Run() {
    has_ended_ = true;
    clock_.join();
    for (const int heap : heaps_) close(heap);
    for (const Control* control : controls_) munmap(const_cast<Control*>(control), sizeof(Control));
    munmap(board_, sizeof(Board));
  }

  Board& board() { return *board_; }
  const Control& control(int rank) const { return *controls_[rank]; }
  void send(int rank, int number) { kill(board_->pids[rank], number); }

  // Waits for all ranks; they must end well, but for one of them, which is waited for last: others may yet ask for its
  // process.
  void wait(int but_for = -1, int64_t longest = 60 * kSecond) {
    const int64_t until = board_->ran_ns + longest;
    for (int i = 1; i <= R; ++i) {
      const int rank = (but_for + i) % R;
      int status = 0;
      while (waitpid(board_->pids[rank], &status, WNOHANG) == 0) {
        if (board_->ran_ns > until) hang(rank);
        sleep_for(200'000);
      }
      const bool is_well = rank == but_for ? WIFSIGNALED(status) : WIFEXITED(status) && WEXITSTATUS(status) == 0;
      check(is_well, rank == but_for ? "a rank is killed" : "a rank ends well");
    }
  }

 private:
  void count() {
    for (int64_t last = now_ns(); !has_ended_;) {
      sleep_for(1'000'000);
      const int64_t now = now_ns();
      board_->ran_ns += std::min<int64_t>(now - last, 20'000'000);
      last = now;
    }
  }

  void hang(int rank) {
    std::fprintf(stderr, "rank %d hangs at step %ld\n", rank, long(board_->steps[rank]));
    for (const auto& pid : board_->pids) kill(pid, SIGKILL);
    std::exit(1);
  }

  Board* board_;
  std::vector<int> heaps_;
  std::vector<const Control*> controls_;
  const Sockets sockets_;
  std::atomic<bool> has_ended_{false};
  std::thread clock_;
};

}  // namespace hpmoe
