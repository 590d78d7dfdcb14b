#pragma once

#include <pybind11/pybind11.h>

#include <map>
#include <string>
#include <vector>

#include "values.hpp"
#include "vram/job/change.hpp"

namespace vram::python {

/// Keys of the job file and their values (YAML), as a dict.
[[nodiscard]] inline std::map<std::string, std::string> dict_of(const std::vector<job::Setting>& settings) {
    std::map<std::string, std::string> out;
    for (const job::Setting& setting : settings) out[setting.key] = setting.value;
    return out;
}

/// What every answer has: its JSON, its text, and how it compares. `verb` gives it.
template <class Class>
void as_answer(Class& answer, const char* verb) {
    using Answer = typename Class::type;
    const std::string command = std::string("What `vramest ") + verb;
    answer
        .def(
            "to_json", [](const Answer& a, int indent) { return to_json(a, indent); }, pybind11::arg("indent") = 2,
            (command + " --json` prints; indent < 0: on one line.").c_str())
        .def(
            "to_dict", [](const Answer& a) { return pybind11::module_::import("json").attr("loads")(to_json(a, -1)); },
            "The same object as a dict.")
        .def(
            "to_text", [](const Answer& a) { return lossy(to_text(a)); }, (command + "` prints.").c_str())
        .def("__str__", [](const Answer& a) { return lossy(to_text(a)); });
    if constexpr (requires(const Answer& a) { a == a; })
        answer.def(
            "__eq__", [](const Answer& a, const Answer& b) { return a == b; }, pybind11::is_operator());
}

}  // namespace vram::python
