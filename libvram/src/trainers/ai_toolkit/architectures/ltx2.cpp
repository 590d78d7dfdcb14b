// `arch: ltx2` and `arch: ltx2.3`: LTX2Model and LTX23Model (extensions_built_in/diffusion_models/ltx2/ltx2.py,
// 27a03a91), and diffusers' LTX2Pipeline.
#include "models/ltx2.hpp"

#include <array>
#include <utility>
#include <vector>

#include "shadow/ops.hpp"
#include "trainers/ai_toolkit/architectures/architecture.hpp"
#include "trainers/ai_toolkit/pipeline.hpp"

namespace vram::trainers::ai_toolkit {
namespace ltx {
namespace {

using shadow::Category;
using shadow::ComponentScope;
using shadow::NoGrad;
using shadow::Op;
using shadow::StageScope;

/// What prompts are padded to in front of the connectors; the text encoder takes no more.
constexpr std::int64_t connector_tokens = 1024;
/// Of an empty prompt: where it begins.
constexpr std::int64_t blank_tokens = 1;
constexpr std::int64_t latent_channels = 128, spatial = 32, temporal = 8;
constexpr std::int64_t audio_channels = 8, audio_mel_bins = 16;  // of audio latents
/// Pictures a second in samples: the pipeline's own.
constexpr std::int64_t sample_fps = 24;

/// What a version brings besides the transformer.
struct Version {
    std::string_view connectors, vocoder;
    bool perturbs;  // its transformer can leave a block's self-attention out
};

class Ltx2 final : public Pipeline {
  public:
    Ltx2(const Architecture& architecture, const Version& version, const job::Job& job_in,
         const profile::Catalogue& catalogue, Run& run_in)
        : Pipeline(architecture, job_in, catalogue, run_in),
          perturbs_(version.perturbs),
          audio_vae_(run, "audio_vae", plain_rules(job.pipeline.vae_dtype), catalogue.model_of("vae_ltx2_audio")),
          connectors_(run, "connectors", plain_rules(job.dtype), catalogue.model_of(std::string(version.connectors))),
          vocoder_(run, "vocoder", plain_rules(job.dtype), catalogue.model_of(std::string(version.vocoder))) {
        vae->along.push_back(&audio_vae_);  // ComboVae
    }

    // The transformer is quantised through the GPU, the text encoder where it lies in host memory.
    void load_model(Loading& loading) override {
        if (job.quantization != job::Quantization::none) {
            loading.quantizes();
            transformer.quantize_model();
            flush();
        }
        transformer.attach_memory_manager();
        flush();
        text_encoders[0]->attach_memory_manager();
        text_encoders[0]->to_gpu();
        flush();
        if (!job.pipeline.low_vram) transformer.to_gpu();
        flush();
        {
            const ComponentScope scope(run, "audio_processor", Category::weights);
            audio_processor_.push_back(run.empty({n_fft}, Dtype::f32, Op::to_device));                    // window
            audio_processor_.push_back(run.empty({n_fft / 2 + 1, mel_bins}, Dtype::f32, Op::to_device));  // fb
        }
        transformer.to_gpu();  // BaseSDTrainProcess.run
        flush();
    }

    // get_generation_pipeline brings all of the pipeline, of which the last two never go again.
    void set_device_state_preset(const Placement& where) override {
        place(where);
        if (where != Placement{true, true, true}) return;
        audio_vae_.to_gpu();
        connectors_.to_gpu();
        vocoder_.to_gpu();
    }

