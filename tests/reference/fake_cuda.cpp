// What a CPU-only build of PyTorch needs so that tensors may claim to live on "cuda:0".
//
// Nothing here touches a device. FakeTensorMode gives tensors a device, a shape and no data; the forward pass then
// works as it is, but autograd's engine asks for a device guard (streams, events, a device count), and checkpointing
// and autocast ask which accelerator there is. This object answers: one CUDA device, whose only stream is the default
// one and whose events do nothing.
//
// It has to be loaded before torch's own libraries (fake_cuda.py puts it on the preload list), since
//  - the engine makes its device threads for the guards that are registered when it starts,
//  - the hooks are looked up once and kept,
//  - at::accelerator::getAccelerator is a symbol of libtorch_cpu, and the first definition that is loaded wins.

#include <ATen/DeviceAccelerator.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace {

const c10::Device kDevice(c10::DeviceType::CUDA, 0);
const c10::Stream kStream(c10::Stream::DEFAULT, kDevice);

struct FakeCudaGuard final : c10::impl::DeviceGuardImplInterface {
    c10::DeviceType type() const override { return c10::DeviceType::CUDA; }

    c10::Device exchangeDevice(c10::Device) const override { return kDevice; }
    c10::Device getDevice() const override { return kDevice; }
    void setDevice(c10::Device) const override {}
    void uncheckedSetDevice(c10::Device) const noexcept override {}
    c10::DeviceIndex deviceCount() const noexcept override { return 1; }

    c10::Stream getStream(c10::Device) const override { return kStream; }
    c10::Stream getDefaultStream(c10::Device) const override { return kStream; }
    c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override { return kStream; }
    c10::Stream getNewStream(c10::Device, int) const override { return kStream; }
    c10::Stream exchangeStream(c10::Stream) const override { return kStream; }
    bool queryStream(const c10::Stream&) const override { return true; }
    void synchronizeStream(const c10::Stream&) const override {}

    void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
    void block(void*, const c10::Stream&) const override {}
    bool queryEvent(void*) const override { return true; }
    void synchronizeEvent(void*) const override {}
    void synchronizeDevice(const c10::DeviceIndex) const override {}
};

C10_REGISTER_GUARD_IMPL(CUDA, FakeCudaGuard)

}  // namespace

namespace at {

// The registry is asked for the name "CUDAHooks", so the class has to be called that.
struct CUDAHooks final : CUDAHooksInterface {
    explicit CUDAHooks(CUDAHooksArgs) {}
    void init() const override {}
    bool isBuilt() const override { return true; }
    bool isAvailable() const override { return true; }
    bool hasCUDA() const override { return true; }
    bool hasPrimaryContext(DeviceIndex) const override { return true; }
    DeviceIndex deviceCount() const override { return 1; }
    int getNumGPUs() const override { return 1; }
    DeviceIndex current_device() const override { return 0; }
    DeviceIndex getCurrentDevice() const override { return 0; }
    void setCurrentDevice(DeviceIndex) const override {}
    DeviceIndex exchangeDevice(DeviceIndex) const override { return 0; }
    DeviceIndex maybeExchangeDevice(DeviceIndex) const override { return 0; }
};

REGISTER_CUDA_HOOKS(CUDAHooks)

namespace accelerator {

std::optional<c10::DeviceType> getAccelerator(bool) { return c10::DeviceType::CUDA; }

}  // namespace accelerator
}  // namespace at
