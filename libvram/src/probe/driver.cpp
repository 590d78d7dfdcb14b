#include "vram/probe/driver.hpp"

#if defined(__unix__)
#include <dlfcn.h>
#endif

#include <array>
#include <memory>

namespace vram::probe {

#if defined(__unix__)
namespace {

constexpr int success = 0;

struct Memory {  // nvmlMemory_t
    unsigned long long total, free, used;
};

struct Closer {
    void operator()(void* library) const { dlclose(library); }
};
using Library = std::unique_ptr<void, Closer>;

template <class Function>
Function* function(const Library& library, const char* name) {
    return reinterpret_cast<Function*>(dlsym(library.get(), name));
}

std::optional<report::DriverCard> first_card(const Library& library) {
    auto* by_index = function<int(unsigned, void**)>(library, "nvmlDeviceGetHandleByIndex_v2");
    auto* name_of = function<int(void*, char*, unsigned)>(library, "nvmlDeviceGetName");
    auto* memory_of = function<int(void*, Memory*)>(library, "nvmlDeviceGetMemoryInfo");
    if (by_index == nullptr || name_of == nullptr || memory_of == nullptr) return std::nullopt;
    void* handle = nullptr;
    std::array<char, 97> name{};  // NVML_DEVICE_NAME_V2_BUFFER_SIZE is 96
    Memory memory{};
    if (by_index(0, &handle) != success || name_of(handle, name.data(), 96) != success ||
        memory_of(handle, &memory) != success)
        return std::nullopt;
    return report::DriverCard{name.data(), static_cast<Bytes>(memory.total)};
}

}  // namespace

std::optional<report::DriverCard> card_of_this_machine() {
    const Library library(dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_LOCAL));
    if (!library) return std::nullopt;
    auto* init = function<int()>(library, "nvmlInit_v2");
    auto* shutdown = function<int()>(library, "nvmlShutdown");
    if (init == nullptr || shutdown == nullptr || init() != success) return std::nullopt;
    std::optional<report::DriverCard> card = first_card(library);
    shutdown();
    return card;
}
#else
std::optional<report::DriverCard> card_of_this_machine() { return std::nullopt; }
#endif

}  // namespace vram::probe
