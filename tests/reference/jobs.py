"""A case, played on the fake GPU: builds the real class and runs the plain training loop, or one call.

The loop is that of the `torch` trainer (docs: the job file). A case is a flat dict:

    {"id": "flux1_dev-A", "model": "flux1_dev", "weights": "bf16", "text_tokens": 512, "batch": 1,
     "width": 1024, "height": 1024, "frames": 1,
     "train": "lora", "targets": "attention", "rank": 16, "lora_dtype": "bf16", "checkpointing": true}
    {"id": "vae_flux1-1", "component": "vae_flux1", "op": "encode", "weights": "bf16", "batch": 1, "height": 1024,
     "width": 1024, "frames": 1, "tiling": false}

`train` is lora, full or none. A text encoder takes `attention_mask`, `all_hidden_states`, `use_cache`. Further keys: `autocast`, `gradient_accumulation`, `ema`, `reference_images`
([[w, h], ...]); `forward`, whose own forward is called (`own_forwards.py`); and, to record a shrunken model, `layers` ({"double": 1, "single": 1}) or any `config` override.
"""

import contextlib
import re
import sys

import torch

import fake_cuda
import models
import own_forwards
import text_values
from recorder import Recorder, no_garbage_collector

DEVICE = "cuda:0"
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
ATTENTION = re.compile(r".*(\.to_q|\.to_k|\.to_v|\.to_out\.0|\.to_qkv_mlp_proj|\.to_query|\.to_key|\.to_value"
                       r"|_attention\.out_layer)")
BLOCKS = re.compile(r".*(transformer_blocks\.|single_transformer_blocks\.|blocks\.|layers\.).*")


def play(case: dict, trace: bool = False):
    """Plays a case; returns its results, and the recorder with the event list if `trace`."""
    with fake_cuda.fake_mode(), no_garbage_collector(), Recorder(trace) as recorder:
        if "model" in case:
            result = _play_model(case, recorder)
        else:
            result = _play_component(case, recorder)
    result["attention_calls"] = recorder.attention_calls
    return result, recorder


# -- building --------------------------------------------------------------------------------------------------------

def _config_of(case: dict, entry) -> dict:
    config = dict(entry.config)
    for short, count in case.get("layers", {}).items():
        config[entry.layers[short]] = count
    return config | case.get("config", {})


def _on_meta(build):
    """Builds a module without storage. Outside of the fake mode: initialisation would be thousands of ops."""
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes(), torch.device("meta"):
        return build()


def _target_names(model: torch.nn.Module, targets: str) -> list:
    pattern = {"attention": ATTENTION, "blocks": BLOCKS, "all": re.compile(".*")}[targets]
    return [name for name, module in model.named_modules()
            if isinstance(module, torch.nn.Linear) and pattern.fullmatch(name)]


def _add_lora(model: torch.nn.Module, case: dict) -> int:
    """Puts PEFT's linears in place; returns how many modules were adapted."""
    import peft

    names = _target_names(model, case["targets"])
    config = peft.LoraConfig(r=case["rank"], lora_alpha=case["rank"], init_lora_weights=True,
                             target_modules="|".join(re.escape(name) for name in names))
    peft.inject_adapter_in_model(config, model)
    return sum(isinstance(module, peft.tuners.lora.LoraLayer) for module in model.modules())


def _is_adapter(name: str) -> bool:
    return "lora_" in name


