"""Models that nobody profiled: what stands on a disk, beside `accelerate estimate-memory` where that can answer.

The comparison needs torch, transformers, diffusers and accelerate (tests/reference/README.md says how to install them)
and no network: accelerate's own functions are asked about local folders.
"""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import vramest


def look_at(path: Path) -> dict[str, Any]:
    done = subprocess.run([sys.executable, "-m", "vramest", "models", str(path), "--json"], capture_output=True, text=True)
    told: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == (2 if told["why_not"] else 0), done.stderr
    return told


def stored(path: Path) -> dict[str, int]:
    return {entry["type"]: entry["bytes"] for entry in look_at(path)["stored_weights"]}


def safetensors(path: Path, tensors: dict[str, tuple[str, list[int], int]]) -> Path:
    """name → (dtype, shape, bytes), and as much data."""
    header, at = {}, 0
    for name, (dtype, shape, size) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(at))
    return path


def test_an_unknown_model_still_has_its_weight(tmp_path: Path) -> None:
    safetensors(tmp_path / "model.safetensors", {"a": ("BF16", [3, 5], 30), "b": ("F8_E4M3", [7], 7)})
    (tmp_path / "config.json").write_text('{"_class_name": "MagicTransformer"}')
    report = vramest.check({"vramest": 1, "trainer": "torch", "model": str(tmp_path), "data": {"resolution": 512}})
    assert report.verdict == "cannot_say"
    assert "MagicTransformer" in report.reason
    assert report.peak is None
    assert report.stored_weights == [("BF16", 15, 30), ("F8_E4M3", 7, 7)]
    assert report.to_dict()["stored_weights"][0] == {"type": "BF16", "parameters": 15, "bytes": 30}
    assert report.weights == 37 and report.exit_code() == 2


