#include <pybind11/pybind11.h>

#include <string>

#include "register.hpp"
#include "vram/report/report.hpp"

PYBIND11_MODULE(_core, m) {
    m.doc() = "vramest's C++ library. Use the names of the package vramest; these are its parts.";
    m.attr("__version__") = std::string(vram::report::library_version());
    vram::python::register_report(m);
    vram::python::register_advise(m);
    vram::python::register_catalogue(m);
    vram::python::register_check(m);
    vram::python::register_decisions(m);
    vram::python::register_diagnose(m);
    vram::python::register_explain(m);
    vram::python::register_cli(m);
}
