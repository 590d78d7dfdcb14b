#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "diagnose/signs.hpp"

namespace vram::diagnosis {

/// A message as it is compared: lower case, blanks and line ends squeezed, the frames of rich's boxes and the ranks of
/// torchrun gone.
[[nodiscard]] std::string squeezed(std::string_view text);

struct Stated {
    Numbers numbers;
    std::string wording;  // of failures/signs.yaml
};

/// The numbers of a squeezed message, each by the words around it; of two the first.
///
/// The process that is meant by "this process" may be missing: in a container with process ids of its own it stands
/// among the listed ones. It is then the smallest that holds what torch allocated and reserved and at most 1.5 GiB
/// more; the rest are others. A process of 0 bytes, or of 2^60 and more, is what a driver says that does not tell.
[[nodiscard]] Stated read_message(const Signs& signs, std::string_view squeezed);

}  // namespace vram::diagnosis