def test_a_path_counts_from_the_jobs_folder(tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    safetensors(tmp_path / "jobs" / "x.safetensors", {"a": ("F32", [2], 8)})
    job = tmp_path / "jobs" / "job.yaml"
    job.write_text("vramest: 1\ntrainer: torch\nmodel: x.safetensors\n")
    done = subprocess.run([sys.executable, "-m", "vramest", "check", str(job)], capture_output=True, text=True)
    assert done.returncode == 2
    assert "no model that vramest knows" in done.stdout and "weights, by their headers" in done.stdout


def test_what_torch_refuses_of_a_config_is_told_where_the_config_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "net"
    folder.mkdir()
    (folder / "config.json").write_text('{"_class_name": "HunyuanVideo15Transformer3DModel", "patch_size": 1000}')
    job = tmp_path / "job.yaml"
    job.write_text("vramest: 1\ntrainer: torch\nmodel: ./net\ncapacity: 80GiB\n")
    report = vramest.check(job)
    assert report.verdict == "cannot_say"
    error = next(note for note in report.diagnostics if note.severity == "error")
    assert "PyTorch refuses this job" in error.text
    assert (error.key, error.line, error.column) == ("model", 3, 8)


def test_gguf(tmp_path: Path) -> None:
    name, elements = b"blk.0.attn_q.weight", 512
    header = b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + struct.pack("<Q", len(name)) + name
    header += struct.pack("<IQIQ", 1, elements, 12, 0)  # 12: Q4_K, 256 elements in 144 bytes
    header += bytes(-len(header) % 32)
    (tmp_path / "x.gguf").write_bytes(header + bytes(elements // 256 * 144))
    assert stored(tmp_path / "x.gguf") == {"Q4_K": 288}


def accelerate_total(model: Any) -> int:
    """What `accelerate estimate-memory` prints for float32: parameters, and buffers that no file holds."""
    utils = pytest.importorskip("accelerate.utils", reason="accelerate is not installed")
    total, _ = utils.calculate_maximum_sizes(model)
    in_files = set(model.state_dict())
    return int(total) - sum(b.numel() * b.element_size() for name, b in model.named_buffers() if name not in in_files)


@pytest.mark.parametrize("kind", ["vit", "t5", "llama", "bert"])
def test_weights_agree_with_accelerate(kind: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")
    config = {
        "vit": lambda: transformers.ViTConfig(
            hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, image_size=32, patch_size=8
        ),
        "t5": lambda: transformers.T5Config(vocab_size=96, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4),
        "llama": lambda: transformers.LlamaConfig(
            vocab_size=96, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4
        ),
        "bert": lambda: transformers.BertConfig(
            vocab_size=96, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4
        ),
    }[kind]()
    transformers.AutoModel.from_config(config).save_pretrained(tmp_path / "fp32")
    transformers.AutoModel.from_config(config).to(torch.bfloat16).save_pretrained(tmp_path / "bf16")
    # As accelerate does it: the local config, the class that AutoModel makes of it, without weights.
    with accelerate.init_empty_weights():
        empty = transformers.AutoModel.from_config(transformers.AutoConfig.from_pretrained(tmp_path / "fp32"))
    if kind == "vit":  # without buffers and shared weights: the very number that it prints
        utils = pytest.importorskip("accelerate.utils")
        assert stored(tmp_path / "fp32") == {"F32": utils.calculate_maximum_sizes(empty)[0]}
    empty.tie_weights()  # else accelerate counts T5's one embedding three times
    total = accelerate_total(empty)
    assert stored(tmp_path / "fp32") == {"F32": total}
    assert stored(tmp_path / "bf16") == {"BF16": total // 2}


def test_a_pruned_flux_is_answered_where_accelerate_cannot(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    diffusers = pytest.importorskip("diffusers", reason="diffusers is not installed")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    model = diffusers.FluxTransformer2DModel(
        num_layers=1,
        num_single_layers=2,
        num_attention_heads=2,
        attention_head_dim=32,
        joint_attention_dim=32,
        pooled_projection_dim=16,
        axes_dims_rope=(8, 12, 12),
        guidance_embeds=True,
    ).to(torch.bfloat16)
    model.save_pretrained(tmp_path / "transformer")
    (tmp_path / "model_index.json").write_text('{"transformer": ["diffusers", "FluxTransformer2DModel"]}')
    with pytest.raises((ValueError, OSError)):  # accelerate knows transformers and timm
        transformers.AutoConfig.from_pretrained(tmp_path / "transformer")
    size = sum(p.numel() for p in model.parameters())
    for path in (tmp_path, tmp_path / "transformer"):
        told = look_at(path)
        assert told["family"] == "flux" and told["parameters"] == size
        assert told["stored_weights"] == [{"type": "BF16", "parameters": size, "bytes": 2 * size}]
    job = {"vramest": 1, "trainer": "torch", "model": str(tmp_path), "data": {"resolution": 256, "text_tokens": 16}}
    job["train"] = {"method": "lora", "rank": 4}
    report = vramest.check(job, capacity="24GiB")
    assert report.verdict == "fits", report.reason
    assert report.counts.parameters == size
    rounded = sum(-(-2 * p.numel() // 512) * 512 for p in model.parameters())
    assert report.weights == rounded

    # A file of the same tensors, in company, is the same model.
    from safetensors.torch import save_file

    tensors = {"model.diffusion_model." + name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    save_file(tensors | {"vae.conv.weight": torch.zeros(4)}, tmp_path / "all.safetensors")
    told = look_at(tmp_path / "all.safetensors")
    assert told["class"] == "FluxTransformer2DModel"
    assert told["stored_weights"] == [{"type": "BF16", "parameters": size, "bytes": 2 * size}]


def test_what_classes_make_of_a_config_is_as_in_diffusers(source_dir: Path) -> None:
    """Every argument of a constructor is a default, taken for granted or without effect, and the defaults are its own."""
    import importlib
    import inspect

    diffusers = pytest.importorskip("diffusers", reason="diffusers is not installed")
    inside = ("ltx2.connectors", "ltx2.vocoder")  # of pipelines, which diffusers does not hand out
    modules = [diffusers, *(importlib.import_module(f"diffusers.pipelines.{name}") for name in inside)]
    yaml = pytest.importorskip("yaml", reason="yaml is not installed")
    # PixArt-α's sizes are on or off by the sample's size where nothing is said; they are not modelled.
    otherwise = {("PixArtTransformer2DModel", "use_additional_conditions")}
    # None here is no list, and so one of another length than a profile's.
    otherwise |= {("HiDreamImageTransformer2DModel", "llama_layers")}
    for path in sorted((source_dir / "model_classes").glob("*.yaml")):
        facts = yaml.safe_load(path.read_text())
        cls = next((getattr(module, facts["name"]) for module in modules if hasattr(module, facts["name"])), None)
        if cls is None:
            continue
        said = facts.get("defaults", {}) | facts.get("assumed", {})
        arguments = inspect.signature(cls.__init__).parameters
        for name, parameter in arguments.items():
            if name == "self" or parameter.kind is parameter.VAR_KEYWORD:
                continue
            assert name in said or name in facts.get("without_effect", []), f"{path.name}: {name}"
            if name in said and (facts["name"], name) not in otherwise:
                default = json.loads(json.dumps(parameter.default))
                if isinstance(default, list) and default and all(isinstance(x, list) for x in default):
                    if all(len(x) <= 1 for x in default):
                        default = [x[0] if x else 0 for x in default]  # one kernel size a stage, 0 for none
                    else:
                        default = [str(x) for x in default]
                assert said[name] == default, f"{path.name}: {name}"
        assert set(said) <= set(arguments), path.name


def test_what_classes_make_of_a_config_is_as_in_transformers(source_dir: Path) -> None:
    """The defaults are those of the class's config. Of classes in parts each part has a config, which is not looked at."""
    import importlib

    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    pytest.importorskip("diffusers", reason="diffusers is not installed")
    yaml = pytest.importorskip("yaml", reason="yaml is not installed")
    modules = [transformers, importlib.import_module("diffusers.pipelines.kolors.text_encoder")]
    ours = {"language_head"}  # which classes of one family have, and no config says
    looked_at = 0
    for path in sorted((source_dir / "model_classes").glob("*.yaml")):
        facts = yaml.safe_load(path.read_text())
        cls = next((getattr(module, facts["name"]) for module in modules if hasattr(module, facts["name"])), None)
        if cls is None or facts.get("nested"):
            continue
        config_cls = cls.config_class or modules[1].ChatGLMConfig
        config = config_cls().to_dict()
        said = facts.get("defaults", {}) | facts.get("assumed", {})
        for name, value in said.items():
            if value is not None and name not in ours:  # None is what the config makes of the other sizes
                assert config.get(name) == value, f"{path.name}: {name}: {config.get(name)}"
        looked_at += 1
    assert looked_at
