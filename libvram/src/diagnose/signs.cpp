#include "diagnose/signs.hpp"

#include <utility>

#include "vram/io/document.hpp"
#include "vram/io/fields.hpp"

namespace vram::diagnosis {
namespace {

using io::Fields;

constexpr io::Choice<Where> wheres[] = {
    {"model_load", Where::model_load}, {"quantize", Where::quantize}, {"cache_latents", Where::cache_latents},
    {"cache_text", Where::cache_text}, {"step", Where::step},         {"sampling", Where::sampling},
    {"vae_decode", Where::vae_decode}, {"save", Where::save},
};
constexpr io::Choice<Strength> strengths[] = {
    {"place", Strength::place}, {"detail", Strength::detail}, {"weak", Strength::weak}};
constexpr io::Choice<Quantity> quantities[] = {
    {"tried", Quantity::tried},
    {"capacity", Quantity::capacity},
    {"free", Quantity::free},
    {"process", Quantity::process},
    {"listed_process", Quantity::listed_process},
    {"allocated", Quantity::allocated},
    {"reserved", Quantity::reserved},
    {"reserved_unallocated", Quantity::reserved_unallocated},
    {"private_pools", Quantity::private_pools},
    {"allowed", Quantity::allowed},
    {"host_tried", Quantity::host_tried},
    {"host_process", Quantity::host_process},
};

/// A choice whose words are the enum's own, from `none` on to `last`.
template <class T>
std::vector<io::Choice<T>> words_of(T last) {
    std::vector<io::Choice<T>> words;
    for (int i = 0; i <= static_cast<int>(last); ++i) words.push_back({to_text(static_cast<T>(i)), static_cast<T>(i)});
    return words;
}

std::vector<std::string> texts(Fields& fields, std::string_view key) {
    return fields.texts(key).value_or(std::vector<std::string>{});
}

class Reader {
  public:
    explicit Reader(Fields root) : root_(std::move(root)) {}

    Signs read() {
        static_cast<void>(root_.integer("schema", {.min = 1, .max = 1}, io::required));
        trainers();
        systems();
        runs();
        list(Sign::Of::finished, 0, texts(root_, "finished"));
        places();
        nodes();
        bars();
        frames();
        Fields offload = root_.map("offload");
        list(Sign::Of::offload, 0, texts(offload, "says"));
        offload.finish();
        list(Sign::Of::context, 0, texts(root_, "context"));
        list(Sign::Of::foreign_backend, 0, texts(root_, "foreign_backend"));
        list(Sign::Of::expandable, 0, texts(root_, "expandable"));
        list(Sign::Of::expandable_advice, 0, texts(root_, "expandable_advice"));
        step_lines();
        buckets();
        failures();
        numbers();
        for (Fields& one : root_.maps("wordings")) {
            signs_.wordings.push_back({one.text("id", io::required), one.text("has", io::required)});
            one.finish();
        }
        list(Sign::Of::bar, 0, {"%|"});
        list(Sign::Of::frame, 0, {".py\", line ", ".py:", ".py in ", "File \""});
        list(Sign::Of::traceback, 0, {"Traceback (most recent call last)"});
        root_.finish();
        signs_.phrases.build();
        return std::move(signs_);
    }

  private:
    void list(Sign::Of of, std::size_t index, const std::vector<std::string>& phrases) {
        signs_.signs.push_back({of, index});
        for (const std::string& phrase : phrases)
            signs_.phrases.add(phrase, static_cast<std::int32_t>(signs_.signs.size() - 1));
    }

