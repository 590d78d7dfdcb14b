#include "diagnose/story.hpp"

#include <algorithm>

namespace vram::diagnosis {
namespace {

constexpr std::size_t most_failures = 16;  // of an episode; the cause is the first
constexpr std::size_t longest_message = 2048, longest_shown = 200;
constexpr int message_lines = 14;  // a narrow box of rich breaks a message that often
constexpr std::int64_t frame_is_stale = 60;
constexpr std::size_t most_buckets = 1024, most_paces = 2048, most_bars = 256;
constexpr std::string_view tried = "tried to allocate";

bool names_any(std::string_view line, const std::vector<std::string>& words) {
    return std::any_of(words.begin(), words.end(), [&](const std::string& word) { return holds(line, word); });
}

/// The start of a line for people, cut between letters of UTF-8.
std::string shown(std::string_view line) {
    line = trimmed(line);
    if (line.size() <= longest_shown) return std::string(line);
    std::size_t end = longest_shown;
    while (end > longest_shown - 4 && (static_cast<unsigned char>(line[end]) & 0xC0) == 0x80) --end;
    return std::string(line.substr(0, end));
}

}  // namespace

void Story::collect(std::string_view line) {
    hits_.clear();
    signs_->phrases.scan(line, [&](std::int32_t id, std::size_t end) {
        const Sign sign = signs_->signs[static_cast<std::size_t>(id)];
        const bool known = std::any_of(hits_.begin(), hits_.end(), [&](const Hit& hit) {
            return hit.sign.of == sign.of && hit.sign.index == sign.index;
        });
        if (!known) hits_.push_back({sign, end});
    });
}

void Story::take(std::string_view line, std::int64_t number) {
    if (gathered_ > 0) gather(line);
    if (node_announced_) {
        node_announced_ = false;
        read_node(line);
    }
    collect(line);
    ++lines_since_frame_;
    const bool is_source = source_line_ && (line.front() == ' ' || line.front() == '\t');
    source_line_ = false;
    bool may_fail = false, says_expandable = false, advises = false;
    for (const Hit& hit : hits_) {
        const std::size_t index = hit.sign.index;
        switch (hit.sign.of) {
            case Sign::Of::trainer:
                if (trainer.empty()) trainer = signs_->trainers[index];
                break;
            case Sign::Of::system:
                wsl |= signs_->systems[index] == System::wsl;
                windows |= signs_->systems[index] == System::windows;
                linux_paths |= signs_->systems[index] == System::linux_os;
                break;
            case Sign::Of::run: begin_run(signs_->runs[index], line.substr(hit.end)); break;
            case Sign::Of::finished: end_run(); break;
            case Sign::Of::place:
                if (is_source) break;
                enter(signs_->places[index], false);
                break;
            case Sign::Of::node: read_node(line.substr(hit.end)); break;
            case Sign::Of::offload: offloads = true; break;
            case Sign::Of::context: makes_context = true; break;
            case Sign::Of::foreign_backend: foreign_backend = true; break;
            case Sign::Of::expandable: says_expandable = true; break;
            case Sign::Of::expandable_advice: advises = true; break;
            case Sign::Of::step_line: {
                const StepLine& sign = signs_->step_lines[index];
                const std::size_t at = line.find(sign.step);
                if (at == std::string_view::npos) break;
                const std::optional<std::int64_t> done = whole_number(line.substr(at + sign.step.size()));
                const std::optional<double> seconds = vram::diagnosis::number(line.substr(hit.end));
                if (done && seconds) draw_steps(*done, 0, 0, *seconds);
                break;
            }
            case Sign::Of::bucket: read_bucket(signs_->buckets[index], line, hit.end); break;
            case Sign::Of::failure: may_fail = !is_source; break;
            case Sign::Of::bar:
                if (const std::optional<ProgressBar> bar = progress_bar(line)) draw(*bar);
                break;
            case Sign::Of::traceback:
                if (adopts_frames_ && !episode.empty() && episode.front().frames.any) adopts_frames_ = false;
                frames_ = {};
                break;
            case Sign::Of::frame:
                if (const std::optional<Frame> frame = frame_of(line)) {
                    if (lines_since_frame_ > frame_is_stale) frames_ = {};
                    frames_.add(*signs_, *frame);
                    if (adopts_frames_ && !episode.empty()) episode.front().frames.add(*signs_, *frame);
                    lines_since_frame_ = 0;
                    source_line_ = true;
                }
                break;
        }
    }
    expandable |= says_expandable && !advises;
    if (!may_fail) return;
    if (const FailureSign* sign = failure_of(line)) fail(*sign, line, number);
}

void Story::finish() {
    if (gathered_ > 0) end_message();
}

const FailureSign* Story::failure_of(std::string_view line) const {
    const FailureSign* found = nullptr;
    for (const Hit& hit : hits_) {
        if (hit.sign.of != Sign::Of::failure) continue;
        const FailureSign& sign = signs_->failures[hit.sign.index];
        if (!sign.needs.empty() && !names_any(line, sign.needs)) continue;
        if (names_any(line, sign.unless)) continue;
        if (sign.whole_line && trimmed(line).size() != sign.says.front().size()) continue;
        if (found == nullptr || &sign < found) found = &sign;  // in the order of the file
    }
    return found;
}

void Story::fail(const FailureSign& sign, std::string_view line, std::int64_t number) {
    Failure failure;
    failure.pattern = sign.pattern;
    failure.line = number;
    failure.text = shown(line);
    failure.place = place_;
    failure.denoised = denoised_;
    failure.node = node_;
    failure.steps = steps_;
    failure.previews = previews_;
    failure.preview_at = preview_at_;
    if (lines_since_frame_ <= frame_is_stale) failure.frames = frames_;
    if (sign.warns || sign.retried) {
        failure.stated = read_message(*signs_, squeezed(line.substr(0, longest_message)));
        if (sign.warns) {
            if (!warning) warning = std::move(failure);
            return;
        }
    }
    if (sign.retried) {
        if (sign.pattern == Pattern::skipped_batch) {
            const std::size_t batch = line.find("batch ");
            if (batch != std::string_view::npos) failure.skipped_row = whole_number(line.substr(batch + 6)).value_or(0);
            trained_between |= failure.skipped_row == 1 && skipped > 0;
            ++skipped;
        }
        ++failures;
        survived = std::move(failure);
        return;
    }
    if (episode.empty()) {
        ++failures;
        advances_ = 0;
        failed_ = true;
        adopts_frames_ = !failure.frames.any;
    } else if (episode.front().frames.any) {
        adopts_frames_ = false;
    }
    if (episode.size() >= most_failures) return;
    if (gathered_ > 0) end_message();
    episode.push_back(std::move(failure));
    gathered_ = episode.size();
    message_ = std::string(line.substr(0, longest_message));
    lines_left_ = message_lines;
}

void Story::gather(std::string_view line) {
    // The next message is another one's, unless this one had only its class's name so far.
    const bool another = holds(line.substr(0, longest_message), tried);
    if ((another && holds(message_, tried)) || --lines_left_ < 0 || message_.size() >= longest_message)
        return end_message();
    message_ += '\n';
    message_ += line.substr(0, longest_message - std::min(longest_message, message_.size()));
}

void Story::end_message() {
    Failure& failure = episode[gathered_ - 1];
    failure.stated = read_message(*signs_, squeezed(message_));
    if (failure.stated.numbers.capacity && capacity == 0) capacity = *failure.stated.numbers.capacity;
    gathered_ = 0;
    message_.clear();
}

void Story::begin_run(const RunSign& run, std::string_view rest) {
    went_on();
    failed_before_ |= failed_;
    failed_ = false;
    place_.reset();
    node_.reset();
    denoised_ = false;
    frames_ = {};
    steps_ = {};
    drawn_.clear();
    previews_ = 0;
    preview_at_ = -1;
    buckets.clear();
    paces.clear();
    elapsed_ = elapsed_before_ = 0;
    bar_name_ = run.names_bar ? std::string(trimmed(rest)) : std::string();
}

void Story::end_run() {
    worked_after_failure |= failed_before_ && !failed_;
    place_.reset();  // another command's log may follow
    denoised_ = false;
}

void Story::went_on() {
    if (episode.empty()) return;
    if (gathered_ > 0) end_message();
    survived = std::move(episode.front());
    episode.clear();
    adopts_frames_ = false;
}

const BarSign* Story::bar_sign(std::string_view name, std::int64_t total) const {
    const std::string_view who = trainer.empty() ? std::string_view("unknown") : std::string_view(trainer);
    const bool may_sample = !place_ || place_ == Where::model_load || place_ == Where::step;
    // At the start of the name; else after what a collector of logs puts before each line.
    for (const bool inside : {false, true})
        for (const BarSign& bar : signs_->bars) {
            const bool elsewhere =
                !bar.trainers.empty() && std::find(bar.trainers.begin(), bar.trainers.end(), who) == bar.trainers.end();
            if (elsewhere) continue;
            if (bar.unnamed && name.empty() && may_sample && total <= bar.at_most) return &bar;
            const bool starts = std::any_of(bar.starts.begin(), bar.starts.end(), [&](const std::string& start) {
                return inside ? name.find(" " + start) != std::string_view::npos : name.starts_with(start);
            });
            if (starts && name.ends_with(bar.ends)) return &bar;
        }
    return nullptr;
}

void Story::enter(Where where, bool denoised) {
    // A preview, a step or a save may load something: it is still the preview, the step or the save.
    const bool within =
        place_ == Where::step || place_ == Where::sampling || place_ == Where::vae_decode || place_ == Where::save;
    if (within && where == Where::model_load) return;
    place_ = where;
    denoised_ = denoised;
}

void Story::draw(const ProgressBar& bar) {
    const BarSign* sign = bar_sign(bar.name, bar.total);
    const bool trains = bar.has_loss || (!bar_name_.empty() && bar.name.ends_with(bar_name_)) ||
                        (sign != nullptr && sign->where == Where::step);
    if (trains) return draw_steps(bar.done, bar.total, bar.elapsed, bar.seconds_per_step);
    const bool full = bar.total > 0 && bar.done == bar.total;
    if (sign == nullptr) {
        if (bar.name.empty() && place_ == Where::sampling) denoised_ = full;
        return;
    }
    if (drawn_.size() < most_bars || drawn_.contains(bar.name)) {
        std::int64_t& last = drawn_.try_emplace(std::string(bar.name), bar.done).first->second;
        if (bar.done > last && !episode.empty() && ++advances_ >= 2) went_on();
        last = bar.done;
    }
    enter(sign->where, sign->denoises && full);
}

void Story::draw_steps(std::int64_t drawn, std::int64_t total, std::int64_t elapsed, double seconds) {
    constexpr std::int64_t most_steps = 1'000'000'000;  // what is more is no count of steps
    if (drawn > most_steps) return;
    const bool first = steps_.drawn < 0;
    const std::int64_t before = steps_.done;
    if (first)
        steps_.done = elapsed == 0 && seconds <= 0 ? 0 : drawn;  // a resumed bar starts at its step after 00:00
    else
        steps_.done += drawn >= steps_.drawn ? drawn - steps_.drawn : drawn;  // the next epoch's bar starts again
    steps_.drawn = drawn;
    steps_.total = total;
    const bool advanced = steps_.done > before || (first && drawn > 0);
    if (!episode.empty()) {
        // Drawn again when it is closed; another rank may still end its step.
        advances_ += steps_.done > before ? 1 : 0;
        if (advances_ < 2) return;
        went_on();
    }
    const bool sampled = place_ == Where::sampling || place_ == Where::vae_decode;
    if (sampled && advanced && before > 0) {
        ++previews_;
        preview_at_ = before;
    }
    place_ = Where::step;
    denoised_ = false;
    if (!advanced) return;
    if (elapsed < elapsed_) elapsed_before_ += elapsed_;
    elapsed_ = elapsed;
    paces.push_back({steps_.done, elapsed_before_ + elapsed, seconds});
    if (paces.size() < most_paces) return;
    std::size_t kept = 0;
    for (std::size_t i = 0; i < paces.size(); i += 2) paces[kept++] = paces[i];
    paces.resize(kept);
}

void Story::read_bucket(const BucketSign& sign, std::string_view line, std::size_t end) {
    if (buckets.size() >= most_buckets) return;
    Bucket bucket;
    if (sign.between.empty()) {
        std::string_view rest = line.substr(end);
        for (std::int64_t& side : bucket.size) {
            const std::optional<std::int64_t> value = whole_number(rest);
            rest = trimmed(rest);
            rest.remove_prefix(std::min(rest.find_first_not_of("0123456789"), rest.size()));
            if (!value || rest.starts_with('.')) break;  // a ratio, not a size
            side = *value;
            if (!rest.starts_with(',')) break;
            rest.remove_prefix(1);
        }
        constexpr std::string_view count = "count:";
        if (const std::size_t at = line.find(count, end); at != std::string_view::npos)
            bucket.count = whole_number(line.substr(at + count.size())).value_or(0);
    } else {
        const std::string_view text = trimmed(line.substr(0, end));
        const std::size_t by = text.find(sign.between);
        const std::size_t colon = text.find(':');
        if (by == std::string_view::npos || by == 0 || colon == std::string_view::npos || colon < by) return;
        std::size_t start = by;
        while (start > 0 && is_digit(text[start - 1])) --start;
        bucket.size[0] = whole_number(text.substr(start, by - start)).value_or(0);
        bucket.size[1] = whole_number(text.substr(by + sign.between.size())).value_or(0);
        const std::size_t frames = text.find(sign.between, by + sign.between.size());
        if (frames != std::string_view::npos && frames < colon)
            bucket.size[2] = whole_number(text.substr(frames + sign.between.size())).value_or(0);
        bucket.count = whole_number(text.substr(colon + 1)).value_or(0);
    }
    constexpr std::int64_t longest_side = 1 << 16;
    const bool sensible = bucket.size[0] > 0 && bucket.size[1] > 0 &&
                          *std::max_element(bucket.size.begin(), bucket.size.end()) <= longest_side;
    if (!sensible) return;
    bucket.size[2] = std::max<std::int64_t>(1, bucket.size[2]);
    if (std::find(buckets.begin(), buckets.end(), bucket) == buckets.end()) buckets.push_back(bucket);
}

void Story::read_node(std::string_view rest) {
    rest = trimmed(rest).substr(0, longest_shown);
    if (rest.empty() || rest == "**") {
        node_announced_ = true;
        return;
    }
    for (const NodeSign& sign : signs_->nodes)
        if (rest.find(sign.part) != std::string_view::npos) {
            node_ = sign.where;
            if (!episode.empty() && !episode.front().node) episode.front().node = node_;
            return;
        }
}

}  // namespace vram::diagnosis