def _materialise(model: torch.nn.Module, case: dict, recorder: Recorder) -> None:
    """Gives every parameter and buffer storage on the GPU, in the dtype that loading would give it.

    `Module.to` refuses to swap fake parameters, so new ones take their places; a parameter that stands in two places
    (tied embeddings) stays one.
    """
    dtype = DTYPES[case["weights"]]
    adapter_dtype = DTYPES[case.get("lora_dtype", case["weights"])]
    # transformers' classes, which are the text encoders, go by the list in fp16 alone.
    listens = "model" in case or case["weights"] == "fp16"
    keep = getattr(type(model), "_keep_in_fp32_modules", None) if listens else None
    trains = case.get("train")
    made = {}

    def dtype_of(name, tensor, is_parameter):
        if not tensor.is_floating_point():
            return tensor.dtype
        if _is_adapter(name):
            return adapter_dtype
        if keep and any(part in name.split(".") for part in keep):
            return torch.float32
        # A class with such a list is loaded parameter by parameter, which leaves its buffers as they were built.
        return tensor.dtype if keep and not is_parameter else dtype

    def in_place_of(name, tensor, is_parameter):
        if id(tensor) not in made:
            new = recorder.named(name, lambda: torch.empty(
                tensor.shape, dtype=dtype_of(name, tensor, is_parameter), device=DEVICE))
            if is_parameter:
                new = torch.nn.Parameter(new, requires_grad=trains == "full" or (
                    trains == "lora" and _is_adapter(name)))
            made[id(tensor)] = (tensor, new)  # the old one is kept, lest its id be given to another
        return made[id(tensor)][1]

    for kind in ("_parameters", "_buffers"):
        for prefix, module in model.named_modules():
            tensors = getattr(module, kind)
            for name, tensor in list(tensors.items()):
                if tensor is not None:
                    full = f"{prefix}.{name}" if prefix else name
                    tensors[name] = in_place_of(full, tensor, kind == "_parameters")


def _make(recorder: Recorder, shapes: dict, dtype) -> dict:
    return {name: recorder.named(name, lambda: torch.empty(shape, dtype=own or dtype, device=DEVICE))
            for name, (shape, own) in shapes.items()}


def _nested(flat: dict) -> dict:
    """Dotted names put where they belong: `a.b` into a dict, `a.0` into a list, `a.0.1` into a list of lists."""
    nested = {}
    for name, value in flat.items():
        outer, _, inner = name.partition(".")
        if inner:
            nested.setdefault(outer, {})[inner] = value
        else:
            nested[outer] = value
    for name, parts in nested.items():
        if isinstance(parts, dict):
            parts = _nested(parts)
            nested[name] = list(parts.values()) if all(key.isdigit() for key in parts) else parts
    return nested


def _outputs(output) -> list:
    """The tensors that a forward returned: alone, in a tuple, or a list of samples in a tuple."""
    if isinstance(output, torch.Tensor):
        return [output]
    return [tensor for part in output for tensor in _outputs(part)]


def _numel(model, adapter: bool) -> int:
    return sum(p.numel() for name, p in model.named_parameters() if _is_adapter(name) == adapter)


def _weights_bytes(model, recorder) -> int:
    return recorder.bytes_of([*model.parameters(), *model.buffers()])


# -- a denoiser ------------------------------------------------------------------------------------------------------

def _play_model(case: dict, recorder: Recorder) -> dict:
    entry = (own_forwards.FORWARDS[case["forward"]] if "forward" in case else models.MODELS)[case["model"]]
    config = _config_of(case, entry)
    cls = entry.load()
    dtype = DTYPES[case["weights"]]
    trains = case["train"] != "none"
    result = {}

    def build():
        model = entry.make(cls, config)
        model.requires_grad_(False)
        if case["train"] == "lora":
            result["adapted_modules"] = _add_lora(model, case)
        return model

    model = _on_meta(build)
    with recorder.stage("load", "weights"):
        _materialise(model, case, recorder)
    if getattr(cls, "_keep_in_fp32_modules", None):
        result["kept_in_fp32"] = list(cls._keep_in_fp32_modules)
    result["parameters"] = _numel(model, adapter=False)
    if case["train"] == "lora":
        result["adapter_parameters"] = _numel(model, adapter=True)
    result["weights_bytes"] = _weights_bytes(model, recorder)
    recorder.name_modules(model)

    ema = None
    if case.get("ema"):
        with recorder.stage("load", "ema"):
            ema = [p.detach().clone() for p in model.parameters() if p.requires_grad]
        result["ema_bytes"] = recorder.bytes_of(ema)

    with recorder.stage("load", "inputs"):
        inputs = _make(recorder, entry.inputs(case, config), dtype)
        targets = [recorder.named("target", lambda: torch.empty(shape, dtype=dtype, device=DEVICE))
                   for shape in entry.targets(case, config)] if trains else []
    result["inputs"] = [[name, list(t.shape), str(t.dtype).removeprefix("torch.")] for name, t in inputs.items()]
    result["inputs_bytes"] = recorder.bytes_of(inputs.values())
    arguments = _nested(inputs) | entry.arguments(case) | entry.always
    del inputs
    if not trains:
        model.eval()
        with entry.values(case):
            result.update(_call(lambda: model(**arguments), recorder))
        return result

    result["targets"] = [list(t.shape) for t in targets]
    result["target_bytes"] = recorder.bytes_of(targets)
    model.train()
    if case.get("checkpointing"):
        with contextlib.redirect_stdout(sys.stderr):  # some classes tell the user
            model.enable_gradient_checkpointing()
    with entry.values(case):
        _train(model, arguments, targets, ema, case, recorder, result)
    return result


