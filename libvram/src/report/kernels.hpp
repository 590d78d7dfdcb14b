#pragma once

#include "shadow/run.hpp"
#include "vram/device/scratch.hpp"
#include "vram/job/job.hpp"
#include "vram/profile/device_profile.hpp"

namespace vram::report {

/// What kernels a job meets on a card; null: as on sm89, until one is chosen.
[[nodiscard]] shadow::Kernels kernels_of(const job::Environment& environment, const profile::DeviceProfile* card);

/// What decides the scratch of those kernels that a range is said of.
[[nodiscard]] device::Library library_of(const job::Environment& environment, const profile::DeviceProfile* card);

}  // namespace vram::report
