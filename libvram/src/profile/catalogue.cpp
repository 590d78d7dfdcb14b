#include "vram/profile/catalogue.hpp"

#include <algorithm>
#include <cctype>
#include <stdexcept>

#include "profile/embedded.hpp"

namespace vram::profile {
namespace {

std::string lower(std::string_view word) {
    std::string out(word);
    std::transform(out.begin(), out.end(), out.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return out;
}

/// Enters every name of the i-th profile, and complains about those that another one has.
void enter(std::unordered_map<std::string, std::size_t>& index, const std::vector<ModelProfile>& profiles,
           std::size_t i, Diagnostics& complaints) {
    std::vector<std::string> names = profiles[i].aliases;
    names.push_back(profiles[i].id);
    for (const std::string& name : names) {
        const auto [it, is_new] = index.emplace(lower(name), i);
        if (is_new || it->second == i) continue;
        complaints.push_back(
            {Severity::error,
             Problem::duplicate_key,
             {},
             "aliases",
             name,
             {},
             "profiles " + profiles[it->second].id + " and " + profiles[i].id + " share the name " + name});
    }
}

}  // namespace

expected<Catalogue> Catalogue::of(std::vector<ModelProfile> models, DeviceCatalogue cards) {
    Catalogue catalogue;
    catalogue.cards_ = std::move(cards);
    Diagnostics complaints;
    catalogue.models_ = std::move(models);
    std::sort(catalogue.models_.begin(), catalogue.models_.end(),
              [](const ModelProfile& a, const ModelProfile& b) { return a.id < b.id; });
    for (std::size_t i = 0; i < catalogue.models_.size(); ++i)
        enter(catalogue.model_index_, catalogue.models_, i, complaints);
    if (!complaints.empty()) return Unexpected{std::move(complaints)};
    return catalogue;
}

expected<Catalogue> Catalogue::built_in() {
    std::vector<ModelProfile> models;
    Diagnostics complaints;
    for (const EmbeddedFile& file : embedded_model_profiles()) {
        expected<ModelProfile> profile = read_model_profile(file.text, std::string(file.name));
        if (profile)
            models.push_back(*std::move(profile));
        else
            complaints.insert(complaints.end(), profile.error().begin(), profile.error().end());
    }
    expected<DeviceCatalogue> cards = DeviceCatalogue::built_in();
    if (!cards) complaints.insert(complaints.end(), cards.error().begin(), cards.error().end());
    if (!complaints.empty()) return Unexpected{std::move(complaints)};
    return of(std::move(models), *std::move(cards));
}

const ModelProfile* Catalogue::model(std::string_view word) const {
    const auto it = model_index_.find(lower(word));
    return it == model_index_.end() ? nullptr : &models_[it->second];
}

const ModelProfile& Catalogue::model_of(std::string_view id) const {
    const ModelProfile* profile = model(id);
    if (profile == nullptr || profile->id != id) throw std::logic_error("no model profile " + std::string(id));
    return *profile;
}

std::string Catalogue::nearest_model(std::string_view word) const {
    std::vector<std::string> names;
    for (const ModelProfile& profile : models_) {
        names.push_back(profile.id);
        names.insert(names.end(), profile.aliases.begin(), profile.aliases.end());
    }
    return nearest(word, names);
}

}  // namespace vram::profile
