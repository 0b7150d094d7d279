// The C functions of core/abi.h for ranks that are processes.
#include <algorithm>
#include <exception>

#include "core/abi.h"
#include "cpu/launch.h"
#include "cpu/thread_pool.h"
#include "link/device_launch.h"
#include "link/mapped_peers.h"

namespace {

using hpmoe::Code;
using hpmoe::Link;
using hpmoe::status_of;

Link* link_of(HpmoeLink* link) { return reinterpret_cast<Link*>(link); }

int report(HpmoeStatus* status, const HpmoeStatus& value) {
  *status = value;
  return value.code;
}

// Reports that this rank cannot begin a launch in which the other ranks wait.
int fail_before(Link* link, Code code, HpmoeStatus* status) {
  const HpmoeStatus end = status_of(code, link->rank());
  link->fail({end, link->rank(), {}});
  return report(status, end);
}

bool fits(const hpmoe::Image& image, int32_t num_ranks, const HpmoeRank& mine) {
  const auto takes = [&](const hpmoe::Route& route) { return mine.num_tokens <= route.num_tokens; };
  return num_ranks == image.header->ep_size && mine.num_tokens >= 0 &&
         std::all_of(image.routes, image.routes + image.header->num_routes, takes);
}

}  // namespace

extern "C" {

int32_t hpmoe_heap_make(int64_t bytes) { return hpmoe::make_heap_file(bytes); }

HpmoeLink* hpmoe_link_open(int32_t rank, int32_t size, const int32_t* heap_fds, const int32_t* pids, const int32_t* pidfds,
                           const HpmoeHosts* hosts) {
  try {
    std::vector<hpmoe::Member> members;
    for (int32_t i = 0; i < size; ++i) members.push_back({heap_fds[i], pids[i], pidfds[i], hosts ? hosts->sockets[i] : -1});
    return reinterpret_cast<HpmoeLink*>(Link::open(rank, members, hosts).release());
  } catch (const std::exception&) {
    return nullptr;
  }
}

const char* hpmoe_ucx_fault(const char* folder) {
  const hpmoe::Proxy::Started& found = hpmoe::Proxy::get(folder);
  return found.proxy ? nullptr : found.why.c_str();
}

void hpmoe_link_close(HpmoeLink* link) { delete link_of(link); }

void hpmoe_link_set_crowded(HpmoeLink* link, int32_t is_crowded) { link_of(link)->set_crowded(is_crowded != 0); }

void* hpmoe_link_heap(HpmoeLink* link, int32_t rank) {
  return link_of(link)->distant(rank) ? nullptr : link_of(link)->heap(rank).data();
}
int64_t hpmoe_link_take(HpmoeLink* link, int64_t bytes) { return link_of(link)->space().take(bytes); }
void hpmoe_link_give(HpmoeLink* link, int64_t offset) { link_of(link)->space().give(offset); }

int hpmoe_link_meet(HpmoeLink* link, const char* what, uint64_t key, const void* payload, int64_t bytes, double timeout_s,
                    int32_t interruptible, HpmoeStatus* status) {
  hpmoe::InterruptWatch watch(interruptible != 0);
  const hpmoe::Call call = {what, key, timeout_s};
  const Code code = link_of(link)->meet(call, payload, bytes, watch);
  if (code == Code::OUT_OF_MEMORY) return report(status, status_of(code, -1));
  if (code == Code::OK) return report(status, watch.end() ? status_of(Code::INTERRUPTED, -1) : HpmoeStatus{});
  const hpmoe::Failure failure = link_of(link)->failure();
  HpmoeStatus end = code == Code::PEER_FAILED ? status_of(code, failure.origin) : failure.status;
  return report(status, end);
}

const void* hpmoe_link_told(HpmoeLink* link, int32_t rank, int64_t* bytes) {
  *bytes = link_of(link)->told_bytes(rank);
  return link_of(link)->told(rank);
}

void hpmoe_link_fail(HpmoeLink* link, const char* text) {
  const int32_t rank = link_of(link)->rank();
  hpmoe::Failure failure{status_of(Code::PEER_FAILED, rank), rank, {}};
  hpmoe::copy_text(text, failure.text);
  link_of(link)->fail(failure);
}

void hpmoe_link_failure(HpmoeLink* link, HpmoeFailure* failure) { *failure = link_of(link)->failure(); }

void hpmoe_link_leave(HpmoeLink* link, const char* last_words) { link_of(link)->leave(last_words); }

void hpmoe_link_traffic(HpmoeLink* link, HpmoeTraffic* traffic) {
  *traffic = {};
  for (int32_t rank = 0; rank < link_of(link)->size(); ++rank) {
    hpmoe::Distant* const distant = link_of(link)->distant(rank);
    if (!distant) continue;
    const hpmoe::Traffic sent = distant->outbox().traffic();
    traffic->messages += sent.messages;
    traffic->bytes += sent.bytes;
    traffic->row_messages += sent.row_messages;
    traffic->rows += sent.rows;
    traffic->row_bytes += sent.row_bytes;
  }
}

int64_t hpmoe_link_waited_ns(HpmoeLink* link, int32_t rank) { return link_of(link)->waited_ns(rank); }

int hpmoe_link_launch(HpmoeLink* link, const char* what, uint64_t key, const void* image, int64_t image_bytes,
                      const HpmoeRank* mine, const int32_t* counts, int32_t num_threads, double timeout_s, int64_t* trace,
                      int64_t* moved, int32_t interruptible, HpmoeStatus* status) {
  if (hpmoe::find_fault(image, image_bytes) || !fits(hpmoe::Image(image), link_of(link)->size(), *mine)) {
    return fail_before(link_of(link), Code::BAD_IMAGE, status);
  }
  const hpmoe::Image view(image);
  try {
    hpmoe::InterruptWatch watch(interruptible != 0);
    hpmoe::MappedPeers peers(*link_of(link), {what, key, timeout_s}, view, *mine, counts);
    hpmoe::Launch launch(view, peers, timeout_s, {trace, moved}, watch);
    HpmoeStatus end = launch.run(num_threads);
    if (watch.end() && end.code == static_cast<int32_t>(Code::OK)) end = status_of(Code::INTERRUPTED, -1);
    return report(status, end);
  } catch (const std::exception&) {
    return fail_before(link_of(link), Code::OUT_OF_MEMORY, status);
  }
}

int hpmoe_link_launch_by(HpmoeLink* link, HpmoeRunRank run_rank, void* of, const char* what, uint64_t key,
                         const void* payload, int64_t bytes, double timeout_s, int32_t interruptible, HpmoeStatus* status) {
  try {
    hpmoe::InterruptWatch watch(interruptible != 0);
    const hpmoe::Call call = {what, key, timeout_s};
    HpmoeStatus end = hpmoe::DeviceLaunch(*link_of(link), call, watch).run(payload, bytes, run_rank, of);
    if (watch.end() && end.code == static_cast<int32_t>(Code::OK)) end = status_of(Code::INTERRUPTED, -1);
    return report(status, end);
  } catch (const std::exception&) {
    return fail_before(link_of(link), Code::OUT_OF_MEMORY, status);
  }
}

}  // extern "C"
