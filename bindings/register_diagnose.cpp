#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <string>
#include <utility>

#include "answer.hpp"
#include "asked.hpp"
#include "catalogue.hpp"
#include "register.hpp"
#include "values.hpp"
#include "vram/diagnose/diagnose.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace vram::python {
namespace {

using namespace diagnosis;

const Knowledge& knowledge() {
    static const Knowledge built_in = Knowledge::built_in();
    return built_in;
}

template <auto field, class T>
auto text_of(const T& object) {
    return to_text(object.*field);
}

py::list texts(const std::vector<std::string>& list) {
    py::list out;
    for (const std::string& text : list) out.append(lossy(text));
    return out;
}

py::object bucket(const Diagnosis& d) {
    if (!d.heaviest_bucket) return py::none();
    return py::tuple(py::cast(d.heaviest_bucket->size));
}

/// What is fed to a reader: a file, or a text.
expected<LogReader> read(const std::optional<std::string>& path, const std::string& text) {
    if (path) return read_log(std::filesystem::path(*path), knowledge());
    LogReader reader(knowledge());
    reader.feed(text);
    return reader;
}

std::string bytes_of(py::handle text) {
    if (PyBytes_Check(text.ptr())) return py::cast<std::string>(text);
    if (!PyUnicode_Check(text.ptr()))
        throw py::type_error(std::string("text must be str or bytes, not ") + Py_TYPE(text.ptr())->tp_name);
    // Lone surrogates, as Python reads bytes that are not UTF-8.
    const auto encoded =
        py::reinterpret_steal<py::bytes>(PyUnicode_AsEncodedString(text.ptr(), "utf-8", "surrogatepass"));
    if (!encoded) throw py::error_already_set();
    return std::string(encoded);
}

Diagnosis diagnose(py::handle log, py::handle config, py::handle text, const std::optional<std::string>& gpu,
                   const py::object& capacity, py::handle sets) {
    if (log.is_none() == text.is_none()) throw py::type_error("give a log's path or text=, one of them");
    Diagnostics complaints;
    Path path{std::nullopt, "<text>"};
    std::string bytes;
    if (text.is_none()) {
        if (!is_path(log)) throw py::type_error(std::string("log must be a path, not ") + Py_TYPE(log.ptr())->tp_name);
        path = path_of(log, "log", "text=", complaints);
    } else {
        bytes = bytes_of(text);
    }
    if (!complaints.empty()) return unreadable(path.source, std::move(complaints));

    std::optional<expected<LogReader>> reader;
    Bytes stated = 0;
    {
        const py::gil_scoped_release released;
        reader.emplace(read(path.path, bytes));
        if (*reader) stated = (**reader).capacity();
    }
    if (!*reader) {
        Diagnostics unread = reader->error();
        for (Diagnostic& complaint : unread) complaint.place.file = path.source;
        return unreadable(path.source, std::move(unread));
    }
    std::optional<Asked> asked;
    const bool names_card = gpu || !capacity.is_none();
    if (!config.is_none())
        asked.emplace(config, gpu, names_card || stated == 0 ? capacity : py::object(py::int_(stated)), sets);

    const py::gil_scoped_release released;
    if (!asked) return (**reader).finish(path.source);
    return finish_beside(**reader, path.source, asked->document(), asked->source, asked->options, catalogue());
}

std::string repr(const Diagnosis& d) {
    return "<vramest.Diagnosis " + std::string(to_text(d.kind)) + " in " + std::string(to_text(d.phase)) + ">";
}

}  // namespace

