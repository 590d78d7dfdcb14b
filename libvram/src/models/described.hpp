#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "profile/saved_model.hpp"
#include "vram/io/tensor_file.hpp"
#include "vram/profile/catalogue.hpp"

namespace vram::models {

/// A parameter or buffer that a model's class makes.
struct ListedParameter {
    std::string name;  // in the Python module tree
    std::vector<std::int64_t> shape;
    bool buffer = false;
    bool operator==(const ListedParameter&) const = default;
};

[[nodiscard]] std::int64_t numel_of(const ListedParameter& parameter);

/// What a profile's class makes, in its order. Errors: unsupported, where the family cannot build this config;
/// overflow.
[[nodiscard]] expected<std::vector<ListedParameter>> parameters_of(const profile::ModelProfile& profile);

/// A folder or file as far as it is understood.
struct Described {
    std::string path, class_name;        // class_name: empty where neither a config nor names of tensors tell it
    std::vector<io::StoredType> stored;  // what its files hold of the model, by type; empty where there are no weights
    std::optional<profile::ModelProfile> profile;  // none: `why_not`. Its id is the path
    std::string why_not;
    Diagnostics notes;
};

/// Whose model a folder or file is, as variants_of; and a profile of it, if its headers hold exactly the parameters
/// that the family builds with this config, or if there are no weights. Nothing is guessed: where counts differ,
/// `why_not` names the first parameter that does, and weights that a library has quantised are not modelled.
///
/// Of several profiles that are as near and hold as many parameters the first by id counts; a note names those whose
/// nets are equal, a warning those whose config differs in what the headers do not show. Errors: those of
/// read_saved_model and variants_of.
[[nodiscard]] expected<Described> describe(const std::filesystem::path& path, profile::Wanted wanted,
                                           const profile::Catalogue& catalogue);

}  // namespace vram::models
