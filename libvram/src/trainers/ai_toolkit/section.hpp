#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trainers/ai_toolkit/keys.hpp"
#include "vram/io/fields.hpp"

namespace vram::trainers::ai_toolkit {

/// Whether Python takes a value as true: not null, false, 0, an empty text, list or map.
[[nodiscard]] bool truthy(const io::Node& node);

/// One section of a config, read as the trainer's `kwargs.get` reads it, against the table of its keys.
class Section {
  public:
    /// `modelled`: whether options that are not modelled are worth a complaint, which they are not when the job as a
    /// whole is none of ours.
    Section(const io::Document& document, const io::Node& node, std::string path, std::string_view table, bool modelled,
            Diagnostics& complaints);

    /// Python's idea of a flag: any value will do. A text such as "false" is true, with a warning.
    [[nodiscard]] bool flag(std::string_view key, bool fallback);
    /// The value if the key is there and not null.
    [[nodiscard]] const io::Node* value(std::string_view key);
    [[nodiscard]] bool is_null(std::string_view key);
    /// A list of texts, or one text standing for a list; null and absent: none.
    [[nodiscard]] std::vector<std::string> parts(std::string_view key);
    /// Says that an option is understood and not modelled.
    void refuse(std::string_view key, std::string why);

    /// Complains about what the table calls unsupported, and about unknown keys.
    void finish();

    io::Fields fields;

  private:
    std::span<const Key> keys_;
    std::string_view table_;
    bool modelled_;
    Diagnostics& complaints_;
};

}  // namespace vram::trainers::ai_toolkit