void register_diagnose(py::module_& m) {
    py::class_<Numbers>(m, "Numbers", py::is_final(), "Bytes that a message states; None where it does not.")
        .def_readonly("tried", &Numbers::tried, "2 MiB and 20 MiB stand for anything smaller.")
        .def_readonly("capacity", &Numbers::capacity)
        .def_readonly("free", &Numbers::free)
        .def_readonly("process", &Numbers::process, "This process, with its context.")
        .def_readonly("allocated", &Numbers::allocated, "By torch.")
        .def_readonly("reserved_unallocated", &Numbers::reserved_unallocated)
        .def_readonly("other_processes", &Numbers::other_processes)
        .def_readonly("allowed", &Numbers::allowed, "A limit that the program set itself.")
        .def_readonly("host_tried", &Numbers::host_tried)
        .def_readonly("host_process", &Numbers::host_process);

    py::class_<Evidence>(m, "Evidence", py::is_final(), "A line of the log that something was concluded from.")
        .def_readonly("line", &Evidence::line, "From 1; 0: from the whole log.")
        .def_property_readonly("text", [](const Evidence& e) { return lossy(e.text); })
        .def_property_readonly("says", [](const Evidence& e) { return lossy(e.says); });

    py::class_<Prediction>(m, "Prediction", py::is_final(), "What the config beside the log is predicted to do.")
        .def_readonly("verdict", &Prediction::verdict)
        .def_property_readonly("reason", [](const Prediction& p) { return lossy(p.reason); })
        .def_readonly("phase", &Prediction::phase, "Where it breaks first, or is tightest.")
        .def_readonly("breaks", &Prediction::breaks, "`phase` is where it breaks first; else the tightest.")
        .def_readonly("compared", &Prediction::compared, "The report has the phase where it died.")
        .def_readonly("agrees", &Prediction::agrees,
                      "With where it died; and, where the failure is one of size, that it does not fit.")
        .def_readonly("needs_low", &Prediction::needs_low)
        .def_readonly("needs_high", &Prediction::needs_high)
        .def_readonly("capacity", &Prediction::capacity)
        .def_property_readonly(
            "change", [](const Prediction& p) { return texts(p.change); },
            "What makes it fit: what it is, then a line for each edit of the config and for what is typed.");

    py::class_<Diagnosis> answer(m, "Diagnosis", py::is_final(),
                                 "Which memory ran out, where, and what to change first.");
    answer.def_readonly("recognised", &Diagnosis::recognised, "If not, looked_for says what was looked for.")
        .def_property_readonly("phase", &text_of<&Diagnosis::phase, Diagnosis>, "Where it died.")
        .def_property_readonly("kind", &text_of<&Diagnosis::kind, Diagnosis>)
        .def_property_readonly("confidence", &text_of<&Diagnosis::confidence, Diagnosis>, "high, medium or low.")
        .def_property_readonly("pattern", &text_of<&Diagnosis::pattern, Diagnosis>, "The text of the failure.")
        .def_property_readonly("source", [](const Diagnosis& d) { return lossy(d.source); })
        .def_readonly("trainer", &Diagnosis::trainer, "Empty where nothing tells it.")
        .def_property_readonly("system", &text_of<&Diagnosis::system, Diagnosis>)
        .def_readonly("wording", &Diagnosis::wording, "Which versions of torch write so.")
        .def_readonly("numbers", &Diagnosis::numbers)
        .def_readonly("short_by", &Diagnosis::short_by, "At least so many bytes were missing.")
        .def_readonly("step", &Diagnosis::step)
        .def_readonly("steps", &Diagnosis::steps)
        .def_readonly("went_on", &Diagnosis::went_on, "The run went on after it.")
        .def_readonly("failures", &Diagnosis::failures)
        .def_property_readonly("heaviest_bucket", &bucket, "Width, height, frames; None where the log lists none.")
        .def_readonly("cause", &Diagnosis::cause)
        .def_readonly("first_change", &Diagnosis::first_change)
        .def_property_readonly("then", [](const Diagnosis& d) { return texts(d.then); })
        .def_property_readonly("notes", [](const Diagnosis& d) { return texts(d.notes); })
        .def_readonly("evidence", &Diagnosis::evidence)
        .def_readonly("looked_for", &Diagnosis::looked_for)
        .def_readonly("prediction", &Diagnosis::prediction, "None without a config.")
        .def_readonly("diagnostics", &Diagnosis::diagnostics)
        .def(
            "exit_code", [](const Diagnosis& d) { return exit_code(d); },
            "As the command: 0 a diagnosis was reached, 2 nothing was recognised.")
        .def("__repr__", &repr);
    as_answer(answer, "diagnose");

    m.def("diagnose", &diagnose, "log"_a = py::none(), "config"_a = py::none(), py::kw_only(), "text"_a = py::none(),
          "gpu"_a = py::none(), "capacity"_a = py::none(), "sets"_a = py::none(),
          R"(Which memory ran out in a log, where, and what to change first.

log       path of a trainer's log, whole or a part
config    what was run, as for check, to lay its prediction beside
text      instead of a path: the log itself, str or bytes in any encoding
gpu, capacity, sets  for the config, as for check; without them the card's memory is the log's

A log in which nothing is recognised is an answer: a Diagnosis whose `recognised` is False. Only values of a wrong Python
type raise TypeError. Runs without the GIL.)");
}

}  // namespace vram::python
