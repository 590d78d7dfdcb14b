#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "vram/io/document.hpp"
#include "vram/profile/model_class.hpp"
#include "vram/profile/model_profile.hpp"

namespace vram::profile {

/// A key's values as files say them; no value: null, the key counts as not said.
using Said = std::map<std::string, std::optional<Config::Value>, std::less<>>;

/// How many blocks of a kind, and how large any other number, a file may ask for.
inline constexpr std::int64_t most_layers = 1024, most_size = std::int64_t{1} << 24;

/// Key → the words and flags that profiles of a class choose there, those in lists one by one, and where one of them
/// says nothing the default of the class. Another choice is another path through a family's code, which nobody has held
/// against PyTorch.
using Choices = std::map<std::string, std::set<std::string>, std::less<>>;
[[nodiscard]] Choices choices_of(const std::vector<const ModelProfile*>& profiles, const ModelClass* facts);
/// The first choice of a value that no profile made, or nothing.
[[nodiscard]] std::optional<std::string> unknown_choice(const Choices& choices, std::string_view key,
                                                        const Config::Value& value);

[[nodiscard]] bool is_list(const Config::Value& value);
[[nodiscard]] std::size_t length_of(const Config::Value& value);  // 0 for what is no list

/// What a config.json says.
struct ConfigSaid {
    Said said;
    std::set<std::string> free_lists;  // keys whose list may be of any length, as it may be empty
};

/// Reads a config.json, whose root is a map, against what is known of its class: `facts` may be null, `profiles` are
/// those of the class. Errors: as variants_of. A note names the keys that nobody is known to ask for.
[[nodiscard]] ConfigSaid read_config_json(const io::Document& document, const std::string& class_name,
                                          const ModelClass* facts, const std::vector<const ModelProfile*>& profiles,
                                          Diagnostics& complaints, Diagnostics& notes);

}  // namespace vram::profile