    [[nodiscard]] PromptEmbeds get_prompt_embeds(const Prompts& prompts) override {
        Part& text_encoder = *text_encoders[0];
        text_encoder.to_gpu();
        models::Request request;
        request.batch = prompts.count;
        request.text_tokens = prompts.blank ? blank_tokens : job.text_tokens;
        request.dtype = job.pipeline.text_encoder_dtype;
        request.attention_mask = request.all_hidden_states = request.use_cache = true;
        const Tensors ids_and_mask = on_device(run, text_encoder.model->inputs(request));
        // {logits, what went into the first layer, of each layer, keys and values}
        const Tensors text_encoder_outputs = text_encoder.forward(ids_and_mask, request);
        const auto first = text_encoder_outputs.begin() + 1;
        const Tensor text_encoder_hidden_states = shadow::stack(std::vector<Tensor>(first, first + text_layers), -1);
        Tensor prompt_embeds = shadow::to(shadow::flatten(text_encoder_hidden_states, 2, 3), job.dtype);
        prompt_embeds = shadow::repeat(prompt_embeds, {1, 1, 1});
        PromptEmbeds out;
        out.text_embeds = {prompt_embeds};
        out.attention_mask = shadow::repeat(ids_and_mask[1], {1, 1});
        return out;
    }

    /// pad_embeds: of each prompt as many tokens as the connectors want.
    void pad_embeds(PromptEmbeds& embeds) override {
        const Tensor& text_embeds = embeds.text_embeds[0];
        const std::int64_t count = text_embeds.size(0), pad_length = connector_tokens - text_embeds.size(1);
        if (pad_length <= 0) return;
        const Tensor pad_tensor = run.empty({count, pad_length, text_embeds.size(2)}, text_embeds.dtype(), Op::zeros);
        embeds.text_embeds[0] = shadow::cat({pad_tensor, text_embeds}, 1);
        const Tensor pad_mask = run.empty({count, pad_length}, embeds.attention_mask.dtype(), Op::zeros);
        embeds.attention_mask = shadow::cat({pad_mask, embeds.attention_mask}, 1);
    }

    [[nodiscard]] Dims latents(const job::Batch& batch) const override {
        return {batch.count, latent_channels, (batch.frames - 1) / temporal + 1, batch.height / spatial,
                batch.width / spatial};
    }

    [[nodiscard]] Tensor encode_images(Tensor image_list_in, const job::Batch& batch) override {
        const Tensor image_list = std::move(image_list_in);
        vae->alone_to_gpu();
        const ComponentScope scope(run, "vae");
        const std::vector<Tensor> norm_images = clips_of(image_list);
        const Tensor images = shadow::stack(norm_images, 0);
        models::Request request = vae_request(batch, batch.count, models::Request::Operation::encode);
        if (job.pipeline.low_vram) {
            request.tile_frames = 64;
            request.tile_frames_stride = 16;
        }
        Tensor latents = sampled(vae->forward({images}, request));
        const Tensor mean = statistic(latents.dtype()), std = statistic(latents.dtype());
        Tensor centred = shadow::sub(latents, mean);
        centred = shadow::mul_scalar(std::move(centred));
        latents = shadow::div(std::move(centred), std);
        return latents;
    }

    // encode_audio of one item: stereo at 16 kHz, as the loader hands it over at 48.
    void encode_audio(const job::Batch& item) override { static_cast<void>(audio_latents_of(item)); }

