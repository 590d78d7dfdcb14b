#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <string>
#include <utility>

#include "answer.hpp"
#include "asked.hpp"
#include "catalogue.hpp"
#include "node_of.hpp"
#include "register.hpp"
#include "vram/advise/grow.hpp"
#include "vram/advise/max.hpp"
#include "vram/advise/sweep.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace vram::python {
namespace {

using advise::Axis;
using advise::Cell;
using advise::Grow;
using advise::Growth;
using advise::Max;
using advise::Most;
using advise::Sweep;
using advise::Tried;
using report::Trial;
using report::Verdict;

std::optional<Bytes> known(bool is_known, Bytes bytes) { return is_known ? std::optional(bytes) : std::nullopt; }

/// What was tried, of a class that holds a `trial`.
template <class T>
void tell_trial(py::class_<T>& c) {
    c.def_property_readonly(
         "settings", [](const T& t) { return dict_of(t.settings); },
         "Keys of the job and values (YAML) that make check play it.")
        .def_property_readonly(
            "verdict", [](const T& t) { return std::string(to_text(t.trial.verdict)); },
            "What check says: fits, tight, does_not_fit or cannot_say.")
        .def_property_readonly(
            "gpu", [](const T& t) { return t.trial.gpu.id; }, "Empty where only a capacity is known.")
        .def_property_readonly("tensors_peak", [](const T& t) { return t.trial.tensors_peak; })
        .def_property_readonly(
            "tensors_phase", [](const T& t) { return t.trial.tensors_phase; },
            "The first phase in which so much is alive.")
        .def_property_readonly(
            "device_low", [](const T& t) { return known(t.trial.verdict != Verdict::cannot_say, t.trial.device_low); },
            "Where device_high is None: what it needs at least.")
        .def_property_readonly(
            "device_high", [](const T& t) { return known(t.trial.replayed, t.trial.device_high); },
            "None where the tensors alone exceed the card: nobody asked further.")
        .def_property_readonly(
            "reason", [](const T& t) { return lossy(t.trial.reason); }, "Of cannot_say, one sentence.")
        .def_property_readonly("diagnostics", [](const T& t) { return t.trial.diagnostics; });
}

/// What these three have beside what every answer has.
template <class T>
void tell_answer(py::class_<T>& c, const char* verb) {
    c.def_readonly("source", &T::source, "The file's name.")
        .def_readonly("diagnostics", &T::diagnostics, "Why nothing is said; empty where something is.")
        .def(
            "exit_code", [](const T& t) { return advise::exit_code(t); }, "As the command's.");
    as_answer(c, verb);
}

/// Values as YAML flow: of a list its items, else the one.
std::vector<std::string> values_of(const io::Node& node) {
    std::vector<std::string> out;
    if (const io::List* list = node.list()) {
        for (const io::Node& item : *list) out.push_back(flow_of(item));
    } else {
        out.push_back(flow_of(node));
    }
    return out;
}

std::vector<Axis> axes_of(py::handle axes, Diagnostics& complaints) {
    std::vector<Axis> out;
    if (PyUnicode_Check(axes.ptr()))
        throw py::type_error("axes must be a dict or a list of 'key=value,value', not str");
    if (py::isinstance(axes, py::module_::import("collections.abc").attr("Mapping"))) {
        const io::Node node = node_of(axes, complaints);
        if (const io::Map* map = node.map())
            for (const io::Member& member : *map) out.push_back({member.key, values_of(member.value)});
        return out;
    }
    for (const py::handle item : py::iter(axes)) {
        if (!PyUnicode_Check(item.ptr()))
            throw py::type_error(std::string("axes must hold str, not ") + Py_TYPE(item.ptr())->tp_name);
        expected<Axis> axis = advise::axis_of(py::cast<std::string>(item));
        if (axis)
            out.push_back(*std::move(axis));
        else
            complaints.insert(complaints.end(), axis.error().begin(), axis.error().end());
    }
    return out;
}

std::vector<advise::Vary> vary_of(py::handle vary, Diagnostics& complaints) {
    std::vector<std::string> words;
    if (PyUnicode_Check(vary.ptr())) {
        words.push_back(py::cast<std::string>(vary));
    } else {
        for (const py::handle item : py::iter(vary)) {
            if (!PyUnicode_Check(item.ptr()))
                throw py::type_error(std::string("vary must be str or hold str, not ") + Py_TYPE(item.ptr())->tp_name);
            words.push_back(py::cast<std::string>(item));
        }
    }
    std::vector<advise::Vary> out;
    for (const std::string& word : words) {
        expected<advise::Vary> one = advise::read_vary(word);
        if (one)
            out.push_back(*one);
        else
            complaints.insert(complaints.end(), one.error().begin(), one.error().end());
    }
    return out;
}

/// Asks without the GIL; where something was wrong before, the answer holds the complaints.
template <class Answer, class Ask>
Answer answered(Asked asked, Diagnostics complaints, const Ask& ask) {
    const py::gil_scoped_release released;  // from here on no Python object is touched
    const expected<io::Document> document = asked.document();
    if (!document) complaints.insert(complaints.end(), document.error().begin(), document.error().end());
    if (complaints.empty()) return ask(*document, asked.options);
    Answer out;
    out.source = asked.source;
    out.diagnostics = std::move(complaints);
    return out;
}

Sweep sweep(py::handle job, py::handle axes, const std::optional<std::string>& gpu, py::handle capacity,
            py::handle sets) {
    Diagnostics complaints;
    const std::vector<Axis> read = axes_of(axes, complaints);
    return answered<Sweep>(Asked(job, gpu, capacity, sets), std::move(complaints),
                           [&](const io::Document& document, const report::CheckOptions& options) {
                               return advise::sweep(document, read, options, catalogue());
                           });
}

Max max(py::handle job, py::handle vary, const std::optional<std::string>& gpu, py::handle capacity, py::handle sets) {
    Diagnostics complaints;
    const std::vector<advise::Vary> read = vary_of(vary, complaints);
    return answered<Max>(Asked(job, gpu, capacity, sets), std::move(complaints),
                         [&](const io::Document& document, const report::CheckOptions& options) {
                             return advise::max(document, read, options, catalogue());
                         });
}

Grow grow(py::handle job, const std::optional<std::string>& gpu, py::handle capacity, py::handle sets) {
    return answered<Grow>(Asked(job, gpu, capacity, sets), {},
                          [](const io::Document& document, const report::CheckOptions& options) {
                              return advise::grow(document, options, catalogue());
                          });
}

void register_sweep(py::module_& m) {
    py::class_<Cell> cell(m, "Cell", py::is_final(), "One combination of a sweep's values.");
    cell.def_readonly("at", &Cell::at, "By axis: the index of its value.");
    tell_trial(cell);
    cell.def("__repr__", [](const Cell& c) { return "<vramest.Cell " + std::string(to_text(c.trial.verdict)) + ">"; });
    py::class_<Sweep> c(m, "Sweep", py::is_final(), "What check says of every combination of some values.");
    c.def_property_readonly(
         "axes",
         [](const Sweep& s) {
             py::list out;
             for (const Axis& axis : s.axes) out.append(py::make_tuple(lossy(axis.key), axis.values));
             return out;
         },
         "(key, values) each; values are YAML.")
        .def_readonly("cells", &Sweep::cells, "The last axis fastest.");
    tell_answer(c, "sweep");
    c.def(
         "to_csv", [](const Sweep& s) { return lossy(to_csv(s)); }, "A row a cell; sizes are bytes.")
        .def(
            "to_svg", [](const Sweep& s) { return to_svg(s); }, "A picture that needs nothing beside it.")
        .def("_repr_svg_", [](const Sweep& s) { return to_svg(s); })
        .def("__repr__", [](const Sweep& s) {
            return "<vramest.Sweep of " + std::to_string(s.cells.size()) + " cells, " +
                   std::to_string(s.count(Verdict::fits)) + " fit>";
        });
    m.def("sweep", &sweep, "job"_a, "axes"_a, py::kw_only(), "gpu"_a = py::none(), "capacity"_a = py::none(),
          "sets"_a = py::none(),
          R"(What check says of every combination of some keys' values.

axes  keys of the job file and their values, {"train.batch_size": [1, 2, 4]}, or ["train.batch_size=1,2,4"]; at most
      100,000 combinations
job, gpu, capacity and sets are those of check. Bad input is an answer: no cells, and its diagnostics. Runs without the
GIL, on the cores that there are.)");
}

void register_max(py::module_& m) {
    py::class_<Tried> tried(m, "Tried", py::is_final(), "A value that was played.");
    tried.def_readonly("value", &Tried::value);
    tell_trial(tried);
    tried.def("__repr__", [](const Tried& t) {
        return "<vramest.Tried " + std::to_string(t.value) + " " + std::string(to_text(t.trial.verdict)) + ">";
    });
    const auto value = [](const Most& it) { return it.best ? std::optional(it.best->value) : std::nullopt; };
    py::class_<Most>(m, "Most", py::is_final(), "The most of one axis, all else as it is.")
        .def_readonly("beside", &Most::beside, "Of the second axis; None where there is one.")
        .def_property_readonly("value", value, "The largest that fits, or None.")
        .def_property_readonly(
            "settings", [](const Most& it) { return it.best ? dict_of(it.best->settings) : dict_of({}); },
            "Keys of the job and values (YAML) that set it.")
        .def_readonly("phase", &Most::phase, "The tightest then.")
        .def_readonly("stage", &Most::stage)
        .def_property_readonly("device_low", [](const Most& it) { return known(it.best.has_value(), it.device_low); })
        .def_property_readonly("device_high", [](const Most& it) { return known(it.best.has_value(), it.device_high); })
        .def_readonly("next", &Most::next, "The axis's next step, which does not fit; None where the axis ends.")
        .def_readonly("tried", &Most::tried, "All values that were played, from the least.")
        .def_property_readonly("smaller_that_fail", &Most::smaller_that_fail)
        .def_property_readonly("larger_tried", &Most::larger_tried, "None of them fits.")
        .def("__repr__", [](const Most& it) {
            return "<vramest.Most " + (it.best ? std::to_string(it.best->value) : std::string("of nothing")) + ">";
        });
    py::class_<Max> c(m, "Max", py::is_final(), "The largest value of an axis with which a job fits.");
    c.def_property_readonly(
         "value", [value](const Max& it) { return it.most.size() == 1 ? value(it.most.front()) : std::nullopt; },
         "Of one axis the largest that fits; None where none does, and of two.")
        .def_readonly("gpu", &Max::gpu)
        .def_property_readonly("vary",
                               [](const Max& it) {
                                   std::vector<std::string> out;
                                   for (const advise::Vary vary : it.vary) out.emplace_back(to_text(vary));
                                   return out;
                               })
        .def_readonly("keys", &Max::keys, "Of the job, by axis.")
        .def_readonly("now", &Max::now, "The job's own value of the first axis.")
        .def_readonly("most", &Max::most, "One; of two axes one a usual value of the second.");
    tell_answer(c, "max");
    c.def("__repr__", [value](const Max& it) {
        const auto most = it.most.size() == 1 ? value(it.most.front()) : std::nullopt;
        return "<vramest.Max" + (most ? " " + std::to_string(*most) : std::string()) + ">";
    });
    m.def("max", &max, "job"_a, "vary"_a, py::kw_only(), "gpu"_a = py::none(), "capacity"_a = py::none(),
          "sets"_a = py::none(),
          R"(The largest value of something with which a job fits.

vary  "batch_size", "resolution", "frames" or "rank"; of two, in a list, the most of the first for each of the second
job, gpu, capacity and sets are those of check, and a card must be named. Bad input is an answer: `most` is empty, and
diagnostics say why. Runs without the GIL.)");
}

void register_grow(py::module_& m) {
    py::class_<Growth>(m, "Growth", py::is_final(), "One thing to raise, all else as it is.")
        .def_readonly("what", &Growth::what)
        .def_readonly("before", &Growth::from, "As the job reads.")
        .def_readonly("after", &Growth::to, "Empty where it does not grow.")
        .def_readonly("grows", &Growth::grows)
        .def_property_readonly("settings", [](const Growth& g) { return dict_of(g.settings); })
        .def_property_readonly("device_low", [](const Growth& g) { return known(g.grows, g.device_low); })
        .def_property_readonly("device_high", [](const Growth& g) { return known(g.grows, g.device_high); })
        .def_property_readonly(
            "why", [](const Growth& g) { return lossy(g.why); }, "What comes next, or why it stays.")
        .def("__repr__",
             [](const Growth& g) { return "<vramest.Growth " + g.what + " " + g.from + " -> " + g.to + ">"; });
    py::class_<Grow> c(m, "Grow", py::is_final(), "What to raise next after a first success, and how far.");
    c.def_readonly("gpu", &Grow::gpu)
        .def_property_readonly(
            "verdict", [](const Grow& g) { return std::string(to_text(g.verdict)); }, "Of the job as it is.")
        .def_property_readonly("reason", [](const Grow& g) { return lossy(g.reason); })
        .def_readonly("device_low", &Grow::device_low)
        .def_readonly("device_high", &Grow::device_high)
        .def_readonly("lines", &Grow::lines, "In the order in which practice raises; none where the job does not fit.");
    tell_answer(c, "grow");
    c.def("__repr__", [](const Grow& g) { return "<vramest.Grow " + std::string(to_text(g.verdict)) + ">"; });
    m.def("grow", &grow, "job"_a, py::kw_only(), "gpu"_a = py::none(), "capacity"_a = py::none(), "sets"_a = py::none(),
          R"(What to raise next once a job fits, and how far, in the order of practice.

job, gpu, capacity and sets are those of check, and a card must be named. Bad input is an answer: `lines` is empty, and
diagnostics say why. Runs without the GIL.)");
}

}  // namespace

void register_decisions(py::module_& m) {
    register_sweep(m);
    register_max(m);
    register_grow(m);
}

}  // namespace vram::python
