#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "answer.hpp"
#include "register.hpp"
#include "values.hpp"
#include "vram/report/report.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace vram::python {
namespace {

using namespace report;

template <auto field, class T>
auto text_of(const T& object) {
    return to_text(object.*field);
}

std::string repr(const Report& report) {
    std::string text = "<vramest.Report " + report.job.model;
    if (!report.job.model.empty()) text += " ";
    text += std::string(to_text(report.verdict));
    if (report.peak) text += ", " + vram::to_text(report.peak->device) + " of " + vram::to_text(report.gpu.usable());
    if (!report.gpu.id.empty()) text += " on " + report.gpu.id;
    return text + ">";
}

const Phase& phase(const Report& report, const std::string& name) {
    if (const Phase* found = report.phase(name)) return *found;
    std::string names;
    for (const Phase& known : report.phases) names += (names.empty() ? "" : ", ") + known.name;
    throw py::key_error("no phase '" + name + "'; there are: " + names);
}

py::object bucket(const Phase& phase) {
    if (phase.bucket == std::array<std::int64_t, 3>{}) return py::none();
    return py::tuple(py::cast(phase.bucket));
}

void register_parts(py::module_& m) {
    py::class_<JobLine>(m, "JobLine", py::is_final(),
                        "What was read: whose config, which model, and every key as it was understood.")
        .def_readonly("trainer", &JobLine::trainer)
        .def_readonly("model", &JobLine::model)
        .def_readonly("source", &JobLine::source)
        .def_readonly("resolved", &JobLine::resolved);

    py::class_<GpuLine>(m, "GpuLine", py::is_final(), "The card that was asked about.")
        .def_readonly("id", &GpuLine::id, "Empty where only a capacity is known.")
        .def_readonly("name", &GpuLine::name)
        .def_property_readonly("chosen_by", &text_of<&GpuLine::chosen_by, GpuLine>)
        .def_readonly("capacity", &GpuLine::capacity)
        .def_readonly("capacity_high", &GpuLine::capacity_high)
        .def_property_readonly("usable", &GpuLine::usable)
        .def_readonly("other_processes", &GpuLine::other_processes)
        .def("__repr__", [](const GpuLine& gpu) {
            return lossy("<vramest.GpuLine " + (gpu.id.empty() ? gpu.name : gpu.id) + " " +
                         vram::to_text(gpu.usable()) + ">");
        });

    py::class_<Peak>(m, "Peak", py::is_final(), "The run's highest, each counter its own.")
        .def_readonly("phase", &Peak::phase)
        .def_readonly("stage", &Peak::stage)
        .def_property_readonly("decides", &text_of<&Peak::decides, Peak>, "The counter that the verdict hangs on.")
        .def_readonly("tensors", &Peak::tensors)
        .def_readonly("allocated", &Peak::allocated)
        .def_readonly("allocated_low", &Peak::allocated_low, "With the least that kernels of convolutions may take.")
        .def_readonly("allocated_high", &Peak::allocated_high, "With the most.")
        .def_readonly("reserved", &Peak::reserved)
        .def_readonly("reserved_low", &Peak::reserved_low)
        .def_readonly("reserved_high", &Peak::reserved_high)
        .def_readonly("device", &Peak::device, "What nvidia-smi shows for the process.")
        .def_readonly("device_low", &Peak::device_low)
        .def_readonly("device_high", &Peak::device_high)
        .def("__repr__", [](const Peak& peak) {
            return "<vramest.Peak " + peak.phase + ", " + vram::to_text(peak.device_low) + " to " +
                   vram::to_text(peak.device_high) + ">";
        });

    py::class_<Stage>(m, "Stage", py::is_final(), "A part of a phase: forward, loss, backward, optimizer, …")
        .def_readonly("name", &Stage::name)
        .def_readonly("tensors_peak", &Stage::tensors_peak)
        .def_readonly("tensors_end", &Stage::tensors_end)
        .def_readonly("allocated_peak", &Stage::allocated_peak)
        .def_readonly("reserved_peak", &Stage::reserved_peak)
        .def("__repr__", [](const Stage& stage) { return "<vramest.Stage " + stage.name + ">"; });

    py::class_<Phase>(m, "Phase", py::is_final(), "A part of the run: load, step 1, step 2, sample, …")
        .def_readonly("name", &Phase::name)
        .def_readonly("kind", &Phase::kind)
        .def_property_readonly("bucket", &bucket, "Width, height, frames; None where the phase has none.")
        .def_property_readonly(
            "batch_size", [](const Phase& p) { return p.batch_size > 0 ? py::cast(p.batch_size) : py::none(); },
            "None where the phase has none.")
        .def_readonly("kept_for_backward", &Phase::kept_for_backward)
        .def_readonly("tensors_start", &Phase::tensors_start)
        .def_readonly("tensors_peak", &Phase::tensors_peak)
        .def_readonly("tensors_end", &Phase::tensors_end)
        .def_readonly("allocated_peak", &Phase::allocated_peak)
        .def_readonly("reserved_peak", &Phase::reserved_peak)
        .def_readonly("device_peak", &Phase::device_peak)
        .def_readonly("needs_low", &Phase::needs_low, "Of the card, had earlier phases left nothing in torch's cache.")
        .def_readonly("needs_high", &Phase::needs_high, "The other end of that range.")
        .def_property_readonly("verdict", &text_of<&Phase::verdict, Phase>)
        .def_readonly("stages", &Phase::stages)
        .def("__repr__", [](const Phase& phase) { return "<vramest.Phase " + phase.name + ">"; });

    py::class_<Part>(m, "Part", py::is_final(),
                     "One line of the breakdown: a component's bytes of one category, and who says so.")
        .def_readonly("component", &Part::component)
        .def_property_readonly("category", [](const Part& part) { return std::string(shadow::to_text(part.category)); })
        .def_readonly("low", &Part::low)
        .def_readonly("high", &Part::high)
        .def_readonly("source", &Part::source)
        .def("__repr__", [](const Part& part) {
            return "<vramest.Part " + part.component + " " + shadow::to_text(part.category) + " " +
                   vram::to_text(part.low) + ">";
        });

    py::class_<run::Counts>(m, "Counts", py::is_final(), "What was counted while the job was played.")
        .def_readonly("parameters", &run::Counts::parameters, "Of the base model.")
        .def_readonly("adapted_modules", &run::Counts::adapted_modules)
        .def_readonly("adapter_parameters", &run::Counts::adapter_parameters)
        .def_property_readonly(
            "attention_calls",
            [](const run::Counts& counts) {
                return py::dict("flash"_a = counts.attention_flash, "efficient"_a = counts.attention_efficient,
                                "cudnn"_a = counts.attention_cudnn, "math"_a = counts.attention_math);
            },
            "By kernel, over the whole play.");

    py::class_<Checkpointing>(m, "Checkpointing", py::is_final(),
                              "What gradient checkpointing does to what is kept for backward.")
        .def_readonly("on", &Checkpointing::on)
        .def_readonly("kept", &Checkpointing::kept)
        .def_readonly("kept_without", &Checkpointing::kept_without)
        .def_readonly("factor", &Checkpointing::factor)
        .def_readonly("other", &Checkpointing::other, "The same job with checkpointing turned the other way; or None.");

    py::class_<OtherWay>(m, "OtherWay", py::is_final(), "A job with checkpointing turned the other way.")
        .def_readonly("phase", &OtherWay::phase, "That needs most by itself.")
        .def_readonly("device_low", &OtherWay::device_low)
        .def_readonly("device_high", &OtherWay::device_high)
        .def_property_readonly("verdict", &text_of<&OtherWay::verdict, OtherWay>);

    py::class_<Break>(m, "Break", py::is_final(), "Where a run that does not fit stops.")
        .def_readonly("phase", &Break::phase)
        .def_readonly("stage", &Break::stage);

    py::class_<Advice>(m, "Advice", py::is_final(), "A change that saves memory.")
        .def_readonly("key", &Advice::key)
        .def_readonly("value", &Advice::value)
        .def_readonly("text", &Advice::text)
        .def_readonly("saves", &Advice::saves);

    py::class_<Risk>(m, "Risk", py::is_final(), "How far the answer should be trusted, and why.")
        .def_property_readonly("level", &text_of<&Risk::level, Risk>)
        .def_readonly("why", &Risk::why);

    py::class_<Diagnostic>(m, "Diagnostic", py::is_final(), "A complaint about the input: fields first, text last.")
        .def_property_readonly("severity", [](const Diagnostic& d) { return vram::to_text(d.severity); })
        .def_property_readonly("problem", [](const Diagnostic& d) { return vram::to_text(d.problem); })
        .def_property_readonly("file", [](const Diagnostic& d) { return lossy(d.place.file); })
        .def_property_readonly(
            "line", [](const Diagnostic& d) { return d.place.line; }, "From 1; 0: no line.")
        .def_property_readonly("column", [](const Diagnostic& d) { return d.place.column; })
        .def_property_readonly(
            "key", [](const Diagnostic& d) { return lossy(d.key); }, "Dotted, as in the file.")
        .def_property_readonly("found", [](const Diagnostic& d) { return lossy(d.found); })
        .def_property_readonly(
            "nearest", [](const Diagnostic& d) { return lossy(d.nearest); },
            "The nearest right key or value, or empty.")
        .def_property_readonly("text", [](const Diagnostic& d) { return lossy(d.text); })
        .def("__str__", [](const Diagnostic& d) { return lossy(vram::to_text(d)); })
        .def("__repr__", [](const Diagnostic& d) { return lossy("<vramest.Diagnostic " + vram::to_text(d) + ">"); });
}

}  // namespace

