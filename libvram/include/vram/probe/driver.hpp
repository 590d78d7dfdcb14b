#pragma once

#include <optional>

#include "vram/report/check.hpp"

namespace vram::probe {

/// The first card that NVIDIA's management library lists: its name and its total in bytes, as nvidia-smi shows it.
/// Nothing where there is no driver. Loads libnvidia-ml while it asks and starts no process and no CUDA context. Source
/// of the interface: nvml.h, nvmlInit_v2, nvmlDeviceGetHandleByIndex_v2, nvmlDeviceGetName, nvmlDeviceGetMemoryInfo.
[[nodiscard]] std::optional<report::DriverCard> card_of_this_machine();

}  // namespace vram::probe
