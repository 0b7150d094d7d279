// TPipe allocates local memory; a TQue passes buffers between two pipes; a TBuf is one buffer.
#pragma once

#include "sync.h"

namespace AscendC {

namespace detail {

struct QueBuffer {
  enum State { FREE, ALLOCATED, QUEUED, TAKEN } state = FREE;
  emulator::Allocation allocation;
  emulator::Flag filled, freed;
};

// A queue's buffers. TPipe also keeps them, because it outlives the queue and checks them at the end.
struct QueState {
  pipe_t fill;
  std::deque<QueBuffer> buffers;
  std::deque<QueBuffer*> queued;
  size_t next = 0;
};

}  // namespace detail

template <TPosition source, TPosition destination, int32_t depth>
class TQueBind {
 public:
  template <class T>
  LocalTensor<T> AllocTensor() {
    detail::QueBuffer& buffer = find(detail::QueBuffer::FREE, "AllocTensor");
    buffer.state = detail::QueBuffer::ALLOCATED;
    emulator::current().wait_flag(kFill, buffer.freed, "a free buffer of a queue");
    return {buffer.allocation, buffer.allocation.begin};
  }
  template <class T>
  bool EnQue(const LocalTensor<T>& tensor) {
    detail::QueBuffer& buffer = owner(tensor, detail::QueBuffer::ALLOCATED, "EnQue");
    emulator::require(state_->queued.size() < depth, "EnQue: a queue of depth ", depth, " is full");
    buffer.state = detail::QueBuffer::QUEUED;
    state_->queued.push_back(&buffer);
    emulator::current().set_flag(kFill, buffer.filled, "EnQue");
    return true;
  }
  template <class T>
  LocalTensor<T> DeQue() {
    emulator::require(!state_->queued.empty(), "DeQue: the queue is empty");
    detail::QueBuffer& buffer = *state_->queued.front();
    state_->queued.pop_front();
    buffer.state = detail::QueBuffer::TAKEN;
    emulator::current().wait_flag(kDrain, buffer.filled, "DeQue");
    return {buffer.allocation, buffer.allocation.begin};
  }
  template <class T>
  void FreeTensor(LocalTensor<T>& tensor) {
    owner(tensor, detail::QueBuffer::TAKEN, "FreeTensor").state = detail::QueBuffer::FREE;
    emulator::current().set_flag(kDrain, owner(tensor, detail::QueBuffer::FREE, "FreeTensor").freed, "FreeTensor");
  }

 private:
  friend class TPipe;
  static constexpr pipe_t kFill = source == TPosition::VECCALC ? PIPE_V : PIPE_MTE2;
  static constexpr pipe_t kDrain = destination == TPosition::VECCALC ? PIPE_V : PIPE_MTE3;

  detail::QueBuffer& find(detail::QueBuffer::State state, const char* what) {
    for (size_t i = 0; i < state_->buffers.size(); ++i) {
      detail::QueBuffer& buffer = state_->buffers[(state_->next + i) % state_->buffers.size()];
      if (buffer.state != state) continue;
      state_->next = (state_->next + i + 1) % state_->buffers.size();
      return buffer;
    }
    throw emulator::Fault(emulator::text(what, ": no buffer of the queue is free"));
  }
  template <class T>
  detail::QueBuffer& owner(const LocalTensor<T>& tensor, detail::QueBuffer::State state, const char* what) {
    for (detail::QueBuffer& buffer : state_->buffers) {
      if (buffer.allocation.begin != tensor.allocation().begin) continue;
      emulator::require(buffer.state == state, what, ": the tensor is in the wrong state");
      return buffer;
    }
    throw emulator::Fault(emulator::text(what, ": the tensor is not of this queue"));
  }

  std::shared_ptr<detail::QueState> state_ = std::make_shared<detail::QueState>();
};

// A queue into or out of the vector unit; a TQueBind of VECIN and VECOUT passes it by.
template <TPosition position, int32_t depth>
class TQue : public TQueBind<position == TPosition::VECIN ? TPosition::VECIN : TPosition::VECCALC,
                             position == TPosition::VECIN ? TPosition::VECCALC : TPosition::VECOUT, depth> {
  static_assert(position == TPosition::VECIN || position == TPosition::VECOUT, "queues of the vector core");
};

template <TPosition position = TPosition::LCM>
class TBuf {
 public:
  template <class T>
  LocalTensor<T> Get() {
    return {allocation_, allocation_.begin};
  }

 private:
  friend class TPipe;
  emulator::Allocation allocation_;
};

class TPipe {
 public:
  // The constructor sets and takes flags 0 to 2 of M_MTE1, as on the A2.
  TPipe() {
    emulator::Core& core = emulator::current();
    if (!core.is_aic) return;
    for (int i = 0; i < 3; ++i) SetFlag<HardEvent::M_MTE1>(AllocEventID<HardEvent::M_MTE1>());
  }
  ~TPipe() noexcept(false) {
    if (std::uncaught_exceptions() > 0) return;
    emulator::Core& core = emulator::current();
    for (int i = 0; core.is_aic && i < 3; ++i) WaitFlag<HardEvent::M_MTE1>(i);
    for (const auto& queue : queues_) {
      for (detail::QueBuffer& buffer : queue->buffers) {
        emulator::require(buffer.state == detail::QueBuffer::FREE, "a queue ends with a buffer that was not freed");
        core.wait_flag(queue->fill, buffer.freed, "a freed buffer");
      }
    }
    PipeBarrier<PIPE_ALL>();
    for (int m = 0; m < emulator::kNumMemories; ++m) core.local(static_cast<emulator::Memory>(m)).free_all();
  }
  TPipe(const TPipe&) = delete;
  TPipe& operator=(const TPipe&) = delete;

  template <TPosition source, TPosition destination, int32_t depth>
  bool InitBuffer(TQueBind<source, destination, depth>& queue, uint8_t num, uint32_t bytes) {
    emulator::Core& core = emulator::current();
    constexpr pipe_t fill = TQueBind<source, destination, depth>::kFill,
                     drain = TQueBind<source, destination, depth>::kDrain;
    queue.state_->fill = fill;
    queues_.push_back(queue.state_);
    for (int i = 0; i < num; ++i) {
      detail::take_flag(detail::event_between(fill, drain), "InitBuffer");
      detail::take_flag(detail::event_between(drain, fill), "InitBuffer");
      queue.state_->buffers.emplace_back();
      detail::QueBuffer& buffer = queue.state_->buffers.back();
      buffer.allocation = core.local(emulator::Memory::UB).allocate(bytes);
      buffer.freed.value = 1;
    }
    return true;
  }
  template <TPosition position>
  bool InitBuffer(TBuf<position>& buffer, uint32_t bytes) {
    buffer.allocation_ = emulator::current().local(detail::memory_of(position)).allocate(bytes);
    return true;
  }

  template <HardEvent event>
  TEventID AllocEventID() {
    return static_cast<TEventID>(detail::take_flag(static_cast<int>(event), "AllocEventID"));
  }
  template <HardEvent event>
  void ReleaseEventID(TEventID) {}

 private:
  std::vector<std::shared_ptr<detail::QueState>> queues_;
};

}  // namespace AscendC
