#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "vram/base/expected.hpp"
#include "vram/profile/device_catalogue.hpp"
#include "vram/profile/model_class.hpp"
#include "vram/profile/model_profile.hpp"

namespace vram::profile {

/// Every model and every card that is known, with no name given twice. A handle: copies share what they know, and so
/// may threads. What it hands out lives as long as one of the copies.
class Catalogue {
  public:
    /// What is built into the library: model_profiles/*.yaml, model_classes/*.yaml and device_profiles/*.yaml,
    /// each file read when it is first asked for. A file that has a complaint is a bug of ours; whoever meets it gets
    /// std::logic_error.
    [[nodiscard]] static Catalogue built_in();
    /// Of these; two that share an id or an alias (case ignored) are a complaint.
    [[nodiscard]] static expected<Catalogue> of(std::vector<ModelProfile> models, DeviceCatalogue cards,
                                                std::vector<ModelClass> classes = {});

    /// By id, alias or Hugging Face repository, case ignored; null if there is none.
    [[nodiscard]] const ModelProfile* model(std::string_view word) const;
    /// By exact id; throws std::logic_error if there is none: for whoever holds a resolved Job.
    [[nodiscard]] const ModelProfile& model_of(std::string_view id) const;
    /// By id, in alphabetical order.
    [[nodiscard]] const std::vector<ModelProfile>& models() const;

    /// By exact name, or by that of a class whose body it is (ModelClass::also); null if there is none.
    [[nodiscard]] const ModelClass* model_class(std::string_view name) const;
    /// In alphabetical order.
    [[nodiscard]] const std::vector<ModelClass>& model_classes() const;

    [[nodiscard]] const DeviceCatalogue& cards() const noexcept { return cards_; }

    /// The id or alias nearest to a word that names no model, or empty.
    [[nodiscard]] std::string nearest_model(std::string_view word) const;

    class Models;
    class Classes;

  private:
    Catalogue(std::shared_ptr<const Models> models, std::shared_ptr<const Classes> classes, DeviceCatalogue cards);

    std::shared_ptr<const Models> models_;
    std::shared_ptr<const Classes> classes_;
    DeviceCatalogue cards_;
};

}  // namespace vram::profile
