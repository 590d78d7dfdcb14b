#include <unistd.h>

#include <chrono>
#include <iostream>

#include "input.hpp"
#include "verbs.hpp"
#include "vram/advise/grow.hpp"
#include "vram/advise/max.hpp"
#include "vram/advise/sweep.hpp"

namespace vram::cli {
namespace {

/// Prints an answer; of one that holds nothing but complaints these go to `err`, and with --json the object too.
template <class Answer>
int print(const Answer& answer, bool json, std::ostream& out, std::ostream& err) {
    const int code = advise::exit_code(answer);
    if (json)
        out << to_json(answer) << '\n';
    else if (answer.diagnostics.empty())
        out << to_text(answer);
    print_complaints(answer.diagnostics, err);
    return code;
}

/// The answer about a job that cannot be read.
template <class Answer>
int unread(const Arguments& arguments, const Diagnostics& complaints, std::ostream& out, std::ostream& err) {
    Answer answer;
    answer.source = arguments.file;
    answer.diagnostics = complaints;
    return refuse_as(answer, complaints, arguments, out, err);
}

/// A line that counts, where somebody sees it and it takes long enough to be read.
class Counter {
  public:
    explicit Counter(std::ostream& err) : err_(err), seen_(&err == &std::cerr && isatty(STDERR_FILENO) == 1) {}
    ~Counter() {
        if (shown_) err_ << "\r\033[K" << std::flush;
    }
    Counter(const Counter&) = delete;
    Counter& operator=(const Counter&) = delete;

    void show(std::size_t done, std::size_t all) {
        using namespace std::chrono_literals;
        const auto now = std::chrono::steady_clock::now();
        if (!seen_ || now - start_ < 1s || now - last_ < 100ms) return;
        err_ << "\r" << done << " of " << all << std::flush;
        last_ = now;
        shown_ = true;
    }

  private:
    std::ostream& err_;
    const bool seen_;
    bool shown_ = false;
    const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
    std::chrono::steady_clock::time_point last_ = start_;
};

}  // namespace

int max(const Arguments& arguments, std::ostream& out, std::ostream& err) {
    const expected<std::string> text = read_input(arguments.file);
    if (!text) return unread<advise::Max>(arguments, text.error(), out, err);
    const profile::Catalogue catalogue = profile::Catalogue::built_in();
    return print(advise::max(*text, arguments.file, arguments.vary, options_of(arguments), catalogue), arguments.json,
                 out, err);
}

int grow(const Arguments& arguments, std::ostream& out, std::ostream& err) {
    const expected<std::string> text = read_input(arguments.file);
    if (!text) return unread<advise::Grow>(arguments, text.error(), out, err);
    const profile::Catalogue catalogue = profile::Catalogue::built_in();
    return print(advise::grow(*text, arguments.file, options_of(arguments), catalogue), arguments.json, out, err);
}

int sweep(const Arguments& arguments, std::ostream& out, std::ostream& err) {
    if (const Diagnostics own = refuse_own_file("--svg", arguments.svg, arguments.file); !own.empty())
        return refuse(own, arguments.json, out, err);
    const expected<std::string> text = read_input(arguments.file);
    if (!text) return unread<advise::Sweep>(arguments, text.error(), out, err);
    const profile::Catalogue catalogue = profile::Catalogue::built_in();
    advise::Sweep done;
    {
        Counter counter(err);
        done = advise::sweep(*text, arguments.file, arguments.axes, options_of(arguments), catalogue,
                             [&](std::size_t cell, std::size_t all) { counter.show(cell, all); });
    }
    const bool as_csv = arguments.csv && done.diagnostics.empty();
    if (as_csv) out << to_csv(done);
    const int code = as_csv ? advise::exit_code(done) : print(done, arguments.json, out, err);
    if (arguments.svg.empty() || !done.diagnostics.empty()) return code;
    const Diagnostics complaints = write_output(arguments.svg, to_svg(done));
    print_complaints(complaints, err);
    return complaints.empty() ? code : 2;
}

}  // namespace vram::cli
