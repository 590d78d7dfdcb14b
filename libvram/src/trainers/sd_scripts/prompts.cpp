#include "trainers/sd_scripts/prompts.hpp"

#include <algorithm>
#include <array>
#include <filesystem>
#include <set>
#include <utility>

#include "base/text.hpp"
#include "trainers/heaviest.hpp"
#include "trainers/named_model.hpp"
#include "trainers/sd_scripts/reading.hpp"
#include "vram/io/fields.hpp"
#include "vram/io/file.hpp"

namespace vram::trainers::sd_scripts {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t most_images = 8;  // as of any trainer: a sample's play costs milliseconds and megabytes
constexpr std::int64_t most_sample_steps = 1000;

/// What stands before the first character that is not one of these.
std::string_view run_of(std::string_view text, std::string_view characters) {
    return text.substr(0, std::min(text.find_first_not_of(characters), text.size()));
}

Prompt fresh(const Script& script, SaidAt at) {
    return {512, 512, script.sample_steps, script.sample_scale, std::move(at)};
}

/// What a prompt may say beside its size, its steps and its scale.
constexpr std::string_view other_keys[] = {
    "prompt",           "negative_prompt", "seed",       "guidance_scale", "sample_sampler",
    "controlnet_image", "cfg_trunc_ratio", "renorm_cfg", "flow_shift",     "subset"};
constexpr std::string_view read_keys[] = {"width", "height", "sample_steps", "scale"};

/// A file of prompts that are maps, .toml or .json.
class PromptFile {
  public:
    PromptFile(const io::Document& file, const Script& script, Diagnostics& complaints, Diagnostics& notes)
        : file_(file), script_(script), complaints_(complaints), notes_(notes) {}

    /// load_prompts: a .json is a list; a .toml has them in prompt.subset, and what all have in prompt.
    std::vector<Prompt> read() {
        std::vector<Prompt> out;
        const bool is_toml = file_.file_name.ends_with(".toml");
        const io::Node* list = &file_.root;
        Prompt base = fresh(script_, {});
        std::string path;
        const io::Node* common = is_toml ? file_.root.find("prompt") : nullptr;
        if (is_toml) {
            const bool is_map = common != nullptr && common->map() != nullptr;
            if (is_map) base = prompt_of(*common, "prompt", base);
            list = is_map ? common->find("subset") : nullptr;
            path = "prompt.subset";
        }
        if (list == nullptr || list->list() == nullptr) {
            complaints_.push_back({Severity::error,
                                   Problem::wrong_type,
                                   {file_.file_name, 0, 0},
                                   path,
                                   {},
                                   {},
                                   "the trainer fails: " + file_.file_name +
                                       (is_toml ? " holds no list prompt.subset" : " holds no list of prompts")});
            return out;
        }
        for (std::size_t i = 0; i < list->list()->size(); ++i) {
            const io::Node& one = (*list->list())[i];
            const std::string at = path + "[" + std::to_string(i) + "]";
            if (is_toml && one.text() != nullptr) {
                complaints_.push_back({Severity::error,
                                       Problem::wrong_type,
                                       file_.place_of(one),
                                       at,
                                       one.spelled(),
                                       {},
                                       "the trainer fails: of a .toml each prompt is a table"});
                continue;
            }
            out.push_back(prompt_of(one, at, base));
            if (is_toml) twice(*common, one, at);
        }
        return out;
    }

  private:
    /// One of text is a line.
    Prompt prompt_of(const io::Node& node, const std::string& path, Prompt out) {
        const SaidAt at{file_.place_of(node), path};
        if (node.text() != nullptr) return sd_scripts::prompt_of(*node.text(), script_, at, notes_);
        io::Fields fields(file_, node, path, complaints_, io::Nulls::are_absent);
        out.width = fields.integer("width", {1, most_side}, out.width);
        out.height = fields.integer("height", {1, most_side}, out.height);
        out.steps = fields.integer("sample_steps", {1, most_sample_steps}, out.steps);
        out.scale = fields.number("scale", io::NumberRange{}, out.scale);
        out.at = at;
        fields.ignore(other_keys);
        if (node.map() == nullptr) return out;
        io::Fields unknown(file_, node, path, notes_, io::Nulls::are_absent);
        unknown.ignore(other_keys);
        unknown.ignore(read_keys);
        unknown.finish(Severity::warning);
        return out;
    }

