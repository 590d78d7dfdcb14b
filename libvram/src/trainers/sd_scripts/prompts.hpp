#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "trainers/sd_scripts/arguments.hpp"
#include "vram/base/diagnostic.hpp"
#include "vram/job/job.hpp"

namespace vram::trainers::sd_scripts {

/// What a prompt asks for beside its words.
struct Prompt {
    std::int64_t width = 512, height = 512, steps = 0;
    double scale = 0;
    SaidAt at{};  // its line, or its place in the file's list
    bool operator==(const Prompt&) const = default;
};

/// A line of a file of prompts: "a cat --w 832 --h 1216 --s 20 --l 4". Flags that the trainer passes over, as unknown
/// or for what stands behind them, are warnings. Source: train_util.py, line_to_prompt_dict.
[[nodiscard]] Prompt prompt_of(std::string_view line, const Script& script, const SaidAt& at, Diagnostics& notes);
/// The prompts of a text, which starts at `at`: blank lines and those that start with '#' are none. Source:
/// train_util.py, load_prompts.
[[nodiscard]] std::vector<Prompt> prompts_of(std::string_view text, const Script& script, SaidAt at,
                                             Diagnostics& notes);

/// What is rendered: the prompts of the file, read from where the trainer is started or from beside the config, .txt,
/// .toml or .json; of the GUI those of its field. A file that is not there is taken for one prompt that says nothing
/// more, with a note. Nothing is rendered where nothing asks for it. `text_tokens`: of a prompt, for which size is the
/// heaviest. Errors: conflict, no file of prompts, or sides that the model does not take; those of the file.
/// Source: train_util.py and flux_train_utils.py, sample_images, sample_image_inference (48d368fa).
[[nodiscard]] job::Sampling sampling_of(const io::Document& document, const Config& config, std::int64_t text_tokens,
                                        Diagnostics& complaints, Diagnostics& notes);

}  // namespace vram::trainers::sd_scripts
