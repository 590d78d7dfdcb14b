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
#include "vram/advise/explain.hpp"
#include "vram/advise/risk.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace vram::python {
namespace {

using namespace advise;

Explained explained(py::handle job, const std::optional<std::string>& gpu, py::handle capacity, py::handle sets,
                    std::string phase) {
    Asked asked(job, gpu, capacity, sets);
    const py::gil_scoped_release released;  // from here on no Python object is touched
    expected<io::Document> document = asked.document();
    if (!document) return {report::refused(asked.source, document.error()), {}, {}, {}};
    ExplainOptions how;
    how.phase = std::move(phase);
    return explain(*std::move(document), asked.options, catalogue(), how);
}

CheckpointingRisk checkpointing_risk(py::handle job, const std::optional<std::string>& gpu, py::handle capacity,
                                     py::handle sets) {
    Asked asked(job, gpu, capacity, sets);
    const py::gil_scoped_release released;
    expected<io::Document> document = asked.document();
    if (document) return risk(*std::move(document), asked.options, catalogue());
    CheckpointingRisk out;
    out.on = out.off = report::refused(asked.source, document.error());
    return out;
}

void register_explained(py::module_& m) {
    py::class_<LiveBlocks>(m, "LiveBlocks", py::is_final(), "Blocks of torch's allocator that are alike, and whose.")
        .def_readonly("count", &LiveBlocks::count)
        .def_readonly("bytes", &LiveBlocks::bytes, "One of them, as requested.")
        .def_readonly("total", &LiveBlocks::total, "All of them, each rounded up to 512.")
        .def_readonly("component", &LiveBlocks::component)
        .def_property_readonly("category", [](const LiveBlocks& b) { return shadow::to_text(b.category); })
        .def_readonly("op", &LiveBlocks::op)
        .def_readonly("phase", &LiveBlocks::phase, "In which they were born.")
        .def_readonly("stage", &LiveBlocks::stage)
        .def_readonly("module", &LiveBlocks::module, "In whose forward or backward; of a parameter its name.")
        .def_readonly("class_name", &LiveBlocks::class_name, "Of the module; empty of a parameter.")
        .def_readonly("line", &LiveBlocks::line,
                      "The statement that made them, or whose backward did, below libvram/src: "
                      "\"models/flux.cpp:66\". Empty: a parameter.")
        .def_readonly("backward", &LiveBlocks::backward);

    py::class_<Contribution>(m, "Contribution", py::is_final(),
                             "An option that the job has, beside the same job without it; below 0, it saves.")
        .def_readonly("option", &Contribution::option)
        .def_readonly("value", &Contribution::value)
        .def_property_readonly(
            "instead",
            [](const Contribution& c) -> py::object {
                if (c.instead.key.empty()) return py::none();
                return py::make_tuple(c.instead.key, c.instead.value);
            },
            "(key, value) of the setting that was played; None where nothing can be.")
        .def_property_readonly(
            "why_not", [](const Contribution& c) { return lossy(c.why_not); }, "Empty where it was compared.")
        .def_property_readonly(
            "device_low",
            [](const Contribution& c) { return c.difference ? py::cast(c.difference->device_low) : py::none(); },
            "At the run's highest; None where it was not compared.")
        .def_property_readonly(
            "device_high",
            [](const Contribution& c) { return c.difference ? py::cast(c.difference->device_high) : py::none(); })
        .def_property_readonly(
            "needs_low",
            [](const Contribution& c) { return c.difference ? py::cast(c.difference->needs_low) : py::none(); },
            "Of the phase that decides; None where that is gone without the option, too.")
        .def_property_readonly("needs_high", [](const Contribution& c) {
            return c.difference ? py::cast(c.difference->needs_high) : py::none();
        });

    py::class_<Explained> explained_class(m, "Explained", py::is_final(), "Why a job needs what it needs.");
    explained_class.def_readonly("report", &Explained::report, "As check says it, without checkpointing.other.")
        .def_property_readonly(
            "phase", [](const Explained& e) { return e.moment.phase; }, "Whose peak is taken apart.")
        .def_property_readonly("stage", [](const Explained& e) { return e.moment.stage; })
        .def_property_readonly(
            "device_low", [](const Explained& e) { return e.moment.device_low; }, "What the breakdown adds up to.")
        .def_property_readonly("device_high", [](const Explained& e) { return e.moment.device_high; })
        .def_property_readonly("breakdown", [](const Explained& e) { return e.moment.breakdown; })
        .def_property_readonly(
            "blocks", [](const Explained& e) { return e.moment.blocks; }, "The largest first, by their total.")
        .def_readonly("contributions", &Explained::contributions)
        .def_property_readonly(
            "timeline",
            [](const Explained& e) {
                py::list list;
                for (const device::TimelinePart& part : e.timeline.parts)
                    for (std::size_t i = 0; i < part.points; ++i) {
                        const device::Point& point = e.timeline.points[part.first_point + i];
                        list.append(py::make_tuple(part.phase, point.allocated, point.reserved));
                    }
                return list;
            },
            "(phase, allocated, reserved) of stretches of the run, each the highest in it.")
        .def(
            "to_svg", [](const Explained& e) { return to_svg(e); }, "The timeline as a picture that stands alone.")
        .def(
            "exit_code", [](const Explained& e, bool strict) { return exit_code(e, strict); }, py::kw_only(),
            "strict"_a = false, "As of the report.");
    as_answer(explained_class, "explain");

    m.def("explain", &explained, "job"_a, py::kw_only(), "gpu"_a = py::none(), "capacity"_a = py::none(),
          "sets"_a = py::none(), "phase"_a = "",
          R"(Why a job needs what it needs: its run as a timeline, what is alive at the peak, what each option adds.

phase  whose peak is taken apart, "step 2"; else the one that decides

All else is as of check: bad input is an answer whose report has the verdict "cannot_say", an unknown phase too.)");
}

void register_risk(py::module_& m) {
    py::class_<BucketRisk>(m, "BucketRisk", py::is_final(), "A batch of the dataset without gradient checkpointing.")
        .def_property_readonly(
            "bucket", [](const BucketRisk& b) { return py::tuple(py::cast(b.bucket)); }, "Width, height, frames.")
        .def_readonly("batch_size", &BucketRisk::batch_size)
        .def_readonly("phase", &BucketRisk::phase)
        .def_readonly("needs_low", &BucketRisk::needs_low)
        .def_readonly("needs_high", &BucketRisk::needs_high)
        .def_property_readonly("verdict", [](const BucketRisk& b) { return report::to_text(b.verdict); });

    py::class_<PlannedRun>(m, "PlannedRun", py::is_final(), "A run of the plan, and what it is predicted to need.")
        .def_readonly("text", &PlannedRun::text, "What is new in it.")
        .def_property_readonly(
            "settings",
            [](const PlannedRun& run) {
                py::list list;
                for (const report::Setting& setting : run.settings) list.append(setting.key + "=" + setting.value);
                return list;
            },
            "As check's `sets` takes them.")
        .def_property_readonly("verdict", [](const PlannedRun& run) { return report::to_text(run.verdict); })
        .def_readonly("phase", &PlannedRun::phase, "The tightest.")
        .def_readonly("device_low", &PlannedRun::device_low)
        .def_readonly("device_high", &PlannedRun::device_high)
        .def_property_readonly("why_not", [](const PlannedRun& run) { return lossy(run.why_not); })
        .def("__repr__", [](const PlannedRun& run) {
            return "<vramest.PlannedRun " + run.text + ": " + std::string(report::to_text(run.verdict)) + ">";
        });

    py::class_<CheckpointingRisk> risk_class(m, "CheckpointingRisk", py::is_final(),
                                             "What turning gradient checkpointing off would mean.");
    risk_class.def_readonly("on", &CheckpointingRisk::on, "The report with checkpointing.")
        .def_readonly("off", &CheckpointingRisk::off, "The report without.")
        .def_readonly("is_on", &CheckpointingRisk::is_on, "In the job as it is.")
        .def_property_readonly(
            "level", [](const CheckpointingRisk& r) { return report::to_text(r.level); }, "low, medium or high.")
        .def_property_readonly("why",
                               [](const CheckpointingRisk& r) {
                                   py::list list;
                                   for (const std::string& reason : r.why) list.append(lossy(reason));
                                   return list;
                               })
        .def_readonly("buckets", &CheckpointingRisk::buckets)
        .def_readonly("plan", &CheckpointingRisk::plan, "One variable a run; ends at the first that does not fit.")
        .def(
            "exit_code", [](const CheckpointingRisk& r) { return exit_code(r); },
            "0 where it fits without checkpointing, 1 where it may not, 2 where nothing can be said.");
    as_answer(risk_class, "risk");

    m.def("risk", &checkpointing_risk, "job"_a, py::kw_only(), "gpu"_a = py::none(), "capacity"_a = py::none(),
          "sets"_a = py::none(),
          R"(What turning gradient checkpointing off would mean for a training: both needs, buckets, a plan of runs.

All arguments are as of check. A job that is no training is an answer: both reports have the verdict "cannot_say".)");
}

}  // namespace

void register_explain(py::module_& m) {
    register_explained(m);
    register_risk(m);
}

}  // namespace vram::python
