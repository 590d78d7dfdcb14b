#include "vram/profile/device_catalogue.hpp"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <tuple>

#include "profile/embedded.hpp"

namespace vram::profile {

namespace {

// "NVIDIA GeForce RTX 4090", "RTX-4090" and "rtx4090" are one word.
std::string shortened(std::string_view text) {
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

}  // namespace

expected<DeviceCatalogue> DeviceCatalogue::built_in() {
    std::vector<DeviceProfile> devices;
    Diagnostics complaints;
    for (const EmbeddedFile& file : embedded_device_profiles()) {
        expected<DeviceProfile> device = read_device_profile(file.text, std::string(file.name));
        if (device)
            devices.push_back(*std::move(device));
        else
            complaints.insert(complaints.end(), device.error().begin(), device.error().end());
    }
    if (!complaints.empty()) return Unexpected{std::move(complaints)};
    return of(std::move(devices));
}

expected<DeviceCatalogue> DeviceCatalogue::of(std::vector<DeviceProfile> devices) {
    DeviceCatalogue out;
    out.devices_ = std::move(devices);
    std::sort(out.devices_.begin(), out.devices_.end(), [](const DeviceProfile& a, const DeviceProfile& b) {
        return std::tie(a.memory, a.linux_capacity.low, a.id) < std::tie(b.memory, b.linux_capacity.low, b.id);
    });
    Diagnostics complaints;
    const auto give = [&](const std::string& word, std::size_t device) {
        const auto [entry, fresh] = out.index_.emplace(shortened(word), device);
        if (fresh || entry->second == device) return;
        std::string text = "two cards are called ";
        text += word;
        text += ": ";
        text += out.devices_[entry->second].id;
        text += " and ";
        text += out.devices_[device].id;
        complaints.push_back(
            {Severity::error, Problem::duplicate_key, {}, out.devices_[device].id, word, "", std::move(text)});
    };
    for (std::size_t i = 0; i < out.devices_.size(); ++i) {
        give(out.devices_[i].id, i);
        for (const std::string& alias : out.devices_[i].aliases) give(alias, i);
    }
    if (!complaints.empty()) return Unexpected{std::move(complaints)};
    // A driver's name counts too, unless cards that differ in memory share it and no alias said which one is meant.
    for (std::size_t i = 0; i < out.devices_.size(); ++i) {
        const auto same = std::count_if(out.devices_.begin(), out.devices_.end(), [&](const DeviceProfile& other) {
            return shortened(other.name) == shortened(out.devices_[i].name);
        });
        if (same == 1) out.index_.emplace(shortened(out.devices_[i].name), i);
    }
    return out;
}

const DeviceProfile* DeviceCatalogue::device(std::string_view word) const {
    const auto found = index_.find(shortened(word));
    return found == index_.end() ? nullptr : &devices_[found->second];
}

const DeviceProfile* DeviceCatalogue::device_of_driver(std::string_view name, Bytes total) const {
    const std::string word = shortened(name);
    const DeviceProfile* best = nullptr;
    for (const DeviceProfile& device : devices_) {
        if (shortened(device.name) != word) continue;
        const Bytes off = std::abs(device.memory - total);
        if (off <= device.memory / 10 && (best == nullptr || off < std::abs(best->memory - total))) best = &device;
    }
    return best;
}

std::string DeviceCatalogue::nearest_device(std::string_view word) const {
    std::vector<std::string_view> words;
    for (const DeviceProfile& device : devices_) {
        words.push_back(device.id);
        words.insert(words.end(), device.aliases.begin(), device.aliases.end());
    }
    return nearest(word, std::span<const std::string_view>(words));
}

}  // namespace vram::profile
