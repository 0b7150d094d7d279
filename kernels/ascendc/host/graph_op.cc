// The launch as an operator of MindSpore's compiled graphs; an attribute has the number of its kernel.
#include "graph_op.h"

#include <map>
#include <mutex>

#include "include/runtime/hardware_abstract/kernel_base/common_utils.h"
#include "include/runtime/hardware_abstract/kernel_base/kernel.h"
#ifdef CUSTOM_ASCEND_OP
#include "include/kernel/ascend/custom/kernel_mod_impl/custom_kernel_factory.h"
#else
#include "include/runtime/hardware_abstract/kernel_base/ms_factory.h"
#include "kernel/cpu/cpu_kernel.h"
#endif

namespace hpmoe {
namespace {

std::mutex mutex;
std::map<int64_t, std::shared_ptr<BoundKernel>>& kernels() {
  static std::map<int64_t, std::shared_ptr<BoundKernel>> all;
  return all;
}

std::shared_ptr<BoundKernel> find_kernel(int64_t number) {
  const std::lock_guard<std::mutex> lock(mutex);
  return kernels().at(number);
}

#ifdef CUSTOM_ASCEND_OP
using KernelBase = mindspore::kernel::KernelMod;
#else
using KernelBase = mindspore::kernel::NativeCpuKernelMod;
#endif
using mindspore::kernel::KernelTensor;
using KernelTensors = std::vector<KernelTensor*>;

// Attributes: kernel; num_tokens; num_made, the number of outputs that it writes; scratch_bytes.
class LaunchMod final : public KernelBase {
 public:
  bool Init(const KernelTensors&, const KernelTensors&) override { return true; }

  int Resize(const KernelTensors& inputs, const KernelTensors& outputs) override {
    const int code = KernelBase::Resize(inputs, outputs);
    workspace_size_list_.assign(attribute("scratch_bytes") > 0 ? 1 : 0, static_cast<size_t>(attribute("scratch_bytes")));
    return code;
  }

  bool Launch(const KernelTensors& inputs, const KernelTensors& workspace, const KernelTensors& outputs,
              void* stream) override {
    const std::shared_ptr<BoundKernel> kernel = find_kernel(attribute("kernel"));
    if (kernel->has_failure()) {
      throw std::runtime_error("an earlier launch of this kernel failed; hpmoe.ranks.synchronize() says why");
    }
    std::vector<void*> addresses;
    for (const KernelTensor* tensor : inputs) addresses.push_back(tensor->device_ptr());
    const auto num_made = static_cast<size_t>(attribute("num_made"));
    for (size_t i = 0; i < num_made; ++i) addresses.push_back(outputs.at(i)->device_ptr());
    for (const KernelTensor* tensor : workspace) addresses.push_back(tensor->device_ptr());
    kernel->launch(addresses, static_cast<int32_t>(attribute("num_tokens")), stream, nullptr);
    return true;
  }

  std::vector<mindspore::kernel::KernelAttr> GetOpSupport() override {
    return {mindspore::kernel::KernelAttr().AddSkipCheckAttr(true)};
  }

 private:
  int64_t attribute(const std::string& name) const { return mindspore::GetValue<int64_t>(primitive_->GetAttr(name)); }
};

}  // namespace

void name_kernel(int64_t number, std::shared_ptr<BoundKernel> kernel) {
  const std::lock_guard<std::mutex> lock(mutex);
  kernels()[number] = std::move(kernel);
}

}  // namespace hpmoe

namespace mindspore::kernel {
#ifdef CUSTOM_ASCEND_OP
MS_CUSTOM_KERNEL_FACTORY_REG("Custom_HpmoeLaunch", hpmoe::LaunchMod);
#else
using LaunchMod = hpmoe::LaunchMod;
MS_KERNEL_FACTORY_REG(NativeCpuKernelMod, Custom_HpmoeLaunch, LaunchMod);
#endif
}  // namespace mindspore::kernel
