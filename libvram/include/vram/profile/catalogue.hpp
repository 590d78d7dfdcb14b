#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "vram/base/expected.hpp"
#include "vram/profile/device_catalogue.hpp"
#include "vram/profile/model_profile.hpp"

namespace vram::profile {

/// Every model and every card that is known, with no name given twice.
class Catalogue {
  public:
    /// What is built into the library: model_profiles/*.yaml and device_profiles/*.yaml. Each call reads them anew; a
    /// complaint is a bug of ours.
    [[nodiscard]] static expected<Catalogue> built_in();
    /// Of these; two that share an id or an alias (case ignored) are a complaint.
    [[nodiscard]] static expected<Catalogue> of(std::vector<ModelProfile> models, DeviceCatalogue cards = {});

    /// By id, alias or Hugging Face repository, case ignored; null if there is none.
    [[nodiscard]] const ModelProfile* model(std::string_view word) const;
    /// By exact id; throws std::logic_error if there is none: for whoever holds a resolved Job.
    [[nodiscard]] const ModelProfile& model_of(std::string_view id) const;
    /// By id, in alphabetical order.
    [[nodiscard]] const std::vector<ModelProfile>& models() const noexcept { return models_; }

    [[nodiscard]] const DeviceCatalogue& cards() const noexcept { return cards_; }

    /// The id or alias nearest to a word that names no model, or empty.
    [[nodiscard]] std::string nearest_model(std::string_view word) const;

  private:
    std::vector<ModelProfile> models_;
    DeviceCatalogue cards_;
    std::unordered_map<std::string, std::size_t> model_index_;  // lower case → models_
};

}  // namespace vram::profile
