#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <sstream>

#include "register.hpp"
#include "run.hpp"

namespace py = pybind11;

namespace vram::python {

void register_cli(py::module_& m) {
    m.def(
        "run_cli",
        [](const std::vector<std::string>& args) {
            std::ostringstream out, err;
            int code = 2;
            {
                py::gil_scoped_release released;
                code = cli::run(args, out, err);
            }
            return py::make_tuple(code, py::bytes(out.str()), py::bytes(err.str()));
        },
        py::arg("args"),
        "The vramest command on these arguments: (exit code, what it printed, what it complained), UTF-8.");
}

}  // namespace vram::python
