#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "vram/shadow/trace.hpp"

namespace vram::tests {

/// A run's trace beside the stages of a recording (tests/reference/record_optimizers.py): one after the other, each
/// from the end of the one before. What stands in the trace when this is made has no number.
class Stages {
  public:
    Stages(const shadow::Trace& trace, const nlohmann::json& recorded) : Stages(trace, recorded, trace.events.size()) {}
    /// The same from this event on.
    Stages(const shadow::Trace& trace, const nlohmann::json& recorded, std::size_t from)
        : trace_(trace), recorded_(recorded), from_(from) {}

    /// The next ones as another trace has them, a part of this one: from this event on.
    [[nodiscard]] Stages on(const shadow::Trace& part, std::size_t from) const {
        Stages out(part, recorded_, from);
        out.at_ = at_;
        out.numbers_ = numbers_;
        return out;
    }

    /// The same where the order is no matter: as many bytes come, one by one.
    void check_sizes(const std::string& name) {
        REQUIRE(at_ < recorded_.size());
        CAPTURE(name);
        CHECK(recorded_[at_][0] == name);
        const bool equal = sizes(next()) == sizes(recorded_[at_][1]);
        CHECK(equal);
        ++at_;
    }

    /// What happened since the last one is what the next recorded stage, of this name, says.
    void check(const std::string& name) {
        const nlohmann::json ours = next();
        REQUIRE(at_ < recorded_.size());
        const nlohmann::json& theirs = recorded_[at_][1];
        CAPTURE(name);
        CHECK(recorded_[at_][0] == name);
        std::size_t same = 0;
        while (same < ours.size() && same < theirs.size() && ours[same] == theirs[same]) ++same;
        CAPTURE(same);
        CAPTURE(part(ours, same).dump());
        CAPTURE(part(theirs, same).dump());
        const bool equal = ours == theirs;
        CHECK(equal);
        ++at_;
    }

  private:
    static std::vector<std::int64_t> sizes(const nlohmann::json& events) {
        std::vector<std::int64_t> out;
        for (const nlohmann::json& event : events)
            if (event > 0) out.push_back(event);
        std::sort(out.begin(), out.end());
        return out;
    }

    static nlohmann::json part(const nlohmann::json& list, std::size_t from) {
        nlohmann::json out = nlohmann::json::array();
        for (std::size_t i = from; i < list.size() && i < from + 8; ++i) out.push_back(list[i]);
        return out;
    }

    /// As the recorder writes a stage.
    nlohmann::json next() {
        std::vector<std::int64_t> out, frees;
        const auto flush = [&] {
            std::sort(frees.begin(), frees.end());
            out.insert(out.end(), frees.begin(), frees.end());
            frees.clear();
        };
        for (; from_ < trace_.events.size(); ++from_) {
            const shadow::Event& event = trace_.events[from_];
            if (event.kind == shadow::EventKind::alloc) {
                flush();
                numbers_.emplace(event.slot, static_cast<std::int64_t>(numbers_.size()) + 1);
                out.push_back(event.bytes);
            } else if (event.kind == shadow::EventKind::free && numbers_.contains(event.slot)) {
                frees.push_back(-numbers_.at(event.slot));
            }
        }
        flush();
        return out;
    }

    const shadow::Trace& trace_;
    const nlohmann::json& recorded_;
    std::size_t from_, at_ = 0;
    std::map<shadow::Slot, std::int64_t> numbers_;
};

/// Plays each row of this file of tests/reference/truth, or with VRAM_ONLY those whose ids hold it; how many.
template <class Play>
std::size_t play_rows(const std::string& file, const Play& play) {
    std::ifstream rows(std::string(VRAM_SOURCE_DIR) + "/tests/reference/truth/" + file);
    REQUIRE(rows.good());
    const char* only = std::getenv("VRAM_ONLY");
    std::size_t played = 0;
    for (std::string line; std::getline(rows, line); ++played) {
        const nlohmann::json row = nlohmann::json::parse(line);
        const std::string id = row["case"]["id"];
        if (only != nullptr && id.find(only) == std::string::npos) continue;
        CAPTURE(id);
        play(row);
    }
    return played;
}

}  // namespace vram::tests
