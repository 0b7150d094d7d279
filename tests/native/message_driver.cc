// Messages of another host, sound, cut off, flipped and made up: what they may write lies in the rows and counters of the
// launch they are for, whatever they say, and only those of the run's secret do. Argument: how many, in thousands.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "checks.h"
#include "link/distant.h"

namespace {

using namespace hpmoe;

constexpr uint64_t kSecret[2] = {17, 23};
constexpr int64_t kLaunch = 5, kRows = 6, kStride = 24, kEvents = 3, kStep = 8, kGuard = 256;

// A buffer of rows and the counters of a launch, with bytes around them that nobody may write to.
struct Memory {
  Bytes rows = Bytes(kGuard + kRows * kStride + kGuard, 7);
  std::vector<int64_t> counters = std::vector<int64_t>(kStep * (kEvents + 2), 7);

  void open(Landing& landing) {
    landing.open(kLaunch, {{nullptr, kStride, 0}, {rows.data() + kGuard, kStride, kRows}}, counters.data() + kStep, kStep,
                 kEvents);
  }
  bool is_sound() const {
    for (int64_t i = 0; i < kGuard; ++i)
      if (rows[i] != 7 || rows[rows.size() - 1 - i] != 7) return false;
    for (int64_t i = 0; i < int64_t(counters.size()); ++i) {
      const int64_t event = i / kStep - 1;
      const bool is_counter = i % kStep == 0 && event >= 0 && event < kEvents;
      if (!is_counter && counters[i] != 7) return false;
    }
    return true;
  }
};

// What a sound peer sends: rows in a run and scattered, wide and narrow, signals, meetings, failures.
std::vector<Bytes> sound_messages(int64_t most_bytes) {
  Outbox outbox(kSecret, most_bytes);
  static char from[kRows][kStride];
  for (int64_t i = 0; i < kRows; ++i) std::memset(from[i], int(i + 1), kStride);
  outbox.begin_launch(kLaunch);
  outbox.put(1, 0, kStride, {{0, from[0]}, {1, from[1]}, {2, from[2]}});
  outbox.add(1, 3);
  outbox.put(1, 4, 8, {{5, from[3]}, {3, from[4]}});
  outbox.add(2, 2);
  Exchange exchange{1, 99, 0, 6000, "numbers"};
  outbox.tell(1, &exchange, sizeof exchange, Bytes(6000, 3).data(), 6000);
  const Failure failure{};
  outbox.post(MessageKind::FAILED, 1, 1, &failure, sizeof failure);
  outbox.post(MessageKind::LEAVING, 1, 0, nullptr, 0);
  outbox.post(MessageKind::GOES_ON, 4, 3, nullptr, 0);
  outbox.post(MessageKind::LEFT, 1, 0, Bytes(sizeof Control::last_words, 1).data(), sizeof Control::last_words);
  outbox.post(MessageKind::BEAT, 0, 0, nullptr, 0);
  std::vector<Bytes> messages;
  for (Bytes message; outbox.take(message);) messages.push_back(message);
  return messages;
}

void test_sound_messages() {
  Control mine{};
  mine.leaving = 4;
  mine.goes_on = 2;
  Landing landing;
  Memory memory;
  memory.open(landing);
  Distant distant(1, kSecret, 4096, mine, landing);
  for (const Bytes& message : sound_messages(4096))
    check(!distant.take(message.data(), int64_t(message.size())), "a sound message is taken");
  const char* const rows = memory.rows.data() + kGuard;
  for (int64_t i = 0; i < kRows * kStride; ++i) {
    const int64_t row = i / kStride, byte = i % kStride, half = byte >= 4 && byte < 12;
    const int64_t wanted = row < 3 ? row + 1 : row == 5 && half ? 4 : row == 3 && half ? 5 : 7;
    check(rows[i] == wanted, "rows arrive where they belong");
  }
  check(memory.counters[2 * kStep] == 7 + 3 && memory.counters[3 * kStep] == 7 + 2, "signals are counted");
  check(distant.control().told == 1 && distant.told(1)[5999] == 3, "a payload arrives in parts");
  check(distant.control().failures == 1 && distant.control().has_left == 1, "what is said of a rank is known");
  check(memory.is_sound(), "nothing else is written");
  check(distant.control().leaving == 1 && distant.control().goes_on == 3 && distant.control().answered == 4,
        "who leaves and who goes on is known");
  Bytes answer;
  MessageHeader header;
  check(distant.outbox().take(answer), "who leaves is answered");
  std::memcpy(&header, answer.data(), sizeof header);
  check(header.kind == MessageKind::GOES_ON && header.number == 1 && header.offset == 2, "with how far this rank is");
}

// A rank that leaves waits until the other one has processed its last words, which that one reports in any message.
void test_arrival() {
  Control mine{};
  Landing landing;
  Distant distant(1, kSecret, 4096, mine, landing);
  const std::vector<Bytes> sound = sound_messages(4096);
  Bytes message;
  check(distant.outbox().has_arrived(), "nothing was put");
  distant.outbox().post(MessageKind::LEFT, 1, 0, Bytes(sizeof Control::last_words, 1).data(), sizeof Control::last_words);
  check(!distant.outbox().has_arrived(), "a message that waits has not arrived");
  check(distant.outbox().take(message) && !distant.outbox().has_arrived(), "nor has one that was sent");
  Bytes beat = sound.back();
  check(!distant.take(beat.data(), int64_t(beat.size())) && !distant.outbox().has_arrived(),
        "unless the other rank says so");
  MessageHeader header;
  std::memcpy(&header, beat.data(), sizeof header);
  header.num_taken = 1;
  std::memcpy(beat.data(), &header, sizeof header);
  check(!distant.take(beat.data(), int64_t(beat.size())) && distant.outbox().has_arrived(), "which a sign of life does");
  check(distant.num_taken() == 0, "signs of life do not count");
  const Bytes& left = sound[sound.size() - 2];
  check(!distant.take(left.data(), int64_t(left.size())) && distant.num_taken() == 1, "other messages do");
  check(distant.outbox().take(message) && message.size() == sizeof header, "last words are answered with a sign of life");
  check(distant.outbox().traffic().messages == 1, "which counts as no message");
}

// Rows as long as several messages are cut to fit.
void test_the_longest_message() {
  Control mine{};
  Landing landing;
  Bytes from(40'000), to(from.size() * 2);
  for (size_t i = 0; i < from.size(); ++i) from[i] = char(i * 7);
  landing.open(kLaunch, {{to.data(), int64_t(from.size()), 2}}, nullptr, 1, 0);
  Distant distant(1, kSecret, 4096, mine, landing);
  Outbox outbox(kSecret, 4096);
  outbox.begin_launch(kLaunch);
  outbox.put(0, 0, int64_t(from.size()), {{1, from.data()}});
  for (Bytes message; outbox.take(message);) {
    check(message.size() <= 4096, "messages are cut");
    check(!distant.take(message.data(), int64_t(message.size())), "and taken");
  }
  check(std::memcmp(to.data() + from.size(), from.data(), from.size()) == 0, "a long row arrives whole");
  check(outbox.traffic().rows == 1 && outbox.traffic().row_bytes == int64_t(from.size()), "rows are counted");
}

void test_what_is_not_for_this_launch() {
  Control mine{};
  Landing landing;
  Memory memory;
  Distant distant(1, kSecret, 4096, mine, landing);
  const Bytes before = memory.rows, rows = sound_messages(4096)[0];
  check(!distant.take(rows.data(), int64_t(rows.size())) && memory.rows == before, "before a launch nothing is written");
  memory.open(landing);
  Bytes foreign = rows;
  foreign[3] ^= 1;
  check(distant.take(foreign.data(), int64_t(foreign.size())) && memory.rows == before, "nor without the secret");
  landing.close();
  check(!distant.take(rows.data(), int64_t(rows.size())) && memory.rows == before, "nor after a launch");
}

void test_broken_messages(int64_t times) {
  std::mt19937 random(5);
  const std::vector<Bytes> sound = sound_messages(4096);
  int64_t num_refused = 0;
  for (int64_t i = 0; i < times; ++i) {
    Control mine{};
    Landing landing;
    Memory memory;
    memory.open(landing);
    Distant distant(1, kSecret, 4096, mine, landing);
    for (int messages = 0; messages < 3; ++messages) {
      Bytes message = sound[random() % sound.size()];
      if (random() % 3 == 0) message.resize(random() % (message.size() + 1));
      for (auto flips = random() % 4; flips > 0 && message.size() > sizeof kSecret; --flips) {
        const size_t most = random() % 2 ? std::min<size_t>(message.size(), 160) : message.size();
        const size_t at = sizeof kSecret + random() % (most - std::min(most - 1, sizeof kSecret));
        if (at < message.size()) message[at] = char(random() % 3 ? random() : random() % 2 ? -1 : 127);
      }
      const Bytes copy(message);  // of just its length, so that a sanitizer sees what is read after it
      num_refused += distant.take(copy.data(), int64_t(copy.size())) != nullptr;
      check(memory.is_sound(), "a broken message writes nowhere else");
    }
  }
  check(num_refused > times / 2, "broken messages are refused");
  std::printf("%ld broken messages, %ld refused\n", long(3 * times), long(num_refused));
}

// What waits is not sent: messages, rows and bytes are counted together, when a message is taken. Of rows that go as columns
// of several messages each is one.
void test_what_is_counted() {
  Outbox outbox(kSecret, 4096);
  const Bytes row(6000, 1);
  outbox.begin_launch(kLaunch);
  outbox.put(0, 0, int64_t(row.size()), {{0, row.data()}, {1, row.data()}});
  outbox.add(0, 2);
  check(outbox.traffic().rows == 0 && outbox.traffic().bytes == 0, "what waits is not counted");
  Bytes message;
  for (int64_t bytes = 0; outbox.take(message);) {
    const Traffic sent = outbox.traffic();
    bytes += int64_t(message.size());
    check(sent.bytes == bytes && sent.row_bytes < sent.bytes, "rows are counted with their message");
  }
  const Traffic sent = outbox.traffic();
  check(sent.rows == 2 && sent.row_bytes == 2 * int64_t(row.size()) && sent.messages == sent.row_messages,
        "all are counted");
}

}  // namespace

int main(int argc, char** argv) {
  test_sound_messages();
  test_arrival();
  test_the_longest_message();
  test_what_is_not_for_this_launch();
  test_what_is_counted();
  test_broken_messages(int64_t(1000 * (argc > 1 ? std::atof(argv[1]) : 20)));
  std::printf("message driver: ok\n");
}
