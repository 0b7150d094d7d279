// The C functions of abi.h.
#include <algorithm>
#include <exception>

#include "amx_sharing.h"
#include "core/abi.h"
#include "few_terms.h"
#include "gemm.h"
#include "link/interrupt.h"
#include "launch.h"
#include "skinny_gemm.h"
#include "task_templates.h"
#include "thread_pool.h"

namespace {

using hpmoe::Code;

int report(HpmoeStatus* status, const HpmoeStatus& value) {
  if (status) *status = value;
  return value.code;
}

HpmoeStatus bad_image(int32_t rank, int64_t value, int64_t threshold) {
  return {static_cast<int32_t>(Code::BAD_IMAGE), rank, -1, -1, -1, -1, value, threshold};
}

HpmoeStatus find_bad_argument(const hpmoe::Image& image, const HpmoeRank* ranks, int32_t num_ranks) {
  if (num_ranks != image.header->ep_size) return bad_image(-1, num_ranks, image.header->ep_size);
  for (int32_t rank = 0; rank < num_ranks; ++rank) {
    const int64_t num_tokens = ranks[rank].num_tokens;
    if (num_tokens < 0) return bad_image(rank, num_tokens, 0);
    for (int32_t i = 0; i < image.header->num_routes; ++i) {
      if (num_tokens > image.routes[i].num_tokens) return bad_image(rank, num_tokens, image.routes[i].num_tokens);
    }
  }
  return {};
}

}  // namespace

extern "C" {

int hpmoe_launch(const void* image, int64_t image_bytes, const HpmoeRank* ranks, int32_t num_ranks, int32_t num_threads,
                 double timeout_s, int64_t* trace, int64_t* moved, int32_t interruptible, HpmoeStatus* status) {
  if (hpmoe::find_fault(image, image_bytes)) return report(status, bad_image(-1, 0, 0));
  const HpmoeStatus fault = find_bad_argument(hpmoe::Image(image), ranks, num_ranks);
  if (fault.code != 0) return report(status, fault);
  try {
    hpmoe::InterruptWatch watch(interruptible != 0);
    hpmoe::Peers peers(ranks, num_ranks);
    hpmoe::Launch launch(hpmoe::Image(image), peers, timeout_s, {trace, moved}, watch);
    HpmoeStatus end = launch.run(num_threads > 0 ? num_threads : hpmoe::num_cores());
    if (watch.end() && end.code == static_cast<int32_t>(Code::OK)) {
      end = {static_cast<int32_t>(Code::INTERRUPTED), -1, -1, -1, -1, -1, 0, 0};
    }
    return report(status, end);
  } catch (const std::exception&) {
    return report(status, {static_cast<int32_t>(Code::OUT_OF_MEMORY), -1, -1, -1, -1, -1, 0, 0});
  }
}

int hpmoe_pack_templates(const HpmoeTables* tables, hpmoe::TaskWord* tasks, hpmoe::TaskTemplate* templates,
                         hpmoe::Wait* waits, hpmoe::Signal* signals, int64_t* sizes) {
  try {
    const hpmoe::PackedTemplates packed = hpmoe::find_templates(*tables);
    std::copy(packed.tasks.begin(), packed.tasks.end(), tasks);
    std::copy(packed.templates.begin(), packed.templates.end(), templates);
    std::copy(packed.waits.begin(), packed.waits.end(), waits);
    std::copy(packed.signals.begin(), packed.signals.end(), signals);
    const int64_t counts[] = {packed.index_bits, int64_t(packed.templates.size()), int64_t(packed.waits.size()),
                              int64_t(packed.signals.size())};
    std::copy(counts, counts + 4, sizes);
    return 0;
  } catch (const hpmoe::BadTable&) {
    return 2;
  } catch (const hpmoe::TooManyTemplates&) {
    return 3;
  } catch (const std::exception&) {
    return 1;
  }
}

int32_t hpmoe_abi_version(void) { return 22; }

const char* hpmoe_image_fault(const void* image, int64_t image_bytes) { return hpmoe::find_fault(image, image_bytes); }

int hpmoe_use_blas(const char* path) { return hpmoe::use_blas(path); }
const char* hpmoe_gemm_name(void) { return hpmoe::gemm_name(); }
int hpmoe_uses_amx(void) { return hpmoe::uses_amx(); }

int64_t hpmoe_skinny_rows(int32_t dtype, int transposed) {
  return hpmoe::skinny_rows(static_cast<hpmoe::Dtype>(dtype), transposed != 0);
}
int64_t hpmoe_few_terms(int32_t dtype) { return hpmoe::few_terms(static_cast<hpmoe::Dtype>(dtype)); }

int hpmoe_use_amx(int allowed, int core_is_shared) {
  hpmoe::use_amx(allowed != 0);
  hpmoe::assume_sharing(static_cast<hpmoe::Sharing>(core_is_shared));
  return hpmoe::uses_amx();
}

}  // extern "C"
