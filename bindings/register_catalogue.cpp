#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "catalogue.hpp"
#include "register.hpp"
#include "vram/report/trainer_list.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace vram::python {

const profile::Catalogue& catalogue() {
    static const profile::Catalogue built_in = profile::Catalogue::built_in();
    return built_in;
}

void register_catalogue(py::module_& m) {
    using profile::DeviceProfile;
    using profile::MemoryRange;
    using profile::ModelProfile;
    using report::TrainerLine;

    py::class_<ModelProfile>(m, "Model", py::is_final(), "A model that vramest knows: one file of model_profiles.")
        .def_readonly("id", &ModelProfile::id, "What a job file calls it.")
        .def_property_readonly("kind", [](const ModelProfile& model) { return to_text(model.kind); })
        .def_readonly("family", &ModelProfile::family, "Which code builds it.")
        .def_readonly("name", &ModelProfile::name)
        .def_readonly("aliases", &ModelProfile::aliases, "Other names, Hugging Face repositories among them.")
        .def_property_readonly(
            "parameters", [](const ModelProfile& model) { return model.checked.parameters; }, "Of the real class.")
        .def_readonly("source", &ModelProfile::source, "The class and the version that is mirrored.")
        .def("__repr__", [](const ModelProfile& model) { return "<vramest.Model " + model.id + ">"; });

    py::class_<MemoryRange>(m, "MemoryRange", py::is_final(), "Bytes between low and high, and who says so.")
        .def_readonly("low", &MemoryRange::low)
        .def_readonly("high", &MemoryRange::high)
        .def_property_readonly("evidence", [](const MemoryRange& range) { return to_text(range.evidence); })
        .def_readonly("source", &MemoryRange::source);

    py::class_<DeviceProfile>(m, "Card", py::is_final(),
                              "A graphics card, as far as memory goes: one file of device_profiles.")
        .def_readonly("id", &DeviceProfile::id)
        .def_readonly("name", &DeviceProfile::name, "As the driver says it.")
        .def_readonly("aliases", &DeviceProfile::aliases)
        .def_readonly("sm", &DeviceProfile::sm, "Compute capability without its dot.")
        .def_readonly("memory", &DeviceProfile::memory, "Bytes, as nvidia-smi says.")
        .def_readonly("linux_capacity", &DeviceProfile::linux_capacity, "What torch sees of it.")
        .def_readonly("windows_capacity", &DeviceProfile::windows_capacity, "What torch sees of it.")
        .def_readonly("context", &DeviceProfile::context, "What stands on it beside torch's reserved memory.")
        .def("__repr__", [](const DeviceProfile& card) { return "<vramest.Card " + card.id + ">"; });

    py::class_<TrainerLine>(m, "Trainer", py::is_final(), "A trainer whose loop can be played.")
        .def_readonly("id", &TrainerLine::id)
        .def_readonly("described", &TrainerLine::described, "Name, version and commit that the recipe describes.")
        .def("__repr__", [](const TrainerLine& trainer) { return "<vramest.Trainer " + trainer.id + ">"; });

    const auto without_gil = [] {
        py::gil_scoped_release released;
        return &catalogue();
    };
    m.def(
        "models", [=] { return without_gil()->models(); }, "Every model that vramest knows, by id.");
    m.def(
        "gpus", [=] { return without_gil()->cards().devices(); },
        "Every card that vramest knows, from the smallest to the largest.");
    m.def("trainers", &report::trainer_list, "Every trainer whose configs vramest reads.");
}

}  // namespace vram::python
