"""Which of ai-toolkit's networks are recorded (record_networks.py), and how each is made.

A case is one layer, what the network makes of it, and how it is called:

    {"id": ..., "layer": {"kind": "linear" | "conv" | "norm" | "group_norm" | "embedding", ...}, "quantize": "qfloat8"?,
     "recovery": {"qtype", "rank"}?, "offloaded": true?,
     "network": keys of the config's `network`, "input": [shape], "call": "train" | "checkpoint" | "no_grad"}

The layer is a child of a root module whose class the network is told to wrap; the network is the real
LoRASpecialNetwork with the real NetworkConfig, from a checkout that VRAMEST_AI_TOOLKIT names.
"""

import importlib.abc
import importlib.machinery
import os
import sys
import types
import unittest.mock

AI_TOOLKIT = os.environ.get("VRAMEST_AI_TOOLKIT", "")

LINEAR = {"kind": "linear", "in": 96, "out": 160, "bias": True}
SQUARE = {"kind": "linear", "in": 128, "out": 128, "bias": False}
CONV = {"kind": "conv", "in": 24, "out": 40, "kernel": 3, "padding": 1, "stride": 1, "bias": True}
DOWN = {"kind": "conv", "in": 24, "out": 40, "kernel": 3, "padding": 1, "stride": 2, "bias": True}
POINT = {"kind": "conv", "in": 24, "out": 40, "kernel": 1, "padding": 0, "stride": 1, "bias": False}
NORM = {"kind": "norm", "size": 96}
GROUP_NORM = {"kind": "group_norm", "groups": 8, "channels": 24}
RMS_NORM = {"kind": "rms_norm", "size": 96}
EMBEDDING = {"kind": "embedding", "count": 64, "size": 96}
INPUTS = {"linear": [2, 48], "conv": [2, 24, 12, 10], "norm": [2, 48, 96], "group_norm": [2, 24, 12, 10],
          "rms_norm": [2, 48, 96], "embedding": [2, 48]}

#: A LoKr of low rank takes both of its matrices apart only where they are large enough.
LOKR_LOW = {"type": "lokr", "lokr_full_rank": False, "linear": 4, "conv": 4}


def cases() -> list:
    out = []

    def add(id: str, layer: dict, network: dict, calls=("train",), **others):
        shape = list(INPUTS[layer["kind"]])
        if layer["kind"] == "linear":
            shape.append(layer["in"])
        for call in calls:
            out.append({"id": f"{id}-{call}", "layer": layer, "network": network, "input": shape, "call": call, **others})

    every = ("train", "checkpoint", "no_grad")
    lora = {"type": "lora", "linear": 8, "conv": 4}
    for name, layer in (("linear", LINEAR), ("square", SQUARE), ("conv3x3", CONV), ("conv3x3-down", DOWN),
                        ("conv1x1", POINT)):
        add(f"lora-{name}", layer, lora, every)
        add(f"fullrank-{name}", layer, {"type": "fullrank", "linear": 8, "conv": 4})
        add(f"lokr-{name}", layer, {"type": "lokr", "lokr_factor": 4}, every)
        add(f"lokr-auto-{name}", layer, {"type": "lokr"})
        add(f"lokr-low-{name}", layer, LOKR_LOW | {"lokr_factor": 2})
        add(f"full-{name}", layer, lora | {"network_kwargs": {"full_if_contains": ["layer"]}}, every)
    for name, layer in (("linear", LINEAR), ("square", SQUARE)):
        add(f"dora-{name}", layer, {"type": "dora", "linear": 8}, every)
        # Without gradients: what QTensor's own dispatch does in its backward is not seen here. Whole steps over quantised
        # linears are met in truth/ai-toolkit.jsonl.
        quantized = {"calls": ("no_grad",), "quantize": "qfloat8"}
        add(f"lora-quantized-{name}", layer, lora, **quantized)
        add(f"lokr-quantized-{name}", layer, {"type": "lokr", "lokr_factor": 4}, **quantized)
        add(f"lokr-low-quantized-{name}", layer, LOKR_LOW | {"lokr_factor": 2}, **quantized)
        add(f"dora-quantized-{name}", layer, {"type": "dora", "linear": 8}, **quantized)
        add(f"fullrank-quantized-{name}", layer, {"type": "fullrank", "linear": 8}, **quantized)
    for name, layer in (("linear", LINEAR), ("conv3x3", CONV)):
        add(f"lora-dropout-{name}", layer, lora | {"dropout": 0.1}, every)
        add(f"lora-rank-dropout-{name}", layer, lora | {"network_kwargs": {"rank_dropout": 0.1}}, every)
        add(f"lokr-rank-dropout-{name}", layer,
            {"type": "lokr", "lokr_factor": 4, "network_kwargs": {"rank_dropout": 0.1}},
            ("train", "no_grad") if layer is LINEAR else ("no_grad",))  # in training the trainer itself stops on it
        add(f"fullrank-dropout-{name}", layer, {"type": "fullrank", "linear": 8, "conv": 4, "dropout": 0.1})
    add("dora-dropout-linear", LINEAR, {"type": "dora", "linear": 8, "dropout": 0.1}, every)
    for name, layer in (("norm", NORM), ("group_norm", GROUP_NORM), ("rms_norm", RMS_NORM), ("embedding", EMBEDDING)):
        add(f"all-layers-{name}", layer, lora | {"all_layers": True}, every)
    # A modulation: a tensor of [B, C], as after a time embedding; and fp32 all through.
    out.append({"id": "lora-modulation-train", "layer": LINEAR, "network": lora, "input": [2, 96], "call": "train"})
    out.append({"id": "lokr-modulation-train", "layer": LINEAR, "network": {"type": "lokr", "lokr_factor": 4},
                "input": [2, 96], "call": "train"})
    for kind in ("lora", "dora", "lokr", "fullrank"):
        out.append({"id": f"{kind}-fp32-train", "layer": LINEAR, "network": {"type": kind, "linear": 8},
                    "input": [2, 48, 96], "call": "train", "dtype": "fp32"})
    # The first layer of a model: nothing before it asks for a gradient.
    for kind in ("lora", "dora", "lokr", "fullrank"):
        out.append({"id": f"{kind}-first-train", "layer": LINEAR, "network": {"type": kind, "linear": 8},
                    "input": [2, 48, 96], "call": "train", "first": True})
    # While rendering there is one multiplier, and guidance may batch two pictures.
    out.append({"id": "lora-guidance-no_grad", "layer": LINEAR, "network": lora, "input": [2, 48, 96], "call": "no_grad",
                "multiplier": 1.5})
    # Over an accuracy recovery adapter of rank 16, and the layer in 3 bits.
    recovery = {"qtype": "uint3", "rank": 16}
    add("lora-recovered", SQUARE, lora, every, recovery=recovery)
    for row in out[-3:-1]:
        out.append(row | {"id": row["id"] + "-one", "input": [1, *row["input"][1:]]})
    # The same with the layer, and the adapter that stands beside it, in host memory.
    for row in [row for row in out if "recovery" in row]:
        out.append(row | {"id": row["id"] + "-offloaded", "offloaded": True})
    return out


