#include "io/steps.hpp"

#include <algorithm>
#include <charconv>

namespace vram::io {
namespace {
constexpr std::size_t most_steps = 32;
}

std::optional<std::vector<Step>> steps_of(std::string_view path) {
    std::vector<Step> steps;
    bool key_is_due = true;
    while (!path.empty() || key_is_due) {
        if (steps.size() == most_steps) return std::nullopt;
        if (path.starts_with('[')) {
            std::size_t item = 0;
            const auto [end, error] = std::from_chars(path.data() + 1, path.data() + path.size(), item);
            if (error != std::errc{} || end == path.data() + path.size() || *end != ']') return std::nullopt;
            steps.push_back({{}, item});
            path.remove_prefix(static_cast<std::size_t>(end - path.data()) + 1);
            key_is_due = false;
        } else if (key_is_due) {
            const std::size_t end = std::min(path.find_first_of(".["), path.size());
            if (end == 0) return std::nullopt;
            steps.push_back({path.substr(0, end), {}});
            path.remove_prefix(end);
            key_is_due = false;
        } else if (path.starts_with('.')) {
            path.remove_prefix(1);
            key_is_due = true;
        } else {
            return std::nullopt;
        }
    }
    return steps;
}

Met walk(const Node& root, const std::vector<Step>& steps) {
    Met out{&root, nullptr, nullptr, 0};
    for (const Step& step : steps) {
        const Node* next = nullptr;
        const Member* member = nullptr;
        if (!step.item) {
            member = out.node->member(step.key);
            if (member != nullptr) next = &member->value;
        } else if (const List* list = out.node->list(); list != nullptr && *step.item < list->size()) {
            next = &(*list)[*step.item];
        }
        if (next == nullptr) break;
        out = {next, member, out.node, out.steps + 1};
    }
    return out;
}

}  // namespace vram::io
