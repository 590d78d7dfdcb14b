#include <pybind11/pybind11.h>

#include "register.hpp"

PYBIND11_MODULE(_core, m) {
    m.doc() = "vramest's C++ library. Use the names of the package vramest; these are its parts.";
    m.attr("__version__") = VRAMEST_VERSION;
    vram::python::register_cli(m);
}
