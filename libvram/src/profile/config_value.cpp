#include "profile/config_value.hpp"

#include <charconv>

namespace vram::profile {
namespace {

std::string text_of(bool value) { return value ? "true" : "false"; }
std::string text_of(std::int64_t value) { return std::to_string(value); }
std::string text_of(double value) {
    char out[32];
    return {out, std::to_chars(out, out + sizeof out, value).ptr};
}
std::string text_of(const std::string& value) { return value; }
template <class T>
std::string text_of(const std::vector<T>& values) {
    std::string out;
    for (const T& value : values) out += (out.empty() ? "" : ", ") + text_of(value);
    return "[" + out + "]";
}

}  // namespace

std::optional<Config::Value> config_value(const io::Node& node) {
    if (const bool* flag = node.boolean()) return *flag;
    if (const std::int64_t* whole = node.integer()) return *whole;
    if (const double* number = node.number()) return *number;
    if (const std::string* text = node.text()) return *text;
    const io::List* list = node.list();
    if (list == nullptr) return {};
    std::vector<std::int64_t> numbers;
    std::vector<std::string> texts;
    for (const io::Node& item : *list) {
        if (const std::int64_t* whole = item.integer()) numbers.push_back(*whole);
        if (const bool* flag = item.boolean()) numbers.push_back(*flag ? 1 : 0);
        if (const std::string* text = item.text()) texts.push_back(*text);
    }
    if (numbers.size() == list->size()) return numbers;
    if (texts.size() == list->size()) return texts;
    return {};
}

std::string spelled(const Config::Value& value) {
    return std::visit([](const auto& typed) { return text_of(typed); }, value);
}

}  // namespace vram::profile
