#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "vram/base/expected.hpp"
#include "vram/profile/device_profile.hpp"

namespace vram::profile {

/// Every card that is known, with no name given twice. A handle, as Catalogue is.
class DeviceCatalogue {
  public:
    /// What is built into the library: device_profiles/*.yaml, each file read when it is first asked for. A file that
    /// has a complaint is a bug of ours; whoever meets it gets std::logic_error.
    [[nodiscard]] static DeviceCatalogue built_in();
    /// Of these; two that share an id or an alias are a complaint. Cards that differ in memory only share their name.
    [[nodiscard]] static expected<DeviceCatalogue> of(std::vector<DeviceProfile> devices);

    /// By id or alias; null if there is none. Case, blanks, '-', '_' and the words NVIDIA, GeForce, Tesla and GPU do
    /// not matter: "RTX 4090", "rtx4090", "NVIDIA GeForce RTX 4090".
    [[nodiscard]] const DeviceProfile* device(std::string_view word) const;
    /// By what a driver says: its name for the card and the total in bytes, which tells cards of one name apart. Null
    /// if no card of this name has about this much (within a tenth).
    [[nodiscard]] const DeviceProfile* device_of_driver(std::string_view name, Bytes total) const;
    /// The id or alias nearest to a word that names no card, or empty.
    [[nodiscard]] std::string nearest_device(std::string_view word) const;

    /// From the smallest memory to the largest, then by id.
    [[nodiscard]] const std::vector<DeviceProfile>& devices() const;

    class Devices;

  private:
    explicit DeviceCatalogue(std::shared_ptr<const Devices> devices);

    std::shared_ptr<const Devices> devices_;
};

}  // namespace vram::profile