    [[nodiscard]] Tensor get_noise_prediction(const Tensor& latent_model_input_in, const Tensor& timestep,
                                              const PromptEmbeds& text_embeddings, const job::Batch& batch) override {
        Tensor latent_model_input = latent_model_input_in;
        i2v_loss_mask_ = Tensor();
        const Dims sizes = latent_model_input.sizes();
        const std::int64_t batch_size = sizes[0];
        Tensor video_timestep, packed_latents, audio_latents, video_coords, audio_coords;
        Tensor init_latents, conditioning_mask, packed_conditioning_mask, raw_audio_latents, audio_noise;
        Tensors prompt;  // for video, for audio, and their mask
        {
            const NoGrad no_grad(run);
            const ComponentScope scope(run, "batch", Category::latents_and_embeddings);
            video_timestep = shadow::clone(timestep);
            if (batch.first_frame && batch.frames > 1) {
                init_latents = first_frame_latents(batch);
                init_latents = shadow::repeat(init_latents, {1, 1, sizes[2], 1, 1});
                conditioning_mask = run.empty({batch_size, 1, sizes[2], sizes[3], sizes[4]}, job.dtype, Op::zeros);
                {
                    const Tensor given = shadow::mul(init_latents, conditioning_mask);
                    Tensor noisy = shadow::rsub_scalar(conditioning_mask);
                    noisy = shadow::mul(latent_model_input, std::move(noisy));
                    latent_model_input = shadow::add(given, std::move(noisy));
                }
                i2v_loss_mask_ = shadow::rsub_scalar(conditioning_mask, true);
                packed_conditioning_mask = shadow::squeeze(pack_latents(conditioning_mask), -1);
                Tensor noise_there = shadow::rsub_scalar(packed_conditioning_mask);
                video_timestep = shadow::mul(shadow::unsqueeze(timestep, -1), std::move(noise_there));
            }
            packed_latents = pack_latents(latent_model_input);
            if (batch.audio && batch.frames > 1) {
                raw_audio_latents =
                    job.pipeline.cache_latents
                        ? run.empty(audio_tokens(batch_size, batch.frames, batch.fps), job.dtype, Op::to_device)
                        : audio_latents_of(batch);
                audio_noise = audio_noise_.defined() ? audio_noise_ : run.empty_like(raw_audio_latents, Op::noise);
                audio_noise_ = audio_noise;
                if (!audio_target_.defined()) audio_target_ = shadow::sub(audio_noise, raw_audio_latents);
                std::vector<Tensor> noisy;
                for (std::int64_t i = 0; i < batch_size; ++i)
                    noisy.push_back(add_noise(shadow::slice(raw_audio_latents, 0, i, i + 1),
                                              shadow::slice(audio_noise, 0, i, i + 1),
                                              shadow::slice(timestep, 0, i, i + 1)));
                audio_latents = shadow::cat(noisy, 0);
                noisy.clear();
                audio_latents = shadow::to(audio_latents, job.dtype);
            } else {
                audio_latents = prepare_audio_latents(batch_size, batch.frames, batch.fps, Op::noise);
            }
            connectors_.to_gpu();
            prompt = connect(text_embeddings.text_embeds[0], text_embeddings.attention_mask);
            video_coords = models::ltx2::prepare_video_coords(run, batch_size, {sizes[2], sizes[3], sizes[4]});
            audio_coords = models::ltx2::prepare_audio_coords(run, batch_size, audio_latents.size(1));
        }
        models::Request request = request_of(batch, text_embeddings);
        request.attention_mask = true;
        Tensor noise_pred_video, noise_pred_audio;
        {
            const Tensors noise_pred =
                transform_all({packed_latents, shadow::to(audio_latents, job.dtype), prompt[0], prompt[1],
                               video_timestep, timestep, prompt[2], prompt[2], video_coords, audio_coords, timestep},
                              request);
            noise_pred_video = noise_pred[0];
            noise_pred_audio = noise_pred[1];
        }
        // Of the several predictions of a step the loss is of the one with gradients.
        if (audio_target_.defined() && run.grad_enabled()) audio_pred_ = noise_pred_audio;
        return unpack_latents(noise_pred_video, sizes);
    }

    [[nodiscard]] Tensor scale_loss(Tensor loss) override {
        if (!i2v_loss_mask_.defined()) return loss;
        loss = masked_loss(std::move(loss), i2v_loss_mask_);
        i2v_loss_mask_ = Tensor();
        return loss;
    }

    [[nodiscard]] Tensor add_audio_loss(Tensor loss) override {
        if (!audio_pred_.defined()) return loss;
        Tensor audio_loss;
        {
            Tensor pred = shadow::to_float(audio_pred_);
            Tensor target = shadow::to_float(audio_target_);
            audio_loss = shadow::mse_loss(std::move(pred), std::move(target));
        }
        audio_loss = shadow::mul_scalar(audio_loss);
        return shadow::add(loss, audio_loss);
    }

