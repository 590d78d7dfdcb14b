#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "models/model.hpp"
#include "nn/memory_manager.hpp"
#include "nn/quantize/loader.hpp"
#include "shadow/layout.hpp"
#include "vram/job/job.hpp"
#include "vram/profile/catalogue.hpp"
#include "vram/run/facts.hpp"

namespace vram::trainers::ai_toolkit {

using shadow::Dims;
using shadow::Run;
using shadow::Tensor;
using shadow::Tensors;

/// Prompts to encode.
struct Prompts {
    std::int64_t count = 1;
    bool blank = false;                          // "", which architectures that trim keep short
    std::vector<job::PictureSize> references{};  // that the text encoder is shown, of each prompt
    /// The list of those that lie on the GPU already, [count, 3, H, W] each. It is the caller's: an architecture may
    /// put others in their place, as in Python. Null: they wait on the host.
    Tensors* control_images = nullptr;
};

struct Architecture;

/// toolkit/prompt_utils.py, PromptEmbeds.
struct PromptEmbeds {
    Tensors text_embeds;    // one of all prompts, [B, T, D]; of architectures that keep a list, one a prompt: [T, D]
    bool is_list = false;   // which of the two
    Tensor pooled_embeds;   // [B, D], of architectures that pool; else undefined
    Tensor attention_mask;  // [B, T], of architectures that hand it on; else undefined
    [[nodiscard]] bool is_there() const noexcept { return !text_embeds.empty(); }
    [[nodiscard]] std::int64_t tokens() const;  ///< T, the longest of a list
    [[nodiscard]] std::int64_t count() const;   ///< B
    [[nodiscard]] Bytes bytes() const;          ///< each storage rounded to 512
};
/// What the tensor's own elements take, in whole blocks; 0 of an undefined one.
[[nodiscard]] Bytes bytes_of(const Tensor& tensor);
/// Of each tensor what `change` makes of it.
[[nodiscard]] PromptEmbeds mapped(const PromptEmbeds& embeds, const std::function<Tensor(const Tensor&)>& change);
/// PromptEmbeds.to(dtype): masks, too.
[[nodiscard]] PromptEmbeds to(const PromptEmbeds& embeds, Dtype dtype);
/// Of each tensor a copy. `detach` is one, too: PromptEmbeds.detach clones.
[[nodiscard]] PromptEmbeds clone(const PromptEmbeds& embeds);
/// concat_prompt_embeds: shorter ones are padded with zeros; a list is only longer.
[[nodiscard]] PromptEmbeds concat_prompt_embeds(std::span<const PromptEmbeds> prompt_embeds);
/// concat_prompt_embeds([embeds] * count)
[[nodiscard]] PromptEmbeds repeated(const PromptEmbeds& embeds, std::int64_t count);

/// The embeds of one prompt as they wait in host memory.
class HostEmbeds {
  public:
    HostEmbeds() = default;
    explicit HostEmbeds(const PromptEmbeds& embeds);
    /// Those of `count` such prompts, padded to one length where they are one tensor; all of them in this dtype.
    [[nodiscard]] PromptEmbeds to_gpu(Run& run, std::int64_t count, Dtype dtype) const;

  private:
    std::vector<shadow::LayoutRef> text_embeds_;
    bool is_list_ = false;
    shadow::LayoutRef pooled_embeds_, attention_mask_;
};

/// One model of the pipeline, and where it stands. The adapter's matrices are no part of the model: they stay where
/// they are.
class Part {
  public:
    /// `recovery`: those of its accuracy recovery adapter, if it has one; `assistant`: of its assistant LoRA. It has
    /// one of both at most.
    Part(Run& run, std::string component, nn::Rules rules, const profile::ModelProfile& profile,
         std::optional<nn::Rules> recovery = std::nullopt, std::optional<nn::Rules> assistant = std::nullopt);