    /// dict(**data["prompt"], **subset)
    void twice(const io::Node& common, const io::Node& one, const std::string& path) {
        for (const io::Member& member : one.map() != nullptr ? *one.map() : io::Map{})
            if (common.find(member.key) != nullptr)
                complaints_.push_back({Severity::error,
                                       Problem::conflict,
                                       file_.place_of(member.key_span),
                                       path + "." + member.key,
                                       member.value.spelled(),
                                       {},
                                       "the trainer fails: " + member.key + " stands in prompt, too"});
    }

    const io::Document& file_;
    const Script& script_;
    Diagnostics& complaints_;
    Diagnostics& notes_;
};

std::vector<Prompt> read_prompts(const io::Document& document, const Config& config, Diagnostics& complaints,
                                 Diagnostics& notes) {
    const Arguments& arguments = config.arguments;
    const Script& script = *arguments.script;
    const std::string& word = arguments.sample_prompts;
    const SaidAt at = config.at(document, "sample_prompts");
    if (word.empty() && !arguments.prompts_in_place) {
        std::string_view asks = "sample_at_first";
        for (const std::string_view name : {"sample_every_n_epochs", "sample_every_n_steps"})
            if (config.said.find(name) != nullptr) asks = name;
        const Argument* said = config.said.find(asks);
        const SaidAt asked = config.at(document, asks);
        complaints.push_back({Severity::error,
                              Problem::conflict,
                              asked.place,
                              asked.key,
                              said != nullptr ? said->value.spelled() : std::string(),
                              {},
                              "the trainer stops: samples want a file of prompts, sample_prompts"});
    }
    if (word.empty()) return {};
    if (arguments.prompts_in_place) return prompts_of(word, script, at, notes);
    fs::path path = word;
    if (!is_there(path)) path = (fs::path(document.file_name).parent_path() / word).lexically_normal();
    if (!is_there(path)) {
        notes.push_back({Severity::note,
                         Problem::file_not_found,
                         at.place,
                         at.key,
                         word,
                         {},
                         word + " is no file here: taken for one prompt without a size, which is 512x512"});
        return {fresh(script, at)};
    }
    const auto failed = [&](const Diagnostics& why) {
        complaints.insert(complaints.end(), why.begin(), why.end());
        return std::vector<Prompt>{};
    };
    if (word.ends_with(".txt")) {
        const expected<std::string> text = io::read_file(path);
        if (!text) return failed(text.error());
        return prompts_of(*text, script, {{path.string(), 1, 1}, {}}, notes);
    }
    if (!word.ends_with(".toml") && !word.ends_with(".json"))
        return failed({{Severity::error,
                        Problem::bad_value,
                        at.place,
                        at.key,
                        word,
                        {},
                        "the trainer fails: a file of prompts is a .txt, .toml or .json"}});
    const expected<io::Document> file = io::open(path);
    if (!file) return failed(file.error());
    return PromptFile(*file, script, complaints, notes).read();
}

}  // namespace

