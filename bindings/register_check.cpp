#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <string>
#include <utility>

#include "asked.hpp"
#include "catalogue.hpp"
#include "register.hpp"
#include "vram/report/check.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace vram::python {
namespace {

report::Report check(py::handle job, const std::optional<std::string>& gpu, py::handle capacity, py::handle sets) {
    Asked asked(job, gpu, capacity, sets);
    const py::gil_scoped_release released;  // from here on no Python object is touched
    expected<io::Document> document = asked.document();
    return document ? report::check(*std::move(document), asked.options, catalogue())
                    : report::refused(asked.source, document.error());
}

}  // namespace

void register_check(py::module_& m) {
    m.def("check", &check, "job"_a, py::kw_only(), "gpu"_a = py::none(), "capacity"_a = py::none(),
          "sets"_a = py::none(),
          R"(What a job needs, and whether the card holds it.

job       path of a config (of a trainer, or vramest's own job file), or a dict that says the same
gpu       a card by id or name, "RTX 4090"; "auto" asks this machine's driver. Without gpu and capacity the job's
          card is taken, else the smallest that holds it
capacity  instead of a card: its memory as torch reports it, in bytes or as "24 GiB"
sets      keys of the job to override: {"train.batch_size": 2}, or ["train.batch_size=2"]

Bad input is an answer: a Report with the verdict "cannot_say" and its diagnostics. Only values of a wrong Python type
raise TypeError. Runs without the GIL. Read are the file and the headers of the pictures of the dataset it names.)");
}

}  // namespace vram::python
