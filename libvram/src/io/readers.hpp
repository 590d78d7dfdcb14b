#pragma once

#include <string_view>

#include "io/tree_builder.hpp"

namespace vram::io {

/// Each reads document.text from byte `start` (behind a byte order mark) into the builder; complaints go there too.
void read_yaml(const Document& document, std::int64_t start, TreeBuilder& tree);
void read_json(const Document& document, std::int64_t start, TreeBuilder& tree, bool comments);
void read_toml(const Document& document, std::int64_t start, TreeBuilder& tree, const Limits& limits);

/// The value of a plain YAML scalar by PyYAML's implicit resolvers (YAML 1.1): null, boolean, integer, number or text.
/// Source: yaml/resolver.py and yaml/constructor.py (PyYAML 6.0.3); floats without a dot as in ai-toolkit's loader
/// (toolkit/config.py, fixed_loader).
[[nodiscard]] Node resolve_plain(std::string_view text);

}  // namespace vram::io