    bool next_batch(std::int64_t batch) override {
        for (Tensor* one : left_by_steps()) {
            of_batches_.push_back(std::move(*one));
            *one = Tensor();
        }
        return Pipeline::next_batch(batch);
    }
    void cleanup() override {
        of_batches_.clear();
        for (Tensor* one : left_by_steps()) *one = Tensor();
    }
    [[nodiscard]] std::vector<Tensor*> left_by_steps() override {
        return {&audio_noise_, &audio_target_, &audio_pred_, &i2v_loss_mask_};
    }

    /// LTX2Pipeline.__call__ with given embeds.
    void generate_single_image(const PromptEmbeds& conditional_embeds, const PromptEmbeds& unconditional_embeds,
                               const job::Batch& image) override {
        transformer.to_gpu();
        const ComponentScope scope(run, "batch", Category::latents_and_embeddings);
        Denoising at;
        {
            const StageScope stage(run, "denoise");
            denoise(conditional_embeds, unconditional_embeds, image, at);
        }
        const StageScope stage(run, "decode");
        decode_all(image, at);
    }

  private:
    static constexpr std::int64_t n_fft = 1024, hop_length = 160, sampling_rate = 16000, mel_bins = 64;
    static constexpr std::int64_t text_layers = 49;  // of Gemma: what went into the first layer, and of 48 layers

    /// The names of a denoising loop, which its frame holds to its end.
    struct Denoising {
        Tensor prompt_embeds, prompt_attention_mask;
        Tensors connected;  // for video, for audio, and their mask
        Tensor latents, audio_latents, video_coords, audio_coords;
        Tensors schedule, audio_schedule;  // timesteps, sigmas
        Tensor latent_model_input, audio_latent_model_input, timestep;
        struct Modality {
            Tensor noise_pred, uncond_text, uncond_stg, uncond_modality, cfg_delta, stg_delta, modality_delta, guided;
        };
        Modality video, audio;
    };

    void denoise(const PromptEmbeds& conditional_embeds, const PromptEmbeds& unconditional_embeds,
                 const job::Batch& image, Denoising& at) {
        // Whatever guidance a sample asks for, that of sound is 7.
        at.prompt_embeds = shadow::cat({unconditional_embeds.text_embeds[0], conditional_embeds.text_embeds[0]}, 0);
        at.prompt_attention_mask =
            shadow::cat({unconditional_embeds.attention_mask, conditional_embeds.attention_mask}, 0);
        at.connected = connect(at.prompt_embeds, at.prompt_attention_mask);
        const Dims sizes = this->latents(image);
        at.latents = pack_latents(run.empty(sizes, Dtype::f32, Op::to_device));  // drawn on the host
        at.audio_latents = prepare_audio_latents(1, image.frames, sample_fps, Op::to_device);
        at.audio_schedule = set_timesteps();
        at.schedule = set_timesteps();
        at.video_coords = models::ltx2::prepare_video_coords(run, 1, {sizes[2], sizes[3], sizes[4]});
        at.audio_coords = models::ltx2::prepare_audio_coords(run, 1, at.audio_latents.size(1));
        at.video_coords = shadow::repeat(at.video_coords, {2, 1, 1, 1});
        at.audio_coords = shadow::repeat(at.audio_coords, {2, 1, 1, 1});
        for (int i = 0; i < 2; ++i) step(image, at);
    }

