// What link/ucx_api.h declares of UCX, held against UCX's own headers. Compiled where these are, and not run.
#include <ucp/api/ucp.h>

#include <type_traits>

#include "link/ucx_api.h"

namespace {

using namespace hpmoe::ucx;

static_assert(sizeof(Status) == sizeof(ucs_status_t) && std::is_signed_v<std::underlying_type_t<ucs_status_t>>, "a status");
static_assert(kOk == UCS_OK && kInProgress == UCS_INPROGRESS && kBusy == UCS_ERR_BUSY && kLast == UCS_ERR_LAST, "statuses");

#define SAME_VALUE(Ours, Theirs) static_assert(uint64_t(Ours) == uint64_t(Theirs), #Ours " is another")
#define SAME_SIZE(Ours, Theirs) static_assert(sizeof(Ours) == sizeof(Theirs), #Ours " has another size")
#define SAME(Ours, ours, Theirs, theirs) \
  static_assert(offsetof(Ours, ours) == offsetof(Theirs, theirs), #Ours "." #ours " lies elsewhere")

SAME_SIZE(ContextParams, ucp_params_t);
SAME(ContextParams, features, ucp_params_t, features);
SAME_VALUE(ContextParams::FEATURES, UCP_PARAM_FIELD_FEATURES);
SAME_VALUE(ContextParams::WAKEUP, UCP_FEATURE_WAKEUP);
SAME_VALUE(ContextParams::ACTIVE_MESSAGES, UCP_FEATURE_AM);

SAME_SIZE(WorkerParams, ucp_worker_params_t);
SAME(WorkerParams, thread_mode, ucp_worker_params_t, thread_mode);
SAME_VALUE(WorkerParams::THREAD_MODE, UCP_WORKER_PARAM_FIELD_THREAD_MODE);
SAME_VALUE(WorkerParams::SERIALIZED, UCS_THREAD_MODE_SERIALIZED);

SAME_SIZE(EndpointParams, ucp_ep_params_t);
SAME(EndpointParams, address, ucp_ep_params_t, address);
SAME(EndpointParams, err_mode, ucp_ep_params_t, err_mode);
SAME(EndpointParams, err_handler.cb, ucp_ep_params_t, err_handler.cb);
SAME(EndpointParams, err_handler.arg, ucp_ep_params_t, err_handler.arg);
SAME_VALUE(EndpointParams::REMOTE_ADDRESS, UCP_EP_PARAM_FIELD_REMOTE_ADDRESS);
SAME_VALUE(EndpointParams::ERROR_MODE, UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE);
SAME_VALUE(EndpointParams::ERROR_HANDLER, UCP_EP_PARAM_FIELD_ERR_HANDLER);
SAME_VALUE(EndpointParams::PEER, UCP_ERR_HANDLING_MODE_PEER);

SAME_SIZE(RequestParam, ucp_request_param_t);
SAME(RequestParam, flags, ucp_request_param_t, flags);
SAME(RequestParam, cb, ucp_request_param_t, cb);
SAME(RequestParam, user_data, ucp_request_param_t, user_data);
SAME_VALUE(RequestParam::CALLBACK, UCP_OP_ATTR_FIELD_CALLBACK);
SAME_VALUE(RequestParam::USER_DATA, UCP_OP_ATTR_FIELD_USER_DATA);
SAME_VALUE(RequestParam::FLAGS, UCP_OP_ATTR_FIELD_FLAGS);
SAME_VALUE(RequestParam::CLOSE_BY_FORCE, UCP_EP_CLOSE_FLAG_FORCE);

SAME_SIZE(MessageParam, ucp_am_recv_param_t);
SAME(MessageParam, recv_attr, ucp_am_recv_param_t, recv_attr);
SAME_VALUE(MessageParam::IS_RENDEZVOUS, UCP_AM_RECV_ATTR_FLAG_RNDV);

SAME_SIZE(MessageHandlerParam, ucp_am_handler_param_t);
SAME(MessageHandlerParam, id, ucp_am_handler_param_t, id);
SAME(MessageHandlerParam, flags, ucp_am_handler_param_t, flags);
SAME(MessageHandlerParam, cb, ucp_am_handler_param_t, cb);
SAME(MessageHandlerParam, arg, ucp_am_handler_param_t, arg);
SAME_VALUE(MessageHandlerParam::ID, UCP_AM_HANDLER_PARAM_FIELD_ID);
SAME_VALUE(MessageHandlerParam::FLAGS, UCP_AM_HANDLER_PARAM_FIELD_FLAGS);
SAME_VALUE(MessageHandlerParam::CALLBACK, UCP_AM_HANDLER_PARAM_FIELD_CB);
SAME_VALUE(MessageHandlerParam::ARGUMENT, UCP_AM_HANDLER_PARAM_FIELD_ARG);
SAME_VALUE(MessageHandlerParam::WHOLE, UCP_AM_FLAG_WHOLE_MSG);
SAME_VALUE(MessageHandlerParam::PERSISTENT_DATA, UCP_AM_FLAG_PERSISTENT_DATA);

// As many parameters, each of as many bytes, and the results too.
template <class Ours, class Theirs>
struct IsCalledAlike;
template <class Result, class... Parameters, class Their, class... Theirs>
struct IsCalledAlike<Result (*)(Parameters...), Their (*)(Theirs...)> {
  template <class T>
  static constexpr size_t bytes() {
    if constexpr (std::is_void_v<T>)
      return 0;
    else
      return sizeof(T);
  }
  static constexpr bool value() {
    if constexpr (sizeof...(Parameters) != sizeof...(Theirs))
      return false;
    else
      return bytes<Result>() == bytes<Their>() && (true && ... && (sizeof(Parameters) == sizeof(Theirs)));
  }
};

#define CALLED_ALIKE(result, name, parameters) \
  static_assert(IsCalledAlike<decltype(Api::name), decltype(&::name)>::value(), #name " is called otherwise");
HPMOE_UCX_FUNCTIONS(CALLED_ALIKE)
static_assert(IsCalledAlike<MessageHandler, ucp_am_recv_callback_t>::value(), "a handler of messages");
static_assert(IsCalledAlike<Sent, ucp_send_nbx_callback_t>::value(), "a callback of a send");
static_assert(IsCalledAlike<Received, ucp_am_recv_data_nbx_callback_t>::value(), "a callback of a receive");
static_assert(IsCalledAlike<ErrorHandler, ucp_err_handler_cb_t>::value(), "a handler of errors");

}  // namespace