    [[nodiscard]] Tensors forward(const Tensors& args, const models::Request& request);
    /// Whether forward has an argument of this name.
    [[nodiscard]] bool takes(std::string_view argument, const models::Request& request) const;
    /// module.to(device). The modules `along` with it go, too.
    void to_gpu();
    void to_cpu();
    /// The same without those.
    void alone_to_gpu();
    void move(bool to_gpu_if_true) { to_gpu_if_true ? to_gpu() : to_cpu(); }
    [[nodiscard]] bool on_gpu() const noexcept { return on_gpu_; }
    [[nodiscard]] const std::string& component() const noexcept { return component_; }
    /// from_pretrained, .to(gpu) in full, quantize and freeze of the whole.
    void load_full() { loader_.load(); }
    void quantize();
    void loaded() {
        loader_.constants();
        on_gpu_ = true;
    }
    /// quantize_model (toolkit/util/quantize.py): the blocks pass through the GPU one at a time, and end on the host;
    /// what is in no block is quantised where it stands. With an accuracy recovery adapter this goes to the GPU, and
    /// each layer that it adapts is quantised where it stands.
    void quantize_model();
    /// Where the class does so itself: the same blocks; then all goes to the GPU, and the rest is quantised there.
    void quantize_blocks_first();
    /// MemoryManager.attach, if the job offloads layers: what is managed goes to the host, and stays there.
    void attach_memory_manager() { weights.leave_managed_on_host(); }
    /// The network of an accuracy recovery adapter goes to the GPU. `first`: of the parts that share one.
    void attach_recovery(bool first = true);
    /// load_training_adapter: the network of an assistant LoRA goes to the GPU, is merged into the model, which stands
    /// on the host in full, and is inactive from then on. Nothing where there is none.
    void load_training_adapter();
    /// Around samples (BaseModel.generate_images): the assistant LoRA comes to the GPU and is active there, to take off
    /// what was merged in; behind them it goes to the host.
    void activate_assistant();
    void deactivate_assistant();

    std::unique_ptr<nn::Weights> recovery, assistant;  // null: none
    nn::Weights weights;
    std::unique_ptr<models::Model> model;
    std::vector<std::string> block_lists;  // get_transformer_block_names
    std::vector<Part*> along;              // what the trainer's class holds beside it as one module

  private:
    /// network._update_torch_multiplier()
    void update_torch_multiplier(const nn::Weights& network);

    std::string component_;
    nn::quantize::Loader loader_;
    Tensor torch_multiplier_;  // of the accuracy recovery adapter or the assistant LoRA
    bool on_gpu_ = false;
};

/// The two phases in which models arrive: `load`, and from `quantizes` on `quantize`.
class Loading {
  public:
    Loading(Run& run, run::Facts& facts);
    void quantizes();

  private:
    void begin(const char* name);

    Run& run_;
    run::Facts& facts_;
    std::optional<shadow::PhaseScope> phase_;
};

/// BaseModel (toolkit/models/base_model.py): the models of a job, where they stand, and what each architecture does its
/// own way. Plays call it in the trainer's order.
class Pipeline {
  public:
    virtual ~Pipeline() = default;
    Pipeline(const Pipeline&) = delete;
    Pipeline& operator=(const Pipeline&) = delete;

    struct Placement {
        bool vae = false, transformer = false, text_encoder = false;
        bool operator==(const Placement&) const = default;
    };
    [[nodiscard]] Placement placement() const;
    /// set_device_state, in its order: the VAE, the transformer, the text encoders; then flush.
    void place(const Placement& where);
    /// The denoisers that the network wraps, or that are trained in full: get_model_to_train.
    [[nodiscard]] virtual std::vector<Part*> denoisers() { return {&transformer}; }
    /// The text encoders of which something trains.
    [[nodiscard]] std::vector<Part*> trained_text_encoders();
    /// All of both.
    [[nodiscard]] std::vector<Part*> trained();
    /// text_encoder.train() or .eval(), of all of them.
    void train_text_encoders(bool mode);
    /// Of the denoisers the one that trains now.
    [[nodiscard]] virtual Part& active() { return transformer; }
    /// Where the models' presets put them (set_device_state_preset); training's own preset is set as it is.
    virtual void set_device_state_preset(const Placement& where) { place(where); }
    /// unet.to(device)
    virtual void transformer_to(bool to_gpu_if_true) { transformer.move(to_gpu_if_true); }
    /// unload_text_encoder: what is cached needs no encoder any more.
    void free_text_encoders();
    void park_text_encoders();  ///< text_encoder_to("cpu"), then flush

