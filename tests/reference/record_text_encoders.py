"""Records ai-toolkit's training steps with `train_text_encoder: true`, on a fake GPU.

    VRAMEST_AI_TOOLKIT=~/ai-toolkit python record_text_encoders.py --check [--only TEXT]

The options are those of record_optimizers.py; `--events ID FILE` writes a case's event list for compare.py. SDTrainer's own
hook_train_loop runs twice, with the real StableDiffusion, LoRASpecialNetwork, configs, schedulers and optimizers of the
checkout over diffusers' and transformers' classes at published size. An SDTrainer is made without its constructor, which
would load a dataset; what BaseSDTrainProcess.run does to the models between load_model and the loop is done here, in its
order. Stood in: the tokenizers (their ids are zeros), the VAE (latents are cached), the Accelerator (what one process without
mixed precision does). Rows of truth/text_encoders.jsonl:

    {"case": {"id", "arch", "width", "height", "process": the config's `network`, `train` and `model`}, "result":
     {"adapted_modules", "adapter_bytes": with buffers, "trained_parameters", "steps": [{"kept_for_backward", "gradients",
      "<stage>_peak": above what lives as the step begins}], "optimizer_state"}}

What is kept for backward is what the text encoders and the prediction leave, without the embeds.
"""

import fake_cuda

if __name__ == "__main__":
    fake_cuda.ensure()

import contextlib
import io
import json
import pathlib
import sys
import types

import networks
import record_optimizers
from record_networks import _modules_moved_by_new_parameters

STORED = pathlib.Path(__file__).with_name("truth") / "text_encoders.jsonl"

#: By arch: the denoiser and the text encoders, as models.py names them.
MODELS = {"sd1": ("sd15", ["clip_l"]), "sd2": ("sd21", ["openclip_h"]), "sdxl": ("sdxl", ["clip_l", "openclip_bigg"]),
          "flux": ("flux1_dev", ["clip_l", "t5_xxl"]), "pixart": ("pixart_sigma", ["t5_xxl"])}
#: Of those that flow: the channels of their latents.
CHANNELS = {"flux": 16}


def cases() -> list:
    out = []

    def add(id: str, arch: str, network=True, width=512, height=512, **train):
        process = {"train": {"dtype": "bf16", "noise_scheduler": "ddpm", "optimizer": "adamw", "train_text_encoder": True,
                             "gradient_checkpointing": True} | train}
        if network:
            process["network"] = {"type": "lora", "linear": 8} | (network if isinstance(network, dict) else {})
        model = {"flux": "black-forest-labs/FLUX.1-dev", "pixart": "PixArt-alpha/PixArt-Sigma-XL-2-1024-MS"}.get(arch, "none")
        out.append({"id": id, "arch": arch, "model": model, "width": width, "height": height, "process": process})

    add("sd1-lora", "sd1")
    add("sd1-lora-nogc", "sd1", gradient_checkpointing=False)
    add("sd1-lora-b3-cfg", "sd1", batch_size=3, do_cfg=True)
    add("sd1-lora-ema", "sd1", ema_config={"use_ema": True, "ema_decay": 0.99})
    add("sd1-full", "sd1", network=False)
    add("sd2-full", "sd2", network=False, optimizer="adamw8bit")
    add("sdxl-lora", "sdxl")
    add("sdxl-full", "sdxl", network=False, optimizer="adamw8bit")
    flow = {"noise_scheduler": "flowmatch"}
    add("flux-lora", "flux", **flow)
    add("flux-lora-nogc", "flux", width=256, height=256, gradient_checkpointing=False, **flow)
    add("pixart-lora", "pixart")
    add("pixart-lora-nogc", "pixart", gradient_checkpointing=False)
    return out


class Accelerator:
    """What accelerate's does of one process without mixed precision."""

    is_main_process = is_local_main_process = True

    def backward(self, loss):
        (loss / 1).backward()

    def clip_grad_norm_(self, parameters, max_norm):
        import torch

        return torch.nn.utils.clip_grad_norm_(parameters, max_norm)

    def unwrap_model(self, model):
        return model


