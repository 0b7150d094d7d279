// The launch as a MindSpore operator: takes tensors by their device addresses, in the order of MindSpore's stream.
#include <pybind11/stl.h>

#include "graph_op.h"
#include "include/pynative/utils/pyboost/custom/pyboost_extension.h"
#include "include/pynative/utils/pyboost/custom_v2/op_api.h"

namespace {

using hpmoe::BoundKernel;
using hpmoe::Device;
using Tensors = std::vector<ms::Tensor>;

// Binds the device to the calling thread of Python, which MindSpore may not have done.
void use_device_here() { ms::GetCurrentDeviceContext()->device_res_manager_->BindDeviceToCurrentThread(false); }

// Results are among the tensors and written in place; their number is that of the program.
class Launch final : public ms::pynative::PyboostRunner {
 public:
  Launch(std::shared_ptr<BoundKernel> kernel, int32_t num_tokens)
      : PyboostRunner("HpmoeLaunch"), kernel_(std::move(kernel)), num_tokens_(num_tokens) {}

  void LaunchKernel() override {
    std::vector<void*> addresses;
    for (const ms::Tensor& tensor : inputs()) addresses.push_back(tensor.GetDataPtr());
    kernel_->launch(addresses, num_tokens_, stream(), std::make_shared<Tensors>(inputs()));
  }

 private:
  const std::shared_ptr<BoundKernel> kernel_;
  const int32_t num_tokens_;
};

void run_launch(const std::shared_ptr<BoundKernel>& kernel, int32_t num_tokens, const Tensors& tensors) {
  std::make_shared<Launch>(kernel, num_tokens)->Run(tensors, {});
}

pybind11::object launch(const std::shared_ptr<BoundKernel>& kernel, int32_t num_tokens, const Tensors& tensors) {
  return ms::pynative::PyboostRunner::Call<0>(std::string("HpmoeLaunch"), run_launch, kernel, num_tokens, tensors);
}

std::shared_ptr<Device> open_for_rank(int32_t rank, int32_t num_ranks, const pybind11::bytes& unique_id,
                                      uint64_t heap_bytes) {
  use_device_here();
  return hpmoe::open_device(rank, num_ranks, unique_id, heap_bytes);
}

std::shared_ptr<BoundKernel> bind_kernel(const std::shared_ptr<Device>& device, const pybind11::bytes& image, int32_t rank,
                                         double timeout_s, const std::vector<std::array<int64_t, 3>>& places,
                                         const std::vector<std::array<int64_t, 3>>& copies, uint64_t heap_bytes,
                                         int64_t num_counters, int64_t table_words) {
  use_device_here();
  hpmoe::Layout layout{{}, {}, heap_bytes, num_counters, table_words};
  for (const auto& [tensor, offset, bytes] : places) layout.places.push_back({tensor, offset, bytes});
  for (const auto& [offset, tensor, bytes] : copies) layout.copies.push_back({offset, tensor, bytes});
  return std::make_shared<BoundKernel>(device, image, rank, timeout_s, std::move(layout));
}

// Returns None, or the failure: the words of hpmoe::Status in order, the plan, and the error of the host.
pybind11::object find_failure(BoundKernel& kernel, bool wait) {
  hpmoe::Failure failure;
  bool has_failed;
  {
    const pybind11::gil_scoped_release others_may_run;
    if (wait) use_device_here();
    has_failed = kernel.find_failure(wait, &failure);
  }
  if (!has_failed) return pybind11::none();
  const hpmoe::Status& s = failure.status;
  return pybind11::make_tuple(s.code, s.rank, s.queue, s.task, s.event, s.wait, s.value, s.threshold, failure.plan,
                              failure.fault);
}

}  // namespace

PYBIND11_MODULE(MS_EXTENSION_NAME, m) {
  pybind11::class_<Device, std::shared_ptr<Device>>(m, "Device");
  pybind11::class_<BoundKernel, std::shared_ptr<BoundKernel>>(m, "BoundKernel");
  m.def("make_unique_id", [] { return pybind11::bytes(hpmoe::make_unique_id()); });
  m.def("open_device", &open_for_rank);
  m.def("bind", &bind_kernel);
  m.def("launch", &launch);
  m.def("find_failure", &find_failure);
  m.def("name_kernel", &hpmoe::name_kernel);
}
