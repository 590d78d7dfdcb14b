#include "trainers/sd_scripts/prompts.hpp"

#include <algorithm>
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

Prompt fresh(const Script& script) { return {512, 512, script.sample_steps, script.sample_scale}; }

/// A prompt of a .toml or .json file; one of text is a line.
Prompt prompt_of(const io::Document& file, const io::Node& node, std::string path, const Script& script,
                 Diagnostics& complaints, Prompt out) {
    if (node.text() != nullptr) return sd_scripts::prompt_of(*node.text(), script);
    io::Fields fields(file, node, std::move(path), complaints, io::Nulls::are_absent);
    out.width = fields.integer("width", {1, most_side}, out.width);
    out.height = fields.integer("height", {1, most_side}, out.height);
    out.steps = fields.integer("sample_steps", {1, most_sample_steps}, out.steps);
    out.scale = fields.number("scale", io::NumberRange{}, out.scale);
    return out;
}

/// load_prompts: a .json is a list; a .toml has them in prompt.subset, and what all have in prompt.
std::vector<Prompt> prompts_in(const io::Document& file, const Script& script, Diagnostics& complaints) {
    std::vector<Prompt> out;
    const io::Node* list = &file.root;
    Prompt base = fresh(script);
    std::string path;
    if (const io::Node* common = file.root.find("prompt"); common != nullptr && common->map() != nullptr) {
        base = prompt_of(file, *common, "prompt", script, complaints, base);
        list = common->find("subset");
        path = "prompt.subset";
    }
    if (list == nullptr || list->list() == nullptr) {
        complaints.push_back({Severity::error,
                              Problem::wrong_type,
                              {file.file_name, 0, 0},
                              path,
                              {},
                              {},
                              file.file_name + " holds no list of prompts"});
        return out;
    }
    for (std::size_t i = 0; i < list->list()->size(); ++i)
        out.push_back(
            prompt_of(file, (*list->list())[i], path + "[" + std::to_string(i) + "]", script, complaints, base));
    return out;
}

std::vector<Prompt> read_prompts(const io::Document& document, const Config& config, Diagnostics& complaints,
                                 Diagnostics& notes) {
    const Arguments& arguments = config.arguments;
    const Script& script = *arguments.script;
    if (arguments.sample_prompts.empty()) return {};  // of a file that is not named there is a complaint
    if (arguments.prompts_in_place) return prompts_of(arguments.sample_prompts, script);
    const std::string& word = arguments.sample_prompts;
    fs::path path = word;
    if (!is_there(path)) path = (fs::path(document.file_name).parent_path() / word).lexically_normal();
    if (!is_there(path)) {
        const SaidAt at = config.at(document, "sample_prompts");
        notes.push_back({Severity::note,
                         Problem::file_not_found,
                         at.place,
                         at.key,
                         word,
                         {},
                         word + " is no file here: taken for one prompt without a size, which is 512x512"});
        return {fresh(script)};
    }
    if (!word.ends_with(".toml") && !word.ends_with(".json")) {
        const expected<std::string> text = io::read_file(path);
        if (text) return prompts_of(*text, script);
        complaints.insert(complaints.end(), text.error().begin(), text.error().end());
        return {};
    }
    const expected<io::Document> file = io::open(path);
    if (file) return prompts_in(*file, script, complaints);
    complaints.insert(complaints.end(), file.error().begin(), file.error().end());
    return {};
}

}  // namespace

Prompt prompt_of(std::string_view line, const Script& script) {
    constexpr std::string_view digits = "0123456789";
    Prompt out = fresh(script);
    // re.match looks at the words before the first " --", too.
    for (std::size_t from = 0; from != std::string_view::npos;) {
        const std::size_t next = line.find(" --", from);
        const std::string_view word = line.substr(from, next == std::string_view::npos ? next : next - from);
        from = next == std::string_view::npos ? next : next + 3;
        if (word.size() < 3 || word[1] != ' ') continue;
        const std::string_view value = word.substr(2);
        const char flag = lower(std::string(1, word[0])).front();
        if (const std::optional<std::int64_t> whole = integer_of(run_of(value, digits))) {
            if (flag == 'w') out.width = std::min(*whole, most_side);
            if (flag == 'h') out.height = std::min(*whole, most_side);
            if (flag == 's') out.steps = std::clamp<std::int64_t>(*whole, 1, most_sample_steps);
        }
        if (const std::optional<double> number = number_of(run_of(value, "0123456789.")); number && flag == 'l')
            out.scale = *number;
    }
    return out;
}

std::vector<Prompt> prompts_of(std::string_view text, const Script& script) {
    std::vector<Prompt> out;
    while (!text.empty()) {
        const std::size_t end = std::min(text.find('\n'), text.size());
        const std::string_view line = text.substr(0, end);
        text.remove_prefix(std::min(end + 1, text.size()));
        const std::size_t from = line.find_first_not_of(" \t\r");
        if (from == std::string_view::npos || line.front() == '#') continue;
        out.push_back(prompt_of(line.substr(from), script));
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
