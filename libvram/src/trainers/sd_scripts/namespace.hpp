#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "vram/base/diagnostic.hpp"
#include "vram/io/document.hpp"

namespace vram::trainers::sd_scripts {

/// Where something is said, for complaints about it and for edits of it: the user's own key, as `io::find` takes it.
struct SaidAt {
    Place place;
    std::string key;  // "max_resolution" of the GUI, "training.resolution" of a config file
    bool operator==(const SaidAt&) const = default;
};

/// One entry of the trainer's argparse.Namespace, and where a file says it.
struct Argument {
    std::string name;  // "resolution"
    io::Node value;
    SaidAt at;
    bool converted =
        false;  // a text that becomes a number, as argparse makes it of a command line and the GUI of its fields
};

/// What a file says, under argparse's names.
class Namespace {
  public:
    /// The later one counts.
    void set(Argument argument);
    /// Forgets every argument whose name begins so.
    void erase(std::string_view prefix);
    /// Null: it keeps its default.
    [[nodiscard]] const Argument* find(std::string_view name) const;
    [[nodiscard]] const std::vector<Argument>& all() const noexcept { return all_; }

  private:
    std::vector<Argument> all_;
};

/// What blanks part.
[[nodiscard]] std::vector<std::string> split(std::string_view text);

}  // namespace vram::trainers::sd_scripts
