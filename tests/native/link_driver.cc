// Ranks that are processes, without Python: they launch a MoE layer packed by hand again and again, compare with plain
// loops, and are killed at random moments, stopped, interrupted, short of memory, late, or at something else.
// Arguments: how many kills, for how many seconds a rank is stopped, and how many neighbouring ranks are on one machine: the
// others are reached through messages then, which UCX carries where the last argument is the folder of its libraries.
#include <dirent.h>

#include <random>
#include <set>
#include <string>

#include "link_ranks.h"

namespace {

using namespace hpmoe;

std::set<std::string> names_in(const char* folder) {
  std::set<std::string> names;
  DIR* const dir = opendir(folder);
  while (const dirent* entry = dir ? readdir(dir) : nullptr) names.insert(entry->d_name);
  if (dir) closedir(dir);
  return names;
}

// Meets and launches until that fails, and says how.
void go_on(Rank& mine, Board& board, int rank) {
  HpmoeStatus status{};
  mine.prepare();
  ++board.num_started;
  int code = 0;
  for (int64_t step = 0; code == 0; ++step) {
    code = mine.meet(step, &status, kTimeout_s, "numbers", step % 2 ? 16 : 4096);
    if (code == 0) code = mine.launch(int(step % std::size(kVariants)), &status);
    board.steps[rank] = step;
  }
  board.told_ns[rank] = board.ran_ns.load();
  board.codes[rank] = code;
  board.blamed[rank] = status.rank;
  board.ends[rank] = int32_t(status.value);
  check(mine.launch(0, &status) == code && status.rank == board.blamed[rank], "without a dead rank nothing goes on");
  check(board.ran_ns - board.told_ns[rank] < kSoon, "which is told at once");
}

struct Slowest {
  int64_t ns = 0, linking_ns = 0;
  int64_t most_steps = 0;
};

// A rank is killed while all link, which the first run times, or soon after, up to its thousandth step.
void kill_one(std::mt19937& random, Slowest& slowest) {
  Run run(go_on);
  Board& board = run.board();
  const int victim = int(random() % R);
  if (random() % 2 && slowest.linking_ns) {
    sleep_for(std::uniform_int_distribution<int64_t>(0, slowest.linking_ns * 3 / 2)(random));
  } else {
    while (board.num_started < R) sleep_for(20'000);
    if (!slowest.linking_ns) slowest.linking_ns = board.ran_ns;
    std::exponential_distribution<double> soon(1 / 4e6);
    sleep_for(int64_t(soon(random)));
  }
  const int64_t at = board.ran_ns;
  run.send(victim, SIGKILL);
  run.wait(victim);
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
          code = mine.meet(call * 4 + step, &status, kTimeout_s, step == 0 ? "numbers" : "the end");
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
    check(mine.meet(0, &status, kTimeout_s, rank == kOdd ? "a sum" : "numbers") != 0, "another call is an error on all");
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

// One rank gives up waiting, and so do all that have come; the last one comes when they have.
void test_a_late_rank() {
  constexpr int kPatience = 0;  // the rank that has little
  Run([](Rank& mine, Board& board, int rank) {
    mine.prepare();
    HpmoeStatus status{};
    check(mine.meet(99, &status) == 0, "all meet first");
    while (rank == kOdd && board.num_ended < R - 1) sleep_for(20'000);
    while (rank == kPatience && !mine.are_ahead(R - 2)) sleep_for(20'000);
    const int64_t began = board.ran_ns;
    const int code = mine.launch(0, &status, rank == kPatience ? 0.3 : kTimeout_s);
    if (rank == kPatience) {
      check(code == int(Code::PEER_LATE) && status.rank == kOdd, "who is late is named");
    } else {
      check(code == int(Code::PEER_FAILED) && status.rank == kPatience,
            "the others learn who gave up, before or after they came");
      HpmoeFailure failure{};
      hpmoe_link_failure(mine.link(), &failure);
      check(failure.status.code == int(Code::PEER_LATE) && failure.status.rank == kOdd, "and who was late");
    }
    check(board.ran_ns - began < kSoon, "long before they would themselves");
    ++board.num_ended;
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
    launch_until_told(mine, board, rank, kTimeout_s, [&](int code, const HpmoeStatus& status) {
      if (code == 0) return;
      check(code == int(Code::INTERRUPTED) || code == int(Code::PEER_FAILED), "an interrupt is told as such");
      check(status.rank >= -1 && status.rank < R, "and whose it is");
      ++board.codes[rank];
    });
  });
  while (run.board().num_started < R) sleep_for(20'000);
  std::mt19937 random(3);
  const auto heard = [&] { return run.board().codes[0] > 0 && run.board().codes[kOdd] > 0; };
  for (int i = 0; i < times || !heard(); ++i) {
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
          const int code = mine.meet(1, &status, kTimeout_s, "numbers", 4 << 20);
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
  const double stopped_s = argc > 2 ? std::atof(argv[2]) : 2;
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
