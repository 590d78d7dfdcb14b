#pragma once

#include <string>
#include <vector>

#include "profile/saved_model.hpp"
#include "vram/profile/catalogue.hpp"

namespace vram::profile {

/// A built-in profile with another config: what a model of its class may be.
struct Variant {
    ModelProfile profile;              // `id` is the model's path, `source`, `family` and sizes are those of the base
    std::string base;                  // the id of the profile that it is nearest to
    std::vector<std::string> changed;  // "num_layers: 8 (19)": keys whose value is not the base's
    bool operator==(const Variant&) const = default;
};

/// What is known of a saved model. No variants: it is none that is known, and `why_not` says why.
struct Variants {
    std::string class_name;         // of the model, or the one that its tensors' names tell
    std::vector<Variant> variants;  // the one that changes the fewest keys first, then by the base's id
    std::string prefix;             // what stands before every name of the model in its files: "model.diffusion_model."
    std::string why_not;
    Diagnostics notes;
};

/// The variants that a config.json may mean, or, for a file of weights, the names of its tensors.
///
/// config.json: the class's defaults (ModelClass), overlaid with what the file says; null counts as not said. Of a
/// class without a model_classes file, what config.json leaves out is as in the base. Keys that no family asks for are
/// a note. Names of tensors: what NamingScheme derives, the rest as in the base.
///
/// Errors, at their places in config.json, all at once: wrong_type; out_of_range; unsupported for a value that no
/// family knows (a word that no profile of the class has, another value of what a family takes for granted).
[[nodiscard]] expected<Variants> variants_of(const SavedModel& model, const Catalogue& catalogue);

}  // namespace vram::profile
