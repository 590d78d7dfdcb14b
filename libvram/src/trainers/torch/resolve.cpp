#include "trainers/torch/resolve.hpp"

#include <algorithm>
#include <optional>

#include "trainers/named_model.hpp"
#include "trainers/surroundings.hpp"
#include "trainers/torch/resolved.hpp"
#include "trainers/torch/sizes.hpp"
#include "trainers/torch/train.hpp"
#include "vram/io/fields.hpp"
#include "vram/profile/catalogue.hpp"

namespace vram::trainers::torch {
namespace {

using profile::ModelKind;
using profile::ModelProfile;

constexpr io::Choice<Dtype> dtypes[] = {{"bf16", Dtype::bf16}, {"fp16", Dtype::f16}, {"fp32", Dtype::f32}};
constexpr io::IntegerRange batch_sizes{1, 4096};

/// Ids of docs/job-file.md that no part of this library plays.
constexpr std::string_view unplayed[] = {"kohya_fp8", "kohya_fp8_scaled", "svdq_int4"};

/// What `key` says of the model that is called or trained; of any other part it says nothing that this trainer has.
job::Quantization read_scheme(io::Fields& fields, std::string_view key) {
    const std::string id = fields.text(key, "none");
    const auto& names = job::quantization_names;
    const auto found = std::find(names.begin(), names.end(), id);
    if (found != names.end()) return static_cast<job::Quantization>(found - names.begin());
    if (std::find(std::begin(unplayed), std::end(unplayed), id) != std::end(unplayed) || id.starts_with("gguf_")) {
        fields.complain(key, Problem::unsupported, fields.path(key) + ": " + id + " is not modelled");
    } else {
        std::vector<std::string_view> known(names.begin(), names.end());
        known.insert(known.end(), std::begin(unplayed), std::end(unplayed));
        fields.complain(key, Problem::bad_value, fields.path(key) + ": unknown scheme " + id, nearest(id, known));
    }
    return job::Quantization::none;
}

/// The part of a map that is the model's, and whether the others keep their hands off.
job::Quantization read_quantize(io::Fields& job, const ModelProfile* profile) {
    const io::Node* node = job.node("quantize");
    if (node == nullptr) return job::Quantization::none;
    if (node->map() == nullptr) return read_scheme(job, "quantize");
    io::Fields parts = job.map("quantize");
    job::Quantization out = job::Quantization::none;
    for (std::string_view part : {"transformer", "unet", "text_encoder", "vae"}) {
        const job::Quantization said = read_scheme(parts, part);
        if (said == job::Quantization::none) continue;
        const bool denoiser = part == "transformer" || part == "unet";
        const ModelKind due = denoiser                 ? ModelKind::denoiser
                              : part == "text_encoder" ? ModelKind::text_encoder
                                                       : ModelKind::vae;
        if (profile == nullptr || profile->kind == due)
            out = said;
        else
            parts.complain(part, Problem::conflict,
                           parts.path(part) + ": this trainer has no such part beside " + profile->id);
    }
    parts.finish();
    return out;
}

/// What is trained over quantised weights: adapters of PEFT's plain class, lora.Linear.
void refuse_quantized(io::Fields& job, const job::Training& training, job::Quantization quantization) {
    const std::string id(job::to_text(quantization));
    if (std::holds_alternative<job::FullFinetune>(training.method))
        job.complain("quantize", Problem::unsupported, "training quantised weights in full is not modelled");
    else if (id.starts_with("bnb_"))
        job.complain("quantize", Problem::unsupported,
                     "PEFT wraps linears of bitsandbytes in classes of its own, which are not modelled; " + id +
                         " is for a call, without train");
}

/// The keys of a component's call. Elsewhere they have no meaning, and true is a mistake.
struct Switches {
    bool tiling, slicing, attention_mask, all_hidden_states, use_cache;
};
bool read_switch(io::Fields& job, std::string_view key, const ModelProfile* profile, ModelKind due) {
    const bool on = job.boolean(key, false);
    if (on && profile != nullptr && profile->kind != due)
        job.complain(key, Problem::conflict,
                     std::string(key) + " is for the call of a " + std::string(to_text(due)) + ", and " + profile->id +
                         " is a " + std::string(to_text(profile->kind)));
    return on;
}
Switches read_switches(io::Fields& job, const ModelProfile* profile) {
    return {read_switch(job, "tiling", profile, ModelKind::vae), read_switch(job, "slicing", profile, ModelKind::vae),
            read_switch(job, "attention_mask", profile, ModelKind::text_encoder),
            read_switch(job, "all_hidden_states", profile, ModelKind::text_encoder),
            read_switch(job, "use_cache", profile, ModelKind::text_encoder)};
}

job::Call::Operation read_operation(io::Fields& job, const ModelProfile* profile, bool component) {
    using Operation = job::Call::Operation;
    static constexpr io::Choice<Operation> operations[] = {
        {"encode", Operation::encode}, {"decode", Operation::decode}, {"forward", Operation::forward}};
    const std::optional<Operation> op = job.choice("op", operations);
    if (!component) {
        if (job.has("op")) job.complain("op", Problem::conflict, "op is for a component's call");
        return Operation::forward;
    }
    const bool is_vae = profile != nullptr && profile->kind == ModelKind::vae;
    if (is_vae && !job.has("op")) (void)job.require("op");
    if (is_vae && op == Operation::forward)
        job.complain("op", Problem::bad_value, "a VAE's op is encode or decode", "decode");
    if (profile != nullptr && !is_vae && op && op != Operation::forward)
        job.complain("op", Problem::bad_value, "a text encoder's op is forward", "forward");
    return op.value_or(Operation::forward);
}

/// Whose forward of the model is called: that of the profile's own class, or a trainer's. Whether it is a trainer's.
bool read_forward(io::Fields& job, NamedModel& model, bool component) {
    const std::string own = "diffusers", word = job.text("forward", own);
    if (!job.has("forward") || word.empty()) return false;
    if (component) job.complain("forward", Problem::conflict, "forward is for a model, and this is a component's call");
    if (component || word == own || !model.profile) return false;
    if (model.profile->forwards.contains(word)) {
        model.profile = profile::with_forward(*std::move(model.profile), word);
        return true;
    }
    std::vector<std::string_view> known{own};
    for (const auto& [forward, family] : model.profile->forwards) known.push_back(forward);
    std::string listed;
    for (const std::string_view forward : known) listed += (listed.empty() ? "" : ", ") + std::string(forward);
    job.complain("forward", Problem::bad_value,
                 "forward must be one that " + model.profile->id + " has (" + listed + "), not " + word,
                 nearest(word, known));
    return false;
}

/// Weights are taken in the job's dtype, however they lie on the disk.
void note_stored(const NamedModel& model, Dtype dtype, const io::Fields& job, std::string_view key,
                 Diagnostics& notes) {
    if (model.stored.empty() || model.weights_only) return;
    const std::string& type = model.stored.front().type;
    static constexpr io::Choice<Dtype> types[] = {{"BF16", Dtype::bf16}, {"F16", Dtype::f16}, {"F32", Dtype::f32}};
    for (const io::Choice<Dtype>& choice : types)
        if (choice.word == type && choice.value == dtype) return;
    notes.push_back(
        {Severity::note,
         Problem::unsupported,
         job.place(key),
         job.path(key),
         type,
         {},
         "its weights are stored as " + type + " and taken in " + std::string(to_text(dtype)) + ", as dtype says"});
}

}  // namespace

expected<job::Job> resolve(const io::Document& document, const profile::Catalogue& catalogue, Diagnostics& notes) {
    Diagnostics complaints = document.complaints;
    for (Diagnostic& doubled : complaints) doubled.severity = Severity::error;
    io::Fields fields(document, complaints);

    job::Job job;
    (void)fields.integer("vramest", {1, 1}, io::required);
    fields.ignore("trainer");  // whoever chose this trainer has read it
    job.trainer = "torch";

    const bool both = fields.has("component") && fields.has("model");
    job.component = fields.has("component") && !both;
    if (both) fields.complain("component", Problem::conflict, "model and component exclude each other");
    const std::string_view model_key = job.component ? "component" : "model";
    NamedModel model = read_model(document, fields, model_key, job.component, catalogue, notes);
    const bool own_forward = read_forward(fields, model, job.component);
    const ModelProfile* profile = model.profile ? &*model.profile : nullptr;
    if (profile != nullptr) job.model = profile->id;
    job.dtype = fields.choice("dtype", dtypes, Dtype::bf16);
    note_stored(model, job.dtype, fields, model_key, notes);
    job.stored = std::move(model.stored);
    job.quantization = read_quantize(fields, profile);
    if (job.quantization == job::Quantization::quanto_qint4 && job.dtype == Dtype::bf16)
        fields.complain(
            "quantize", Problem::unsupported,
            "quanto's qint4 packs bf16 weights by a kernel that torch has refused to take int32 in since 2.5");

    const job::Call::Operation operation = read_operation(fields, profile, job.component);
    const Switches switches = read_switches(fields, profile);
    const bool trains = fields.has("train");
    if (trains && job.component)
        fields.complain("train", Problem::conflict,
                        "a component is called, not trained: train and component exclude each other");
    if (trains && fields.has("batch_size"))
        fields.complain("batch_size", Problem::conflict, "batch_size is of the one call where there is no train",
                        "train.batch_size");

    std::optional<job::Training> training;
    std::int64_t batch_size = fields.integer("batch_size", batch_sizes, 1);
    if (trains) {
        io::Fields train = fields.map("train");
        training = train.is_absent() ? job::Training{} : read_training(train, job.dtype);
        batch_size = train.integer("batch_size", batch_sizes, 1);
        train.finish();
    }
    if (training && job.quantization != job::Quantization::none) refuse_quantized(fields, *training, job.quantization);
    Sizes sizes = read_sizes(document, fields, profile, trains, batch_size, complaints, notes);
    job.text_tokens = sizes.text_tokens;
    job.reference_images = std::move(sizes.reference_images);
    if (training) {
        training->batches = std::move(sizes.batches);
        job.work = *std::move(training);
    } else {
        job.work = job::Call{operation,         sizes.batches.front(),   switches.tiling,
                             switches.slicing,  switches.attention_mask, switches.all_hidden_states,
                             switches.use_cache};
    }
    if (const io::Node* sample = fields.node("sample"); sample != nullptr && !sample->is(io::Kind::null))
        fields.complain("sample", Problem::unsupported, "trainer torch renders no samples");
    job.environment = read_environment(fields, notes);
    job.card = read_card(fields, catalogue.cards());
    fields.finish();
    if (model.weights_only && has_errors(complaints)) complaints.push_back(model.weights_only->why);
    if (has_errors(complaints)) return Unexpected{std::move(complaints)};
    if (model.weights_only) {
        job.model = model.weights_only->why.found;
        job.work = *std::move(model.weights_only);
    }
    if ((model.was_read || own_forward) && profile != nullptr) job.described.push_back(*profile);
    job.resolved = resolved_keys(job);
    return job;
}

}  // namespace vram::trainers::torch