    void trainers() {
        for (Fields& one : root_.maps("trainers")) {
            signs_.trainers.push_back(one.text("id", io::required));
            list(Sign::Of::trainer, signs_.trainers.size() - 1, texts(one, "says"));
            one.ignore("source");
            one.finish();
        }
    }
    void systems() {
        Fields systems = root_.map("systems");
        for (const System system : {System::wsl, System::windows, System::linux_os}) {
            signs_.systems.push_back(system);
            list(Sign::Of::system, signs_.systems.size() - 1, texts(systems, to_text(system)));
        }
        systems.finish();
    }
    void runs() {
        for (Fields& one : root_.maps("runs")) {
            signs_.runs.push_back({one.boolean("names_bar", false), texts(one, "says")});
            list(Sign::Of::run, signs_.runs.size() - 1, signs_.runs.back().says);
            one.ignore("source");
            one.finish();
        }
    }
    void places() {
        for (Fields& one : root_.maps("places")) {
            signs_.places.push_back(one.choice("place", wheres, io::required));
            list(Sign::Of::place, signs_.places.size() - 1, texts(one, "says"));
            one.finish();
        }
    }
    void nodes() {
        Fields nodes = root_.map("nodes");
        signs_.announced_by = texts(nodes, "announced_by");
        list(Sign::Of::node, 0, signs_.announced_by);
        for (Fields& one : nodes.maps("places")) {
            signs_.nodes.push_back({one.text("part", io::required), one.choice("place", wheres, io::required)});
            one.finish();
        }
        nodes.finish();
    }
    void bars() {
        for (Fields& one : root_.maps("bars")) {
            BarSign bar;
            bar.where = one.choice("place", wheres, io::required);
            bar.starts = texts(one, "starts");
            bar.ends = one.text("ends", "");
            bar.denoises = one.boolean("denoises", false);
            bar.unnamed = one.boolean("unnamed", false);
            bar.at_most = one.integer("at_most", {.min = 1}, 1);
            bar.trainers = texts(one, "trainers");
            signs_.bars.push_back(std::move(bar));
            one.ignore("source");
            one.finish();
        }
    }
    void frames() {
        for (Fields& one : root_.maps("frames")) {
            FrameSign frame;
            frame.where = one.choice("place", wheres, io::required);
            frame.strength = one.choice("strength", strengths, Strength::place);
            frame.files = texts(one, "files");
            signs_.frames.push_back(std::move(frame));
            for (std::string& function : texts(one, "functions"))
                signs_.functions.emplace(std::move(function), signs_.frames.size() - 1);
            one.finish();
        }
    }
    void step_lines() {
        for (Fields& one : root_.maps("step_lines")) {
            signs_.step_lines.push_back({one.text("step", io::required), one.text("seconds", io::required)});
            list(Sign::Of::step_line, signs_.step_lines.size() - 1, {signs_.step_lines.back().seconds});
            one.ignore("source");
            one.finish();
        }
    }
    void buckets() {
        for (Fields& one : root_.maps("buckets")) {
            signs_.buckets.push_back({one.text("says", io::required), one.text("between", "")});
            list(Sign::Of::bucket, signs_.buckets.size() - 1, {signs_.buckets.back().says});
            one.ignore("source");
            one.finish();
        }
    }
    void failures() {
        const std::vector<io::Choice<Pattern>> patterns = words_of(Pattern::shared_memory);
        for (Fields& one : root_.maps("failures")) {
            FailureSign failure;
            if (one.require("pattern"))
                failure.pattern = one.choice("pattern", std::span<const io::Choice<Pattern>>(patterns))
                                      .value_or(Pattern::out_of_memory);
            failure.says = texts(one, "says");
            failure.needs = texts(one, "needs");
            failure.unless = texts(one, "unless");
            failure.retried = one.boolean("retried", false);
            failure.warns = one.boolean("warns", false);
            failure.whole_line = one.boolean("whole_line", false);
            list(Sign::Of::failure, signs_.failures.size(), failure.says);
            signs_.failures.push_back(std::move(failure));
            one.finish();
        }
    }
    void numbers() {
        for (Fields& one : root_.maps("numbers")) {
            NumberSign number;
            number.is = one.choice("is", quantities, io::required);
            number.before = one.text("before", "");
            number.after = one.text("after", "");
            number.raw = one.boolean("raw", false);
            signs_.numbers.push_back(std::move(number));
            one.finish();
        }
    }

    Fields root_;
    Signs signs_;
};

Change read_change(Fields& one) {
    const std::vector<io::Choice<Phase>> phases = words_of(Phase::unknown);
    const std::vector<io::Choice<System>> systems = words_of(System::unknown);
    Change change;
    const auto words = [&](std::string_view key, const auto& known, auto& out) {
        for (const std::string& word : texts(one, key)) {
            bool found = false;
            for (const auto& choice : known)
                if (choice.word == word) {
                    out.push_back(choice.value);
                    found = true;
                }
            if (!found) one.complain(key, Problem::bad_value, std::string(key) + " holds " + word);
        }
    };
    words("phases", phases, change.phases);
    words("on", systems, change.systems);
    change.by = one.text("by", "");
    change.text = one.text("change", io::required);
    if (const io::Node* unless = one.node("unless"); unless != nullptr && unless->map() != nullptr)
        for (const io::Member& member : *unless->map()) {
            change.unless_key = member.key;
            if (const std::string* value = member.value.text()) change.unless_value = *value;
        }
    one.finish();
    return change;
}

/// Reads the root's fields; complaints of YAML itself count as errors, since the files are ours.
template <class Read>
auto read_text(std::string_view text, std::string file_name, Read read)
    -> expected<decltype(read(std::declval<Fields&>()))> {
    const expected<io::Document> document = io::read(text, std::move(file_name), io::Format::yaml);
    if (!document) return Unexpected{document.error()};
    Diagnostics complaints = document->complaints;
    for (Diagnostic& complaint : complaints) complaint.severity = Severity::error;
    Fields root(*document, complaints);
    auto out = read(root);
    if (has_errors(complaints)) return Unexpected{std::move(complaints)};
    return out;
}

}  // namespace

expected<Signs> read_signs(std::string_view text, std::string file_name) {
    return read_text(text, std::move(file_name), [](Fields& root) { return Reader(root).read(); });
}

expected<Changes> read_changes(std::string_view text, std::string file_name) {
    return read_text(text, std::move(file_name), [](Fields& root) {
        static_cast<void>(root.integer("schema", {.min = 1, .max = 1}, io::required));
        const std::vector<io::Choice<Kind>> kinds = words_of(Kind::unknown);
        Changes out;
        for (Fields& one : root.maps("kinds")) {
            const std::optional<Kind> kind = one.choice("kind", std::span<const io::Choice<Kind>>(kinds));
            KindOfFailure failure;
            failure.cause = one.text("cause", io::required);
            bool has_last_resort = false;
            for (Fields& change : one.maps("changes")) {
                failure.changes.push_back(read_change(change));
                const Change& read = failure.changes.back();
                has_last_resort |=
                    read.phases.empty() && read.systems.empty() && read.by.empty() && read.unless_key.empty();
            }
            if (!has_last_resort)
                one.complain("changes", Problem::missing_key, "no change holds for every phase and system");
            if (kind && !out.kinds.emplace(*kind, std::move(failure)).second)
                one.complain("kind", Problem::duplicate_key, "kind is there twice");
            one.finish();
        }
        if (out.kinds.size() != kinds.size())
            root.complain("kinds", Problem::missing_key, "a kind of failure is missing");
        root.finish();
        return out;
    });
}

}  // namespace vram::diagnosis
