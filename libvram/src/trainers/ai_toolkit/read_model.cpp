#include <algorithm>
#include <array>
#include <utility>

#include "trainers/ai_toolkit/architectures/architecture.hpp"
#include "trainers/ai_toolkit/reading.hpp"
#include "trainers/named_model.hpp"
#include "trainers/truthy.hpp"

namespace vram::trainers::ai_toolkit {
namespace {

using io::Node;

/// What the architecture was called before `arch`. Source: config_modules.py, ModelConfig.
constexpr std::array<std::pair<std::string_view, std::string_view>, 10> arch_flags{{
    {"is_v2", "sd2"},
    {"is_v3", "sd3"},
    {"is_xl", "sdxl"},
    {"is_pixart", "pixart"},
    {"is_pixart_sigma", "pixart_sigma"},
    {"is_auraflow", "auraflow"},
    {"is_flux", "flux"},
    {"is_lumina2", "lumina2"},
    {"is_vega", "vega"},
    {"is_ssd", "ssd"},
}};

struct Arch {
    std::string name;
    std::string_view said_by;  // a key of `model`
};

Arch arch_of(const Node& model) {
    const auto says = [&](std::string_view flag) {
        const Node* value = model.find(flag);
        return value != nullptr && truthy(*value);
    };
    Arch out{"sd1", "name_or_path"};
    if (const Node* node = model.find("arch"); node != nullptr && node->text() != nullptr) {
        out = {node->text()->substr(0, node->text()->find(':')), "arch"};
    } else {
        for (const auto& [flag, name] : arch_flags)
            if (says(flag)) {
                out = {std::string(name), flag};
                break;
            }
    }
    // The one flag that is looked at beside the architecture; no `arch` holds a colon.
    if (out.name == "pixart" && says("is_pixart_sigma")) out.name = "pixart:sigma";
    return out;
}

/// get_qtype (toolkit/util/quantize.py): the trainer's names, which a job file writes behind their library's.
struct Qtypes {
    std::vector<std::string_view> names{"qfloat8_e4m3fn"};
    std::vector<job::Quantization> meant{job::Quantization::quanto_qfloat8};
    Qtypes() {
        for (std::size_t i = 1; i < job::quantization_names.size(); ++i) {
            const std::string_view name = job::quantization_names[i];
            if (name.starts_with("bnb_")) continue;
            names.push_back(name.substr(name.find('_') + 1));
            meant.push_back(static_cast<job::Quantization>(i));
        }
    }
};

/// `auto_memory` is its older name. What it does of itself is read before the qtypes, which change with it.
void read_offloading(Section& model, const Architecture* architecture, ModelConfig& out) {
    const bool auto_memory = model.flag("auto_memory", false);
    out.layer_offloading = model.flag("layer_offloading", auto_memory);
    const auto share = [&](std::string_view key) {
        const double said = model.fields.number(key, {.min = 0, .max = 1e6}, 1);
        if (said > 1)
            model.fields.complain(key, Problem::out_of_range,
                                  model.fields.path(key) + " is a share: from 1 on every layer is offloaded", "1",
                                  Severity::warning);
        return std::clamp(said, 0.0, 1.0);
    };
    const double offloaded = share("layer_offloading_transformer_percent"),
                 text_encoder = share("layer_offloading_text_encoder_percent");
    if (!out.layer_offloading || architecture == nullptr) return;
    const std::string key = model.value("layer_offloading") != nullptr ? "layer_offloading" : "auto_memory";
    if (!architecture->offloading.attaches) {
        model.fields.complain(key, Problem::unsupported,
                              "the trainer offloads no layer of " + std::string(architecture->title) +
                                  "; it only takes float8 for qfloat8, and keeps the adapter apart while it samples",
                              {}, Severity::warning);
        return;
    }
    out.offloaded = offloaded;
    out.offloaded_text_encoder = text_encoder;
    const bool draws = (offloaded > 0 && offloaded < 1) || (text_encoder > 0 && text_encoder < 1);
    if (draws)
        model.fields.complain(key, Problem::unsupported,
                              "the trainer draws the layers that it offloads; of each size as many are played as an "
                              "even draw gives",
                              {}, Severity::note);
}

void check_offloading(Section& model, const Architecture* architecture, const ModelConfig& out) {
    if (architecture == nullptr || !out.layer_offloading || !architecture->offloading.attaches) return;
    const std::string key = model.value("layer_offloading") != nullptr ? "layer_offloading" : "auto_memory";
    if (out.offloaded > 0 && architecture->offloading.leaves_parameters && (out.low_vram || out.quantize_said)) {
        if (model.reading.modelled)
            model.fields.complain(key, Problem::conflict,
                                  "the trainer stops: tables of " + std::string(architecture->title) +
                                      " stay on the host where layer_offloading finds them there, after " +
                                      (out.quantize_said ? "quantize" : "low_vram"));
        return;
    }
    for (const job::Quantization format : {out.quantize, out.quantize_te})
        if (job::to_text(format).starts_with("quanto_"))
            model.refuse(key,
                         "layers that quanto quantised are not offloaded here; the trainer takes float8 for "
                         "qfloat8 beside it");
}

/// Behind "|" stands an accuracy recovery adapter, for `recovery` to keep. `takes_float8`: for qfloat8.
job::Quantization read_qtype(Section& model, std::string_view key, bool takes_float8, std::string* recovery = nullptr) {
    const Qtypes qtypes;
    const Node* node = model.value(key);
    std::string type = node != nullptr ? model.fields.text(key, "qfloat8") : "qfloat8";
    if (const std::size_t bar = type.find('|'); bar != std::string::npos && recovery != nullptr) {
        *recovery = type.substr(bar + 1);
        type.resize(bar);
    } else if (takes_float8 && type == "qfloat8") {
        type = "float8";
    }
    if (model.is_null(key)) {
        model.refuse(key, "quantize needs one");
        return job::Quantization::none;
    }
    if (type == "qint4") {
        // quanto 0.2.4, tinygemm/packed.py; torch 2.13, aten/src/ATen/native/cuda/int4mm.cu.
        model.refuse(key, "quanto's qint4 packs bf16 weights as int32, which torch's kernel refuses: loading raises");
        return job::Quantization::none;
    }
    for (std::size_t i = 0; i < qtypes.names.size(); ++i)
        if (type == qtypes.names[i]) return qtypes.meant[i];
    if (type.starts_with("orbit"))
        model.refuse(key, "of ai-toolkit's own ways to quantise orbit is not");
    else
        model.fields.complain(key, Problem::bad_value, "the trainer has no qtype " + type, nearest(type, qtypes.names));
    return job::Quantization::none;
}

/// A list of texts, or one text standing for a list.
std::vector<std::string> patterns(const Node& node) {
    std::vector<std::string> out;
    if (node.text() != nullptr) out.push_back(*node.text());
    if (node.list() != nullptr)
        for (const Node& item : *node.list())
            if (item.text() != nullptr) out.push_back(*item.text());
    return out;
}

/// `quantize_kwargs`: arguments of quantize (toolkit/util/quantize.py), where the architecture hands them on.
void read_quantize_kwargs(Section& model, const Architecture* architecture, ModelConfig& out) {
    const Node* node = model.value("quantize_kwargs");
    if (node == nullptr || architecture == nullptr || !out.quantize_said || !truthy(*node)) return;
    if (!architecture->takes_quantize_kwargs) {
        model.fields.complain("quantize_kwargs", Problem::unsupported,
                              "the trainer passes over the quantize_kwargs of " + std::string(architecture->title), {},
                              Severity::note);
        return;
    }
    constexpr std::array<std::string_view, 5> arguments{"include", "exclude", "activations", "optimizer",
                                                        "quantize_device"};
    if (node->map() == nullptr) {
        model.fields.complain("quantize_kwargs", Problem::wrong_type,
                              model.fields.path("quantize_kwargs") + " must be a map, not " + node->spelled());
        return;
    }
    for (const auto& entry : *node->map()) {
        const std::string key = model.fields.path("quantize_kwargs") + "." + entry.key;
        if (entry.key == "include")
            out.quantized.only = patterns(entry.value);
        else if (entry.key == "exclude")
            out.quantized.ignore = patterns(entry.value);
        else if (std::find(arguments.begin(), arguments.end(), entry.key) == arguments.end())
            model.reading.complain_at(entry.value, key, Problem::conflict,
                                      "the trainer stops: quantize takes no further " + entry.key,
                                      nearest(entry.key, arguments));
        else if (truthy(entry.value) && model.reading.modelled)
            model.reading.complain_at(entry.value, key, Problem::unsupported,
                                      key + " is not modelled: of quantize_kwargs include and exclude are");
    }
}

/// `split_model_over_gpus`, which asks for is_flux before that follows from `arch`.
void read_split(Section& model) {
    if (!model.flag("split_model_over_gpus", false) || !model.reading.modelled) return;
    if (const Node* flag = model.value("is_flux"); flag == nullptr || !truthy(*flag))
        model.fields.complain("split_model_over_gpus", Problem::conflict,
                              "the trainer refuses split_model_over_gpus without is_flux: true");
    else
        model.refuse("split_model_over_gpus", "the model is spread over all cards there are, and only one is counted");
}

/// The LoRA of load_training_adapter, where the architecture's class has that.
void read_assistant(Section& model, const Architecture* architecture, ModelConfig& out) {
    constexpr std::string_view key = "assistant_lora_path";
    const Node* node = model.value(key);
    if (node == nullptr || architecture == nullptr) return;
    const std::string path = model.fields.text(key, "");
    if (!architecture->assistant.merges) {
        model.refuse(key, "it merges a LoRA while loading, and samples with it");
        return;
    }
    if (!model.reading.modelled) return;
    if (!is_there(path) && std::count(path.begin(), path.end(), '/') != 2) {
        model.fields.complain(key, Problem::conflict,
                              "the trainer stops: assistant_lora_path is neither a file nor owner/repository/file");
        return;
    }
    out.assistant_lora_path = path;
    if (out.offloaded > 0) model.refuse(key, "an assistant LoRA whose layers are offloaded, too, is not");
}

void check_recovery(Section& model, const Architecture* architecture, ModelConfig& out) {
    if (out.accuracy_recovery_adapter.empty() || architecture == nullptr) return;
    if (!architecture->quantizes_blocks) {
        model.fields.complain(
            "qtype", Problem::unsupported,
            "the trainer passes over the accuracy recovery adapter of " + std::string(architecture->title), {},
            Severity::note);
        out.accuracy_recovery_adapter.clear();
    } else if (!job::to_text(out.quantize).starts_with("toolkit_uint")) {
        // Of quanto's the layer is replaced in a parent that it does not have.
        model.refuse("qtype", "other formats than uint2 to uint8 beside an accuracy recovery adapter are not");
    }
}

void read_quantize(Section& model, const Architecture* architecture, ModelConfig& out) {
    const bool quantizes = architecture == nullptr || architecture->quantizes;
    const bool said = model.flag("quantize", false), said_te = model.flag("quantize_te", said);
    out.quantize_said = said;
    const bool quantize = quantizes && said;
    const bool by_quantize = architecture != nullptr && architecture->text_encoder_by_quantize;
    const bool quantize_te = by_quantize ? quantize : quantizes && said_te;
    const bool by_qtype = architecture == nullptr || architecture->text_encoder_by_qtype;
    if (quantize || (quantize_te && by_qtype)) {
        if (const Node* file = model.value("accuracy_recovery_adapter"); file != nullptr && truthy(*file))
            out.accuracy_recovery_adapter = model.fields.text("accuracy_recovery_adapter", "");
        const job::Quantization qtype = read_qtype(
            model, "qtype", out.layer_offloading || !out.assistant_lora_path.empty(), &out.accuracy_recovery_adapter);
        if (quantize) out.quantize = qtype;
        if (quantize_te && by_qtype) out.quantize_te = qtype;
        if (!out.accuracy_recovery_adapter.empty() && !out.assistant_lora_path.empty() && model.reading.modelled)
            model.fields.complain("assistant_lora_path", Problem::conflict,
                                  "the trainer stops: it takes an accuracy recovery adapter or an assistant LoRA, not "
                                  "both");
        if (!quantize) out.accuracy_recovery_adapter.clear();
        check_recovery(model, architecture, out);
    }
    if (quantize_te && !by_qtype) out.quantize_te = read_qtype(model, "qtype_te", out.layer_offloading);
    for (const std::string_view key : {"qtype", "qtype_te", "accuracy_recovery_adapter"})
        static_cast<void>(model.value(key));
}

void read_attn_masking(Section& model) {
    if (!model.flag("attn_masking", false)) return;
    if (const Node* flag = model.value("is_flux"); flag != nullptr && truthy(*flag))
        model.fields.complain("attn_masking", Problem::unsupported,
                              "attn_masking is not played; it costs at most the size of a few prompts", {},
                              Severity::note);
    else if (model.reading.modelled)
        model.fields.complain("attn_masking", Problem::conflict,
                              "the trainer refuses attn_masking without is_flux: true");
}

/// `model_kwargs`: what the architecture looks at is kept as it is spelled; the trainer passes over the rest.
void read_options(Section& model, ModelConfig& out) {
    const Node* node = model.value("model_kwargs");
    const Architecture* architecture = model.reading.architecture;
    if (node == nullptr || node->map() == nullptr || architecture == nullptr) return;
    for (const auto& entry : *node->map()) {
        const auto& known = architecture->options;
        if (std::find(known.begin(), known.end(), entry.key) != known.end())
            out.options.emplace(entry.key, entry.value.spelled());
    }
    if (architecture->refuses == nullptr) return;
    if (const std::string_view why = architecture->refuses(out.options); !why.empty())
        model.fields.complain("model_kwargs", Problem::conflict, std::string(why));
}

}  // namespace

void read_arch(Section& process, Config& config) {
    const Node* model = process.value("model");
    if (model == nullptr || !model->is(io::Kind::map)) return;
    Reading& reading = process.reading;
    const std::string path = process.fields.path("model");
    if (const Node* node = model->find("arch");
        node != nullptr && !node->is(io::Kind::null) && node->text() == nullptr) {
        reading.complain_at(*node, path + ".arch", Problem::wrong_type,
                            path + ".arch must be a text, not " + node->spelled());
        reading.modelled = false;
        return;
    }
    const Arch arch = arch_of(*model);
    config.model.arch = arch.name;
    reading.architecture = architecture_named(arch.name);
    if (!reading.modelled) return;
    const std::string key = path + "." + std::string(arch.said_by);
    if (reading.architecture != nullptr && !reading.architecture->fails_with.empty()) {
        reading.modelled = false;
        reading.complain_at(
            *model->find(arch.said_by), key, Problem::conflict,
            "the trainer itself fails on " + arch.name + ": " + std::string(reading.architecture->fails_with));
    }
    if (reading.architecture != nullptr) return;
    reading.modelled = false;
    std::vector<std::string_view> known;
    for (const Architecture* one : architectures())
        if (one->fails_with.empty()) known.insert(known.end(), one->names.begin(), one->names.end());
    std::string names(known.front());
    for (std::size_t i = 1; i < known.size(); ++i)
        names += (i + 1 == known.size() ? " and " : ", ") + std::string(known[i]);
    const std::string text = "the architecture " + arch.name + " is not modelled yet; " + names + " are";
    if (const Node* said = model->find(arch.said_by))
        reading.complain_at(*said, key, Problem::unsupported, text);
    else
        reading.complaints.push_back(
            {Severity::error, Problem::unsupported, reading.document.place_of(*model), key, {}, {}, text});
}

void read_model(Section& process, Config& config) {
    Section model = process.section("model", SectionId::model);
    ModelConfig& out = config.model;
    const bool is_no_map = model.fields.is_absent() && process.value("model") != nullptr;
    if (!is_no_map) out.name_or_path = path_of(model, "name_or_path", model.fields.text("name_or_path", io::required));
    for (const auto& [flag, name] : arch_flags) static_cast<void>(model.flag(flag, false));
    read_offloading(model, model.reading.architecture, out);
    read_assistant(model, model.reading.architecture, out);
    read_quantize(model, model.reading.architecture, out);
    out.low_vram = model.flag("low_vram", false);
    check_offloading(model, model.reading.architecture, out);
    out.use_text_encoder_1 = model.flag("use_text_encoder_1", true);
    out.use_text_encoder_2 = model.flag("use_text_encoder_2", true);
    out.names = {model.parts("only_if_contains"), model.parts("ignore_if_contains")};
    const Architecture* architecture = model.reading.architecture;
    const bool quantizes = architecture == nullptr || architecture->quantizes;
    for (const auto& [key, rest] :
         {std::pair{"quantize", "; it only keeps the adapter apart while it samples"}, {"quantize_te", ""}})
        if (!quantizes && model.value(key) != nullptr && model.flag(key, false))
            model.fields.complain(key, Problem::unsupported,
                                  "the trainer quantises nothing of " + std::string(architecture->title) + rest, {},
                                  Severity::warning);
    // bitsandbytes', of encoders that `quantize` leaves alone.
    if (const std::int64_t bits = model.fields.integer("text_encoder_bits", {.min = 1}, 16); !quantizes && bits < 16)
        model.refuse("text_encoder_bits", "a text encoder in 8 or 4 bits is not");
    read_quantize_kwargs(model, architecture, out);
    read_split(model);
    read_attn_masking(model);
    read_options(model, out);
    for (const std::string_view key : {"vae_dtype", "te_dtype"})
        if (model.value(key) != nullptr) model.refuse(key, "the VAE and the text encoders are taken in train.dtype");
    model.finish();
}

}  // namespace vram::trainers::ai_toolkit