void register_report(py::module_& m) {
    register_parts(m);
    py::class_<Report> answer(m, "Report", py::is_final(), "What a job needs, by phase. All sizes are bytes.");
    answer.def_readonly("job", &Report::job)
        .def_readonly("gpu", &Report::gpu)
        .def_property_readonly("verdict", &text_of<&Report::verdict, Report>,
                               "fits, tight, does_not_fit or cannot_say.")
        .def_property_readonly(
            "reason", [](const Report& r) { return lossy(r.reason); }, "One sentence.")
        .def_readonly("peak", &Report::peak, "None where the verdict is cannot_say.")
        .def_property_readonly("counts", [](const Report& r) { return r.facts.counts; })
        .def_property_readonly("weights", [](const Report& r) { return r.facts.weights; })
        .def_property_readonly(
            "stored_weights",
            [](const Report& r) {
                py::list list;
                for (const job::StoredWeights& stored : r.stored)
                    list.append(py::make_tuple(stored.type, stored.parameters, stored.bytes));
                return list;
            },
            "(type, parameters, bytes) of what the model's files hold, where it is a folder or a file.")
        .def_property_readonly("adapter", [](const Report& r) { return r.facts.adapter; })
        .def_property_readonly("optimizer_state", [](const Report& r) { return r.facts.optimizer_state; })
        .def_property_readonly("gradients", [](const Report& r) { return r.facts.gradients; })
        .def_property_readonly("inputs", [](const Report& r) { return r.facts.inputs; })
        .def_property_readonly("targets", [](const Report& r) { return r.facts.targets; })
        .def_property_readonly("kept_for_backward", [](const Report& r) { return r.facts.kept_for_backward; })
        .def_property_readonly(
            "input_tensors",
            [](const Report& r) {
                py::list list;
                for (const run::InputTensor& tensor : r.facts.input_tensors)
                    list.append(
                        py::make_tuple(tensor.name, py::tuple(py::cast(tensor.shape)), vram::to_text(tensor.dtype)));
                return list;
            },
            "(name, shape, dtype) of what the model is handed.")
        .def_readonly("checkpointing", &Report::checkpointing)
        .def_readonly("breaks_first", &Report::breaks_first, "The first phase that does not fit by itself; or None.")
        .def_readonly("phases", &Report::phases)
        .def_readonly("breakdown", &Report::breakdown, "Adds up to peak.device_low and peak.device_high.")
        .def_readonly("advice", &Report::advice)
        .def_readonly("risk", &Report::risk)
        .def_readonly("diagnostics", &Report::diagnostics)
        .def("phase", &phase, "name"_a, py::return_value_policy::reference_internal,
             "The phase of this name; KeyError.")
        .def("exit_code", &exit_code, py::kw_only(), "strict"_a = false,
             "As the command: 0 fits or tight, 1 does not fit (tight too if strict), 2 cannot say.")
        .def("__repr__", &repr);
    as_answer(answer, "check");
}

}  // namespace vram::python