    void step(const job::Batch& image, Denoising& at) {
        job::Batch batch = image;
        batch.count = 2;
        const auto doubled = [&](const Tensor& x) {
            const Tensor both = shadow::cat({x, x}, 0);
            return shadow::to(both, job.dtype);
        };
        at.latent_model_input = doubled(at.latents);
        at.audio_latent_model_input = doubled(at.audio_latents);
        at.timestep = shadow::expand(shadow::slice(at.schedule[0], 0, 0, 1), {batch.count});
        Denoising::Modality &video = at.video, &audio = at.audio;
        predict(batch, at,
                {at.latent_model_input, at.audio_latent_model_input, at.connected[0], at.connected[1], at.timestep,
                 at.timestep, at.connected[2], at.connected[2], at.video_coords, at.audio_coords, at.timestep},
                {}, video.noise_pred, audio.noise_pred);
        guide_by_text(at.latents, video);
        guide_by_text(at.audio_latents, audio);
        guide_further(image, at);
        for (Denoising::Modality* one : {&video, &audio}) {
            Tensor sum = shadow::add(one->noise_pred, one->cfg_delta);
            sum = shadow::add(std::move(sum), one->stg_delta);
            one->guided = shadow::add(std::move(sum), one->modality_delta);
        }
        for (Denoising::Modality* one : {&video, &audio}) one->noise_pred = rescale_noise_cfg(one->guided);
        // convert_x0_to_velocity
        {
            Tensor velocity = shadow::sub(at.latents, video.noise_pred);
            video.noise_pred = shadow::div_scalar(std::move(velocity));
        }
        {
            Tensor velocity = shadow::sub(at.audio_latents, audio.noise_pred);
            audio.noise_pred = shadow::div_scalar(std::move(velocity));
        }
        at.latents = scheduler_step(video.noise_pred, at.latents);
        at.audio_latents = scheduler_step(audio.noise_pred, at.audio_latents);
    }

    /// transformer(…), and `.float()` of both that it gives.
    void predict(const job::Batch& batch, const Denoising& at, const Tensors& args, const models::Request& how,
                 Tensor& video, Tensor& audio) {
        PromptEmbeds prompt;
        prompt.text_embeds = {at.prompt_embeds};
        models::Request request = request_of(batch, prompt);
        request.attention_mask = true;
        request.isolate_modalities = how.isolate_modalities;
        request.perturbed_blocks = how.perturbed_blocks;
        {
            const Tensors noise_pred = transformer.forward(args, request);
            video = noise_pred[0];
            audio = noise_pred[1];
        }
        video = shadow::to_float(video);
        audio = shadow::to_float(audio);
    }

    // sample - denoised_output * sigma
    static Tensor convert_velocity_to_x0(const Tensor& sample, const Tensor& denoised_output) {
        Tensor scaled = shadow::mul_scalar(denoised_output);
        return shadow::sub(sample, std::move(scaled));
    }

    // scale * (noise_pred - uncond)
    static Tensor delta(const Tensor& noise_pred, const Tensor& uncond) {
        Tensor away = shadow::sub(noise_pred, uncond);
        return shadow::mul_scalar(std::move(away));
    }

    void guide_by_text(const Tensor& latents, Denoising::Modality& one) {
        {
            const Tensors halves = shadow::chunk(one.noise_pred, 2, 0);
            one.uncond_text = halves[0];
            one.noise_pred = halves[1];
        }
        one.noise_pred = convert_velocity_to_x0(latents, one.noise_pred);
        one.uncond_text = convert_velocity_to_x0(latents, one.uncond_text);
        one.cfg_delta = delta(one.noise_pred, one.uncond_text);
    }

    /// With one block's self-attention left out, and with modalities that do not see one another; of the prompt alone.
    void guide_further(const job::Batch& image, Denoising& at) {
        const auto positive = [&](const Tensor& x) { return shadow::chunk(x, 2, 0)[1]; };
        at.timestep = shadow::chunk(at.timestep, 2, 0)[0];
        const auto call = [&](const models::Request& how, Tensor& video, Tensor& audio) {
            const Tensor hidden_states = shadow::to(at.latents, job.dtype);
            const Tensor audio_hidden_states = shadow::to(at.audio_latents, job.dtype);
            const Tensor mask = positive(at.connected[2]);
            predict(image, at,
                    {hidden_states, audio_hidden_states, positive(at.connected[0]), positive(at.connected[1]),
                     at.timestep, at.timestep, mask, mask, shadow::chunk(at.video_coords, 2, 0)[0],
                     shadow::chunk(at.audio_coords, 2, 0)[0], at.timestep},
                    how, video, audio);
        };
        models::Request how;
        if (perturbs_) how.perturbed_blocks = {28};
        call(how, at.video.uncond_stg, at.audio.uncond_stg);
        at.video.uncond_stg = convert_velocity_to_x0(at.latents, at.video.uncond_stg);
        at.audio.uncond_stg = convert_velocity_to_x0(at.audio_latents, at.audio.uncond_stg);
        for (Denoising::Modality* one : {&at.video, &at.audio})
            one->stg_delta = delta(one->noise_pred, one->uncond_stg);
        how = {};
        how.isolate_modalities = true;
        call(how, at.video.uncond_modality, at.audio.uncond_modality);
        at.video.uncond_modality = convert_velocity_to_x0(at.latents, at.video.uncond_modality);
        at.audio.uncond_modality = convert_velocity_to_x0(at.audio_latents, at.audio.uncond_modality);
        for (Denoising::Modality* one : {&at.video, &at.audio})
            one->modality_delta = delta(one->noise_pred, one->uncond_modality);
    }

