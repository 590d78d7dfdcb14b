#pragma once

#include <map>
#include <optional>

#include "report/opened.hpp"
#include "vram/advise/max.hpp"

namespace vram::advise {

/// Values of some axes of a job, and what sets them.
using Point = std::map<Vary, std::int64_t>;

/// A job that was read, as far as its axes go. Refers to what it was made of.
class Axes {
  public:
    Axes(const report::Opened& opened, const profile::Catalogue& catalogue);

    /// The key of the job that says so: "train.batch_size".
    [[nodiscard]] std::string key(Vary vary) const;
    /// Why the job has no such axis, with its place; nothing where it has.
    [[nodiscard]] std::optional<Diagnostic> complaint(Vary vary) const;
    /// From the least; of an axis that the job has.
    [[nodiscard]] std::vector<std::int64_t> values(Vary vary) const;
    /// Those of them that people use, and the job's own.
    [[nodiscard]] std::vector<std::int64_t> usual(Vary vary) const;
    [[nodiscard]] std::int64_t now(Vary vary) const;
    [[nodiscard]] std::vector<report::Setting> settings(const Point& point) const;
    /// How a value reads: "1024x576" of sizes that are no square, else the number.
    [[nodiscard]] std::string name(Vary vary, std::int64_t value) const;
    /// Whether the model makes videos.
    [[nodiscard]] bool is_video() const;

  private:
    [[nodiscard]] std::vector<job::Batch> batches(const Point& point) const;

    const report::Opened& opened_;
    const profile::ModelProfile* profile_;  // null where the model was not named so
    std::vector<job::Batch> own_;
    bool trains_, says_sizes_;
    std::int64_t step_ = 1;  // sides are multiples of it
};

/// Where to look: the values of one axis beside a point of the others.
struct Line {
    Vary vary;
    Point beside;
    std::vector<std::int64_t> values;  // from the least, not empty
    std::int64_t from;                 // one of them, with which to begin
};

/// The largest of them that fits. `best` is not asked for its phase yet.
[[nodiscard]] Most search(const io::Document& document, const Axes& axes, const Line& line,
                          const report::CheckOptions& options, const profile::Catalogue& catalogue);

/// The job as it is, for a verb that needs a card. Errors: those of report::open; those of the options' card;
/// missing_key where nobody names one; unsupported where only the weights of its model are known.
[[nodiscard]] expected<report::Opened> open_for(std::string_view verb, const io::Document& document,
                                                const report::CheckOptions& options,
                                                const profile::Catalogue& catalogue, Diagnostics& notes);

}  // namespace vram::advise
