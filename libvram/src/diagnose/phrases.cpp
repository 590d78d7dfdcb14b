#include "diagnose/phrases.hpp"

#include <algorithm>
#include <queue>

#include "base/text.hpp"

namespace vram::diagnosis {

std::string_view skip_blanks(std::string_view text) {
    text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
    return text;
}

std::string_view trimmed(std::string_view text) {
    text = skip_blanks(text);
    return text.substr(0, text.find_last_not_of(" \t") + 1);
}

bool holds(std::string_view text, std::string_view part) {
    return std::search(text.begin(), text.end(), part.begin(), part.end(),
                       [](char a, char b) { return lower(a) == lower(b); }) != text.end();
}

void Phrases::add(std::string_view phrase, std::int32_t id) {
    if (!phrase.empty()) phrases_.emplace_back(lower(phrase), id);
}

void Phrases::build() {
    class_ = {};
    width_ = 1;
    for (const auto& [phrase, id] : phrases_)
        for (const char c : phrase)
            if (std::uint8_t& number = class_[static_cast<unsigned char>(c)]; number == 0)
                number = static_cast<std::uint8_t>(width_++);
    for (char c = 'A'; c <= 'Z'; ++c)
        class_[static_cast<unsigned char>(c)] = class_[static_cast<unsigned char>(lower(c))];

    // The trie; -1 where there is no child yet.
    std::vector<std::int32_t> next;  // state x class → state
    const auto new_state = [&] {
        next.insert(next.end(), width_, -1);
        ids_.emplace_back();
        return static_cast<std::int32_t>(ids_.size()) - 1;
    };
    const auto child = [&](std::int32_t state, std::size_t of) -> std::int32_t& {
        return next[static_cast<std::size_t>(state) * width_ + of];
    };
    ids_.clear();
    static_cast<void>(new_state());
    for (const auto& [phrase, id] : phrases_) {
        std::int32_t state = 0;
        for (const char c : phrase) {
            const std::size_t of = class_[static_cast<unsigned char>(c)];
            if (child(state, of) < 0) {
                const std::int32_t made = new_state();
                child(state, of) = made;
            }
            state = child(state, of);
        }
        ids_[static_cast<std::size_t>(state)].push_back(id);
    }

    // Breadth first: where no child is, the longest suffix that has one goes on.
    ends_here_.assign(ids_.size(), -1);
    shorter_.assign(ids_.size(), -1);
    std::vector<std::int32_t> suffix(ids_.size(), 0);
    std::queue<std::int32_t> due;
    for (std::size_t of = 0; of < width_; ++of) {
        std::int32_t& to = child(0, of);
        if (to < 0)
            to = 0;
        else
            due.push(to);
    }
    while (!due.empty()) {
        const std::int32_t state = due.front();
        due.pop();
        const auto at = static_cast<std::size_t>(state);
        const std::int32_t inherited = ends_here_[static_cast<std::size_t>(suffix[at])];
        ends_here_[at] = ids_[at].empty() ? inherited : state;
        shorter_[at] = inherited;
        for (std::size_t of = 0; of < width_; ++of) {
            const std::int32_t fallback = child(suffix[at], of);
            std::int32_t& to = child(state, of);
            if (to < 0) {
                to = fallback;
            } else {
                suffix[static_cast<std::size_t>(to)] = fallback;
                due.push(to);
            }
        }
    }
    steps_.clear();
    steps_.reserve(next.size());
    for (const std::int32_t state : next) {
        const auto to = static_cast<std::uint32_t>(state);
        const bool ends = ends_here_[to] >= 0;
        steps_.push_back(to * static_cast<std::uint32_t>(width_) << 1 | (ends ? 1U : 0U));
    }
}

}  // namespace vram::diagnosis
