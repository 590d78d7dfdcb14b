#pragma once

#include <optional>
#include <string_view>

#include "diagnose/signs.hpp"

namespace vram::diagnosis {

/// A line of a stack trace.
struct Frame {
    std::string_view file, function;
};

/// Python's own form, `File "a.py", line 3, in f`; rich's, `a.py:3 in f`; IPython's, `a.py in f(x)`.
[[nodiscard]] std::optional<Frame> frame_of(std::string_view line);

/// What a stack trace says, of each strength the innermost frame.
struct Frames {
    std::optional<Where> place{}, detail{}, weak{};
    bool any = false;

    void add(const Signs& signs, const Frame& frame);
};

}  // namespace vram::diagnosis
