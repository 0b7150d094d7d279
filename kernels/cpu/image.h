// A read-only view of a packed image, and its check.
#pragma once

#include <cstdint>

#include "protocol.h"

namespace hpmoe {

struct Image {
  const Header* header;
  const Task* tasks = nullptr;
  const int32_t* queues = nullptr;
  const Op* ops = nullptr;
  const Buffer* buffers = nullptr;
  const Event* events = nullptr;
  const Wait* waits = nullptr;
  const Signal* signals = nullptr;
  const Route* routes = nullptr;
  const int32_t* peer_order = nullptr;

  explicit Image(const void* bytes);

  int32_t peer(int32_t rank, int32_t position) const { return peer_order[rank * header->ep_size + position]; }
};

// The first fault of an image as a sentence, or NULL: after this check a launch touches nothing outside the image,
// and nothing outside the buffers whose row counts the image states.
const char* find_fault(const void* bytes, int64_t num_bytes);

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

inline int64_t max_rows_of(const Route& route, int32_t tile_rows) {
  return route.max_rows > 0 ? route.max_rows : int64_t{route.num_slots} * tile_rows;
}

inline bool is_put(Opcode opcode) { return opcode == Opcode::PUT || opcode == Opcode::PUT_BACK; }
inline bool is_exchange(Opcode opcode) { return opcode == Opcode::ALL_TO_ALL || opcode == Opcode::ALL_TO_ALL_BACK; }
inline bool is_transfer(Opcode opcode) { return is_put(opcode) || is_exchange(opcode) || opcode == Opcode::NOTIFY; }

inline bool goes_back(const Op& op) {
  const auto opcode = static_cast<Opcode>(op.opcode);
  return opcode == Opcode::PUT_BACK || opcode == Opcode::ALL_TO_ALL_BACK ||
         (opcode == Opcode::NOTIFY && op.param[0] == 1);
}

}  // namespace hpmoe
