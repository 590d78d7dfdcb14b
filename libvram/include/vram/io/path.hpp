#pragma once

#include <optional>
#include <string_view>

#include "vram/io/document.hpp"

namespace vram::io {

/// A dotted path as complaints write it: "train.batch_size", "data.buckets[2][0]", "config.process[0].train.steps".
/// A key that holds a dot or a bracket cannot be named. Null if nothing stands there, or if the path is malformed.
[[nodiscard]] const Node* find(const Node& root, std::string_view path);

/// `--set path=value`: sets what stands at `path` to `value`, read as a YAML flow value ("4", "[512, 768]", "bf16",
/// "" for null). Maps on the way are made; a list takes an index that it has, or its length to append.
/// The node's origin is Origin::assigned; document.text is not touched.
/// Errors, with the document unchanged: unknown_option (a malformed path), wrong_type (a number where a map must be),
/// out_of_range (no such item), and those of `read` for the value. The complaint's place is "--set", its key the path.
[[nodiscard]] std::optional<Diagnostic> assign(Document& document, std::string_view path, std::string_view value);

/// Takes the member that `path` names out of its map. Whether it was there; a list's item never is.
bool erase(Node& root, std::string_view path);

}  // namespace vram::io