    /// Where the models arrive, until all of them stand where the loop will look for them.
    virtual void load_model(Loading& loading) = 0;
    [[nodiscard]] virtual PromptEmbeds get_prompt_embeds(const Prompts& prompts) = 0;
    /// What predictions and samples do to the embeds that they are handed: to the caller's, as in Python.
    virtual void pad_embeds(PromptEmbeds&) {}
    /// Pixels of this batch as the loader hands them over: [B, 3, H, W], or [B, F, 3, H, W] of videos.
    [[nodiscard]] virtual Dims pixels(const job::Batch& batch) const;
    /// Latents of this batch: [B, C, h, w], or [B, C, f, h, w].
    [[nodiscard]] virtual Dims latents(const job::Batch& batch) const = 0;
    /// encode_images: pixels → latents, through the VAE's distribution.
    [[nodiscard]] virtual Tensor encode_images(Tensor image_list, const job::Batch& batch) = 0;
    /// noise_scheduler.set_train_timesteps, or set_timesteps: the timesteps that the scheduler keeps. As it stands
    /// here: CustomFlowMatchEulerDiscreteScheduler's, sigmoid.
    [[nodiscard]] virtual Tensor set_train_timesteps();
    /// Before batch `batch` of the run, from 0: models of several stages train one at a time. Whether it is the stage
    /// of the batch before.
    virtual bool next_batch(std::int64_t batch);
    /// The steps of a run that are played, from 1: the first, a second, and where something begins after those.
    [[nodiscard]] virtual std::vector<std::int64_t> steps() const { return {1, 2}; }
    /// What a model of several stages computes to draw timesteps of its stage, alive until the noise is there.
    [[nodiscard]] virtual Tensors adjust_multistage_timesteps(const Tensor& timesteps);
    /// noise_scheduler.add_noise of one item: `original_sample` and `noise` [1, …], `timestep` [1]. As it stands here:
    /// CustomFlowMatchEulerDiscreteScheduler's.
    [[nodiscard]] virtual Tensor add_noise(const Tensor& original_sample, const Tensor& noise, const Tensor& timestep);
    /// add_all_snr_to_noise_scheduler: a table that schedulers of diffusion models keep from before the loop on.
    virtual void add_all_snr() {}
    /// batch.control_tensor.to(device): what a step holds to its end where prompts are encoded with it. Undefined:
    /// nothing, or several images that are not cropped, which wait on the host.
    [[nodiscard]] Tensor control_tensor(const job::Batch& batch);
    /// Control images as they are read for prompts alone, [1, 3, H, W] each, where prompts are encoded with them. Each
    /// is bound to one of `names`, which the caller's frame keeps to the next picture.
    [[nodiscard]] Tensors load_control_images(const std::vector<job::PictureSize>& references, Tensors& names);
    /// What architectures with control images put beside the noisy latents.
    [[nodiscard]] virtual Tensor condition_noisy_latents(const Tensor& latents, const job::Batch& batch);
    /// What an item's sound becomes in the cache.
    virtual void encode_audio(const job::Batch&) {}
    /// What the model adds to the loss of its prediction.
    [[nodiscard]] virtual Tensor add_audio_loss(Tensor loss) { return loss; }
    /// batch.cleanup() of all batches of a step.
    virtual void cleanup() {}
    /// What steps leave in the class itself, for those of which nothing may stay.
    [[nodiscard]] virtual std::vector<Tensor*> left_by_steps() { return {}; }
    /// What the prediction is compared with. As it stands here, of flow matching: noise - latents.
    [[nodiscard]] virtual Tensor get_loss_target(const Tensor& noise, const Tensor& batch_latents);
    /// The loss by element, as the model weighs it.
    [[nodiscard]] virtual Tensor scale_loss(Tensor loss) { return loss; }
    /// What predict_noise leaves to the architecture: `latent_model_input` is scaled already, `timestep` [B] counts to
    /// 1000.
    [[nodiscard]] virtual Tensor get_noise_prediction(const Tensor& latent_model_input, const Tensor& timestep,
                                                      const PromptEmbeds& text_embeddings, const job::Batch& batch) = 0;
    /// generate_single_image, and diffusers' pipeline under it: stages denoise and decode.
    virtual void generate_single_image(const PromptEmbeds& conditional_embeds, const PromptEmbeds& unconditional_embeds,
                                       const job::Batch& image) = 0;

    void flush();  ///< torch.cuda.empty_cache()

    Run& run;
    const job::Job& job;
    /// The class's attributes of these names: prompts are encoded with their control images; those are not cropped.
    const bool encode_control_in_text_embeddings, use_raw_control_images;
    nn::DeviceState device_state;  // of layers that are offloaded
    std::deque<nn::MemoryManager> memory_managers;
    Part transformer;
    std::unique_ptr<Part> vae;
    std::vector<std::unique_ptr<Part>> text_encoders;
    std::vector<run::InputTensor>* handed = nullptr;  // where the transformer's next call tells what it is handed

  protected:
    /// Of text encoders as many of the last are quantised as the architecture says, if any is.
    Pipeline(const Architecture& architecture, const job::Job& job, const profile::Catalogue& catalogue, Run& run);

