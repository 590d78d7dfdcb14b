#include <algorithm>
#include <charconv>
#include <cmath>
#include <system_error>

#include "trainers/ai_toolkit/reading.hpp"
#include "trainers/truthy.hpp"

namespace vram::trainers::ai_toolkit {
namespace {

using io::Node;

/// GenerateImageConfig floors both sides to its multiples.
constexpr std::int64_t side_step = 8;

/// A number that makes up the whole text.
template <class Number>
struct Parsed {
    Number value{};
    bool good = false, too_large = false;  // neither: no number
};
template <class Number>
Parsed<Number> parse(std::string_view text) {
    Parsed<Number> out;
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, out.value);
    if (stop != end || text.empty()) return out;
    out.too_large = error == std::errc::result_out_of_range || !std::isfinite(static_cast<double>(out.value));
    out.good = error == std::errc{} && !out.too_large;
    return out;
}

/// "a horse --w 768 --h 1344 --s 20": what a prompt says itself. Source: GenerateImageConfig._process_prompt_string.
struct WholeFlag {
    std::string_view name;
    std::int64_t SampleItem::*field;
    std::int64_t most;
};
constexpr WholeFlag whole_flags[] = {{"w", &SampleItem::width, most_side},
                                     {"h", &SampleItem::height, most_side},
                                     {"s", &SampleItem::steps, most_steps},
                                     {"frames", &SampleItem::frames, most_frames},
                                     {"num_frames", &SampleItem::frames, most_frames},
                                     {"steps", &SampleItem::steps, most_steps}};
struct NumberFlag {
    std::string_view name;
    double SampleItem::*field;
};
constexpr NumberFlag number_flags[] = {{"l", &SampleItem::guidance_scale},
                                       {"cfg", &SampleItem::guidance_scale},
                                       {"m", &SampleItem::network_multiplier},
                                       {"network_multiplier", &SampleItem::network_multiplier}};

/// What is wrong with a flag; no problem: ok.
struct Wrong {
    bool is = false;
    Problem problem = Problem::bad_value;
    std::string text{};
};

Wrong apply_flag(std::string_view flag, std::string_view content, SampleItem& item) {
    if (flag == "ctrl_img") item.controls = {std::string(content)};
    const std::string name = "the prompt's flag --" + std::string(flag);
    for (const WholeFlag& known : whole_flags) {
        if (known.name != flag) continue;
        const auto parsed = parse<std::int64_t>(content);
        if (!parsed.good && !parsed.too_large) return {true, Problem::bad_value, name + " needs a whole number"};
        if (parsed.too_large || parsed.value < 1 || parsed.value > known.most)
            return {true, Problem::out_of_range, name + " must be from 1 to " + std::to_string(known.most)};
        item.*known.field = parsed.value;
    }
    for (const NumberFlag& known : number_flags) {
        if (known.name != flag) continue;
        const auto parsed = parse<double>(content);
        if (parsed.too_large) return {true, Problem::out_of_range, name + " must be finite"};
        if (!parsed.good) return {true, Problem::bad_value, name + " needs a number"};
        item.*known.field = parsed.value;
    }
    return {};
}

std::string_view trimmed(std::string_view text) {
    constexpr std::string_view blanks = " \t\r\n";
    text.remove_prefix(std::min(text.size(), text.find_first_not_of(blanks)));
    return text.substr(0, text.find_last_not_of(blanks) + 1);
}

/// The item as the prompt would have it; after a flag that is wrong the rest is not looked at.
void apply_flags(Reading& reading, const Node& node, const std::string& path, SampleItem& item) {
    const std::string_view prompt = *node.text();
    for (std::size_t at = prompt.find("--"); at != std::string_view::npos;) {
        const std::size_t next = prompt.find("--", at + 2);
        const std::string_view part = prompt.substr(at + 2, next == std::string_view::npos ? next : next - at - 2);
        at = next;
        const std::string_view flag = part.substr(0, part.find(' '));
        const std::string_view content = trimmed(part.substr(flag.size()));
        Wrong wrong = apply_flag(flag, content, item);
        if (!wrong.is) continue;
        reading.complaints.push_back({Severity::error,
                                      wrong.problem,
                                      reading.document.place_of(node),
                                      path,
                                      std::string(content),
                                      {},
                                      std::move(wrong.text)});
        return;
    }
}

/// A text is tried as a number, and one that is none is 1: config_modules.py, SampleItem.
double read_multiplier(Section& section, double fallback) {
    const Node* node = section.value("network_multiplier");
    if (node == nullptr) return fallback;
    if (node->text() == nullptr) return section.fields.number("network_multiplier", {}, fallback);
    const auto parsed = parse<double>(trimmed(*node->text()));
    if (parsed.good) return parsed.value;
    section.fields.complain("network_multiplier", Problem::bad_value,
                            section.fields.path("network_multiplier") + " is no number, which the trainer takes as 1",
                            {}, Severity::warning);
    return 1;
}

SampleItem read_item(Section& section, const SampleItem& defaults) {
    SampleItem out;
    out.width = section.fields.integer("width", {.min = 1, .max = most_side}, defaults.width);
    out.height = section.fields.integer("height", {.min = 1, .max = most_side}, defaults.height);
    out.steps = section.fields.integer("sample_steps", {.min = 1, .max = most_steps}, defaults.steps);
    out.guidance_scale = section.fields.number("guidance_scale", {}, defaults.guidance_scale);
    out.frames = section.fields.integer("num_frames", {.min = 1, .max = most_frames}, defaults.frames);
    out.network_multiplier = read_multiplier(section, defaults.network_multiplier);
    out.do_cfg_norm = section.flag("do_cfg_norm", false);
    return out;
}

/// The control images: ctrl_img is the first, or else ctrl_img_1.
std::vector<std::string> read_controls(Section& section) {
    std::vector<std::string> out;
    bool older = false;
    for (const std::string_view key : {"ctrl_img", "ctrl_img_1", "ctrl_img_2", "ctrl_img_3"}) {
        const Node* node = section.value(key);
        if (node == nullptr || !truthy(*node)) continue;
        std::string path = path_of(section, key, section.fields.text(key, ""));
        if (key == "ctrl_img") older = true;
        if (key == "ctrl_img_1" && older) continue;
        out.push_back(std::move(path));
    }
    return out;
}

/// The nodes of a list. A text would be a prompt a letter to the trainer, which nobody means.
const io::List& list_of(Section& sample, std::string_view key) {
    static const io::List none;
    const Node* node = sample.value(key);
    if (node == nullptr) return none;
    if (node->list() != nullptr) return *node->list();
    sample.fields.complain(key, Problem::wrong_type,
                           sample.fields.path(key) + " must be a list, not " + node->spelled());
    return none;
}

/// Whether there is a prompt; anything but a text is a complaint.
bool read_prompt(Reading& reading, const Node* prompt, const std::string& path, SampleItem& item) {
    if (prompt == nullptr || prompt->is(io::Kind::null)) return false;
    if (prompt->text() != nullptr)
        apply_flags(reading, *prompt, path, item);
    else
        reading.complain_at(*prompt, path, Problem::wrong_type, path + " must be a text, not " + prompt->spelled());
    return true;
}

/// `samples`, a map each, wins over the older `prompts`.
std::vector<SampleItem> read_items(Section& sample, const SampleItem& defaults) {
    std::vector<SampleItem> out;
    static_cast<void>(sample.value("prompts"));
    const bool by_samples = sample.value("samples") != nullptr;
    const std::string_view key = by_samples ? "samples" : "prompts";
    const io::List& list = list_of(sample, key);
    for (std::size_t i = 0; i < list.size(); ++i) {
        const std::string path = sample.fields.path(key) + "[" + std::to_string(i) + "]";
        if (sample.reading.gives_up(list[i], path)) break;
        SampleItem item = defaults;
        bool there = false;
        if (by_samples) {
            Section section = sample.item(list[i], path, SectionId::sample_item);
            if (section.fields.is_absent()) continue;
            item = read_item(section, defaults);
            there = read_prompt(sample.reading, section.value("prompt"), path + ".prompt", item);
            std::vector<std::string> controls = read_controls(section);
            if (controls.empty())
                controls = item.controls;
            else if (!item.controls.empty())
                controls.front() = item.controls.front();  // the prompt's flag wins
            item.controls = std::move(controls);
            section.finish();
        } else {
            there = read_prompt(sample.reading, &list[i], path, item);
        }
        if (there) out.push_back(item);
    }
    return out;
}

}  // namespace

SampleConfig read_sample(Section& process, std::string_view key) {
    Section sample = process.section(key, SectionId::sample);
    SampleConfig out;
    SampleItem defaults = read_item(sample, {});
    defaults.do_cfg_norm = false;  // items do not take it over
    out.sampler = read_scheduler(sample, "sampler");
    out.sample_every = sample.is_null("sample_every") ? 0 : sample.fields.integer("sample_every", {.min = 0}, 100);
    out.samples = read_items(sample, defaults);
    for (SampleItem& item : out.samples) {
        item.width = std::max(smallest_sample, item.width / side_step * side_step);
        item.height = std::max(smallest_sample, item.height / side_step * side_step);
    }
    sample.finish();
    return out;
}

}  // namespace vram::trainers::ai_toolkit
