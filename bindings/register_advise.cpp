#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <string>

#include "answer.hpp"
#include "asked.hpp"
#include "catalogue.hpp"
#include "register.hpp"
#include "vram/advise/advise.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace vram::python {
namespace {

using advise::Advised;
using advise::Placed;
using advise::Proposal;

Advised advised(py::handle job, const std::optional<std::string>& gpu, py::handle capacity, py::handle sets) {
    Asked asked(job, gpu, capacity, sets);
    const py::gil_scoped_release released;  // from here on no Python object is touched
    expected<io::Document> document = asked.document();
    if (document) return advise::advise(*std::move(document), asked.options, catalogue());
    Advised out;
    out.before = report::refused(asked.source, document.error());
    return out;
}

void register_change(py::module_& m) {
    py::class_<io::Edited>(m, "Edit", py::is_final(), "One value of the user's file that changes, and where it stands.")
        .def_property_readonly("key", [](const io::Edited& edit) { return edit.edit.path; })
        .def_property_readonly("file", [](const io::Edited& edit) { return edit.place.file; })
        .def_property_readonly(
            "line", [](const io::Edited& edit) { return edit.place.line; },
            "Of the value, or behind which a new key goes; 0 where no file was read.")
        .def_property_readonly("column", [](const io::Edited& edit) { return edit.place.column; })
        .def_readonly("is_new", &io::Edited::is_new, "Nothing stood there.")
        .def_readonly("before", &io::Edited::before)
        .def_property_readonly(
            "after", [](const io::Edited& edit) { return edit.edit.value ? std::optional(edit.after) : std::nullopt; },
            "None where it goes.");

    py::class_<Placed>(m, "Change", py::is_final(), "One thing to change so that a job needs less.")
        .def_property_readonly("lever", [](const Placed& p) { return std::string(to_text(p.change.lever)); })
        .def_property_readonly("text", [](const Placed& p) { return p.change.text; })
        .def_readonly("edits", &Placed::edits)
        .def_property_readonly(
            "settings", [](const Placed& p) { return dict_of(p.change.settings); },
            "Keys of the job file, of what surrounds the job.")
        .def_property_readonly("price", [](const Placed& p) { return std::string(to_text(p.change.price)); })
        .def_property_readonly("cost", [](const Placed& p) { return p.change.cost; })
        .def_property_readonly(
            "panel", [](const Placed& p) { return p.change.panel; },
            "Where the trainer's own interface has it; empty: nowhere.")
        .def_property_readonly(
            "shell", [](const Placed& p) { return p.change.shell; }, "What is typed instead of an edit.")
        .def("__repr__", [](const Placed& p) { return "<vramest.Change " + p.change.text + ">"; });
}

void register_proposal(py::module_& m) {
    py::class_<Proposal>(m, "Proposal", py::is_final(), "Changes made together, and what the job came to with them.")
        .def_readonly("changes", &Proposal::changes)
        .def_property_readonly("verdict", [](const Proposal& p) { return std::string(to_text(p.verdict)); })
        .def_readonly("phase", &Proposal::phase, "The tightest then.")
        .def_readonly("stage", &Proposal::stage)
        .def_readonly("device_low", &Proposal::device_low)
        .def_readonly("device_high", &Proposal::device_high)
        .def_readonly("saves", &Proposal::saves, "Of the highest need: device_high before, less device_high then.")
        .def_readonly("saves_there", &Proposal::saves_there, "In the phase that was tightest before.")
        .def_readonly("short_of", &Proposal::short_of, "How far device_high lies above what the card offers.")
        .def_readonly("short_of_low", &Proposal::short_of_low, "How far device_low lies above it; 0: it may fit.")
        .def_readonly("file", &Proposal::file, "The whole text with the edits in it; empty for a dict.")
        .def("__repr__", [](const Proposal& p) {
            std::string text;
            for (const Placed& placed : p.changes) text += (text.empty() ? "" : "; ") + placed.change.text;
            return "<vramest.Proposal " + text + ": " + std::string(to_text(p.verdict)) + ">";
        });

    py::class_<Advised> answer(m, "Advised", py::is_final(), "What makes a job fit, and what does not.");
    answer.def_readonly("before", &Advised::before, "The report of the job as it is.")
        .def_property_readonly("diagnostics", [](const Advised& advised) { return advised.before.diagnostics; })
        .def_readonly("is_video", &Advised::is_video)
        .def_readonly("fits", &Advised::fits, "One change first, then pairs, then more; the safest first.")
        .def_readonly("helps", &Advised::helps, "One change each that is not enough by itself.")
        .def_readonly("idle", &Advised::idle, "Changes that move nothing where the job is tightest.")
        .def_readonly("nearest", &Advised::nearest, "Where nothing fits: what comes closest.")
        .def("exit_code", [](const Advised& advised) { return exit_code(advised); })
        .def("__repr__", [](const Advised& advised) {
            return "<vramest.Advised " + std::string(to_text(advised.before.verdict)) + ", " +
                   std::to_string(advised.fits.size()) + " that fit>";
        });
    as_answer(answer, "advise");
}

}  // namespace

void register_advise(py::module_& m) {
    register_change(m);
    register_proposal(m);
    m.def("advise", &advised, "job"_a, py::kw_only(), "gpu"_a = py::none(), "capacity"_a = py::none(),
          "sets"_a = py::none(),
          R"(The smallest changes that make a job fit on its card, each of them played.

The arguments are those of check. A card must be named, by gpu, capacity or the job, or asked of the driver with
gpu="auto"; else before.verdict is cannot_say. Nothing is written: proposal.file holds the changed text.)");
}

}  // namespace vram::python
