#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "diagnose/frames.hpp"
#include "diagnose/message.hpp"
#include "diagnose/progress_bar.hpp"
#include "diagnose/signs.hpp"

namespace vram::diagnosis {

/// The steps of the run at hand.
struct Steps {
    std::int64_t drawn = -1, total = 0;  // as the bar has them
    std::int64_t done = 0;               // in this process: a resumed run begins anew
};

/// A failure that was met, and what was known when it was.
struct Failure {
    Pattern pattern = Pattern::none;
    std::int64_t line = 0;
    std::string text;  // at most 200 bytes
    Stated stated;
    std::optional<Where> place{}, node{};  // by the log's lines; by the node that failed
    bool denoised = false;                 // a picture's last denoise step was drawn
    Frames frames;
    Steps steps;
    std::int64_t skipped_row = 0;  // skipped_batch: which in a row
    std::int64_t previews = 0;     // that worked, after training had begun
    std::int64_t preview_at = -1;  // steps done when the last one ended
};

/// Seconds that a step took, as it went on.
struct Pace {
    std::int64_t done = 0;
    std::int64_t elapsed = 0;
    double seconds = 0;  // as the bar prints it, 0: not
};

/// What a log tells, gathered line by line, in memory that does not grow with it.
class Story {
  public:
    explicit Story(const Signs& signs) : signs_(&signs) {}

    void take(std::string_view line, std::int64_t number);
    void finish();

    // What was gathered. `episode`: the failures after which nothing went on, the first one being the cause.
    std::vector<Failure> episode;
    std::optional<Failure> survived;    // the last failure after which the run, or another one, went on
    std::optional<Failure> warning;     // the first driver_warning
    std::int64_t failures = 0;          // episodes
    std::int64_t skipped = 0;           // batches
    bool trained_between = false;       // steps that worked lie between skipped batches
    bool worked_after_failure = false;  // in one process a run failed and a later one did not
    std::vector<Bucket> buckets;
    std::vector<Pace> paces;
    std::string trainer;
    bool wsl = false, windows = false, linux_paths = false;
    bool offloads = false, makes_context = false, foreign_backend = false, expandable = false;
    Bytes capacity = 0;

  private:
    struct Hit {
        Sign sign;
        std::size_t end = 0;
    };

    void collect(std::string_view line);
    void gather(std::string_view line);
    void end_message();
    void begin_run(const RunSign& run, std::string_view rest);
    void end_run();
    void enter(Where where, bool denoised);
    void draw(const ProgressBar& bar);
    void draw_steps(std::int64_t drawn, std::int64_t total, std::int64_t elapsed, double seconds);
    void went_on();
    void read_bucket(const BucketSign& sign, std::string_view line, std::size_t end);
    void read_node(std::string_view rest);
    [[nodiscard]] const FailureSign* failure_of(std::string_view line) const;
    void fail(const FailureSign& sign, std::string_view line, std::int64_t number);
    [[nodiscard]] const BarSign* bar_sign(std::string_view name, std::int64_t total) const;

    const Signs* signs_;
    std::vector<Hit> hits_;
    std::optional<Where> place_{};
    bool denoised_ = false;
    std::optional<Where> node_{};
    bool node_announced_ = false;  // its name stands in the next line
    Frames frames_;
    std::int64_t lines_since_frame_ = 0;
    bool source_line_ = false;    // the line after a frame shows its code
    bool adopts_frames_ = false;  // a message stands before its stack trace
    Steps steps_;
    std::int64_t previews_ = 0, preview_at_ = -1;
    std::string bar_name_;  // of the training, where the log gave it
    std::map<std::string, std::int64_t, std::less<>> drawn_;
    std::int64_t advances_ = 0;  // of bars, since the episode began
    std::int64_t elapsed_before_ = 0, elapsed_ = 0;
    bool failed_ = false;         // this run
    bool failed_before_ = false;  // one before it
    std::string message_;         // of the failure that is being gathered
    std::size_t gathered_ = 0;    // its place in `episode` + 1; 0: none
    int lines_left_ = 0;
};

}  // namespace vram::diagnosis