def _train(model, arguments, targets, ema, case, recorder, result) -> None:
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4)
    micro_steps = case.get("gradient_accumulation", 1)
    before = recorder.live
    for step in ("step 1", "step 2"):
        for _ in range(micro_steps):  # as in a plain loop, a micro-step's loss lives until the next one rebinds it
            with recorder.stage(step, "forward"):
                preds = _forward(model, arguments, case)
            with recorder.stage(step, "loss"):
                loss = torch.nn.functional.mse_loss(preds[0].float(), targets[0].float())
                for i in range(1, len(targets)):
                    loss = loss + torch.nn.functional.mse_loss(preds[i].float(), targets[i].float())
                if micro_steps > 1:
                    loss = loss / micro_steps
                del preds
            with recorder.stage(step, "backward"):
                loss.backward()
        with recorder.stage(step, "optimizer"):
            del loss
            optimizer.step()
            optimizer.zero_grad()
        if ema is not None:
            with recorder.stage(step, "ema"):
                with torch.no_grad():
                    torch._foreach_lerp_(ema, trained, 1e-3)
        if step == "step 1":
            result["optimizer_state_bytes"] = recorder.bytes_of(
                value for state in optimizer.state.values() for value in state.values())
            # What stays after a step that is neither state nor was there before: the module keeps it.
            result["cached_by_model_bytes"] = recorder.live - before - result["optimizer_state_bytes"]
    result["steps"] = [_summary(recorder, step) for step in ("step 1", "step 2")]


def _forward(model, arguments, case):
    """A function of its own, so that autocast is closed and its cache freed when the stage ends."""
    with torch.autocast("cuda", dtype=torch.bfloat16) if case.get("autocast") else contextlib.nullcontext():
        return _outputs(model(**arguments))


def _summary(recorder: Recorder, step: str) -> dict:
    """A step's figures; of several micro-steps the highest peak and the last end."""
    stages = {}
    for phase, name, start, peak, end in recorder.stages:
        if phase == step:
            highest = max(peak, stages[name][1]) if name in stages else peak
            stages[name] = (start, highest, end)
    summary = {
        "forward_peak_bytes": stages["forward"][1],
        "forward_end_bytes": stages["forward"][2],
        "kept_for_backward_bytes": stages["forward"][2] - stages["forward"][0],
        "loss_peak_bytes": stages["loss"][1],
        "backward_peak_bytes": stages["backward"][1],
        "backward_end_bytes": stages["backward"][2],
        "optimizer_peak_bytes": stages["optimizer"][1],
        "end_bytes": stages["optimizer"][2],
        "peak_bytes": max(peak for _, peak, _ in stages.values()),
    }
    if "ema" in stages:
        summary["ema_peak_bytes"] = stages["ema"][1]
    return summary


def _call(call, recorder: Recorder) -> dict:
    """One call under no_grad; the output is alive at the end of the stage and dropped after it."""
    with torch.no_grad():
        with recorder.stage("call", "forward"):
            output = call()
        del output
    peak, end = recorder.stages[-1][3:]
    return {"forward_peak_bytes": peak, "forward_end_bytes": end, "end_bytes": recorder.live}


