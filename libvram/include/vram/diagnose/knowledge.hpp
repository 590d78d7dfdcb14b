#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "vram/base/expected.hpp"
#include "vram/diagnose/diagnosis.hpp"
#include "vram/report/report.hpp"

namespace vram::diagnosis {

struct Signs;    // what logs print: failures/signs.yaml, read
struct Changes;  // when it failed, why, what to change: failures/changes.yaml, read

/// What is known of logs and of failures. A handle: copies share it, and so may threads.
class Knowledge {
  public:
    /// What is built into the library: failures/*.yaml. A file with a complaint is a bug of ours: std::logic_error.
    [[nodiscard]] static Knowledge built_in();
    /// Of these texts of YAML; every complaint about them.
    [[nodiscard]] static expected<Knowledge> of(std::string_view signs, std::string_view changes);

    [[nodiscard]] const Signs& signs() const { return *signs_; }
    [[nodiscard]] const Changes& changes() const { return *changes_; }

  private:
    Knowledge(std::shared_ptr<const Signs> signs, std::shared_ptr<const Changes> changes);

    std::shared_ptr<const Signs> signs_;
    std::shared_ptr<const Changes> changes_;
};

/// Why it failed and what to change, as failures/changes.yaml has it.
struct Advised {
    std::string cause;
    std::vector<std::string> changes;  // the first change first; at least one
    bool operator==(const Advised&) const = default;
};

/// What a kind of failure in a phase asks for. `report` is the check of the failed job, or null: a change that its job
/// has already is left out. `by` names a finer cause where the log shows one (pinned, shm, workers, kernel, context).
[[nodiscard]] Advised first_change(const Knowledge& knowledge, Kind kind, Phase phase, System system = System::unknown,
                                   const report::Report* report = nullptr, std::string_view by = {});

}  // namespace vram::diagnosis
