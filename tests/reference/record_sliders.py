"""Records a step of ai-toolkit's concept slider on a fake GPU.

    VRAMEST_AI_TOOLKIT=~/ai-toolkit python record_sliders.py --check [--only TEXT]

The options are those of record_optimizers.py. The real ConceptSliderTrainer.train_single_accumulation runs, twice, over the real
class of the architecture, a shrunken denoiser of diffusers with the trainer's own LoRA network, and the flow matching or
DDPM scheduler that it brings. What is handed in: the latents and the caption's embeds of a batch whose cache is on the host,
and what process_general_training_batch makes of a batch. Recorded is the second call from get_guided_loss on ("guided"),
until the function has returned. Rows of truth/sliders.jsonl are as those of truth/optimizers.jsonl, with

    "result": {"adapted": modules, "end", "peak": bytes above what lives as it begins, "stages": [["guided", [...]]]}
"""

import fake_cuda

if __name__ == "__main__":
    fake_cuda.ensure()

import contextlib
import io
import pathlib
import sys
import types

import record_optimizers
import sliders
from record_networks import _modules_moved_by_new_parameters
from record_optimizers import stages

STORED = pathlib.Path(__file__).with_name("truth") / "sliders.jsonl"


class _Batch:
    """DataLoaderBatchDTO of cached latents and captions."""

    def __init__(self, latents, embeds, count: int):
        self.latents, self.prompt_embeds = latents, embeds
        item = types.SimpleNamespace(is_reg=False, prior_reg=False, network_weight=1.0)
        self.file_items = [item] * count
        for name in ("control_tensor", "control_tensor_list", "clip_image_tensor", "clip_image_embeds", "mask_tensor",
                     "unconditional_latents", "dop_prompt_embeds", "extra_values", "audio_pred_slot", "tensor", "sigmas"):
            setattr(self, name, None)

    def get_network_weight_list(self):
        return [item.network_weight for item in self.file_items]


def _trainer(case, sd, network, prompts):
    import torch
    from extensions_built_in.concept_slider.ConceptSliderTrainer import ConceptSliderTrainer, ConceptSliderTrainerConfig
    from toolkit.config_modules import TrainConfig

    trainer = object.__new__(ConceptSliderTrainer)
    train = TrainConfig(dtype="bf16", noise_scheduler="flowmatch", gradient_checkpointing=case["checkpointing"],
                        cache_text_embeddings=True)
    timer = type("Timer", (), {"start": staticmethod(lambda name: None), "stop": staticmethod(lambda name: None),
                               "__call__": lambda self, name: contextlib.nullcontext()})()
    positive, target, negative, *anchor = prompts
    attributes = {"sd": sd, "network": network, "train_config": train, "model_config": sd.model_config, "timer": timer,
                  "device_torch": torch.device("cuda:0"), "adapter": None, "assistant_adapter": None, "embedding": None,
                  "adapter_config": None, "decorator": None, "negative_prompt_pool": None, "do_prior_prediction": False,
                  "do_long_prompts": False, "do_guided_loss": True, "cached_trigger_embeds": None,
                  "cached_blank_embeds": None, "_clip_image_embeds_unconditional": None, "is_caching_text_embeddings": True,
                  "additional_logs": {}, "slider": ConceptSliderTrainerConfig(),
                  "positive_prompt_embeds": positive, "target_class_embeds": target, "negative_prompt_embeds": negative,
                  "anchor_class_embeds": anchor[0] if anchor else None,
                  # Accelerator.backward of one process without mixed precision
                  "accelerator": types.SimpleNamespace(backward=lambda loss: (loss / 1).backward())}
    for name, value in attributes.items():
        trainer.__dict__[name] = value
    return trainer