class Tokenizer:
    model_max_length = 77

    def __call__(self, prompts, max_length=model_max_length, padding="max_length", **_):
        import torch

        length = 5 if padding == "longest" else max_length
        ids, mask = (torch.zeros((len(prompts), length), dtype=torch.int64) for _ in range(2))
        return types.SimpleNamespace(input_ids=ids, attention_mask=mask)


class Batch:
    """A DataLoaderBatchDTO of cached latents."""

    def __init__(self, case: dict, count: int, dtype):
        import torch

        self.file_items = [types.SimpleNamespace(is_reg=False, prior_reg=False, trigger_word=None,
                                                 dataset_config=types.SimpleNamespace()) for _ in range(count)]
        self.latents = torch.empty(count, CHANNELS.get(case["arch"], 4), case["height"] // 8, case["width"] // 8, dtype=dtype)
        self.loss_multiplier_list = [1.0] * count
        self._count = count

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return None  # nothing else comes along

    def get_caption_list(self, **_):
        return ["a caption"] * self._count

    def get_is_reg_list(self):
        return [False] * self._count

    def get_network_weight_list(self):
        return [1.0] * self._count


def _made(name: str, dtype):
    import diffusers
    import transformers

    import models

    if name in models.MODELS:
        described = models.MODELS[name]
        return getattr(diffusers, described.cls)(**described.config).to(dtype)
    entry = models.TEXT_ENCODERS[name]
    config = getattr(transformers, entry.config_cls)(**entry.config)
    config._attn_implementation = entry.attention
    return getattr(transformers, entry.cls)(config).to(dtype)


def _load(sd, case: dict, dtype) -> None:
    """load_model, and BaseSDTrainProcess.run up to the network."""
    denoiser, text_encoders = MODELS[case["arch"]]
    made = [_made(name, dtype).to("cuda:0") for name in text_encoders]
    sd.text_encoder = made if len(made) > 1 else made[0]
    sd.tokenizer = [Tokenizer() for _ in made] if len(made) > 1 else Tokenizer()
    sd.unet = _made(denoiser, dtype)
    from diffusers.configuration_utils import FrozenDict

    config = FrozenDict(block_out_channels=[0] * 4, latent_channels=CHANNELS.get(case["arch"], 4))
    sd.vae = types.SimpleNamespace(dtype=dtype, train=lambda: None, eval=lambda: None, to=lambda *_: None, config=config)
    if case["arch"] == "pixart":
        from diffusers.image_processor import PixArtImageProcessor

        sd.pipeline = types.SimpleNamespace(transformer=sd.unet, image_processor=PixArtImageProcessor(vae_scale_factor=8))
        sd.vae_scale_factor = 8
    if case["process"]["train"]["gradient_checkpointing"]:
        sd.unet.enable_gradient_checkpointing()
        for text_encoder in made:
            text_encoder.gradient_checkpointing_enable()
    for text_encoder in made:
        text_encoder.requires_grad_(False)
        text_encoder.eval()
    sd.unet.to("cuda:0")
    sd.unet.requires_grad_(False)
    sd.unet.eval()


def _named_as_published(sd) -> None:
    """transformers 5.24 has no module `text_model` in a CLIPTextModel; that of the checkout's requirements, 5.5.3, has."""
    plain = sd.named_parameters

    def named_parameters(**wanted):
        named = plain(**wanted)
        return type(named)((name if "text_model" in name or not name.startswith("te") else
                            name.replace("_", "_text_model.", 1), value) for name, value in named.items())

    sd.named_parameters = named_parameters


def _process(case: dict, recorder):
    """An SDTrainer that stands before its loop: BaseSDTrainProcess.run from the network on."""
    import torch
    from extensions_built_in.sd_trainer.SDTrainer import SDTrainer
    from toolkit import stable_diffusion_model
    from toolkit.config_modules import ModelConfig, NetworkConfig, TrainConfig
    from toolkit.lora_special import LoRASpecialNetwork
    from toolkit.optimizer import get_optimizer
    from toolkit.sampler import get_sampler
    from toolkit.sd_device_states_presets import get_train_sd_device_state_preset
    from toolkit.timer import Timer

    said = case["process"]
    train, dtype = TrainConfig(**said["train"]), torch.bfloat16
    model = ModelConfig(name_or_path=case.get("model", "none"), arch=case["arch"], dtype=train.dtype, **said.get("model", {}))
    network = NetworkConfig(**said["network"]) if "network" in said else None
    accelerator = Accelerator()
    stable_diffusion_model.get_accelerator = lambda: accelerator
    scheduler = get_sampler(train.noise_scheduler, {"prediction_type": "epsilon"},
                            arch=case["arch"] if case["arch"] in ("flux", "pixart") else "sd")
    sd = stable_diffusion_model.StableDiffusion("cuda:0", model, dtype=train.dtype, noise_scheduler=scheduler)
    _load(sd, case, dtype)
    _named_as_published(sd)

    process = SDTrainer.__new__(SDTrainer)
    process.__dict__.update(
        train_config=train, model_config=model, network_config=network, network=None, sd=sd, accelerator=accelerator,
        device_torch=torch.device("cuda:0"), timer=Timer("none"), adapter=None, adapter_config=None, embedding=None,
        decorator=None, assistant_adapter=None, trigger_word=None, do_prior_prediction=False, do_long_prompts=False,
        do_guided_loss=False, is_caching_text_embeddings=False, negative_prompt_pool=None, snr_gos=None, dfe=None, ema=None,
        is_grad_accumulation_step=False, additional_logs={}, current_boundary_index=0, steps_this_boundary=0, step_num=0,
        start_step=0, is_bfloat=True, taesd=None, modules_being_trained=[], progress_bar=None,
        lr_scheduler=types.SimpleNamespace(step=lambda *_: None))
    text_encoder = sd.text_encoder

    def preset(require_grads: bool) -> dict:
        return get_train_sd_device_state_preset(
            device=process.device_torch, train_unet=True, train_text_encoder=True, cached_latents=True,
            train_lora=network is not None, train_refiner=train.train_refiner, require_grads=require_grads)

    if network is not None:
        process.network = LoRASpecialNetwork(
            text_encoder=text_encoder, unet=sd.get_model_to_train(), lora_dim=network.linear, multiplier=1.0,
            alpha=network.linear_alpha, train_unet=True, train_text_encoder=True, conv_lora_dim=network.conv,
            conv_alpha=network.conv_alpha, is_sdxl=model.is_xl, is_v2=model.is_v2, is_flux=model.is_flux,
            is_pixart=model.is_pixart, dropout=network.dropout,
            use_text_encoder_1=model.use_text_encoder_1, use_text_encoder_2=model.use_text_encoder_2,
            network_config=network, network_type=network.type, transformer_only=network.transformer_only,
            is_transformer=sd.is_transformer, base_model=sd, target_lin_modules=["Transformer2DModel"],
            **network.network_kwargs)
        process.network.force_to("cuda:0", dtype=torch.float32)
        sd.network = process.network
        process.network._update_torch_multiplier()
        process.network.apply_to(text_encoder, sd.unet, True, True)
        process.network.prepare_grad_etc(text_encoder, sd.unet)
        params = process.network.prepare_optimizer_params(train.lr, train.lr, train.lr)
    else:
        sd.set_device_state(preset(True))
        params = sd.prepare_optimizer_params(unet=True, text_encoder=True, text_encoder_lr=train.lr, unet_lr=train.lr,
                                             default_lr=train.lr)
    process.params = params
    process.ensure_params_requires_grad(force=True)
    process.optimizer = get_optimizer(params, train.optimizer, learning_rate=train.lr, optimizer_params={})
    process.setup_ema()
    process.optimizer.zero_grad()
    sd.set_device_state(preset(False))
    process.ensure_params_requires_grad(force=True)
    return process


@contextlib.contextmanager
def _marked(process, recorder):
    """Stages begin where the process calls these, and end where the next one begins."""

    def around(owner, name, before, after=None):
        plain = getattr(owner, name)

        def call(*args, **kwargs):
            begin(before)
            out = plain(*args, **kwargs)
            if before == "text":
                out = out.to("cuda:0", dtype=process.sd.torch_dtype)  # what the process does with them at once
                embeds.append(recorder.bytes_of([out.text_embeds, out.pooled_embeds, out.attention_mask]))
            if after is not None:
                begin(after)
            return out

        setattr(owner, name, call)

    around(process.sd, "encode_prompt", "text", "prepare")
    around(process, "predict_noise", "forward", "loss")
    around(process.accelerator, "backward", "backward", "return")
    around(process.accelerator, "clip_grad_norm_", "clip")
    around(process.optimizer, "step", "optimizer")
    if process.ema is not None:
        around(process.ema, "update", "ema")

    def begin(name):
        if stages:
            stages[-1][2:] = [recorder.peak, recorder.live]
        recorder.mark(name)
        recorder.peak = recorder.live
        if name is not None:
            stages.append([name, recorder.live, 0, 0])

    stages, embeds = [], []
    yield begin, stages, embeds


def record(case: dict) -> tuple:
    """(row, recorder) of a case."""
    fake_cuda.install()
    import torch

    import optimizers
    from recorder import no_garbage_collector

    networks.pretend()
    optimizers._pretend_bitsandbytes()
    import extensions_built_in.sd_trainer.SDTrainer  # noqa: F401  before the fake mode: it makes tensors of its own

    result = {}
    recorder = record_optimizers.values(set())
    with (no_garbage_collector(), fake_cuda.fake_mode(), recorder, _modules_moved_by_new_parameters(),
          contextlib.redirect_stdout(io.StringIO())):
        recorder.mark("load")
        process = _process(case, recorder)
        trained = [one for group in process.optimizer.param_groups for one in group["params"]]
        result["trained_parameters"] = sum(one.numel() for one in trained)
        if process.network is not None:
            modules = process.network.text_encoder_loras + process.network.unet_loras
            result["adapted_modules"] = len(modules)
            result["adapter_bytes"] = recorder.bytes_of([*process.network.parameters(), *process.network.buffers()])
        result["steps"] = []
        with _marked(process, recorder) as (begin, stages, embeds):
            batch = None  # the loop's name for one keeps it until the next one is there
            for step in (1, 2):
                grads = []
                plain = process.accelerator.clip_grad_norm_

                def clip_grad_norm_(parameters, max_norm):
                    grads.append(recorder.bytes_of([one.grad for one in parameters]))
                    return plain(parameters, max_norm)

                process.accelerator.clip_grad_norm_ = clip_grad_norm_
                begin("prepare")
                start = recorder.live
                batch = None
                batch = Batch(case, process.train_config.batch_size, torch.bfloat16)
                process.hook_train_loop([batch])
                begin("end of the step")
                row = {"kept_for_backward": 0}
                for name, first, peak, end in stages[:-1]:
                    if name == "return":  # of train_single_accumulation
                        continue
                    row[name + "_peak"] = max(row.get(name + "_peak", 0), peak - start)
                    if name == "forward" or (name == "text" and embeds):  # the blank prompt's are detached
                        row["kept_for_backward"] += end - first
                    if name == "text" and embeds:
                        row["kept_for_backward"] -= embeds[0]
                        embeds.clear()
                result["steps"].append(row)
                stages.clear()
                process.accelerator.clip_grad_norm_ = plain
                row["gradients"] = sum(grads)
                del grads, clip_grad_norm_
        result["optimizer_state"] = recorder.bytes_of(
            [value for state in process.optimizer.state.values() for value in state.values()])
    return {"case": case, "made_by": f"ai-toolkit, torch {torch.__version__}", "result": result}, recorder


def main() -> int:
    if len(sys.argv) == 4 and sys.argv[1] == "--events":
        case = next(case for case in cases() if case["id"] == sys.argv[2])
        row, recorder = record(case)
        pathlib.Path(sys.argv[3]).write_text(json.dumps(recorder.events.to_dict(case)))
        print(json.dumps(row["result"], indent=1))
        return 0
    table = types.SimpleNamespace(cases=cases, is_there=networks.is_there, MISSING=networks.MISSING)
    return record_optimizers.main(__doc__, table, record, STORED)


if __name__ == "__main__":
    sys.exit(main())
