// The functions of acl that host/cann_device.cc calls, on memory of this CPU: copies in a stream are done at once.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>

using aclrtStream = void*;
using aclrtEvent = void*;
enum aclrtEventRecordedStatus { ACL_EVENT_RECORDED_STATUS_NOT_READY, ACL_EVENT_RECORDED_STATUS_COMPLETE };
enum { ACL_MEM_MALLOC_HUGE_FIRST, ACL_MEMCPY_HOST_TO_DEVICE, ACL_MEMCPY_DEVICE_TO_HOST, ACL_MEMCPY_DEVICE_TO_DEVICE };
enum { ACL_DEV_ATTR_CUBE_CORE_NUM };

inline int failure_of_stream = 0;  // what the next synchronisation of a stream returns

inline const char* aclGetRecentErrMsg() { return nullptr; }
inline int aclrtMalloc(void** memory, size_t bytes, int) { return (*memory = std::malloc(bytes)) ? 0 : 1; }
inline int aclrtFree(void* memory) { return std::free(memory), 0; }
inline int aclrtMallocHost(void** memory, size_t bytes) { return aclrtMalloc(memory, bytes, 0); }
inline int aclrtFreeHost(void* memory) { return aclrtFree(memory); }
inline int aclrtMemset(void* memory, size_t, int value, size_t bytes) { return std::memset(memory, value, bytes), 0; }
inline int aclrtMemcpy(void* to, size_t, const void* from, size_t bytes, int) { return std::memcpy(to, from, bytes), 0; }
inline int aclrtMemcpyAsync(void* to, size_t size, const void* from, size_t bytes, int kind, aclrtStream) {
  return aclrtMemcpy(to, size, from, bytes, kind);
}
inline int aclrtCreateStream(aclrtStream* stream) { return *stream = nullptr, 0; }
inline int aclrtDestroyStream(aclrtStream) { return 0; }
inline int aclrtSynchronizeStreamWithTimeout(aclrtStream, int32_t) { return failure_of_stream; }
inline int aclrtSynchronizeDevice() { return 0; }
inline int aclrtCreateEvent(aclrtEvent* event) { return *event = nullptr, 0; }
inline int aclrtDestroyEvent(aclrtEvent) { return 0; }
inline int aclrtRecordEvent(aclrtEvent, aclrtStream) { return 0; }
inline int aclrtSynchronizeEvent(aclrtEvent) { return 0; }
inline int aclrtQueryEventStatus(aclrtEvent, aclrtEventRecordedStatus* status) {
  return *status = ACL_EVENT_RECORDED_STATUS_COMPLETE, 0;
}
inline int aclrtGetDevice(int32_t* device) { return *device = 0; }
inline int aclrtGetDeviceInfo(uint32_t, int, int64_t* number) { return *number = 24, 0; }