# -- a component -----------------------------------------------------------------------------------------------------

def _play_component(case: dict, recorder: Recorder) -> dict:
    name = case["component"]
    kinds = ((models.VAES, _vae), (models.CONNECTORS, _connectors), (models.TEXT_ENCODERS, _text_encoder))
    model, shapes, call = next(build for known, build in kinds if name in known)(case)
    with recorder.stage("load", "weights"):
        _materialise(model, case, recorder)
    model.eval()
    recorder.name_modules(model)
    with recorder.stage("load", "inputs"):
        inputs = _make(recorder, shapes, DTYPES[case["weights"]])
    result = {"parameters": _numel(model, adapter=False), "weights_bytes": _weights_bytes(model, recorder),
              "inputs_bytes": recorder.bytes_of(inputs.values())}
    result.update(_call(lambda: call(**inputs), recorder))
    del result["end_bytes"]
    return result


def _vae(case: dict):
    import diffusers

    entry = models.VAES[case["component"]]
    model = _on_meta(lambda: getattr(diffusers, entry.cls)(**(entry.config | case.get("config", {}))))
    if case.get("tiling"):
        model.enable_tiling()
    if case.get("slicing"):
        model.enable_slicing()
    if entry.shapes:
        x, z = entry.shapes(case)
        if case["op"] == "encode":
            return model, {"x": (x, None)}, lambda x: model.encode(x, return_dict=False)[0]
        return model, {"z": (z, None)}, lambda z: model.decode(z, return_dict=False)[0]
    batch, width, height = case["batch"], case["width"], case["height"]
    frames = entry.temporal(case["frames"])
    if case["op"] == "encode":
        shape = (batch, entry.channels) + (() if frames is None else (case["frames"],)) + (height, width)
        return model, {"x": (shape, None)}, lambda x: model.encode(x, return_dict=False)[0]
    shape = (batch, entry.latent_channels) + (() if frames is None else (frames,)) + (
        height // entry.spatial, width // entry.spatial)
    inputs = {"z": (shape, None)}
    if getattr(model.config, "timestep_conditioning", False):  # a time to decode at
        inputs["temb"] = ((batch,), None)
    return model, inputs, lambda z, **given: model.decode(z, **given, return_dict=False)[0]


def _connectors(case: dict):
    import importlib

    entry = models.CONNECTORS[case["component"]]
    config = _config_of(case, entry)
    model = _on_meta(lambda: getattr(importlib.import_module(entry.library), entry.cls)(**config))
    return model, entry.inputs(case, config), lambda **inputs: model(**inputs)


def _text_encoder(case: dict):
    import importlib

    entry = models.TEXT_ENCODERS[case["component"]]
    library = importlib.import_module(entry.library)
    config = getattr(library, entry.config_cls)(**_changed(entry.config, case.get("config", {})))
    config._attn_implementation = entry.attention
    model = _on_meta(lambda: getattr(library, entry.cls)(config, **entry.options))
    pictures, others, grids = 0, {}, []
    if case.get("reference_images"):
        pictures, others, grids = entry.pictures(case, config)
    if entry.inputs:
        shapes = entry.inputs(case, config)
    else:
        shapes = {"input_ids": ((case["batch"], case["text_tokens"] + pictures), torch.int64)}
    if case.get("attention_mask"):
        shapes["attention_mask"] = shapes["input_ids"]
    if entry.positions:
        shapes["position_ids"] = shapes["input_ids"]
    options = {"output_hidden_states": bool(case.get("all_hidden_states"))}
    if "use_cache" in case:
        options["use_cache"] = case["use_cache"]

    def call(**inputs):
        with text_values.known(grids), entry.values():
            return model(**inputs, **options)

    return model, shapes | others, call


def _changed(config: dict, changes: dict) -> dict:
    """A config with changes; those of a part go into the part."""
    return config | {key: _changed(config.get(key, {}), value) if isinstance(value, dict) else value
                     for key, value in changes.items()}
