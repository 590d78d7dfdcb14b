// More of anything never needs less: frames, layers, text, reference images. On tensors.
#include <doctest/doctest.h>

#include <algorithm>

#include "laws/plays.hpp"

using namespace vram;
using laws::Kind;

namespace {

Bytes peak(const laws::Played& played) { return played.usage.tensors_peak; }

/// What may be done with a profile: trained and called, or called; a VAE encodes and decodes.
std::vector<job::Job> jobs_of(const profile::ModelProfile& profile) {
    std::vector<job::Job> out;
    if (profile.kind == profile::ModelKind::denoiser)
        out = {laws::job_of(profile, Kind::lora, true), laws::job_of(profile, Kind::full, false)};
    out.push_back(laws::job_of(profile, Kind::call, false));
    if (profile.kind == profile::ModelKind::vae) {
        out.push_back(out.back());
        std::get<job::Call>(out.back().work).operation = job::Call::Operation::encode;
    }
    return out;
}

/// The config keys of a family that count layers: a number, or a list with one for each stage.
struct Layers {
    std::string_view family;
    std::vector<std::string_view> keys;
    std::string_view one_each = {};  // a list with one for each layer of all keys
};
const std::vector<Layers>& all_layers() {
    static const std::vector<Layers> list{
        {"auraflow", {"num_mmdit_layers", "num_single_dit_layers"}},
        {"autoencoder_dc", {"encoder_layers_per_block", "decoder_layers_per_block"}},
        {"autoencoder_kl", {"layers_per_block"}},
        {"autoencoder_kl_cogvideox", {"layers_per_block"}},
        {"autoencoder_kl_hunyuan_video", {"layers_per_block"}},
        {"autoencoder_kl_hunyuanvideo15", {"layers_per_block"}},
        {"autoencoder_kl_ltx", {"layers_per_block", "decoder_layers_per_block"}},
        {"autoencoder_kl_ltx2", {"layers_per_block", "decoder_layers_per_block"}},
        {"autoencoder_kl_ltx2_audio", {"num_res_blocks"}},
        {"autoencoder_kl_mochi", {"layers_per_block"}},
        {"autoencoder_kl_qwenimage", {"num_res_blocks"}},
        {"autoencoder_kl_wan", {"num_res_blocks"}},
        {"chatglm", {"num_layers"}},
        {"chroma", {"num_layers", "num_single_layers", "approximator_layers"}},
        {"clip_text", {"num_hidden_layers"}},
        {"clip_vision", {"num_hidden_layers"}},
        {"cogvideox", {"num_layers"}},
        {"ernie_image", {"num_layers"}},
        {"flux", {"num_layers", "num_single_layers"}},
        {"flux2", {"num_layers", "num_single_layers"}},
        {"hidream", {"num_layers", "num_single_layers"}, "llama_layers"},
        {"hunyuan_video", {"num_layers", "num_single_layers", "num_refiner_layers"}},
        {"hunyuan_video15", {"num_layers", "num_refiner_layers"}},
        {"hunyuan_video_framepack", {"num_layers", "num_single_layers", "num_refiner_layers"}},
        {"kandinsky5", {"num_text_blocks", "num_visual_blocks"}},
        {"krea2", {"num_layers", "num_layerwise_text_blocks", "num_refiner_text_blocks"}},
        {"ltx", {"num_layers"}},
        {"ltx2", {"num_layers"}},
        {"ltx2_connectors", {"video_connector_num_layers", "audio_connector_num_layers"}},
        {"ltx2_vocoder", {}},  // as many stages as its lists are long
        {"lumina2", {"num_layers", "num_refiner_layers"}},
        {"mochi", {"num_layers"}},
        {"omnigen2", {"num_layers", "num_refiner_layers"}},
        {"pixart", {"num_layers"}},
        {"qwen2_5_vl", {"num_hidden_layers", "vision_depth"}},
        {"qwen3_vl", {"num_hidden_layers", "vision_depth"}},
        {"qwen_image", {"num_layers"}},
        {"sana", {"num_layers"}},
        {"sd3", {"num_layers"}},
        {"t5", {"num_layers"}},
        {"text_decoder", {"num_hidden_layers"}},
        {"unet", {"layers_per_block", "transformer_layers_per_block"}},
        {"vision_language", {"num_hidden_layers", "vision_num_hidden_layers"}},
        {"wan", {"num_layers"}},
        {"z_image", {"n_layers", "n_refiner_layers"}},
    };
    return list;
}

/// A number, or every number of a list, becomes `count`.
void set_layers(profile::ModelProfile& profile, std::string_view key, std::int64_t count) {
    const auto found = profile.config.values.find(key);
    REQUIRE(found != profile.config.values.end());
    if (auto* list = std::get_if<std::vector<std::int64_t>>(&found->second))
        std::fill(list->begin(), list->end(), count);
    else
        found->second = count;
}

profile::Catalogue only(const profile::ModelProfile& profile) {
    return *profile::Catalogue::of({profile}, laws::catalogue().cards());
}

}  // namespace

