#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "trainers/ai_toolkit/keys.hpp"
#include "vram/io/fields.hpp"

namespace vram::trainers::ai_toolkit {

struct Architecture;

/// What all sections of one config have in common.
struct Reading {
    const io::Document& document;
    Diagnostics& complaints;
    std::string job_name{};
    /// Whether options that are not modelled are worth a complaint, which they are not when the job as a whole is none
    /// of ours.
    bool modelled = true;
    const Architecture* architecture = nullptr;  // null where none is known by the name, after a complaint

    /// An error about a value that no section holds under a key of its own: an item of a list.
    void complain_at(const io::Node& node, std::string key, Problem problem, std::string text,
                     std::string nearest = {});
    /// Whether there is so much to say that a list is better left at this item: then an error says so.
    [[nodiscard]] bool gives_up(const io::Node& item, const std::string& key);
};

/// One section of a config, read as the trainer's `kwargs.get` reads it, against the table of its keys.
class Section {
  public:
    Section(Reading& reading, io::Fields fields, SectionId id);

    /// A section in this one; a null and an absent key stand for none, with the place of this section. Anything but a
    /// map is wrong_type.
    [[nodiscard]] Section section(std::string_view key, SectionId id);
    /// An item of a list in this section; anything but a map is wrong_type, and absent.
    [[nodiscard]] Section item(const io::Node& node, std::string path, SectionId id) const;

    /// Python's idea of a flag: any value will do. A text such as "false" is true, with a warning; one that is no word
    /// for yes or no is bad_value, a list or a map wrong_type.
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
    Reading& reading;

  private:
    void finish_known();

    SectionId id_;
};

}  // namespace vram::trainers::ai_toolkit