def record(case: dict) -> tuple:
    """(row, recorder) of a case."""
    fake_cuda.install()
    import torch

    from recorder import no_garbage_collector

    sliders.pretend()
    import toolkit.lora_special  # before the fake mode: it makes tensors of its own
    sliders.class_of(case)
    from toolkit.config_modules import NetworkConfig
    from toolkit.prompt_utils import PromptEmbeds
    from extensions_built_in.concept_slider.ConceptSliderTrainer import ConceptSliderTrainer  # noqa: F401

    dtype, device = torch.bfloat16, torch.device("cuda:0")
    roots, channels, width, pooled = sliders.FACTS[case["arch"]]
    recorder = record_optimizers.values(set())
    count = case["batch"]
    blocks = case["arch"] != "sd1"

    def embeds(tokens: int, items: int, where) -> PromptEmbeds:
        if case["arch"] == "zimage":
            return PromptEmbeds([[torch.empty(tokens, width, dtype=dtype, device=where) for _ in range(items)], None])
        out = PromptEmbeds(torch.empty(items, tokens, width, dtype=dtype, device=where))
        if pooled:
            out.pooled_embeds = torch.empty(items, pooled, dtype=dtype, device=where)
        return out

    with (no_garbage_collector(), fake_cuda.fake_mode(), recorder, _modules_moved_by_new_parameters(),
          contextlib.redirect_stdout(io.StringIO())):
        torch.set_default_dtype(dtype)
        with torch.device("cuda:0"):
            denoiser = sliders.denoiser_of(case)
        torch.set_default_dtype(torch.float32)
        for module in denoiser.modules():
            for store in (module._parameters, module._buffers):
                for name, value in store.items():
                    if value is not None and value.is_floating_point() and value.dtype != dtype:
                        value = value.to(dtype)
                        store[name] = torch.nn.Parameter(value) if store is module._parameters else value
        denoiser.requires_grad_(False)
        denoiser.train()
        if case["checkpointing"]:
            denoiser.enable_gradient_checkpointing()
        sd = sliders.model_of(case, denoiser, dtype)
        config = NetworkConfig(type="lora", linear=case["rank"], linear_alpha=case["rank"])
        targets = {"target_lin_modules": roots} if blocks else {}  # BaseModel.target_lora_modules; else the network's own
        network = toolkit.lora_special.LoRASpecialNetwork(
            text_encoder=[], unet=denoiser, lora_dim=config.linear, multiplier=1.0, alpha=config.linear_alpha,
            train_unet=True, train_text_encoder=False, network_config=config, network_type=config.type,
            transformer_only=config.transformer_only, is_transformer=blocks, is_flux=case["arch"] == "flux", base_model=sd,
            **targets, **config.network_kwargs)
        network.force_to("cuda:0", dtype=torch.float32)
        network.apply_to([], denoiser, False, True)
        network.prepare_grad_etc([], denoiser)
        sd.__dict__["network"] = network
        prompts = [embeds(tokens, 1, device) for tokens in case["prompts"]]
        trainer = _trainer(case, sd, network, prompts)
        shape = (count, channels, case["height"] // 8, case["width"] // 8)
        timesteps = torch.empty(count, dtype=torch.float32 if blocks else torch.int64, device=device)
        latents = torch.empty(shape, dtype=dtype, device=device)
        noise = torch.empty(shape, dtype=dtype, device=device)
        noisy = torch.empty(shape, dtype=torch.float32 if blocks else dtype, device=device)
        trainer.__dict__["process_general_training_batch"] = lambda batch: (noisy, noise, timesteps, ["a"] * count, None)
        figures = {}
        guided = ConceptSliderTrainer.get_guided_loss

        def marked(self, *args, **kwargs):
            recorder.mark("guided")
            figures["begin"] = recorder.peak = recorder.live
            return guided(self, *args, **kwargs)

        for step in (1, 2):
            batch = _Batch(latents, embeds(case["prompts"][0], count, "cpu"), count)
            if step == 2:
                trainer.get_guided_loss = types.MethodType(marked, trainer)
            loss = trainer.train_single_accumulation(batch)
            if step == 1:
                del loss
                for parameter in network.parameters():
                    parameter.grad = None
        recorder.mark("end")
        figures["end"], peak = recorder.live - figures["begin"], recorder.peak - figures["begin"]
        adapted = len(network.unet_loras)
    row = {"adapted": adapted, "end": figures["end"], "peak": peak, "stages": stages(recorder, empty=False)}
    return {"case": case, "made_by": f"ai-toolkit, torch {torch.__version__}", "result": row}, recorder


if __name__ == "__main__":
    sys.exit(record_optimizers.main(__doc__, sliders, record, STORED))
