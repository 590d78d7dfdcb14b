#include "report/kernels.hpp"

namespace vram::report {
namespace {

shadow::Kernels::Attention attention_of(job::Environment::Attention attention) {
    using Wanted = job::Environment::Attention;
    using Kernel = shadow::Kernels::Attention;
    switch (attention) {
        case Wanted::automatic: return Kernel::automatic;
        case Wanted::flash: return Kernel::flash;
        case Wanted::efficient: return Kernel::efficient;
        case Wanted::math: return Kernel::math;
        case Wanted::cudnn:
        case Wanted::xformers: break;  // refused where the job is read
    }
    return Kernel::automatic;
}

}  // namespace

shadow::Kernels kernels_of(const job::Environment& environment, const profile::DeviceProfile* card) {
    shadow::Kernels kernels;
    kernels.attention = attention_of(environment.attention);
    if (card == nullptr) return kernels;
    kernels.sm = card->sm;
    kernels.cublas_workspace = card->cublas_workspace_in(environment.torch_major, environment.torch_minor);
    return kernels;
}

device::Library library_of(const job::Environment& environment, const profile::DeviceProfile* card) {
    device::Library library;
    library.torch_major = environment.torch_major;
    library.torch_minor = environment.torch_minor;
    library.cudnn = environment.cudnn;
    if (card != nullptr) library.sm = card->sm;
    return library;
}

}  // namespace vram::report
