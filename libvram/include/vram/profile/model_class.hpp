#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "vram/base/expected.hpp"
#include "vram/profile/model_profile.hpp"

namespace vram::profile {

/// One way in which files of weights name the tensors of a class: that of the library, or that of whoever trained it.
struct NamingScheme {
    std::vector<std::string> recognised_by;  // names that are all there, behind one prefix
    std::vector<std::string> without;        // names that are not: another class has them
    /// config key → what stands before a number in names: the highest number + 1 is the value.
    std::map<std::string, std::string> layers;
    struct Size {
        std::string tensor;
        std::int64_t dimension = 0;
        bool operator==(const Size&) const = default;
    };
    std::map<std::string, Size> sizes;           // config key → a dimension of a tensor
    std::map<std::string, std::string> present;  // config key → true where this tensor is there
    bool operator==(const NamingScheme&) const = default;
};

/// What a Python class makes of a config.json, and how its weights are named: a file model_classes/<name>.yaml. A class
/// without one is known by its profiles alone.
///
///     schema: 1
///     name: FluxTransformer2DModel           # the file's name: `_class_name`, or one of `architectures`
///     source: diffusers 0.42.1, transformer_flux.py; names of tensors: black-forest-labs/flux, model.py
///     defaults: {num_layers: 19, out_channels: null}   # the constructor's, of what a family asks for
///     assumed: {patch_size: 1}               # the family takes it for granted; another value is not modelled
///     without_effect: [eps]                  # no tensor's size or life hangs on it
///     pretrained_config: false               # true: nor on what all configs of transformers have beside sizes
///     also: [Qwen3ForCausalLM]               # classes of which this is the body
///     nested: {text_config: '', vision_config: vision_}  # maps whose keys count as the config's, behind a prefix
///     beside: [lm_head., .position_ids, norm_final.weight]  # tensors that files may have and the class does not load:
///                                            # names that begin or end so, or are so
///     named:                                 # NamingScheme
///       - {recognised_by: [a.0.b], without: [c], layers: {num_layers: a.}, sizes: {in_channels: [d.weight, 1]},
///          present: {guidance_embeds: e.weight}}
struct ModelClass {
    std::string name, source;
    std::map<std::string, Config::Value, std::less<>> defaults;  // those that are null are in `unset`
    std::vector<std::string> unset;
    std::map<std::string, Config::Value, std::less<>> assumed;
    std::vector<std::string> assumed_unset;
    std::vector<std::string> without_effect, also, beside;
    std::map<std::string, std::string> nested;
    std::vector<NamingScheme> named;
    bool operator==(const ModelClass&) const = default;
};

/// Reads one strictly, as read_model_profile does.
[[nodiscard]] expected<ModelClass> read_model_class(std::string_view text, std::string file_name);

}  // namespace vram::profile