    Tensor rescale_noise_cfg(const Tensor& noise_cfg) {
        const Tensor std_text = run.empty({1, 1, 1}, Dtype::f32, Op::custom);
        const Tensor std_cfg = run.empty({1, 1, 1}, Dtype::f32, Op::custom);
        Tensor noise_pred_rescaled;
        {
            Tensor ratio = shadow::div(std_text, std_cfg);
            noise_pred_rescaled = shadow::mul(noise_cfg, std::move(ratio));
        }
        const Tensor own = shadow::mul_scalar(noise_pred_rescaled);
        Tensor other = shadow::mul_scalar(noise_cfg);
        return shadow::add(own, std::move(other));
    }

    void decode_all(const job::Batch& image, Denoising& at) {
        at.latents = unpack_latents(at.latents, this->latents(image));
        {
            const Tensor mean = audio_statistic(), std = audio_statistic();
            Tensor scaled = shadow::mul(at.audio_latents, std);
            at.audio_latents = shadow::add(std::move(scaled), mean);
        }
        at.audio_latents = shadow::transpose(shadow::unflatten(at.audio_latents, 2, {-1, audio_mel_bins}), 1, 2);
        at.latents = shadow::to(at.latents, job.dtype);
        {
            const Tensor mean = statistic(at.latents.dtype()), std = statistic(at.latents.dtype());
            Tensor scaled = shadow::mul(at.latents, std);
            scaled = shadow::div_scalar(std::move(scaled));
            at.latents = shadow::add(std::move(scaled), mean);
        }
        at.latents = shadow::to(at.latents, job.pipeline.vae_dtype);
        models::Request request = vae_request(image, 1, models::Request::Operation::decode);
        if (job.pipeline.low_vram) {
            request.tile_frames = 16;
            request.tile_frames_stride = 8;
        }
        {
            const Tensor video = vae->forward({at.latents}, request)[0];
            postprocess_video(video);
        }
        at.audio_latents = shadow::to(at.audio_latents, job.pipeline.vae_dtype);
        const Tensor mel = audio_vae_.forward({at.audio_latents}, request)[0];
        const Tensor audio = vocoder_.forward({mel}, request)[0];
        static_cast<void>(shadow::to_float(shadow::select(audio, 0, 0)));
    }

    /// latent_dist.sample()
    [[nodiscard]] Tensor sampled(const Tensors& distribution) {
        const Tensor &mean = distribution[1], &std = distribution[3];
        const Tensor noise = run.empty(mean.sizes(), mean.dtype(), Op::noise);
        Tensor spread = shadow::mul(std, noise);
        return shadow::add(mean, std::move(spread));
    }

    /// vae.latents_mean, or latents_std, as it lies there.
    [[nodiscard]] Tensor statistic(Dtype dtype) const {
        const Tensor& own = vae->weights.all_base().front().value;
        return shadow::to(shadow::view(own, {1, -1, 1, 1, 1}), dtype);
    }
    /// audio_vae.latents_mean, or latents_std, in fp32.
    [[nodiscard]] Tensor audio_statistic() { return run.empty({latent_channels}, Dtype::f32, Op::to_copy); }