TEST_CASE("more frames never need less") {
    for (const profile::ModelProfile& profile : laws::catalogue().models()) {
        if (profile.frame_step == 0) continue;
        CAPTURE(profile.id);
        for (job::Job& job : jobs_of(profile))
            for (const bool tiling : {false, true}) {  // in places, or in frames
                if (tiling && profile.kind != profile::ModelKind::vae) continue;
                if (auto* call = std::get_if<job::Call>(&job.work)) call->tiling = tiling;
                CAPTURE(tiling);
                Bytes before = 0;
                for (const std::int64_t steps : {0, 1, 2, 4, 6}) {
                    CAPTURE(steps);
                    laws::batch_of(job).frames = steps * profile.frame_step + 1;
                    const Bytes now = peak(laws::play(job));
                    CHECK(now >= before);
                    before = now;
                }
            }
    }
}

TEST_CASE("more layers never need less") {
    for (const profile::ModelProfile& profile : laws::catalogue().models()) {
        CAPTURE(profile.id);
        const auto layers = std::find_if(all_layers().begin(), all_layers().end(),
                                         [&](const Layers& of) { return of.family == profile.family; });
        REQUIRE(layers != all_layers().end());
        profile::ModelProfile least = profile;
        for (const std::string_view key : layers->keys) set_layers(least, key, 1);
        if (!layers->one_each.empty())
            std::get<std::vector<std::int64_t>>(least.config.values.find(layers->one_each)->second)
                .resize(layers->keys.size());
        const profile::Catalogue of_least = only(least);
        for (const job::Job& job : jobs_of(profile)) {
            const laws::Played one = laws::play(job, true, of_least);
            for (const std::string_view key : layers->keys) {
                CAPTURE(key);
                profile::ModelProfile more = least;
                set_layers(more, key, 2);
                const laws::Played two = laws::play(job, true, only(more));
                CHECK(two.facts.weights > one.facts.weights);  // the key does count layers
                CHECK(peak(two) >= peak(one));
            }
        }
    }
}

// By doubling: a mask's last dimension is padded to eight elements, so 39 tokens may need more than 40.
TEST_CASE("more text never needs less") {
    for (const profile::ModelProfile& profile : laws::catalogue().models()) {
        const std::int64_t tokens = profile.defaults.text_tokens, end = profile.at_most.text_tokens;
        if (tokens == 0) continue;
        CAPTURE(profile.id);
        for (job::Job& job : jobs_of(profile))
            for (const bool mask : {false, true}) {
                auto* call = std::get_if<job::Call>(&job.work);
                if (mask && profile.kind == profile::ModelKind::denoiser) continue;
                if (call != nullptr) call->attention_mask = mask;
                Bytes before = 0;
                for (const std::int64_t count : {tokens / 4, tokens / 2, tokens, 2 * tokens}) {
                    if (end > 0 && count > end) continue;
                    CAPTURE(count);
                    job.text_tokens = count;
                    const Bytes now = peak(laws::play(job));
                    CHECK(now >= before);
                    before = now;
                }
            }
    }
}

TEST_CASE("two reference images need no less than one, one no less than none") {
    for (const profile::ModelProfile& profile : laws::catalogue().models()) {
        if (!profile.reference_images) continue;
        CAPTURE(profile.id);
        for (job::Job& job : jobs_of(profile)) {
            job.reference_images.clear();
            Bytes before = 0;
            for (int pictures = 0; pictures <= 2; ++pictures) {
                CAPTURE(pictures);
                job.reference_images.resize(static_cast<std::size_t>(pictures), {256, 384});
                const Bytes now = peak(laws::play(job));
                CHECK(now >= before);
                before = now;
            }
        }
    }
}
