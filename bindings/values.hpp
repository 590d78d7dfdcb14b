#pragma once

#include <pybind11/pybind11.h>

#include <optional>
#include <string>
#include <string_view>

#include "vram/base/diagnostic.hpp"

namespace vram::python {

/// A text for Python that may quote a file which is not UTF-8.
[[nodiscard]] pybind11::str lossy(std::string_view text);

/// A path as the file system has it (names that are not UTF-8 come through), and for people. Absent, with a complaint,
/// where no file can be called so or where it is a text of several lines.
struct Path {
    std::optional<std::string> path;
    std::string source;
};
/// Is it a str or an os.PathLike?
[[nodiscard]] bool is_path(pybind11::handle value);
/// `what` is the argument's name, `or_what` what else may be given. A path of bytes is a TypeError.
[[nodiscard]] Path path_of(pybind11::handle value, const std::string& what, const std::string& or_what,
                           Diagnostics& complaints);

}  // namespace vram::python
