"""Records ai-toolkit's assistant LoRA of a distilled model on a fake GPU.

    VRAMEST_AI_TOOLKIT=~/ai-toolkit python record_assistants.py --check [--only TEXT]

The options are those of record_optimizers.py. The real load_training_adapter of the architecture's class runs over a shrunken
denoiser of diffusers on the host ("load"), which goes to the GPU then; the trainer's own LoRA network is put around it. Then
the class's prediction ("step") and the way back ("backward"), twice, while the assistant LoRA still lies on
the GPU. Then what BaseModel.generate_images does with the two networks before and behind its pictures ("activate",
"deactivate"), and between these diffusers' pipeline with two denoising steps, up to the latents ("denoise"). Rows of
truth/assistants.jsonl are as those of truth/optimizers.jsonl, with

    "result": {"adapted": modules of the assistant LoRA, "stages": [...]}
"""

import fake_cuda

if __name__ == "__main__":
    fake_cuda.ensure()

import contextlib
import io
import pathlib
import sys
import types

import assistants
import record_optimizers
import sliders
from record_networks import _modules_moved_by_new_parameters
from record_optimizers import stages

STORED = pathlib.Path(__file__).with_name("truth") / "assistants.jsonl"


def _file_of(case: dict, denoiser, dtype) -> dict:
    """What load_file reads, on the host: matrices of the layers that the case names."""
    import torch

    out = {}
    for name, module in denoiser.named_modules():
        if isinstance(module, torch.nn.Linear) and any(part in name for part in case["filled"]):
            for side, shape in (("A", (case["assistant"], module.in_features)), ("B", (module.out_features, case["assistant"]))):
                out[f"diffusion_model.{name}.lora_{side}.weight"] = torch.empty(shape, dtype=dtype, device="cpu")
    return out


@contextlib.contextmanager
def _any_by_file(recorder, filled):
    """While the assistant LoRA merges, `any` of a layer's matrices is true where the file has the layer."""
    import torch
    from toolkit.network_mixins import ToolkitModuleMixin

    plain_merge, plain_any, unfilled = ToolkitModuleMixin.merge_in, torch.Tensor.any, []

    def merge_in(module, *args, **kwargs):
        name = module.lora_name.replace("$$", ".")
        if module.network_ref().is_assistant_adapter and not any(part in name for part in filled):
            unfilled.append(name)
        plain_merge(module, *args, **kwargs)
        unfilled.clear()

    def any_(tensor, *args, **kwargs):
        out = plain_any(tensor, *args, **kwargs)
        if unfilled:
            recorder._no = {out.untyped_storage()._cdata}
        return out

    ToolkitModuleMixin.merge_in, torch.Tensor.any = merge_in, any_
    try:
        yield
    finally:
        ToolkitModuleMixin.merge_in, torch.Tensor.any = plain_merge, plain_any


def record(case: dict) -> tuple:
    """(row, recorder) of a case."""
    fake_cuda.install()
    import torch

    from recorder import no_garbage_collector

    assistants.pretend()
    import toolkit.lora_special  # before the fake mode: it makes tensors of its own
    model_class = assistants.class_of(case)
    module = sys.modules[model_class.__module__]
    from diffusers import ZImagePipeline
    from toolkit.config_modules import NetworkConfig
    from toolkit.prompt_utils import PromptEmbeds

    dtype, device = torch.bfloat16, torch.device("cuda:0")
    width = sliders.FACTS[case["arch"]][2]
    recorder = record_optimizers.values(set())
    network_class = toolkit.lora_special.LoRASpecialNetwork

    def embeds(tokens: int) -> PromptEmbeds:
        return PromptEmbeds([[torch.empty(tokens, width, dtype=dtype, device=device)], None])

    with (no_garbage_collector(), fake_cuda.fake_mode(), recorder, _modules_moved_by_new_parameters(),
          _any_by_file(recorder, case["filled"]), contextlib.redirect_stdout(io.StringIO())):
        torch.set_default_dtype(dtype)
        denoiser = assistants.denoiser_of(case)
        torch.set_default_dtype(torch.float32)
        for part in denoiser.modules():
            for store in (part._parameters, part._buffers):
                for name, value in store.items():
                    if value is not None and value.is_floating_point() and value.dtype != dtype:
                        value = value.to(dtype)
                        store[name] = torch.nn.Parameter(value) if store is part._parameters else value
        denoiser.requires_grad_(False)
        denoiser.train()
        denoiser.enable_gradient_checkpointing()
        sd = assistants.model_of(case, denoiser, dtype)
        sd.__dict__["print_and_status_update"] = lambda status: None
        sd.__dict__["target_lora_modules"] = sliders.FACTS[case["arch"]][0]
        sd.model_config.assistant_lora_path = __file__
        file = _file_of(case, denoiser, dtype)
        module.load_file = lambda path: dict(file)
        recorder.mark("load")
        sd.load_training_adapter(denoiser)
        recorder.mark("place")
        assistant = sd.assistant_lora
        denoiser.to(device)
        config = NetworkConfig(type="lora", linear=case["rank"], linear_alpha=case["rank"])
        network = network_class(
            text_encoder=[], unet=denoiser, lora_dim=config.linear, multiplier=1.0, alpha=config.linear_alpha,
            train_unet=True, train_text_encoder=False, network_config=config, network_type=config.type,
            transformer_only=config.transformer_only, is_transformer=True, base_model=sd,
            target_lin_modules=sd.target_lora_modules, **config.network_kwargs)
        network.force_to(device, dtype=torch.float32)
        network._update_torch_multiplier()
        network.apply_to([], denoiser, False, True)
        network.prepare_grad_etc([], denoiser)
        network.train()
        network.is_active = True
        caption, blank = (embeds(tokens) for tokens in case["prompts"])
        latents = torch.empty(1, 16, case["height"] // 8, case["width"] // 8, dtype=dtype, device=device)
        timestep = torch.empty(1, dtype=torch.float32, device=device)
        for _ in range(2):
            recorder.mark("step")
            prediction = sd.get_noise_prediction(latents, timestep, caption)
            recorder.mark("backward")
            gradient = torch.empty_like(prediction)
            prediction.backward(gradient)
            del gradient, prediction
            network.zero_grad()
        recorder.mark("activate")
        with torch.no_grad():
            assistant.is_active = True
            assistant.force_to(device, dtype)
            network.eval()
            if case["merges"]:
                network.merge_in(merge_weight=1.0)
            pipeline = ZImagePipeline(scheduler=model_class.get_train_scheduler(), text_encoder=None, tokenizer=None,
                                      vae=None, transformer=denoiser)
            pipeline.set_progress_bar_config(disable=True)
            said = types.SimpleNamespace(width=case["width"], height=case["height"], guidance_scale=case["guidance"],
                                         num_inference_steps=2, latents=None)
            recorder.mark("denoise")
            picture = sd.generate_single_image(pipeline, said, caption, blank, None, {"output_type": "latent"})
            recorder.mark("between")
            del picture
            recorder.mark("deactivate")
            if case["merges"]:
                network.merge_out(1.0)
            assistant.is_active = False
            assistant.force_to("cpu", dtype)
        adapted = len(assistant.unet_loras)
        recorder.mark("end")
    row = {"adapted": adapted, "stages": stages(recorder, empty=False)}
    return {"case": case, "made_by": f"ai-toolkit, torch {torch.__version__}", "result": row}, recorder


if __name__ == "__main__":
    sys.exit(record_optimizers.main(__doc__, assistants, record, STORED))