Prompt prompt_of(std::string_view line, const Script& script, const SaidAt& at, Diagnostics& notes) {
    constexpr std::string_view digits = "0123456789", decimals = "0123456789.";
    constexpr std::array<std::string_view, 12> flags{"w", "h",  "s",  "l",   "d",    "g",
                                                     "n", "ss", "cn", "ctr", "rcfg", "fs"};
    Prompt out = fresh(script, at);
    const auto passed_over = [&](Problem problem, const std::string& flag, std::string_view value, std::string text) {
        std::string near = problem == Problem::unknown_key ? nearest(flag, flags) : "";
        if (!near.empty()) near = "--" + near;
        notes.push_back({Severity::warning, problem, at.place, at.key, "--" + flag + " " + std::string(value),
                         std::move(near), std::move(text)});
    };
    // re.match looks at the words before the first " --", too.
    bool is_flag = false;
    for (std::size_t from = 0; from != std::string_view::npos; is_flag = true) {
        const std::size_t next = line.find(" --", from);
        const std::string_view words = line.substr(from, next == std::string_view::npos ? next : next - from);
        from = next == std::string_view::npos ? next : next + 3;
        const std::size_t blank = std::min(words.find(' '), words.size());
        const std::string flag = lower(std::string(words.substr(0, blank)));
        const std::string_view value = words.substr(std::min(blank + 1, words.size()));
        if (std::find(flags.begin(), flags.end(), flag) == flags.end()) {
            if (is_flag)
                passed_over(Problem::unknown_key, flag, value,
                            "the trainer knows no --" + flag + " of a prompt, and passes over it");
            continue;
        }
        const bool is_whole = flag == "w" || flag == "h" || flag == "s" || flag == "d";
        const bool is_number = is_whole || flag == "l" || flag == "g";
        const std::string_view number = run_of(value, is_whole ? digits : is_number ? decimals : "");
        const std::optional<double> said = number_of(number);
        if (is_flag && (is_number ? !said : value.empty()))
            passed_over(Problem::bad_value, flag, value,
                        "--" + flag + " wants a " + (is_number ? "number" : "text") + ", and is passed over");
        if (!said) continue;
        const auto at_most = [&](std::int64_t most) {
            return static_cast<std::int64_t>(std::min(*said, static_cast<double>(most)));
        };
        if (flag == "w") out.width = at_most(most_side);
        if (flag == "h") out.height = at_most(most_side);
        if (flag == "s") out.steps = std::max<std::int64_t>(1, at_most(most_sample_steps));
        if (flag == "l") out.scale = *said;
    }
    return out;
}

std::vector<Prompt> prompts_of(std::string_view text, const Script& script, SaidAt at, Diagnostics& notes) {
    std::vector<Prompt> out;
    for (; !text.empty(); at.place.line += at.key.empty() ? 1 : 0) {  // a field of the GUI stands in one line
        const std::size_t end = std::min(text.find('\n'), text.size());
        const std::string_view line = text.substr(0, end);
        text.remove_prefix(std::min(end + 1, text.size()));
        const std::size_t from = line.find_first_not_of(" \t\r");
        if (from == std::string_view::npos || line.front() == '#') continue;
        out.push_back(prompt_of(line.substr(from, line.find_last_not_of(" \t\r") + 1 - from), script, at, notes));
    }
    return out;
}

job::Sampling sampling_of(const io::Document& document, const Config& config, std::int64_t text_tokens,
                          Diagnostics& complaints, Diagnostics& notes) {
    const Arguments& arguments = config.arguments;
    job::Sampling out;
    if (!arguments.sample_at_first && !arguments.samples_while_training) return out;
    out.baseline = arguments.sample_at_first;
    out.periodic = arguments.samples_while_training;
    out.sampler = arguments.sample_sampler;
    out.guidance = 0;
    const std::int64_t step = arguments.script->sample_step;
    std::vector<job::Batch> images, all;
    std::set<job::PictureSize> seen;
    for (const Prompt& prompt : read_prompts(document, config, complaints, notes)) {
        const auto side = [step](std::int64_t said) { return std::max<std::int64_t>(64, said - said % step); };
        const job::Batch image{side(prompt.width), side(prompt.height), 1, 1};
        for (const std::int64_t one : {image.width, image.height})
            if (side_below(*arguments.script, one) != one)
                complaints.push_back({Severity::error, Problem::conflict, prompt.at.place, prompt.at.key,
                                      std::to_string(one), std::to_string(side_below(*arguments.script, one)),
                                      "the trainer fails at this sample: sides of " +
                                          std::string(arguments.script->title) + " must be divisible by " +
                                          std::to_string(arguments.script->side_step) + ", not " +
                                          std::to_string(one)});
        if (seen.insert({image.width, image.height}).second) images.push_back(image);
        all.push_back(image);
        out.steps = std::max(out.steps, prompt.steps);
        out.guidance = std::max(out.guidance, prompt.scale);
    }
    if (images.empty()) return {};
    out.images = heaviest(images, most_images, text_tokens);
    for (const job::Batch& image : out.images)
        out.rendered.push_back(all.rend() - std::find(all.rbegin(), all.rend(), image));
    if (const std::size_t left = images.size() - out.images.size(); left > 0) {
        const SaidAt at = config.at(document, "sample_prompts");
        notes.push_back({Severity::note,
                         Problem::unsupported,
                         at.place,
                         at.key,
                         std::to_string(left),
                         {},
                         std::to_string(left) + " smaller sizes of samples are not played"});
    }
    return out;
}

}  // namespace vram::trainers::sd_scripts
