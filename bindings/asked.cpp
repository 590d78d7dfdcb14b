#include "asked.hpp"

#include <pybind11/stl.h>

#include <utility>
#include <vector>

#include "node_of.hpp"
#include "values.hpp"
#include "vram/io/file.hpp"
#include "vram/probe/driver.hpp"

namespace py = pybind11;

namespace vram::python {
namespace {

Diagnostic complaint(Problem problem, std::string key, std::string found, std::string text) {
    return {Severity::error, problem, {}, std::move(key), std::move(found), {}, std::move(text)};
}

/// A path where `job` is one, else what a dict says.
struct Input {
    std::optional<std::string> path;
    std::string source;
    io::Document document;
};

Input input_of(py::handle job, Diagnostics& complaints) {
    if (is_path(job)) {
        Path path = path_of(job, "job", "a dict", complaints);
        return {std::move(path.path), std::move(path.source), {}};
    }
    if (!py::isinstance(job, py::module_::import("collections.abc").attr("Mapping")))
        throw py::type_error(std::string("job must be a path or a dict, not ") + Py_TYPE(job.ptr())->tp_name);
    Input input{std::nullopt, "<dict>", {}};
    input.document.file_name = input.source;
    input.document.root = node_of(job, complaints);
    return input;
}

/// "24 GiB", or bytes.
Bytes capacity_of(py::handle capacity, Diagnostics& complaints) {
    if (capacity.is_none()) return 0;
    if (PyBool_Check(capacity.ptr()) || !(PyLong_Check(capacity.ptr()) || PyUnicode_Check(capacity.ptr())))
        throw py::type_error(std::string("capacity must be an int or a str such as '24 GiB', not ") +
                             Py_TYPE(capacity.ptr())->tp_name);
    const std::string found = py::str(capacity);
    Bytes bytes = 0;
    if (PyUnicode_Check(capacity.ptr())) {
        if (!parse_bytes(found, bytes))
            complaints.push_back(complaint(Problem::bad_unit, "capacity", found, "capacity is no size such as 24 GiB"));
        else if (bytes == 0)
            complaints.push_back(complaint(Problem::out_of_range, "capacity", found, "capacity must be above 0"));
        return bytes;
    }
    int overflow = 0;
    bytes = PyLong_AsLongLongAndOverflow(capacity.ptr(), &overflow);
    if (overflow > 0)
        complaints.push_back(complaint(Problem::overflow, "capacity", found, "capacity is beyond 63 bits"));
    else if (overflow < 0 || bytes <= 0)
        complaints.push_back(complaint(Problem::out_of_range, "capacity", found, "capacity must be above 0"));
    return bytes;
}

/// Keys of the job file with their values: a mapping of Python values, or "key=value" with YAML values as on the
/// command line.
std::vector<report::Setting> settings_of(py::handle sets, Diagnostics& complaints) {
    std::vector<report::Setting> settings;
    if (sets.is_none()) return settings;
    if (PyUnicode_Check(sets.ptr())) throw py::type_error("sets must be a dict or a list of 'key=value', not str");
    if (py::isinstance(sets, py::module_::import("collections.abc").attr("Mapping"))) {
        const io::Node node = node_of(sets, complaints);
        if (const io::Map* map = node.map())
            for (const io::Member& member : *map) settings.push_back({member.key, flow_of(member.value)});
        return settings;
    }
    for (const py::handle item : py::iter(sets)) {
        if (!PyUnicode_Check(item.ptr()))
            throw py::type_error(std::string("sets must hold str, not ") + Py_TYPE(item.ptr())->tp_name);
        const std::string text = py::cast<std::string>(item);
        const std::size_t equals = text.find('=');
        if (equals == std::string::npos)
            complaints.push_back(complaint(Problem::bad_value, "sets", text, text + " is not key=value"));
        else
            settings.push_back({text.substr(0, equals), text.substr(equals + 1)});
    }
    return settings;
}

}  // namespace

Asked::Asked(py::handle job, const std::optional<std::string>& gpu, py::handle capacity, py::handle sets) {
    Input input = input_of(job, complaints_);
    path_ = std::move(input.path);
    source = std::move(input.source);
    document_ = std::move(input.document);
    options.capacity = capacity_of(capacity, complaints_);
    options.settings = settings_of(sets, complaints_);
    asks_driver_ = gpu && *gpu == "auto";
    if (gpu && !asks_driver_) options.gpu = *gpu;
    if (gpu && !capacity.is_none())
        complaints_.push_back(complaint(Problem::conflict, "gpu", *gpu, "gpu and capacity exclude each other"));
}

expected<io::Document> Asked::document() {
    if (!complaints_.empty()) return Unexpected{std::move(complaints_)};
    if (asks_driver_) options.driver = probe::card_of_this_machine();
    if (!path_) return std::move(document_);
    const expected<std::string> text = io::read_file(*path_);
    if (text) return io::read(*text, source, io::format_of(source, *text));
    Diagnostics unread = text.error();
    for (Diagnostic& complaint : unread) complaint.place.file = source;
    return Unexpected{std::move(unread)};
}

}  // namespace vram::python
