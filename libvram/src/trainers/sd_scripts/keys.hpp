#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace vram::trainers::sd_scripts {

struct Script;

/// What an argument takes on a command line.
enum class Takes : std::uint8_t {
    flag,
    integer,
    number,
    text,
    list,     // of texts
    numbers,  // of a file also one
};

/// An argument of the scripts that train a network.
struct Key {
    std::string_view name;
    Takes takes = Takes::text;
    std::string_view why{};  // what it does where Python takes its value as true, and is not modelled; empty: nothing
};

/// Every argument of train_network.py, sdxl_train_network.py and flux_train_network.py.
[[nodiscard]] std::span<const Key> argument_keys();
/// Null: there is none of this name.
[[nodiscard]] const Key* argument_key(std::string_view name);
/// Whether it moves memory, so that a name that is nearly this one is no matter to pass over.
[[nodiscard]] bool moves_memory(std::string_view name);
/// Whether the script's own parser has it.
[[nodiscard]] bool has_argument(const Script& script, std::string_view name);
/// The nearest name of an argument, or empty.
[[nodiscard]] std::string_view nearest_argument(std::string_view name);

/// Every field that a version of kohya_ss's LoRA tab has written.
[[nodiscard]] std::span<const std::string_view> gui_fields();

}  // namespace vram::trainers::sd_scripts
