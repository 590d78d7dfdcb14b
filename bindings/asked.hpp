#pragma once

#include <pybind11/pybind11.h>

#include <optional>
#include <string>

#include "vram/base/expected.hpp"
#include "vram/io/document.hpp"
#include "vram/report/check.hpp"

namespace vram::python {

/// What a caller asks about: the arguments that every function on a job takes, read while the GIL is held. A type that
/// cannot be meant is a TypeError; what is wrong with a value is a complaint of `document`.
class Asked {
  public:
    /// `job`: a path, or a mapping as a dict. `gpu`: "auto" asks this machine's driver. `capacity`: bytes, or "24 GiB".
    /// `sets`: a mapping of the job file's keys, or "key=value" as on the command line.
    Asked(pybind11::handle job, const std::optional<std::string>& gpu, pybind11::handle capacity,
          pybind11::handle sets);

    std::string source;  // of the job, for people
    report::CheckOptions options;

    /// Touches no Python object: reads the file, asks the driver, or gives the complaints.
    [[nodiscard]] expected<io::Document> document();

  private:
    std::optional<std::string> path_;  // as the file system has it: names that are not UTF-8 come through
    io::Document document_;
    Diagnostics complaints_;
    bool asks_driver_ = false;
};

}  // namespace vram::python
