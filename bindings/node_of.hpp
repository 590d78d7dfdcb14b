#pragma once

#include <pybind11/pybind11.h>

#include <string>

#include "vram/base/diagnostic.hpp"
#include "vram/io/document.hpp"

namespace vram::python {

/// What a Python value says, as a reader of files would give it: None, bool, int, float, str, os.PathLike (its path),
/// lists, tuples, and any Mapping. Ints beyond 64 bits are the nearest float and marked; what has __index__ counts as
/// int, so numpy's scalars do.
///
/// What no file could hold is a complaint: keys that are no str (wrong_type), text that is not UTF-8 or holds a NUL
/// (bad_encoding), more than io::Limits of depth (too_deep; a cycle is that) or of nodes (file_too_large). Any other
/// type is a TypeError that names the key, and what a value's own methods raise passes through. Needs the GIL.
[[nodiscard]] io::Node node_of(pybind11::handle value, Diagnostics& complaints, const io::Limits& limits = {});

/// The node as a YAML flow value, for `--set` and its like: null, 4, "text", [512, 768].
[[nodiscard]] std::string flow_of(const io::Node& node);

}  // namespace vram::python
