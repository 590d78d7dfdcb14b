#include "node_of.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

namespace py = pybind11;

namespace vram::python {
namespace {

/// Thrown where reading on would never end; the complaint is made by then.
struct Stop {};

std::string type_name(py::handle value) { return Py_TYPE(value.ptr())->tp_name; }

class Reader {
  public:
    Reader(Diagnostics& complaints, const io::Limits& limits) : complaints_(complaints), limits_(limits) {}

    io::Node read(py::handle value, const std::string& path, std::int32_t depth) {
        if (++nodes_ > limits_.nodes) stop(Problem::file_too_large, path, "there are too many values");
        if (depth > limits_.depth)
            stop(Problem::too_deep, path, "lists and maps are nested too deep, or in themselves");
        if (value.is_none()) return {};
        // bool before int, since Python's is one.
        if (PyBool_Check(value.ptr())) return {value.ptr() == Py_True};
        if (PyLong_Check(value.ptr())) return integer(value);
        if (PyFloat_Check(value.ptr())) return {PyFloat_AS_DOUBLE(value.ptr())};
        if (PyUnicode_Check(value.ptr())) return {text(value, path)};
        if (PyList_Check(value.ptr()) || PyTuple_Check(value.ptr())) return list(value, path, depth);
        if (PyDict_Check(value.ptr()) || py::isinstance(value, mapping_)) return map(value, path, depth);
        if (py::hasattr(value, "__fspath__")) return read_path(value, path);
        if (PyIndex_Check(value.ptr()))
            return integer(py::reinterpret_steal<py::object>(checked(PyNumber_Index(value.ptr()))));
        throw py::type_error((path.empty() ? "a job" : path) + " cannot be a " + type_name(value));
    }

  private:
    static PyObject* checked(PyObject* object) {
        if (object == nullptr) throw py::error_already_set();
        return object;
    }

    static io::Node integer(py::handle value) {
        int overflow = 0;
        const long long small = PyLong_AsLongLongAndOverflow(value.ptr(), &overflow);
        if (overflow == 0) {
            if (small == -1 && PyErr_Occurred() != nullptr) throw py::error_already_set();
            return {std::int64_t{small}};
        }
        double large = PyLong_AsDouble(value.ptr());
        if (PyErr_Occurred() != nullptr) {  // beyond a double, too
            PyErr_Clear();
            large = overflow < 0 ? -std::numeric_limits<double>::infinity() : std::numeric_limits<double>::infinity();
        }
        io::Node node{large};
        node.beyond_int64 = true;
        return node;
    }

    std::string text(py::handle value, const std::string& path) {
        Py_ssize_t size = 0;
        const char* data = PyUnicode_AsUTF8AndSize(value.ptr(), &size);
        if (data == nullptr) {
            PyErr_Clear();
            complain(Problem::bad_encoding, path, "is not a text that UTF-8 can hold");
            return {};
        }
        if ((bytes_ += size) > limits_.bytes)
            stop(Problem::file_too_large, path, "there is more text than " + vram::to_text(limits_.bytes));
        std::string out(data, static_cast<std::size_t>(size));
        if (out.find('\0') != std::string::npos) {
            complain(Problem::bad_encoding, path, "holds a NUL");
            return {};
        }
        return out;
    }

    io::Node read_path(py::handle value, const std::string& path) {
        const auto named = py::reinterpret_steal<py::object>(checked(PyOS_FSPath(value.ptr())));
        if (!PyUnicode_Check(named.ptr())) throw py::type_error(path + " cannot be a path of bytes");
        return {text(named, path)};
    }

    // Copies of the items, since a value's own methods may change what holds it.
    io::Node list(py::handle value, const std::string& path, std::int32_t depth) {
        const auto items = py::reinterpret_steal<py::tuple>(checked(PySequence_Tuple(value.ptr())));
        io::List out;
        out.reserve(std::min<std::size_t>(items.size(), 1024));
        std::size_t index = 0;
        for (const py::handle item : items)
            out.push_back(read(item, path + "[" + std::to_string(index++) + "]", depth + 1));
        return {std::move(out)};
    }