    /// Of a part that is neither trained nor quantised.
    [[nodiscard]] static nn::Rules plain_rules(Dtype dtype, job::Quantization quantization = job::Quantization::none);
    /// load_model of classes that load on the host: the transformer is quantised through the GPU, the one text encoder
    /// on it; then unet.to(device), whatever low_vram says. The VAE stays on the host.
    void load_on_host(Loading& loading);
    /// Its first half: the transformer, with its training adapter merged and its layers managed.
    void load_transformer_on_host(Loading& loading);
    [[nodiscard]] bool quantizes_text() const {
        return job.pipeline.text_encoder_quantization != job::Quantization::none;
    }
    /// load_model of StableDiffusion's branches: the transformer is quantised on the GPU, with low_vram on the host,
    /// and then stands on the GPU. `quantizes_any`: it, or what comes behind it.
    void load_transformer(Loading& loading, bool quantizes_any);
    /// A text encoder arrives, in full if it is to be quantised there.
    void load_text_encoder(Part& text_encoder, bool quantizes);
    /// Of the denoiser's accuracy recovery adapter. `prefix`: of every name.
    [[nodiscard]] static std::optional<nn::Rules> recovery_rules(const Architecture& architecture, const job::Job& job,
                                                                 std::string_view prefix);
    /// Of the denoiser's assistant LoRA.
    [[nodiscard]] static std::optional<nn::Rules> assistant_rules(const Architecture& architecture,
                                                                  const job::Job& job);
    /// What the network and the quantiser do to the text encoder at this place.
    [[nodiscard]] nn::Rules text_encoder_rules(const Architecture& architecture, std::size_t place);
    /// What the network and the quantiser do to a denoiser.
    [[nodiscard]] nn::Rules transformer_rules(const Architecture& architecture);
    /// Of a batch of this size, in the model's dtype.
    [[nodiscard]] models::Request request_of(const job::Batch& batch, const PromptEmbeds& embeds) const;
    /// Of `count` items of this size, in the VAE's dtype.
    [[nodiscard]] models::Request vae_request(const job::Batch& batch, std::int64_t count,
                                              models::Request::Operation operation) const;
    /// transformer(**args), of several the one that trains now
    [[nodiscard]] Tensors transform_all(const Tensors& args, const models::Request& request);
    /// transformer(**args)[0]
    [[nodiscard]] Tensor transform(const Tensors& args, const models::Request& request);
    /// encode_images' list, a batch [B, C, H, W] of pictures or [B, T, C, H, W] of clips: [C, T, H, W] each.
    [[nodiscard]] static std::vector<Tensor> clips_of(const Tensor& image_list);
    /// BaseModel.encode_images with an AutoencoderKL: [B, 3, H, W] → scaled and shifted latents.
    [[nodiscard]] Tensor encode_kl(Tensor image_list, const job::Batch& batch);
    /// vae.encode(images).latent_dist.sample(): the distribution dies with it.
    [[nodiscard]] Tensor sample_latents(const Tensor& images, const job::Batch& batch);
    /// vae.decode(latents).sample of one picture, and VaeImageProcessor.postprocess of it.
    void decode(const Tensor& latents, const job::Batch& image, bool tiling = false);
    /// VaeImageProcessor.postprocess of one picture.
    void postprocess(const Tensor& decoded);
    /// VideoProcessor.postprocess_video of one clip [1, C, F, H, W].
    void postprocess_video(const Tensor& video);
    /// FlowMatchEulerDiscreteScheduler.set_timesteps: {timesteps [steps], sigmas}.
    [[nodiscard]] Tensors set_timesteps();
    /// FlowMatchEulerDiscreteScheduler.step: in fp32, and back to the prediction's dtype.
    [[nodiscard]] Tensor scheduler_step(const Tensor& model_output, const Tensor& sample);
    /// Of flow matching's masked losses, where the first frame is given: what is noise counts, and as much as with it.
    [[nodiscard]] static Tensor masked_loss(Tensor loss, const Tensor& mask);

  private:
    /// That of a model of the job's; null where the share is 0.
    [[nodiscard]] nn::MemoryManager* managing(double share, std::span<const std::string_view> moved,
                                              std::span<const std::string_view> left);
};

/// MemoryManager.attach of a model of which this share of the layers is offloaded, (0, 1]. `moved` and `left`: as
/// Offloading has them, of this model.
[[nodiscard]] nn::MemoryManager memory_manager(nn::DeviceState& state, double share,
                                               std::span<const std::string_view> moved,
                                               std::span<const std::string_view> left);

/// What a tokenizer or a host hands over.
[[nodiscard]] Tensors on_device(Run& run, const std::vector<models::Value>& values);

}  // namespace vram::trainers::ai_toolkit