    // _pack_latents and _unpack_latents, of patches of one latent: views.
    static Tensor pack_latents(const Tensor& latents) {
        return shadow::transpose(shadow::flatten(latents, 2, 4), 1, 2);
    }
    static Tensor unpack_latents(const Tensor& latents, const Dims& sizes) {
        return shadow::unflatten(shadow::transpose(latents, 1, 2), 2, {sizes[2], sizes[3], sizes[4]});
    }

    [[nodiscard]] static Dims audio_tokens(std::int64_t count, std::int64_t frames, std::int64_t fps) {
        return {count, models::ltx2::audio_latents_of(frames, fps), audio_channels * audio_mel_bins};
    }
    /// prepare_audio_latents: noise [B, C, L, M] → [B, L, C M].
    [[nodiscard]] Tensor prepare_audio_latents(std::int64_t count, std::int64_t frames, std::int64_t fps, Op drawn) {
        const Dims shape{count, audio_channels, models::ltx2::audio_latents_of(frames, fps), audio_mel_bins};
        const Tensor latents = run.empty(shape, Dtype::f32, drawn);
        return pack_audio_latents(latents);
    }
    static Tensor pack_audio_latents(const Tensor& latents) {
        return shadow::flatten(shadow::transpose(latents, 1, 2), 2, 3);
    }

    /// encode_audio: of each item the waveform, its spectrogram, its latents; joined and normalised.
    [[nodiscard]] Tensor audio_latents_of(const job::Batch& batch) {
        audio_vae_.to_gpu();
        const ComponentScope scope(run, "audio_vae");
        Tensor output_tensor, waveform, mel_spectrogram, latents, packed_latents;
        models::Request request = vae_request(batch, 1, models::Request::Operation::encode);
        const std::int64_t samples = batch.frames * sampling_rate / batch.fps, frames = samples / hop_length + 1;
        for (std::int64_t i = 0; i < batch.count; ++i) {
            waveform = run.empty({1, 2, samples}, Dtype::f32, Op::to_device);
            mel_spectrogram = waveform_to_mel(waveform, frames);
            mel_spectrogram = shadow::to(mel_spectrogram, job.dtype);
            latents = sampled(audio_vae_.forward({mel_spectrogram}, request));
            packed_latents = pack_audio_latents(latents);
            output_tensor = output_tensor.defined() ? shadow::cat({output_tensor, packed_latents}, 0) : packed_latents;
        }
        const Tensor& statistic = audio_vae_.weights.all_base().back().value;
        Tensor centred = shadow::sub(output_tensor, statistic);
        return shadow::div(std::move(centred), statistic);
    }

    /// AudioProcessor.waveform_to_mel: [B, C, samples] → [B, C, T, bins].
    [[nodiscard]] Tensor waveform_to_mel(const Tensor& waveform, std::int64_t frames) {
        const std::int64_t rows = waveform.size(1), bins = n_fft / 2 + 1;
        Tensor mel;
        {
            Tensor power;
            {
                Tensor spectrum;
                {
                    const Tensor padded = run.empty({1, rows, waveform.size(2) + n_fft}, Dtype::f32, Op::pad);
                    const Tensor windowed = run.empty({rows, frames, n_fft}, Dtype::f32, Op::mul);
                    spectrum = run.empty({rows, frames, bins, 2}, Dtype::f32, Op::custom);  // complex
                }
                power = run.empty({rows, frames, bins}, Dtype::f32, Op::custom);  // abs
            }
            mel = run.empty({1, rows, frames, mel_bins}, Dtype::f32, Op::bmm);
        }
        mel = shadow::log(shadow::clamp(mel));
        return mel;  // transposed twice: it lies as it is asked for
    }

    /// LTX2TextConnectors: {for video, for audio, mask}.
    [[nodiscard]] Tensors connect(const Tensor& text_embeds, const Tensor& attention_mask) {
        models::Request request;
        request.batch = text_embeds.size(0);
        request.text_tokens = text_embeds.size(1);
        request.dtype = job.dtype;
        return connectors_.forward({text_embeds, attention_mask}, request);
    }

