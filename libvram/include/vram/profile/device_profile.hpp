#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "vram/base/bytes.hpp"
#include "vram/base/expected.hpp"

namespace vram::profile {

/// Decides how much of the memory a process sees: drivers for Linux keep 0.25 to 0.6 GiB for themselves, drivers for
/// Windows (and WSL, which runs on them) next to nothing.
enum class Os : std::uint8_t { linux_os, windows };
[[nodiscard]] std::string_view to_text(Os os);  // "linux", "windows"

/// How a number came about.
enum class Evidence : std::uint8_t {
    measured,  // printed by a machine with this card, in a public log
    nominal,   // from the size on the box or from similar cards, and so a wider range
};
[[nodiscard]] std::string_view to_text(Evidence evidence);

/// Bytes between `low` and `high`, both possible; 0 < low <= high.
struct MemoryRange {
    Bytes low = 0, high = 0;
    Evidence evidence = Evidence::nominal;
    std::string source;
    bool operator==(const MemoryRange&) const = default;
};

/// A graphics card, as far as memory goes. Plain values, read from device_profiles/*.yaml.
struct DeviceProfile {
    std::string id;                    // "rtx-4090": the name of the file
    std::string name;                  // as the driver says it: "NVIDIA GeForce RTX 4090"
    std::vector<std::string> aliases;  // "RTX 4090"; case, blanks and dashes do not matter
    std::string architecture;          // "ada"
    std::int32_t sm = 0;               // compute capability without its dot: 89, 120
    std::int32_t multiprocessors = 0;  // streaming multiprocessors: split heuristics of attention, size of the context
    Bytes memory = 0;                  // as nvidia-smi says; on the box where ECC takes part of that
    MemoryRange linux_capacity;        // what torch.cuda.get_device_properties(0).total_memory says
    MemoryRange windows_capacity;      // cards for servers have one too: nominal
    /// What nvidia-smi shows for the process beside torch's reserved memory: CUDA context, loaded kernels, library
    /// handles, in a training in full swing with lazy loading (the default since CUDA 11.8 and torch 1.13).
    MemoryRange context;
    /// torch's cuBLAS workspace for one thread, through the caching allocator, from torch 2.12 on.
    /// Source: CublasHandlePool.cpp, parseChosenWorkspaceSize.
    Bytes cublas_workspace = 0;
    std::string source;  // of the name, sm and multiprocessors
    std::string notes;

    [[nodiscard]] const MemoryRange& capacity(Os os) const {
        return os == Os::windows ? windows_capacity : linux_capacity;
    }
    /// The workspace in a given torch: Blackwell has its 32 MiB since 2.12 (pytorch PR 175344), Hopper always.
    [[nodiscard]] Bytes cublas_workspace_in(std::int32_t torch_major, std::int32_t torch_minor) const;
    bool operator==(const DeviceProfile&) const = default;
};

/// Reads one profile. Strict: unknown keys, missing keys, sizes without sense are complaints, all at once, with their
/// lines. `file_name` is for complaints; its stem must be the id.
[[nodiscard]] expected<DeviceProfile> read_device_profile(std::string_view text, std::string file_name);

}  // namespace vram::profile
