#include "vram/profile/device_catalogue.hpp"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <tuple>
#include <unordered_map>

#include "profile/shelf.hpp"

namespace vram::profile {
namespace {

struct DeviceTraits {
    using Profile = DeviceProfile;
    struct All {
        std::vector<DeviceProfile> devices;                  // by memory
        std::unordered_map<std::string, std::size_t> index;  // folded name → devices
    };

    static expected<DeviceProfile> read(std::string_view text, std::string file_name) {
        return read_device_profile(text, std::move(file_name));
    }
    // "NVIDIA GeForce RTX 4090", "RTX-4090" and "rtx4090" are one word.
    static std::string fold(std::string_view text) {
        std::string out;
        std::string word;
        const auto end_word = [&] {
            for (std::string_view noise : {"nvidia", "geforce", "tesla", "gpu"})
                if (word == noise) word.clear();
            out += word;
            word.clear();
        };
        for (char c : text) {
            if (std::isspace(static_cast<unsigned char>(c)) || c == '-' || c == '_')
                end_word();
            else
                word += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
        }
        end_word();
        return out;
    }
    static bool answers_to(const DeviceProfile& device, const std::string& folded) {
        return fold(device.id) == folded ||
               std::any_of(device.aliases.begin(), device.aliases.end(),
                           [&](const std::string& alias) { return fold(alias) == folded; });
    }
    static const DeviceProfile* find(const All& all, const std::string& folded) {
        const auto found = all.index.find(folded);
        return found == all.index.end() ? nullptr : &all.devices[found->second];
    }
    static expected<All> gather(std::vector<DeviceProfile> devices);
};

expected<DeviceTraits::All> DeviceTraits::gather(std::vector<DeviceProfile> devices) {
    All all{std::move(devices), {}};
    std::sort(all.devices.begin(), all.devices.end(), [](const DeviceProfile& a, const DeviceProfile& b) {
        return std::tie(a.memory, a.linux_capacity.low, a.id) < std::tie(b.memory, b.linux_capacity.low, b.id);
    });
    Diagnostics complaints;
    const auto give = [&](const std::string& word, std::size_t device) {
        const auto [entry, fresh] = all.index.emplace(fold(word), device);
        if (fresh || entry->second == device) return;
        std::string text = "two cards are called ";
        text += word;
        text += ": ";
        text += all.devices[entry->second].id;
        text += " and ";
        text += all.devices[device].id;
        complaints.push_back(
            {Severity::error, Problem::duplicate_key, {}, all.devices[device].id, word, "", std::move(text)});
    };
    for (std::size_t i = 0; i < all.devices.size(); ++i) {
        give(all.devices[i].id, i);
        for (const std::string& alias : all.devices[i].aliases) give(alias, i);
    }
    if (!complaints.empty()) return Unexpected{std::move(complaints)};
    // A driver's name counts too, unless cards that differ in memory share it and no alias said which one is meant.
    for (std::size_t i = 0; i < all.devices.size(); ++i) {
        const auto same = std::count_if(all.devices.begin(), all.devices.end(), [&](const DeviceProfile& other) {
            return fold(other.name) == fold(all.devices[i].name);
        });
        if (same == 1) all.index.emplace(fold(all.devices[i].name), i);
    }
    return all;
}

}  // namespace

class DeviceCatalogue::Devices : public Shelf<DeviceTraits> {
  public:
    using Shelf::Shelf;
};

DeviceCatalogue::DeviceCatalogue(std::shared_ptr<const Devices> devices) : devices_(std::move(devices)) {}

DeviceCatalogue DeviceCatalogue::built_in() {
    return DeviceCatalogue(std::make_shared<Devices>(embedded_device_profiles()));
}

expected<DeviceCatalogue> DeviceCatalogue::of(std::vector<DeviceProfile> devices) {
    expected<DeviceTraits::All> all = DeviceTraits::gather(std::move(devices));
    if (!all) return Unexpected{std::move(all.error())};
    return DeviceCatalogue(std::make_shared<Devices>(*std::move(all)));
}

const DeviceProfile* DeviceCatalogue::device(std::string_view word) const { return devices_->find(word); }
const std::vector<DeviceProfile>& DeviceCatalogue::devices() const { return devices_->all().devices; }

const DeviceProfile* DeviceCatalogue::device_of_driver(std::string_view name, Bytes total) const {
    const std::string word = DeviceTraits::fold(name);
    const DeviceProfile* best = nullptr;
    for (const DeviceProfile& device : devices()) {
        if (DeviceTraits::fold(device.name) != word) continue;
        const Bytes off = std::abs(device.memory - total);
        if (off <= device.memory / 10 && (best == nullptr || off < std::abs(best->memory - total))) best = &device;
    }
    return best;
}

std::string DeviceCatalogue::nearest_device(std::string_view word) const {
    std::vector<std::string_view> words;
    for (const DeviceProfile& device : devices()) {
        words.push_back(device.id);
        words.insert(words.end(), device.aliases.begin(), device.aliases.end());
    }
    return nearest(word, std::span<const std::string_view>(words));
}

}  // namespace vram::profile
