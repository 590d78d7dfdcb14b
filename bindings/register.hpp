#pragma once

#include <pybind11/pybind11.h>

namespace vram::python {

// One file each: register_<concept>.cpp.
void register_report(pybind11::module_& m);
void register_check(pybind11::module_& m);
void register_advise(pybind11::module_& m);
void register_catalogue(pybind11::module_& m);
void register_decisions(pybind11::module_& m);
void register_diagnose(pybind11::module_& m);
void register_explain(pybind11::module_& m);
void register_cli(pybind11::module_& m);

}  // namespace vram::python