    /// batch.first_frame_latents, or those of its pixels.
    [[nodiscard]] Tensor first_frame_latents(const job::Batch& batch) {
        job::Batch still = batch;
        still.frames = 1;
        if (job.pipeline.cache_latents) return run.empty(latents(still), job.dtype, Op::to_device);
        return encode_images(run.empty(pixels(still), job.dtype, Op::to_device), still);
    }

    const bool perturbs_;
    Part audio_vae_, connectors_, vocoder_;
    Tensors audio_processor_;
    Tensor audio_noise_, audio_target_, audio_pred_;  // of the batch
    Tensor i2v_loss_mask_;
    Tensors of_batches_;  // of those before it in the step
};

constexpr std::string_view text_encoders[] = {"gemma3_12b"};
constexpr std::string_view block_names[] = {"transformer_blocks"};
/// Of LTX2AdaLayerNormSingle.
constexpr std::string_view moved[] = {"time_embed.*", "audio_time_embed.*", "av_cross_attn_*", "*prompt_adaln.*"};
/// Tables that load_model does not name. The net brings them for each call.
constexpr std::string_view left[] = {"*prompt_scale_shift_table"};
constexpr std::string_view left_of_text_encoder[] = {"*.mm_input_projection_weight"};

bool is_ltx2(const profile::ModelProfile& profile, bool modulates_prompts) {
    return profile.family == "ltx2" && profile.config.boolean("cross_attn_mod", false) == modulates_prompts;
}

Architecture described(std::span<const std::string_view> names, std::string_view title) {
    Architecture out{};
    out.names = names;
    out.title = title;
    out.models = title;
    out.text_encoders = text_encoders;
    out.deleted_from_text_encoders = "vision_model_type";
    out.text_tokens = 512;
    out.most_text_tokens = connector_tokens;
    out.bucket_step = spatial;
    out.divisible_by = spatial;
    out.frame_step = temporal;
    out.trains_audio = true;
    out.quantizes_blocks = true;
    out.modules.block_names = block_names;
    out.offloading = {.attaches = true, .moved = moved, .left = left, .left_of_text_encoder = left_of_text_encoder};
    return out;
}

}  // namespace
}  // namespace ltx

namespace ltx2 {
namespace {

constexpr std::string_view names[] = {"ltx2"};

bool plays(const profile::ModelProfile& profile) { return ltx::is_ltx2(profile, false); }

std::string_view taken_for(std::string_view, std::string_view) { return "ltx2_19b_split"; }

std::unique_ptr<Pipeline> make(const job::Job& job, const profile::Catalogue& catalogue, Run& run) {
    constexpr ltx::Version version{"ltx2_connectors", "ltx2_vocoder", false};
    return std::make_unique<ltx::Ltx2>(architecture, version, job, catalogue, run);
}

}  // namespace

const Architecture architecture = [] {
    Architecture out = ltx::described(names, "LTX-2");
    out.vae = "vae_ltx2_video";
    out.plays = plays;
    out.taken_for = taken_for;
    out.make = make;
    return out;
}();

}  // namespace ltx2

namespace ltx23 {
namespace {

constexpr std::string_view names[] = {"ltx2.3"};

bool plays(const profile::ModelProfile& profile) { return ltx::is_ltx2(profile, true); }

std::string_view taken_for(std::string_view, std::string_view) { return "ltx23_22b"; }

std::unique_ptr<Pipeline> make(const job::Job& job, const profile::Catalogue& catalogue, Run& run) {
    constexpr ltx::Version version{"ltx23_connectors", "ltx23_vocoder", true};
    return std::make_unique<ltx::Ltx2>(architecture, version, job, catalogue, run);
}

}  // namespace

const Architecture architecture = [] {
    Architecture out = ltx::described(names, "LTX-2.3");
    out.vae = "vae_ltx23_video";
    out.plays = plays;
    out.taken_for = taken_for;
    out.make = make;
    return out;
}();

}  // namespace ltx23
}  // namespace vram::trainers::ai_toolkit
