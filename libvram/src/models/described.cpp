#include "models/described.hpp"

#include <algorithm>
#include <map>
#include <stdexcept>

#include "models/model.hpp"
#include "profile/variant.hpp"

namespace vram::models {
namespace {

using io::StoredTensor;
using profile::Variant;
using profile::Variants;

constexpr std::size_t most_parameters = 50'000;  // tensors; the largest model that is known has about 4000

/// What libraries leave in a file beside or instead of a weight that they quantised.
struct Mark {
    std::string_view name_end, library;
};
constexpr Mark marks[] = {
    {".wscales", "SVDQuant, nunchaku"},
    {".qweight", "a library's own packing"},
    {".quant_state.bitsandbytes__nf4", "bitsandbytes"},
    {".quant_state.bitsandbytes__fp4", "bitsandbytes"},
    {".SCB", "bitsandbytes"},
    {".scale_weight", "scaled fp8"},
    {".weight_scale", "scaled fp8"},
    {".qzeros", "GPTQ or AWQ"},
    {"._data", "quanto"},
};

/// How weights are quantised, or nothing.
std::string quantised_by(const std::vector<StoredTensor>& tensors) {
    for (const Mark& mark : marks)
        for (const StoredTensor& tensor : tensors)
            if (tensor.name.ends_with(mark.name_end)) return std::string(mark.library);
    // Of whole numbers a model has positions and counters, never a matrix.
    constexpr std::string_view plain[] = {"F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2"};
    for (const StoredTensor& tensor : tensors)
        if (tensor.shape.size() > 1 && !tensor.type.starts_with("I64") &&
            std::find(std::begin(plain), std::end(plain), tensor.type) == std::end(plain))
            return tensor.type;
    return {};
}

/// Is it one of those that files may have and the class does not load? "lm_head." begins a name, ".position_ids" ends
/// it.
bool is_beside(std::string_view name, const std::vector<std::string>& beside) {
    return std::any_of(beside.begin(), beside.end(), [&](const std::string& part) {
        return name == part || (part.ends_with('.') && name.starts_with(part)) ||
               (part.starts_with('.') && name.ends_with(part));
    });
}

/// The tensors of the model itself, by their names behind the prefix.
std::vector<StoredTensor> own_tensors(const std::vector<StoredTensor>& tensors, const std::string& prefix,
                                      const std::vector<std::string>& beside) {
    std::vector<StoredTensor> out;
    for (const StoredTensor& tensor : tensors) {
        if (!tensor.name.starts_with(prefix)) continue;
        StoredTensor own = tensor;
        own.name.erase(0, prefix.size());
        if (!is_beside(own.name, beside)) out.push_back(std::move(own));
    }
    return out;
}

/// A class that another one wraps is saved behind the wrapper's name for it: "model." before "layers.0.weight".
std::string wrapper_of(const std::vector<StoredTensor>& tensors, const std::vector<ListedParameter>& listed) {
    if (listed.empty()) return {};
    const std::string& first = listed.front().name;
    if (std::any_of(tensors.begin(), tensors.end(), [&](const StoredTensor& tensor) { return tensor.name == first; }))
        return {};
    for (const StoredTensor& tensor : tensors)
        if (tensor.name.ends_with("." + first)) return tensor.name.substr(0, tensor.name.size() - first.size());
    return {};
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
    std::string out;
    for (const std::int64_t size : shape) out += (out.empty() ? "" : ", ") + std::to_string(size);
    return "[" + out + "]";
}

/// What a header has beside what a class makes of a config.
struct Compared {
    std::int64_t stored = 0, built = 0;  // parameters
    std::string first;                   // the first that differs, where most names agree
    [[nodiscard]] bool agrees() const { return stored == built; }
};

Compared compare(const std::vector<StoredTensor>& tensors, const std::vector<ListedParameter>& listed) {
    std::map<std::string_view, const ListedParameter*> by_name;
    for (const ListedParameter& parameter : listed) by_name.emplace(parameter.name, &parameter);
    Compared out;
    std::size_t met = 0;
    std::string wrong_shape, unknown;
    std::map<std::string_view, const StoredTensor*> stored;
    for (const StoredTensor& tensor : tensors) {
        stored.emplace(tensor.name, &tensor);
        const auto found = by_name.find(tensor.name);
        if (found == by_name.end()) {
            if (unknown.empty()) unknown = tensor.name + " " + shape_text(tensor.shape) + " is none of its parameters";
            out.stored += tensor.numel;
            continue;
        }
        ++met;
        if (found->second->buffer) continue;
        out.stored += tensor.numel;
        if (wrong_shape.empty() && tensor.shape != found->second->shape)
            wrong_shape =
                tensor.name + " is " + shape_text(tensor.shape) + " and not " + shape_text(found->second->shape);
    }
    std::string missing;
    for (const ListedParameter& parameter : listed) {
        if (parameter.buffer) continue;
        out.built = checked_add(out.built, numel_of(parameter));
        if (missing.empty() && !stored.contains(parameter.name))
            missing = parameter.name + " " + shape_text(parameter.shape) + " is not there";
    }
    if (2 * met > tensors.size()) out.first = !wrong_shape.empty() ? wrong_shape : !missing.empty() ? missing : unknown;
    return out;
}

std::string joined(const std::vector<std::string>& words) {
    std::string out;
    for (const std::string& word : words) out += (out.empty() ? "" : ", ") + word;
    return out;
}

Diagnostic note(const std::string& path, Problem problem, std::string text) {
    return {Severity::note, problem, {path, 0, 0}, {}, {}, {}, std::move(text)};
}

/// The tensors that a class loads, told by names, and how they compare with what it builds.
struct Held {
    std::vector<StoredTensor> tensors;
    Compared compared;
};

/// What stands behind a wrapper's name is the model alone; if that does not agree, all of it may.
Held held(const std::vector<StoredTensor>& tensors, const std::vector<std::string>& beside,
          const std::vector<ListedParameter>& listed, bool may_be_wrapped) {
    const auto all_behind = [&](const std::string& prefix) {
        Held out{own_tensors(tensors, prefix, beside), {}};
        out.compared = compare(out.tensors, listed);
        return out;
    };
    const std::string wrapper = may_be_wrapped ? wrapper_of(tensors, listed) : "";
    Held inner = all_behind(wrapper);
    if (wrapper.empty() || inner.compared.agrees()) return inner;
    Held whole = all_behind("");
    return whole.compared.agrees() ? whole : inner;
}

/// "FluxTransformer2DModel as flux1_dev but for num_layers: 8 (19)"
std::string told(const std::string& class_name, const Variant& variant) {
    return class_name + " as " + variant.base + (variant.changed.empty() ? "" : " but for " + joined(variant.changed));
}

/// Takes a variant. Whose forwards profiles of the same net that are as near list, it lists: a config does not say who
/// trains it.
void take(const Variants& known, const Variant& variant, Described& out) {
    out.profile = variant.profile;
    for (const Variant& other : known.variants) {
        if (other.changed.size() != variant.changed.size()) continue;
        if (other.profile.config.values != variant.profile.config.values) continue;
        out.profile->forwards.insert(other.profile.forwards.begin(), other.profile.forwards.end());
    }
    const std::string sizes = variant.changed.empty() ? "" : "; the sizes that it takes are those of " + variant.base;
    out.notes.push_back(note(out.path, Problem::unknown_model, told(out.class_name, variant) + sizes));
}

/// What a person should know of the variant that was taken, where others are as near and hold as many parameters.
void tell_equals(const Variants& known, std::size_t taken, const std::vector<std::size_t>& equals, Described& out) {
    std::vector<std::string> same, other;
    for (const std::size_t i : equals) {
        const Variant& variant = known.variants[i];
        const bool is_same = variant.profile.config.values == known.variants[taken].profile.config.values;
        (is_same ? same : other).push_back(variant.base);
    }
    if (!same.empty()) out.notes.push_back(note(out.path, Problem::unknown_model, "the same net as " + joined(same)));
    if (other.empty()) return;
    out.notes.push_back(note(out.path, Problem::unknown_model,
                             "its weights may be those of " + joined(other) + " too, whose config differs"));
    out.notes.back().severity = Severity::warning;
}

/// The variant whose parameters the headers hold.
void match(const Variants& known, const std::vector<std::string>& beside, const std::vector<StoredTensor>& tensors,
           Described& out) {
    std::optional<std::size_t> taken;
    std::vector<std::size_t> equals;
    for (std::size_t i = 0; i < known.variants.size(); ++i) {
        const Variant& variant = known.variants[i];
        if (taken && variant.changed.size() > known.variants[*taken].changed.size()) break;
        const expected<std::vector<ListedParameter>> listed = parameters_of(variant.profile);
        if (!listed) {
            if (out.why_not.empty()) out.why_not = listed.error().front().text;
            continue;
        }
        const Held own = held(tensors, beside, *listed, known.prefix.empty());
        if (!own.compared.agrees()) {
            if (out.why_not.empty())
                out.why_not = "its headers hold " + std::to_string(own.compared.stored) + " parameters, and " +
                              told(out.class_name, variant) + " has " + std::to_string(own.compared.built) +
                              (own.compared.first.empty() ? "" : ": " + own.compared.first);
        } else if (taken) {
            equals.push_back(i);
        } else {
            taken = i;
            out.stored = io::by_type(own.tensors);
        }
    }
    if (!taken) return;
    out.why_not.clear();
    take(known, known.variants[*taken], out);
    tell_equals(known, *taken, equals, out);
}

}  // namespace

std::int64_t numel_of(const ListedParameter& parameter) {
    std::int64_t numel = 1;
    for (const std::int64_t size : parameter.shape) numel *= size;
    return numel;
}

expected<std::vector<ListedParameter>> parameters_of(const profile::ModelProfile& profile) {
    const auto refuse = [&](Problem problem, std::string why) {
        return Unexpected{{{Severity::error, problem, {profile.id, 0, 0}, {}, {}, {}, std::move(why)}}};
    };
    try {
        shadow::Run run({}, false);
        nn::Weights weights(run, "parameters", {});
        std::vector<ListedParameter> listed;
        weights.on_birth = [&](const std::string& name, const shadow::Parameter& parameter) {
            const shadow::Dims& sizes = parameter.value.sizes();
            if (listed.size() >= most_parameters) throw std::length_error("it has too many parameters");
            listed.push_back({name, {sizes.begin(), sizes.end()}, parameter.buffer});
        };
        static_cast<void>(build(weights, profile));
        return listed;
    } catch (const Overflow& overflow) {
        return refuse(Problem::overflow, std::string("this config is too large: ") + overflow.what());
    } catch (const std::exception& why) {
        return refuse(Problem::unsupported, std::string("this config cannot be built: ") + why.what());
    }
}

expected<Described> describe(const std::filesystem::path& path, profile::Wanted wanted,
                             const profile::Catalogue& catalogue) {
    expected<profile::SavedModel> saved = profile::read_saved_model(path, wanted);
    if (!saved) return Unexpected{saved.error()};
    expected<Variants> known = profile::variants_of(*saved, catalogue);
    if (!known) return Unexpected{known.error()};

    Described out{saved->path, known->class_name, {}, {}, known->why_not, std::move(saved->notes)};
    out.notes.insert(out.notes.end(), known->notes.begin(), known->notes.end());
    const profile::ModelClass* facts = catalogue.model_class(known->class_name);
    const std::vector<std::string> beside = facts == nullptr ? std::vector<std::string>{} : facts->beside;
    const std::vector<StoredTensor> tensors = own_tensors(saved->weights.tensors, known->prefix, {});
    out.stored = io::by_type(tensors);
    if (known->variants.empty()) return out;
    if (const std::string how = quantised_by(tensors); !how.empty()) {
        out.why_not = "its weights are quantised (" + how + "), and layers that were saved so are not modelled";
        return out;
    }
    if (!tensors.empty()) {
        match(*known, beside, tensors, out);
        return out;
    }
    for (const Variant& variant : known->variants) {
        const expected<std::vector<ListedParameter>> listed = parameters_of(variant.profile);
        if (!listed) {
            if (out.why_not.empty()) out.why_not = listed.error().front().text;
            continue;
        }
        out.why_not.clear();
        take(*known, variant, out);
        return out;
    }
    return out;
}

}  // namespace vram::models
