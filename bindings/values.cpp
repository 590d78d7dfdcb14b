#include "values.hpp"

namespace py = pybind11;

namespace vram::python {

py::str lossy(std::string_view text) {
    return py::reinterpret_steal<py::str>(
        PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
}

bool is_path(py::handle value) { return PyUnicode_Check(value.ptr()) || py::hasattr(value, "__fspath__"); }

Path path_of(py::handle value, const std::string& what, const std::string& or_what, Diagnostics& complaints) {
    const auto path = py::reinterpret_steal<py::object>(PyOS_FSPath(value.ptr()));
    if (!path) throw py::error_already_set();
    if (!PyUnicode_Check(path.ptr())) throw py::type_error(what + " must be a path of str, not of bytes");
    const auto encoded = py::reinterpret_steal<py::bytes>(PyUnicode_EncodeFSDefault(path.ptr()));
    const auto shown = py::reinterpret_steal<py::bytes>(PyUnicode_AsEncodedString(path.ptr(), "utf-8", "replace"));
    const auto refuse = [&](Problem problem, const std::string& why) {
        complaints.push_back({Severity::error, problem, {}, {}, {}, {}, what + " is " + why});
        return Path{std::nullopt, "<" + what + ">"};
    };
    if (!encoded || !shown) {
        PyErr_Clear();
        return refuse(Problem::bad_encoding, "a name that no file can have");
    }
    const std::string name(shown);
    if (name.find('\n') != std::string::npos)
        return refuse(Problem::bad_value, "a text, not a path: give a path or " + or_what);
    return {std::string(encoded), name};
}

}  // namespace vram::python
