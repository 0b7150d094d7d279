// Meetings in which a rank is interrupted fail on all ranks or on none: at random moments, and, where an argument says so,
// at every instruction at which the interrupted rank, or one that comes meanwhile, may stand, as a debugger steps them.
// Exits with 77 where there may be no debugger. Arguments: how many ranks are on one machine, "steps".
#include <sys/ptrace.h>

#include <random>

#include "link_ranks.h"

namespace {

using namespace hpmoe;

constexpr int kNoDebugger = 77, kOther = 0;
constexpr int64_t kLook = 5'000;

bool is_well(int code, const HpmoeStatus& status) {
  return code == 0 || (code == int(Code::INTERRUPTED) && status.rank < 0);  // which came after
}

void test_random_moments() {
  Run run([](Rank& mine, Board& board, int rank) {
    std::signal(SIGINT, SIG_IGN);
    ++board.num_started;
    for (int call = 0; call < kCalls; ++call) {
      HpmoeStatus status{};
      const int code = mine.meet(call, &status, kTimeout_s, "numbers", 16, true);
      check(is_well(code, status) || code == int(Code::INTERRUPTED) || code == int(Code::PEER_FAILED), "it is told as such");
      board.outcomes[rank][call] = is_well(code, status);
      board.steps[rank] = call;
    }
  });
  Board& board = run.board();
  std::mt19937 random(7);
  while (board.num_started < R) sleep_for(20'000);
  while (board.steps[kOdd] < kCalls - 1) {
    sleep_for(int64_t(random() % 50'000));
    for (int rank = 0; rank < R; ++rank)
      if (random() % 2) run.send(rank, SIGINT);
  }
  run.wait();
  for (int call = 0; call < kCalls; ++call)
    for (const auto& outcomes : board.outcomes)
      check(outcomes[call] == board.outcomes[0][call], "a meeting fails on all ranks or on none");
}

// Each comes to its next meeting when told to.
void meet_in_turns(Rank& mine, Board& board, int rank) {
  std::signal(SIGINT, SIG_IGN);
  for (int64_t round = 1; board.last_step == 0; ++round) {
    while (board.turns[rank] < round && board.last_step == 0) sleep_for(kLook);
    if (board.last_step) break;
    HpmoeStatus status{};
    board.codes[rank] = is_well(mine.meet(round, &status, kTimeout_s, "numbers", 16, rank == kOdd), status);
    board.steps[rank] = round;
  }
}

class Debugged {
 public:
  Debugged(Run& run, int rank) : run_(run), pid_(run.board().pids[rank]) {
    if (ptrace(PTRACE_SEIZE, pid_, nullptr, nullptr) == 0) return;
    for (const auto& pid : run.board().pids) kill(pid, SIGKILL);
    std::_Exit(kNoDebugger);
  }

  void stop() {
    ptrace(PTRACE_INTERRUPT, pid_, nullptr, nullptr);
    wait();
  }
  // Stops with a signal that it will have at the next step.
  void interrupt() {
    kill(pid_, SIGINT);
    wait();
    signal_ = SIGINT;
  }
  void step() {
    ptrace(PTRACE_SINGLESTEP, pid_, nullptr, signal_);
    signal_ = 0;
    wait();
  }
  void go_on() {
    ptrace(PTRACE_CONT, pid_, nullptr, signal_);
    signal_ = 0;
  }

 private:
  void wait() {
    int status = 0;
    check(waitpid(pid_, &status, __WALL) == pid_ && WIFSTOPPED(status), "it stops");
  }

  Run& run_;
  const pid_t pid_;
  int64_t signal_ = 0;
};

class Stepped {
 public:
  explicit Stepped(Run& run) : run_(run), board_(run.board()), odd_(run, kOdd), other_(run, kOther) {}

  // The interrupted rank stands after so many instructions while the others come, and each either ends the meeting or waits.
  // Whether it ended sooner.
  bool interrupted_after(int64_t steps) {
    come_and_wait(kOdd);
    odd_.interrupt();
    for (int64_t i = 0; i < steps && !has_ended(kOdd); ++i) odd_.step();
    const bool was_sooner = has_ended(kOdd);
    for (int rank = 0; rank < R; ++rank)
      if (rank != kOdd) come_and_wait(rank);
    odd_.go_on();
    compare();
    return was_sooner;
  }

  // It has just said that it leaves, and goes on from there after another one has come so many instructions far. Whether
  // that had said before that it goes on.
  bool leaving_after(int64_t steps) {
    for (int rank = 0; rank < R; ++rank)
      if (rank != kOther) come_and_wait(rank);
    const int64_t number = run_.control(kOdd).told;
    odd_.interrupt();
    while (run_.control(kOdd).leaving != number) odd_.step();
    other_.stop();
    board_.turns[kOther] = round_;
    for (int64_t i = 0; i < steps; ++i) other_.step();
    const bool goes_on = run_.control(kOther).goes_on == number;
    odd_.go_on();
    until_ended_or_waiting(kOdd);
    other_.go_on();
    compare();
    return goes_on;
  }

  int64_t num_well() const { return num_well_; }

 private:
  bool has_ended(int rank) const { return board_.steps[rank] == round_; }
  void until_ended_or_waiting(int rank) const {
    const int64_t before = told_before_;
    while (!has_ended(rank) && (run_.control(rank).told == before || run_.control(rank).sleepers == 0)) sleep_for(kLook);
  }
  void come_and_wait(int rank) {
    told_before_ = run_.control(rank).told;
    board_.turns[rank] = round_;
    until_ended_or_waiting(rank);
  }
  void compare() {
    for (int rank = 0; rank < R; ++rank)
      while (!has_ended(rank)) sleep_for(kLook);
    for (const auto& code : board_.codes) check(code == board_.codes[0], "a meeting fails on all ranks or on none");
    num_well_ += board_.codes[0];
    ++round_;
  }

  Run& run_;
  Board& board_;
  Debugged odd_, other_;
  int64_t round_ = 1, num_well_ = 0, told_before_ = 0;
};

void test_instructions(int stride) {
  Run run(meet_in_turns);
  Stepped stepped(run);
  int64_t steps = 0;
  while (!stepped.interrupted_after(steps)) steps += stride;
  const int64_t well = stepped.num_well();
  check(0 < well && well < steps / stride,
        "a meeting passes where the others come before the interrupt is seen, and then no more");
  std::printf("%ld instructions to the end of an interrupted meeting, after %ld it is left\n", long(steps),
              long(well * stride));
  for (steps = 0; !stepped.leaving_after(steps);) steps += stride;
  const int64_t passed = stepped.num_well();
  check(passed > well, "it passes where another one says so before that is asked for");
  // The number of instructions of a rank differs a little between meetings, so a rank may not have said it yet.
  for (int64_t more = 1, before = passed; more < 100; ++more, before = stepped.num_well()) {
    const bool goes_on = stepped.leaving_after(steps + more);
    check(!goes_on || stepped.num_well() == before + 1, "and whatever that one does then");
  }
  run.board().last_step = 1;
  std::printf("%ld instructions from before a meeting to where one goes on\n", long(steps));
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) node_size = std::atoi(argv[1]);
  test_random_moments();
  if (argc > 2) test_instructions(std::atoi(argv[2]));
  std::printf("interrupt driver, %d ranks: ok\n", R);
}