    io::Node map(py::handle value, const std::string& path, std::int32_t depth) {
        const auto items = py::reinterpret_steal<py::object>(checked(PyMapping_Items(value.ptr())));
        io::Map out;
        for (const py::handle item : items) {
            if (!PyTuple_Check(item.ptr()) || PyTuple_Size(item.ptr()) != 2)
                throw py::type_error((path.empty() ? "a job" : path) + " is a mapping whose items are no pairs");
            const auto pair = py::cast<std::pair<py::object, py::object>>(item);
            if (!PyUnicode_Check(pair.first.ptr())) {
                complain(Problem::wrong_type, path, "keys must be texts, not " + type_name(pair.first));
                continue;
            }
            const std::string key = text(pair.first, path);
            out.push_back({key, {}, read(pair.second, path.empty() ? key : path + "." + key, depth + 1)});
        }
        return {std::move(out)};
    }

    void complain(Problem problem, const std::string& path, const std::string& what) {
        // As many as a reader of files gives; the rest would say the same.
        if (complaints_.size() < 100)
            complaints_.push_back(
                {Severity::error, problem, {}, path, {}, {}, path.empty() ? what : path + ": " + what});
    }
    [[noreturn]] void stop(Problem problem, const std::string& path, const std::string& what) {
        // A path as deep as the limit helps nobody.
        complain(problem, path.substr(0, path.find_first_of(".[")), what);
        throw Stop{};
    }

    Diagnostics& complaints_;
    const io::Limits& limits_;
    std::int64_t nodes_ = 0;
    Bytes bytes_ = 0;
    py::object mapping_ = py::module_::import("collections.abc").attr("Mapping");
};

std::string quoted(const std::string& text) {
    constexpr std::string_view digits = "0123456789abcdef";
    std::string out = "\"";
    for (const char c : text) {
        const auto byte = static_cast<unsigned char>(c);
        if (c == '"' || c == '\\') out += '\\';
        if (byte < 0x20 || byte == 0x7f)
            out += std::string("\\x") + digits[byte >> 4] + digits[byte & 15];
        else
            out += c;
    }
    return out + '"';
}

std::string flow_of(double number) {
    if (std::isnan(number)) return ".nan";
    if (std::isinf(number)) return number < 0 ? "-.inf" : ".inf";
    std::array<char, 32> buffer{};
    const std::to_chars_result end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), number);
    std::string out(buffer.data(), end.ptr);
    return out.find_first_of(".e") == std::string::npos ? out + ".0" : out;
}

std::string flow_of(const io::List& list) {
    std::string out;
    for (const io::Node& item : list) out += (out.empty() ? "" : ", ") + python::flow_of(item);
    return "[" + out + "]";
}

std::string flow_of(const io::Map& map) {
    std::string out;
    for (const io::Member& member : map)
        out += (out.empty() ? "" : ", ") + quoted(member.key) + ": " + python::flow_of(member.value);
    return "{" + out + "}";
}

}  // namespace

std::string flow_of(const io::Node& node) {
    switch (node.kind()) {
        case io::Kind::null: return "null";
        case io::Kind::boolean: return *node.boolean() ? "true" : "false";
        case io::Kind::integer: return std::to_string(*node.integer());
        case io::Kind::number: return flow_of(*node.number());
        case io::Kind::text: return quoted(*node.text());
        case io::Kind::list: return flow_of(*node.list());
        case io::Kind::map: return flow_of(*node.map());
    }
    return {};
}

io::Node node_of(py::handle value, Diagnostics& complaints, const io::Limits& limits) {
    try {
        return Reader(complaints, limits).read(value, "", 0);
    } catch (const Stop&) {
        return {};
    }
}

}  // namespace vram::python