MISSING = "VRAMEST_AI_TOOLKIT names no checkout of ai-toolkit"


def is_there(case: dict) -> bool:
    return AI_TOOLKIT != ""


class _Missing(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Packages that ai-toolkit's modules import at their top, and that nothing of a network uses."""

    NAMES = {"albumentations", "av", "cv2", "lpips", "torchao", "torchaudio", "torchvision", "oyaml", "flatten_json", "info",
             "lycoris", "dotenv", "av", "controlnet_aux", "matplotlib", "timm"}

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.NAMES:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        module.__path__ = []
        made = {"__init__": lambda *_, **__: None}
        module.__getattr__ = lambda name: type(name, (), made) if name[:1].isupper() else unittest.mock.MagicMock()
        return module

    def exec_module(self, module):
        pass


def pretend() -> None:
    if AI_TOOLKIT not in sys.path:
        # First of all the libraries, which ask whether these packages are there.
        from diffusers import AuraFlowTransformer2DModel, UNet2DConditionModel  # noqa: F401
        from transformers import CLIPTextModel  # noqa: F401

        sys.path.insert(0, AI_TOOLKIT)
        sys.meta_path.append(_Missing())


def layer_of(said: dict, dtype):
    import torch

    if said["kind"] == "linear":
        made = torch.nn.Linear(said["in"], said["out"], bias=said["bias"])
    elif said["kind"] == "conv":
        made = torch.nn.Conv2d(said["in"], said["out"], said["kernel"], stride=said["stride"],
                               padding=said["padding"], bias=said["bias"])
    elif said["kind"] == "norm":
        made = torch.nn.LayerNorm(said["size"])
    elif said["kind"] == "group_norm":
        made = torch.nn.GroupNorm(said["groups"], said["channels"])
    elif said["kind"] == "rms_norm":
        made = torch.nn.RMSNorm(said["size"])
    else:
        made = torch.nn.Embedding(said["count"], said["size"])
    return made.to(dtype)


def recover(root, said: dict, dtype) -> None:
    """quantize_model with an accuracy recovery adapter of the root's layer."""
    import torch
    import toolkit.util.quantize as module
    from toolkit.config_modules import ModelConfig  # noqa: F401

    # It asks `type(x) is torch.Tensor`, which a fake tensor is meant to be.
    ostris = importlib.import_module("toolkit.util.ostris_quant")
    fake = torch._subclasses.fake_tensor.FakeTensor
    ostris.type = lambda value, *more: torch.Tensor if not more and type(value) is fake else type(value, *more)

    class BaseModel:
        accuracy_recovery_adapter = None
        arch = "made up"
        device_torch = "cuda:0"
        torch_dtype = dtype
        is_transformer = True
        use_old_lokr_format = False
        target_lora_modules = ["Root"]
        model_config = types.SimpleNamespace(accuracy_recovery_adapter=__file__, qtype=said["qtype"], low_vram=False)

        def get_transformer_block_names(self):
            return ["layer"]

        def get_quantization_exclude_modules(self):
            return None

        def convert_lora_weights_before_load(self, state_dict):
            return state_dict

    rank, layer = said["rank"], root.layer
    module.load_file = lambda path: {
        "transformer.layer.lora_A.weight": torch.empty(rank, layer.in_features, dtype=torch.bfloat16),
        "transformer.layer.lora_B.weight": torch.empty(layer.out_features, rank, dtype=torch.bfloat16)}
    root.base_model = BaseModel()
    module.quantize_model(root.base_model, root)


def network_of(root, said: dict):
    """BaseSDTrainProcess.run, from NetworkConfig to prepare_grad_etc: (network, device) → None moves it there."""
    from toolkit.config_modules import NetworkConfig
    from toolkit.lora_special import LoRASpecialNetwork

    config = NetworkConfig(**said)
    return LoRASpecialNetwork(
        text_encoder=[], unet=root, lora_dim=config.linear, multiplier=1.0, alpha=config.linear_alpha, train_unet=True,
        train_text_encoder=False, conv_lora_dim=config.conv, conv_alpha=config.conv_alpha, dropout=config.dropout,
        network_config=config, network_type=config.type, transformer_only=False, is_transformer=True,
        target_lin_modules=["Root"], **config.network_kwargs)
