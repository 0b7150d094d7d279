// Declarations of the used part of UCX, so that no UCX is needed to build. tests/native/ucx_layout.cc compares them with
// UCX's headers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace hpmoe::ucx {

using Status = int8_t;  // a packed enum in UCX
constexpr Status kOk = 0, kInProgress = 1, kBusy = -15, kLast = -100;

using Context = struct ContextOf*;
using Config = struct ConfigOf*;
using Worker = struct WorkerOf*;
using Endpoint = struct EndpointOf*;
using Address = struct AddressOf;
using Request = void*;  // NULL if done; a Status above kLast; else a request in progress

inline bool is_error(Request request) {
  return reinterpret_cast<uintptr_t>(request) >= static_cast<uintptr_t>(intptr_t{kLast});
}

struct ContextParams {
  enum : uint64_t { FEATURES = 1 };
  enum : uint64_t { WAKEUP = 1 << 4, ACTIVE_MESSAGES = 1 << 6 };
  uint64_t field_mask, features;
  size_t request_size;
  void (*request_init)(void*);
  void (*request_cleanup)(void*);
  uint64_t tag_sender_mask;
  int mt_workers_shared;
  size_t estimated_num_eps, estimated_num_ppn;
  const char* name;
  size_t node_local_id;
};

struct WorkerParams {
  enum : uint64_t { THREAD_MODE = 1 };
  enum : int32_t { SERIALIZED = 1 };
  uint64_t field_mask;
  int32_t thread_mode;
  unsigned long cpu_mask[16];
  unsigned events;
  void* user_data;
  int event_fd;
  uint64_t flags;
  const char* name;
  size_t am_alignment;
  uint64_t client_id;
};

struct SocketAddress {
  const void* addr;
  uint32_t addrlen;
};

using ErrorHandler = void (*)(void* of, Endpoint endpoint, Status status);

struct EndpointParams {
  enum : uint64_t { REMOTE_ADDRESS = 1, ERROR_MODE = 2, ERROR_HANDLER = 4 };
  enum : int32_t { PEER = 1 };
  uint64_t field_mask;
  const Address* address;
  int32_t err_mode;
  struct {
    ErrorHandler cb;
    void* arg;
  } err_handler;
  void* user_data;
  unsigned flags;
  SocketAddress sockaddr;
  void* conn_request;
  const char* name;
  SocketAddress local_sockaddr;
};

using Sent = void (*)(void* request, Status status, void* of);
using Received = void (*)(void* request, Status status, size_t length, void* of);

struct RequestParam {
  enum : uint32_t { CALLBACK = 1 << 1, USER_DATA = 1 << 2, FLAGS = 1 << 4 };
  enum : uint32_t { CLOSE_BY_FORCE = 1 };
  uint32_t op_attr_mask, flags;
  void* request;
  union {
    Sent send;
    Received recv_am;
  } cb;
  uint64_t datatype;
  void* user_data;
  void* reply_buffer;
  int32_t memory_type;
  void* recv_info;
  void* memh;
  uint64_t remote_datatype;
  const void* remote;
  size_t remote_count;
};

struct MessageParam {
  enum : uint64_t { IS_RENDEZVOUS = 1 << 17 };
  uint64_t recv_attr;
  Endpoint reply_ep;
};

using MessageHandler = Status (*)(void* of, const void* header, size_t header_length, void* data, size_t length,
                                  const MessageParam* param);

struct MessageHandlerParam {
  enum : uint64_t { ID = 1, FLAGS = 2, CALLBACK = 4, ARGUMENT = 8 };
  enum : uint32_t { WHOLE = 1, PERSISTENT_DATA = 2 };
  uint64_t field_mask;
  unsigned id;
  uint32_t flags;
  MessageHandler cb;
  void* arg;
};

// Every used function: result, name, parameters.
#define HPMOE_UCX_FUNCTIONS(X)                                                                                     \
  X(void, ucp_get_version, (unsigned*, unsigned*, unsigned*))                                                      \
  X(Status, ucp_config_read, (const char*, const char*, Config*))                                                  \
  X(Status, ucp_config_modify, (Config, const char*, const char*))                                                 \
  X(void, ucp_config_release, (Config))                                                                            \
  X(Status, ucp_init_version, (unsigned, unsigned, const ContextParams*, Config, Context*))                        \
  X(void, ucp_cleanup, (Context))                                                                                  \
  X(Status, ucp_worker_create, (Context, const WorkerParams*, Worker*))                                            \
  X(void, ucp_worker_destroy, (Worker))                                                                            \
  X(Status, ucp_worker_get_address, (Worker, Address**, size_t*))                                                  \
  X(void, ucp_worker_release_address, (Worker, Address*))                                                          \
  X(Status, ucp_worker_get_efd, (Worker, int*))                                                                    \
  X(Status, ucp_worker_arm, (Worker))                                                                              \
  X(unsigned, ucp_worker_progress, (Worker))                                                                       \
  X(Status, ucp_ep_create, (Worker, const EndpointParams*, Endpoint*))                                             \
  X(Request, ucp_ep_close_nbx, (Endpoint, const RequestParam*))                                                    \
  X(Status, ucp_worker_set_am_recv_handler, (Worker, const MessageHandlerParam*))                                  \
  X(Request, ucp_am_send_nbx, (Endpoint, unsigned, const void*, size_t, const void*, size_t, const RequestParam*)) \
  X(Request, ucp_am_recv_data_nbx, (Worker, void*, void*, size_t, const RequestParam*))                            \
  X(void, ucp_am_data_release, (Worker, void*))                                                                    \
  X(void, ucp_request_free, (void*))

struct Api {
#define HPMOE_UCX_MEMBER(result, name, parameters) result(*name) parameters;
  HPMOE_UCX_FUNCTIONS(HPMOE_UCX_MEMBER)
#undef HPMOE_UCX_MEMBER
};

// Loads the library from a folder, such as that of the package libucx, beside any UCX that is loaded already. Returns NULL
// with the reason in `why` if it cannot.
const Api* load(const char* folder, std::string& why);

}  // namespace hpmoe::ucx
