// The keys that ai-toolkit 0.12.26 (27a03a91) reads: toolkit/config_modules.py, jobs/process/BaseSDTrainProcess.py,
// BaseProcess.py, BaseTrainProcess.py, extensions_built_in/sd_trainer and concept_slider. A key that is not here is
// ignored by the trainer.
#include "trainers/ai_toolkit/keys.hpp"

#include <array>

namespace vram::trainers::ai_toolkit {
namespace {

using enum Means;

constexpr Key process[] = {
    {"type"},
    {"name"},
    {"training_folder"},
    {"device"},
    {"performance_log_every"},
    {"sqlite_db_path"},
    {"training_seed"},
    {"log_dir"},
    {"torch_profiler"},
    {"trigger_word"},
    {"guidance"},
    {"logging"},
    {"save"},
    {"meta"},
    {"network", memory},
    {"train", memory},
    {"model", memory},
    {"datasets", memory},
    {"sample", memory},
    {"first_sample", memory},
    {"embedding", unsupported, "it trains an embedding in the text encoders"},
    {"decorator", unsupported, "it trains tokens behind the text encoder"},
    {"adapter", unsupported, "it loads an adapter model"},
    {"slider", memory},  // read by processes of sliders alone
    {"do_lorm"},         // read, and asked for nowhere
    {"lorm_extract_mode"},
    {"lorm_extract_mode_param"},
};

constexpr Key network[] = {
    {"type", memory},
    {"rank", memory},
    {"linear", memory},
    {"alpha"},
    {"linear_alpha"},
    {"conv", memory},
    {"conv_alpha"},
    {"dropout", memory},
    {"network_kwargs", memory},
    {"transformer_only", memory},
    {"lorm"},  // read of type lorm alone
    {"lokr_full_rank", memory},
    {"lokr_factor", memory},
    {"old_lokr_format"},
    {"split_multistage_loras"},
    {"layer_offloading", unsupported,
     "it keeps the adapter in host memory, and the trainer itself says that it does not work yet"},
    {"pretrained_lora_path"},
    {"all_layers", memory},
};

constexpr Key network_kwargs[] = {
    {"ignore_if_contains", memory},
    {"only_if_contains", memory},
    {"full_if_contains", memory},
    {"full_train_in_out", memory},
    {"parameter_threshold", memory},
    {"rank_dropout", memory},
    {"module_dropout", memory},
    {"block_dims"},  // printed, and read no further
    {"conv_block_dims", memory},
    {"modules_dim", memory},
    {"attn_only"},
    {"block_alphas"},
    {"conv_block_alphas"},
    {"modules_alpha", memory},
    {"target_lin_modules", memory},
    {"target_conv_modules", memory},
    {"varbose"},
};

constexpr Key train[] = {
    {"dtype", memory},
    {"batch_size", memory},
    {"gradient_accumulation", memory},
    {"gradient_accumulation_steps", memory},
    {"gradient_checkpointing", memory},
    {"switch_boundary_every", memory},
    {"optimizer", memory},
    {"optimizer_params", memory},
    {"ema_config", memory},
    {"train_unet", memory},
    {"train_text_encoder", memory},
    {"unload_text_encoder", memory},
    {"cache_text_embeddings", memory},
    {"disable_sampling", memory},
    {"skip_first_sample", memory},
    {"force_first_sample", memory},
    {"loss_type", memory},
    {"timestep_type", memory},
    {"attention_backend", memory},
    {"noise_scheduler", memory},
    {"bypass_guidance_embedding"},
    {"do_cfg", memory},
    {"do_random_cfg"},
    {"short_and_long_captions", unsupported, "it doubles the batch"},
    {"single_item_batching", unsupported, "it runs a batch item by item"},
    {"diff_output_preservation", memory},
    {"blank_prompt_preservation", memory},
    {"do_prior_divergence", memory},
    {"inverted_mask_prior", memory},
    {"correct_pred_norm", unsupported, "it predicts once more without the network"},
    {"do_guidance_loss", memory},
    {"train_turbo", unsupported, "it decodes the prediction under the loss"},
    {"adapter_assist_name_or_path", unsupported, "it loads an assistant adapter"},
    {"latent_feature_extractor_path", unsupported, "it loads a feature extractor"},
    {"diffusion_feature_extractor_path", unsupported, "it loads a feature extractor"},
    {"learnable_snr_gos", unsupported, "it trains a loss scale"},
    {"do_paramiter_swapping", unsupported, "it trains a part of the parameters at a time"},
    {"merge_network_on_save", unsupported, "it saves the whole model"},
    {"validation_config", memory},
    {"xformers", unsupported, "it changes the attention kernel"},
    {"free_u", unsupported, "it changes the sampling pipeline"},
    {"do_fft_loss", small},
    {"t0_loss_target", small},
    {"target_norm_std", small},
    {"match_noise_norm", small},
    {"standardize_latents", small},
    {"standardize_images", small},
    {"adaptive_scaling_factor", small},
    {"do_signal_amplification", small},
    {"do_signal_correction_noise", small},
    {"do_batch_noise_correction", small},
    {"random_noise_shift", small},
    {"random_noise_multiplier", small},
    {"blended_blur_noise", small},
    {"force_consistent_noise", small},
    {"do_blank_stabilization", small},
    {"dynamic_noise_offset", small},
    {"noise_offset", small},
    {"do_differential_guidance", small},
    {"linear_timesteps", small},
    {"linear_timesteps2", small},
    {"snr_gamma", small},
    {"min_snr_gamma", small},
    {"max_loss", small},
    {"content_or_style"},
    {"steps"},
    {"lr"},
    {"unet_lr"},
    {"text_encoder_lr"},
    {"refiner_lr"},
    {"embedding_lr"},
    {"adapter_lr"},
    {"lr_scheduler"},
    {"lr_scheduler_params", map},
    {"min_denoising_steps"},
    {"max_denoising_steps"},
    {"sdp"},
    {"train_refiner"},
    {"show_turbo_outputs"},
    {"weight_jitter"},
    {"merge_network_on_save_strength"},
    {"max_grad_norm"},
    {"start_step"},
    {"adapter_assist_type"},
    {"noise_multiplier"},
    {"target_noise_multiplier"},
    {"batch_noise_correction_scale"},
    {"signal_amplification_strength"},
    {"signal_correction_noise_scale"},
    {"img_multiplier"},
    {"noisy_latent_multiplier"},
    {"latent_multiplier"},
    {"negative_prompt"},
    {"max_negative_prompts"},
    {"reg_weight"},
    {"num_train_timesteps"},
    {"prompt_dropout_prob"},
    {"short_and_long_captions_encoder_split"},
    {"match_adapter_assist"},
    {"match_adapter_chance"},
    {"loss_target", memory},
    {"inverted_mask_prior_multiplier"},
    {"diff_output_preservation_multiplier"},
    {"diff_output_preservation_class"},
    {"blank_prompt_preservation_multiplier"},
    {"cfg_scale"},
    {"max_cfg_scale"},
    {"cfg_rescale"},
    {"correct_pred_norm_multiplier"},
    {"t0_velocity_equiv_weight"},
    {"do_fft_velocity_equiv_weight"},
    {"pred_scaler"},
    {"prompt_saturation_chance"},
    {"target_norm_std_value"},
    {"next_sample_timesteps"},
    {"paramiter_swapping_factor"},
    {"latent_feature_loss_weight"},
    {"diffusion_feature_extractor_weight"},
    {"optimal_noise_pairing_samples"},
    {"guidance_loss_target"},
    {"do_guidance_loss_cfg_zero"},
    {"guidance_loss_schedule"},
    {"unconditional_prompt"},
    {"differential_guidance_scale"},
    {"audio_loss_multiplier"},
    {"max_loss_debug"},
};

constexpr Key validation_config[] = {
    {"validation_items", memory},
    {"resolution", memory},
    {"validation_sigmas", memory},
    {"validate_every_n_steps"},
};

constexpr Key ema_config[] = {{"use_ema", memory}, {"ema_decay"}, {"use_feedback"}, {"param_multiplier"}};

constexpr Key model[] = {
    {"name_or_path", memory},
    {"arch", memory},
    {"is_flux", memory},
    {"quantize", memory},
    {"quantize_te", memory},
    {"qtype", memory},
    {"qtype_te", memory},
    {"low_vram", memory},
    {"ignore_if_contains", memory},
    {"only_if_contains", memory},
    {"attn_masking", memory},
    {"is_v2", memory},
    {"is_xl", memory},
    {"is_pixart", memory},
    {"is_pixart_sigma", memory},
    {"is_auraflow", memory},
    {"is_v3", memory},
    {"is_lumina2", memory},
    {"is_ssd", memory},
    {"is_vega", memory},
    {"vae_dtype", memory},
    {"te_dtype", memory},
    {"use_text_encoder_1", memory},
    {"use_text_encoder_2", memory},
    {"use_flux_cfg", unsupported, "it samples with guidance"},
    {"lora_path", unsupported, "it merges a LoRA while loading"},
    {"assistant_lora_path", memory},
    {"inference_lora_path", unsupported, "it samples with another LoRA"},
    {"unconditional_lora_path", unsupported, "it loads another LoRA"},
    {"refiner_name_or_path", unsupported, "it loads a second model"},
    {"vae_device", unsupported, "it places the VAE on another card, and only one is counted"},
    {"te_device", unsupported, "it places the text encoders on another card, and only one is counted"},
    {"split_model_over_gpus", memory},
    {"auto_memory", memory},
    {"layer_offloading", memory},
    {"quantize_kwargs", memory},
    {"accuracy_recovery_adapter", memory},
    {"compile", unsupported,
     "what torch.compile keeps between fused ops, and for how long, is its own plan, which no op of the model says"},
    {"dtype"},
    {"is_v_pred", unsupported, "the trainer takes the velocity of the pixels, not of the latents, and fails"},
    {"vae_path"},
    {"refiner_start_at"},
    {"latent_space_version"},
    {"experimental_xl"},
    {"text_encoder_bits", memory},
    {"unet_path"},
    {"unet_sample_size"},
    {"split_model_other_module_param_count_scale"},
    {"te_name_or_path"},
    {"layer_offloading_transformer_percent", memory},
    {"layer_offloading_text_encoder_percent", memory},
    {"extras_name_or_path"},
    {"block_compile"},
    {"compile_mode"},
    {"compile_fullgraph"},
    {"compile_dynamic"},
    {"cache_size_limit"},
    {"model_kwargs", map},
    {"model_paths", map},
    {"in_context"},
};

constexpr Key dataset[] = {
    {"folder_path", memory},
    {"dataset_path", memory},
    {"resolution", memory},
    {"batch_size", memory},
    {"scale", memory},
    {"buckets", memory},
    {"square_crop", memory},
    {"cache_latents", memory},
    {"cache_latents_to_disk", memory},
    {"cache_text_embeddings", memory},
    {"num_frames", memory},
    {"augments", memory},
    {"augmentations", memory},
    {"type", memory},
    {"load_image_when_caching_latents", memory},
    {"cache_tensors_to_disk", memory},
    {"num_repeats"},
    {"is_reg"},
    {"prior_reg", memory},
    {"control_path", memory},
    {"control_path_1", memory},
    {"control_path_2", memory},
    {"control_path_3", memory},
    {"control_from_same_folder", unsupported, "it loads control images"},
    {"controls", memory},
    {"inpaint_path", memory},
    {"unconditional_path", unsupported, "it encodes a second image"},
    {"clip_image_path", unsupported, "it loads images for an adapter"},
    {"clip_image_from_same_folder", unsupported, "it loads images for an adapter"},
    {"cache_clip_vision_to_disk", unsupported, "it loads a vision model"},
    {"auto_frame_count", memory},
    {"do_i2v", memory},
    {"do_audio", memory},
    {"mask_path", memory},
    {"alpha_mask", memory},
    {"standardize_images", small},
    {"diff_output_preservation"},
    {"default_caption"},
    {"trigger_word"},
    {"diff_output_preservation_class"},
    {"random_triggers"},
    {"random_triggers_max"},
    {"caption_ext"},
    {"random_scale"},
    {"random_crop"},
    {"bucket_tolerance"},
    {"network_weight"},
    {"token_dropout_rate"},
    {"shuffle_tokens"},
    {"caption_dropout_rate"},
    {"keep_tokens"},
    {"flip_x"},
    {"flip_y"},
    {"num_controls_from_same_folder"},
    {"control_transparent_color"},
    {"full_size_control_images", memory},
    {"invert_mask"},
    {"mask_min_value"},
    {"poi"},
    {"use_short_captions"},
    {"shuffle_augmentations"},
    {"caption_type"},
    {"guidance_type"},
    {"clip_image_augmentations"},
    {"clip_image_shuffle_augmentations"},
    {"replacements"},
    {"loss_multiplier"},
    {"num_workers"},
    {"prefetch_factor"},
    {"cache_latents_num_workers"},
    {"extra_values"},
    {"replay_transforms"},
    {"shrink_video_to_frames"},
    {"fps"},
    {"trim_auto_frame_count_tail"},
    {"debug"},
    {"fast_image_size"},
    {"audio_preserve_pitch"},
    {"audio_normalize"},
};

constexpr Key sample[] = {
    {"width", memory},
    {"height", memory},
    {"sample_steps", memory},
    {"guidance_scale", memory},
    {"prompts", memory},
    {"samples", memory},
    {"sample_every", memory},
    {"network_multiplier", memory},
    {"num_frames", memory},
    {"sampler", memory},
    {"sample_start_step"},
    {"neg"},
    {"seed"},
    {"walk_seed"},
    {"guidance_rescale"},
    {"format"},
    {"adapter_conditioning_scale"},
    {"refiner_start_at"},
    {"extra_values"},
    {"fps"},
    {"do_cfg_norm"},
};

constexpr Key sample_item[] = {
    {"prompt"},
    {"width", memory},
    {"height", memory},
    {"sample_steps", memory},
    {"guidance_scale", memory},
    {"network_multiplier", memory},
    {"neg"},
    {"seed"},
    {"fps"},
    {"num_frames", memory},
    {"ctrl_img", memory},
    {"ctrl_idx"},
    {"ctrl_img_1", memory},
    {"ctrl_img_2", memory},
    {"ctrl_img_3", memory},
    {"do_cfg_norm"},
};

constexpr Key save[] = {{"save_every"}, {"dtype"},     {"max_step_saves_to_keep"}, {"save_format"}, {"push_to_hub"},
                        {"hf_repo_id"}, {"hf_private"}};
constexpr Key logging[] = {{"log_every"},     {"verbose"},      {"use_wandb"},
                           {"use_ui_logger"}, {"project_name"}, {"run_name"}};

// extensions_built_in/concept_slider/ConceptSliderTrainer.py, ConceptSliderTrainerConfig
constexpr Key slider[] = {{"guidance_strength"},       {"anchor_strength"},      {"positive_prompt", memory},
                          {"negative_prompt", memory}, {"target_class", memory}, {"anchor_class", memory}};

constexpr std::array all_sections{SectionId::process,
                                  SectionId::network,
                                  SectionId::network_kwargs,
                                  SectionId::train,
                                  SectionId::model,
                                  SectionId::ema_config,
                                  SectionId::validation_config,
                                  SectionId::dataset,
                                  SectionId::sample,
                                  SectionId::sample_item,
                                  SectionId::save,
                                  SectionId::logging,
                                  SectionId::slider};

}  // namespace

std::string_view name_of(SectionId section) {
    switch (section) {
        case SectionId::process: return "process";
        case SectionId::network: return "network";
        case SectionId::network_kwargs: return "network_kwargs";
        case SectionId::train: return "train";
        case SectionId::ema_config: return "ema_config";
        case SectionId::validation_config: return "validation_config";
        case SectionId::model: return "model";
        case SectionId::dataset: return "dataset";
        case SectionId::sample: return "sample";
        case SectionId::sample_item: return "sample_item";
        case SectionId::save: return "save";
        case SectionId::logging: return "logging";
        case SectionId::slider: return "slider";
    }
    return {};
}

std::span<const Key> keys_of(SectionId section) {
    switch (section) {
        case SectionId::process: return process;
        case SectionId::network: return network;
        case SectionId::network_kwargs: return network_kwargs;
        case SectionId::train: return train;
        case SectionId::ema_config: return ema_config;
        case SectionId::validation_config: return validation_config;
        case SectionId::model: return model;
        case SectionId::dataset: return dataset;
        case SectionId::sample: return sample;
        case SectionId::sample_item: return sample_item;
        case SectionId::save: return save;
        case SectionId::logging: return logging;
        case SectionId::slider: return slider;
    }
    return {};
}

std::string_view home_of(std::string_view key, SectionId section) {
    for (const SectionId candidate : all_sections) {
        if (candidate == section) continue;
        for (const Key& known : keys_of(candidate))
            if (known.name == key && known.means == memory) return name_of(candidate);
    }
    return {};
}

}  // namespace vram::trainers::ai_toolkit
