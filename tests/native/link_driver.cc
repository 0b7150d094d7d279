// Ranks that are processes, without Python: they launch a MoE layer packed by hand again and again, compare with plain
// loops, and are killed at random moments, stopped, interrupted, short of memory, late, or at something else.
// Arguments: how many kills, for how many seconds a rank is stopped, and how many neighbouring ranks are on one machine: the
// others are reached through messages then, which UCX carries where the last argument is the folder of its libraries.
#include <dirent.h>
#include <sys/mman.h>
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
#include <random>
#include <set>
#include <string>
#include <vector>

#include "core/abi.h"
#include "layer.h"
#include "link/control.h"
#include "link/watchdog.h"

namespace {

using namespace hpmoe;

constexpr int64_t kHeapBytes = 32 << 20, kSecond = 1'000'000'000;
constexpr int kCalls = 400;
constexpr int kOdd = 1;  // the rank that something happens to
const Variant kVariants[] = {kPlain,
                             {Dtype::BFLOAT16, DropPolicy::POSITION, 0.5},
                             {Dtype::FLOAT32, DropPolicy::NONE, 0, true},
                             {Dtype::FLOAT32, DropPolicy::NONE, 0, false, 3}};

// What all processes of a test see.
struct Board {
  std::atomic<int32_t> num_started, pids[R];
  std::atomic<int64_t> steps[R], told_ns[R];
  std::atomic<int32_t> codes[R], blamed[R], ends[R], goes_on;
  std::atomic<int64_t> last_step;
  std::atomic<bool> outcomes[R][kCalls];
};

int node_size = R;
const char* ucx = nullptr;

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

void sleep_for(int64_t ns) { std::this_thread::sleep_for(std::chrono::nanoseconds(ns)); }

// A rank in its process: the arrays that others put into lie in its heap.
class Rank {
 public:
  Rank(int rank, const std::vector<int>& heaps, const Sockets& sockets, const Board& board) : rank_(rank) {
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
  int launch(int which, HpmoeStatus* status, double timeout = 30, bool interruptible = false) {
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
  int meet(int64_t number, HpmoeStatus* status, double timeout = 30, const char* what = "numbers", int64_t bytes = 16,
           bool interruptible = false) {
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
  std::vector<Layer> layers_;
};

using Program = std::function<void(Rank&, Board&, int)>;

std::set<std::string> names_in(const char* folder) {
  std::set<std::string> names;
  DIR* const dir = opendir(folder);
  while (const dirent* entry = dir ? readdir(dir) : nullptr) names.insert(entry->d_name);
  if (dir) closedir(dir);
  return names;
}

// A run of R processes: their heaps, what they write, and how they end.
class Run {
 public:
  explicit Run(const Program& program, int64_t odd_heap_bytes = kHeapBytes) {
    void* const shared = mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    board_ = new (shared) Board{};
    for (int r = 0; r < R; ++r) heaps_.push_back(hpmoe_heap_make(r == kOdd ? odd_heap_bytes : kHeapBytes));
    for (int rank = 0; rank < R; ++rank) {
      const pid_t pid = fork();
      if (pid == 0) {
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
    board_->goes_on = 1;
  }

  ~Run() {
    for (const int heap : heaps_) close(heap);
    munmap(board_, sizeof(Board));
  }

  Board& board() { return *board_; }
  void send(int rank, int number) { kill(board_->pids[rank], number); }

  // Waits for all ranks; they must end well, but for one of them.
  void wait(int but_for = -1, int64_t longest = 60 * kSecond) {
    const int64_t until = now_ns() + longest;
    for (int rank = 0; rank < R; ++rank) {
      int status = 0;
      while (waitpid(board_->pids[rank], &status, WNOHANG) == 0) {
        if (now_ns() > until) hang(rank);
        sleep_for(200'000);
      }
      const bool is_well = rank == but_for ? WIFSIGNALED(status) : WIFEXITED(status) && WEXITSTATUS(status) == 0;
      check(is_well, rank == but_for ? "a rank is killed" : "a rank ends well");
    }
  }

 private:
  void hang(int rank) {
    std::fprintf(stderr, "rank %d hangs at step %ld\n", rank, long(board_->steps[rank]));
    for (const auto& pid : board_->pids) kill(pid, SIGKILL);
    std::exit(1);
  }

  Board* board_;
  std::vector<int> heaps_;
  const Sockets sockets_;
};

// Meets and launches until that fails, and says how.
void go_on(Rank& mine, Board& board, int rank) {
  HpmoeStatus status{};
  mine.prepare();
  ++board.num_started;
  int code = 0;
  for (int64_t step = 0; code == 0; ++step) {
    code = mine.meet(step, &status, 30, "numbers", step % 2 ? 16 : 4096);
    if (code == 0) code = mine.launch(int(step % std::size(kVariants)), &status);
    board.steps[rank] = step;
  }
  board.told_ns[rank] = now_ns();
  board.codes[rank] = code;
  board.blamed[rank] = status.rank;
  board.ends[rank] = int32_t(status.value);
  check(mine.launch(0, &status) == code && status.rank == board.blamed[rank], "without a dead rank nothing goes on");
  check(now_ns() - board.told_ns[rank] < kSecond, "which is told at once");
}

struct Slowest {
  int64_t ns = 0;
  int64_t most_steps = 0;
};

// A rank is killed somewhere between its start and its thousandth step.
void kill_one(std::mt19937& random, Slowest& slowest) {
  Run run(go_on);
  Board& board = run.board();
  const int victim = int(random() % R);
  if (ucx) {  // whose TCP aborts where a peer ends while it connects: uct_tcp_ep_pending_purge of version 1.22
    for (const auto& steps : board.steps)
      while (steps < 1) sleep_for(20'000);
  } else if (random() % 8) {
    while (board.num_started < R) sleep_for(20'000);
  }
  std::exponential_distribution<double> soon(1 / 4e6);
  sleep_for(int64_t(soon(random)));
  const int64_t at = now_ns();
  run.send(victim, SIGKILL);
  run.wait(victim, 10 * kSecond);
  for (int rank = 0; rank < R; ++rank) {
    if (rank == victim) continue;
    check(board.codes[rank] == int(Code::PEER_DIED), "a death is told as such");
    check(board.blamed[rank] == victim, "who died is named");
    check(board.ends[rank] == SIGKILL || board.ends[rank] == -1, "and how");
    check(board.told_ns[rank] - at < 2 * kSecond, "within two seconds");
    slowest.ns = std::max(slowest.ns, board.told_ns[rank] - at);
    slowest.most_steps = std::max<int64_t>(slowest.most_steps, board.steps[rank]);
  }
}

void test_kills(int times) {
  std::mt19937 random(17);
  Slowest slowest;
  const auto files = names_in("/proc/self/fd"), shared = names_in("/dev/shm");
  for (int i = 0; i < times; ++i) kill_one(random, slowest);
  check(names_in("/proc/self/fd").size() == files.size(), "no descriptor is left");
  check(names_in("/dev/shm") == shared, "nothing is left in /dev/shm");
  check(waitpid(-1, nullptr, WNOHANG) == -1, "no process is left");
  std::printf("%d ranks, %d kills: told within %.1f ms, after %ld steps at most\n", R, times, double(slowest.ns) / 1e6,
              long(slowest.most_steps));
  std::fflush(stdout);
}

// All have come to the same place again.
void check_that_all_go_on(Rank& mine) {
  HpmoeStatus status{};
  for (int step = 0; step < 5; ++step) {
    check(mine.meet(100 + step, &status) == 0, "all meet again");
    check(mine.launch(step % int(std::size(kVariants)), &status) == 0, "all launch again");
  }
}

void test_ranks_that_fail() {
  Run([](Rank& mine, Board&, int rank) {
    mine.prepare();
    for (int step = 0; step < 20; ++step) {
      HpmoeStatus status{};
      if (rank == kOdd) {
        hpmoe_link_fail(mine.link(), "no tokens");
      } else {
        check((step % 2 ? mine.launch(0, &status) : mine.meet(0, &status)) == int(Code::PEER_FAILED), "a failure is told");
        HpmoeFailure failure{};
        hpmoe_link_failure(mine.link(), &failure);
        check(status.rank == kOdd && std::strcmp(failure.text, "no tokens") == 0, "who failed, and why");
      }
    }
    check_that_all_go_on(mine);
  }).wait();
}

// Each rank fails now and then, before, in or after what it does with the others: a call fails on all of them or on none, so
// that all stay at the same one.
void test_ranks_that_fail_anywhere() {
  Run run([](Rank& mine, Board& board, int rank) {
    mine.prepare();
    std::mt19937 random(static_cast<unsigned>(rank));
    for (int call = 0; call < kCalls; ++call) {
      HpmoeStatus status{};
      const unsigned fails_at = random() % 40;
      int code = 0;
      for (unsigned step = 0; step < 3 && code == 0; ++step) {
        if (random() % 4 == 0) sleep_for(int64_t(random() % 200'000));
        if (fails_at == step) {
          hpmoe_link_fail(mine.link(), "no tokens");
          code = -1;
        } else if (step == 1) {
          code = mine.launch(call % int(std::size(kVariants)), &status);
        } else {
          code = mine.meet(call * 4 + step, &status, 30, step == 0 ? "numbers" : "the end");
        }
      }
      board.outcomes[rank][call] = code == 0;
    }
    check_that_all_go_on(mine);
  });
  run.wait();
  int well = 0;
  for (int call = 0; call < kCalls; ++call) {
    for (int rank = 1; rank < R; ++rank)
      check(run.board().outcomes[rank][call] == run.board().outcomes[0][call], "a call fails on all ranks or on none");
    well += run.board().outcomes[0][call];
  }
  check(well > kCalls / 4 && well < kCalls, "some calls fail, and others do not");
}

void test_ranks_at_something_else() {
  Run([](Rank& mine, Board&, int rank) {
    mine.prepare();
    HpmoeStatus status{};
    check(mine.meet(0, &status, 30, rank == kOdd ? "a sum" : "numbers") != 0, "another call is an error on all");
    if (rank == kOdd) {
      check(status.code == int(Code::OTHER_CALL) || status.code == int(Code::PEER_FAILED), "there too");
    } else {
      const bool is_named = status.code == int(Code::OTHER_CALL) && status.rank == kOdd;
      check(is_named || status.code == int(Code::PEER_FAILED), "which names the other rank, or one that has found it first");
    }
    check(mine.launch(rank == kOdd ? 1 : 0, &status) != 0, "another kernel is an error on all");
    check_that_all_go_on(mine);
  }).wait();
}

void test_a_late_rank() {
  Run([](Rank& mine, Board&, int rank) {
    mine.prepare();
    HpmoeStatus status{};
    const int64_t began = now_ns();
    if (rank == kOdd) sleep_for(kSecond);
    const int code = mine.launch(0, &status, 0.3);
    if (rank == kOdd) {
      check(code == int(Code::PEER_FAILED), "who comes late learns that others gave up");
    } else {
      check((code == int(Code::PEER_LATE) && status.rank == kOdd) || code == int(Code::PEER_FAILED), "who is late is named");
      check(now_ns() - began < kSecond, "in time");
    }
    check_that_all_go_on(mine);
  }).wait();
}

// Launches until the parent has said which is the last.
template <class Note>
void launch_until_told(Rank& mine, Board& board, int rank, double timeout, Note note) {
  mine.prepare();
  ++board.num_started;
  for (int64_t step = 0; board.last_step == 0 || step < board.last_step; ++step) {
    HpmoeStatus status{};
    note(mine.call(int(step % std::size(kVariants)), step, &status, timeout, true), status);
    board.steps[rank] = step;
  }
  check_that_all_go_on(mine);
}

void end_soon(Board& board) { board.last_step = board.steps[0] + 200; }

constexpr double kStuck_s = 1;

// Slow is not dead: a rank is stopped for far longer than the timeout.
void test_a_stopped_rank(double seconds) {
  Run run([](Rank& mine, Board& board, int rank) {
    launch_until_told(mine, board, rank, kStuck_s,
                      [](int code, const HpmoeStatus&) { check(code == 0, "a stopped rank is waited for"); });
  });
  while (run.board().num_started < R) sleep_for(20'000);
  sleep_for(kSecond / 100);
  run.send(kOdd, SIGSTOP);
  sleep_for(int64_t(seconds * 1e9));
  run.send(kOdd, SIGCONT);
  end_soon(run.board());
  run.wait();
}

// Ctrl-C on one rank or on all, often.
void test_interrupts(int times, bool is_for_all) {
  Run run([](Rank& mine, Board& board, int rank) {
    std::signal(SIGINT, SIG_IGN);
    launch_until_told(mine, board, rank, 30, [&](int code, const HpmoeStatus& status) {
      if (code == 0) return;
      check(code == int(Code::INTERRUPTED) || code == int(Code::PEER_FAILED), "an interrupt is told as such");
      check(status.rank >= -1 && status.rank < R, "and whose it is");
      ++board.codes[rank];
    });
  });
  while (run.board().num_started < R) sleep_for(20'000);
  std::mt19937 random(3);
  for (int i = 0; i < times; ++i) {
    sleep_for(int64_t(random() % 2'000'000));
    for (int rank = 0; rank < R; ++rank)
      if (is_for_all || rank == kOdd) run.send(rank, SIGINT);
  }
  end_soon(run.board());
  run.wait();
  check(run.board().codes[0] > 0 && run.board().codes[kOdd] > 0, "all ranks learn of interrupts");
}

void test_memory_that_is_exhausted() {
  Run run(
      [](Rank& mine, Board&, int rank) {
        HpmoeStatus status{};
        for (int i = 0; i < 3; ++i) {
          const int code = mine.meet(1, &status, 30, "numbers", 4 << 20);
          if (rank == kOdd) {
            check(code == int(Code::OUT_OF_MEMORY), "a rank without memory for its payload learns it");
            hpmoe_link_fail(mine.link(), "no memory");
          } else {
            check(code == int(Code::PEER_FAILED) && status.rank == kOdd, "the others learn whose memory it is");
          }
          check(mine.meet(2, &status) == 0, "what is small still goes");
        }
      },
      1 << 20);
  run.wait();
}

void test_a_rank_that_leaves() {
  Run run([](Rank& mine, Board&, int rank) {
    mine.prepare();
    check_that_all_go_on(mine);
    if (rank == kOdd) {
      hpmoe_link_leave(mine.link(), "ValueError: no tokens");
      std::_Exit(0);
    }
    for (int i = 0; i < 3; ++i) {
      HpmoeStatus status{};
      check(mine.launch(0, &status) == int(Code::PEER_LEFT) && status.rank == kOdd, "who left is named");
      HpmoeFailure failure{};
      hpmoe_link_failure(mine.link(), &failure);
      check(std::strcmp(failure.text, "ValueError: no tokens") == 0, "with its last words");
    }
  });
  run.wait();
}

}  // namespace

int main(int argc, char** argv) {
  const int kills = argc > 1 ? std::atoi(argv[1]) : 20;
  const double stopped_s = argc > 2 ? std::atof(argv[2]) : 2.5;
  if (argc > 3) node_size = std::atoi(argv[3]);
  if (argc > 4) ucx = argv[4];
  test_kills(kills);
  test_ranks_that_fail();
  test_ranks_that_fail_anywhere();
  test_ranks_at_something_else();
  test_a_late_rank();
  test_a_stopped_rank(stopped_s);
  for (const bool is_for_all : {false, true}) test_interrupts(100, is_for_all);
  test_memory_that_is_exhausted();
  test_a_rank_that_leaves();
  std::printf("link driver, %d ranks: ok\n", R);
}
