"""Writes down how many parameters classes make of a config.json: as published, and pruned.

    python record_classes.py --check [--only TEXT]
    python record_classes.py --write [--only TEXT]

Every model and component of `models.py` is built on the meta device, with its published config and with fewer layers, and
its config is written as save_pretrained does. A row of truth/classes.jsonl is

    {"id": "krea2-pruned", "model": "krea2", "class": "Krea2Transformer2DModel", "config": {...}, "parameters": ..., "tensors": ...,
     "layers": the short names that a case's "layers" has for config keys}

Some authors publish a model in one file whose names are others than diffusers'. A row of truth/authors_names.jsonl is how a file
with two blocks of each kind that there are many of has them: {"id": "krea2", "class": ..., "made_by": ..., "tensors": [[name, shape], ...]}
"""

import argparse
import dataclasses
import importlib
import json
import pathlib
import re
import sys

import torch

import models
import own_forwards

TRUTH = pathlib.Path(__file__).with_name("truth")
BLOCKS = 2  # of a file with its authors' names

#: What a pruned one has fewer of, where `models.py` has no short names for it.
PRUNED = {
    "AutoencoderKL": {"layers_per_block": 1},
    "AutoencoderKLFlux2": {"layers_per_block": 1},
    "AutoencoderKLQwenImage": {"num_res_blocks": 1},
    "AutoencoderKLWan": {"num_res_blocks": 1},
    "AutoencoderKLLTXVideo": {"layers_per_block": -1},
    "AutoencoderKLLTX2Video": {"layers_per_block": -1},
    "AutoencoderKLLTX2Audio": {"num_res_blocks": 1},
    "AutoencoderKLHunyuanVideo": {"layers_per_block": 1},
    "AutoencoderKLHunyuanVideo15": {"layers_per_block": 1},
    "AutoencoderKLCogVideoX": {"layers_per_block": 2},
    "AutoencoderKLMochi": {"layers_per_block": [2, 3, 3, 5, 3]},
    "AutoencoderDC": {"encoder_layers_per_block": [1, 2, 2, 2, 3, 3], "decoder_layers_per_block": [2, 3, 3, 3, 3, 3]},
    "LTX2TextConnectors": {"video_connector_num_layers": 1, "audio_connector_num_layers": 1},
    "LTX2Vocoder": {"hidden_channels": 512},
    "LTX2VocoderWithBWE": {"hidden_channels": 768, "bwe_hidden_channels": 256},
    "HiDreamImageTransformer2DModel": {"num_layers": 8, "num_single_layers": 20, "llama_layers": [*range(28)]},
    "SD3Transformer2DModel": {"num_layers": 12, "dual_attention_layers": []},
}
LAYERS = ("num_hidden_layers", "num_layers")  # of text encoders


def _pruned(entry, published: dict) -> dict:
    """The config keys that a pruned model of this entry changes."""
    if entry.cls in PRUNED:
        return {key: _one_less(published[key]) if value == -1 else value for key, value in PRUNED[entry.cls].items()}
    if isinstance(entry, models.Model):
        return {key: _half(published[key]) for key in entry.layers.values()}
    return _fewer_layers(published)


def _one_less(counts: list) -> list:
    return [max(1, count - 1) for count in counts]


def _half(count):
    return [_half(item) for item in count] if isinstance(count, (list, tuple)) else max(1, count // 2)


def _fewer_layers(config: dict) -> dict:
    """Of a text encoder, those of its parts too."""
    changed = {key: max(1, config[key] - 3) for key in LAYERS if key in config}
    parts = {key: _fewer_layers(part) for key, part in config.items() if isinstance(part, dict) and key.endswith("_config")}
    return changed | {key: part for key, part in parts.items() if part}


def _build(entry, changes: dict):
    """The real class on the meta device."""
    with torch.device("meta"):
        if isinstance(entry, models.TextEncoder):
            import jobs

            library = importlib.import_module(entry.library)
            config = getattr(library, entry.config_cls)(**jobs._changed(entry.config, changes))
            return getattr(library, entry.cls)(config, **entry.options)
        if isinstance(entry, models.Vae):
            import diffusers

            return getattr(diffusers, entry.cls)(**(entry.config | changes))
        return entry.make(entry.load(), entry.config | changes)


def _saved_config(model) -> dict:
    """What stands in config.json after save_pretrained."""
    if hasattr(model, "to_json_string"):  # diffusers
        return json.loads(model.to_json_string())
    model.config.architectures = [type(model).__name__]
    return json.loads(model.config.to_json_string(use_diff=True))


def rows(only: str = ""):
    """Each row; in the order of the tables. Models whose checkout is missing are told and left out."""
    tables = (models.MODELS, models.VAES, models.CONNECTORS, models.TEXT_ENCODERS)
    for name, entry in ((name, entry) for table in tables for name, entry in table.items()):
        published = None
        for what in ("published", "pruned"):
            if only not in f"{name}-{what}":
                continue
            try:
                published = published or _build(entry, {})
                model = published if what == "published" else _build(entry, _pruned(entry, _full_config(published)))
            except models.NotHere as reason:
                print(f"skipped {name}: {reason}", flush=True)
                break
            parameters = list(model.parameters())
            yield {"id": f"{name}-{what}", "model": name, "class": entry.cls, "config": _saved_config(model),
                   "parameters": sum(parameter.numel() for parameter in parameters), "tensors": len(parameters),
                   "layers": getattr(entry, "layers", {})}


def _full_config(model) -> dict:
    return dict(model.config) if hasattr(model, "to_json_string") else model.config.to_dict()


# -- the names of authors ----------------------------------------------------------------------------------------------

#: musubi-tuner's classes load the files of their authors as they are.
MUSUBI = models.Model(library="", cls="", config={}, inputs=None, targets=None, **own_forwards.MUSUBI)


def _hunyuan_video15():
    entry = dataclasses.replace(MUSUBI, cls="HunyuanVideo_1_5_DiffusionTransformer",
                                library="musubi_tuner.hunyuan_video_1_5.hunyuan_video_1_5_models")
    return entry.load()().state_dict()


def _hunyuan_video15_fused():
    """As ComfyUI packs it: what musubi-tuner's loader splits."""
    out = {}
    for name, tensor in _hunyuan_video15().items():
        name = re.sub(r"(img|txt)_attn_[qkv]\.", r"\1_attn_qkv.", name)
        out[name] = torch.cat([out[name], tensor]) if name in out else tensor
    return out


def _krea2():
    settings = dataclasses.replace(MUSUBI, cls="single_mmdit_large_wide", library="musubi_tuner.krea2.krea2_utils").load()
    entry = dataclasses.replace(MUSUBI, cls="SingleStreamDiT", library="musubi_tuner.krea2.krea2_mmdit")
    return entry.load()(settings).state_dict()


#: What diffusers' loaders/single_file_utils.py renames, the other way round; the longer ones first.
MOCHI = {"patch_embed.": "x_embedder.", "time_embed.timestep_embedder.linear_1": "t_embedder.mlp.0",
         "time_embed.timestep_embedder.linear_2": "t_embedder.mlp.2", "time_embed.pooler.": "t5_y_embedder.",
         "time_embed.caption_proj.": "t5_yproj.", "transformer_blocks.": "blocks.", "norm1_context.linear_1.": "mod_y.",
         "norm1_context.linear.": "mod_y.", "norm1.linear.": "mod_x.", "attn1.norm_added_q": "attn.q_norm_y",
         "attn1.norm_added_k": "attn.k_norm_y", "attn1.norm_q": "attn.q_norm_x", "attn1.norm_k": "attn.k_norm_x",
         "attn1.to_out.0": "attn.proj_x", "attn1.to_add_out": "attn.proj_y", "ff.net.0.proj": "mlp_x.w1",
         "ff.net.2": "mlp_x.w2", "ff_context.net.0.proj": "mlp_y.w1", "ff_context.net.2": "mlp_y.w2",
         "norm_out.linear": "final_layer.mod", "proj_out": "final_layer.linear"}
FUSED = {"attn1.to_{}.": "attn.qkv_x.", "attn1.add_{}_proj.": "attn.qkv_y."}


def _mochi():
    from diffusers.loaders.single_file_utils import convert_mochi_transformer_checkpoint_to_diffusers as convert

    ours = _build(models.MODELS["mochi1"], {}).state_dict()
    out = {}
    for name, tensor in ours.items():
        one_of_three = [(part.format(letter), fused) for part, fused in FUSED.items() for letter in "qkv"]
        for part, fused in one_of_three:
            if part in name:
                out.setdefault(name.replace(part, fused).replace("transformer_blocks.", "blocks."), []).append(tensor)
                break
        else:
            for part, theirs in MOCHI.items():
                name = name.replace(part, theirs)
            out[name] = [tensor]
    out = {name: torch.cat(parts) if len(parts) > 1 else parts[0] for name, parts in out.items()}
    back = convert(dict(out))
    assert {name: t.shape for name, t in back.items()} == {name: t.shape for name, t in ours.items()}
    return out


def _two_blocks(tensors: dict) -> list:
    """The first and the last block of each kind, as if there were no others."""
    def number(name):
        found = re.search(r"blocks\.(\d+)\.", name)
        return found and (name[:found.start()], int(found[1]))

    last = {}
    for kind, index in filter(None, map(number, tensors)):
        last[kind] = max(last.get(kind, 0), index)
    out = []
    for name, tensor in tensors.items():
        if found := number(name):
            kind, index = found
            if index not in (0, last[kind]):
                continue
            name = name.replace(f"blocks.{index}.", f"blocks.{min(index, BLOCKS - 1)}.", 1)
        out.append([name, list(tensor.shape)])
    return out


AUTHORS = {"hunyuan_video15": ("HunyuanVideo15Transformer3DModel", "musubi-tuner 30c658c", _hunyuan_video15),
           "hunyuan_video15-fused": ("HunyuanVideo15Transformer3DModel", "musubi-tuner 30c658c, as ComfyUI packs it",
                                     _hunyuan_video15_fused),
           "krea2": ("Krea2Transformer2DModel", "musubi-tuner 30c658c", _krea2),
           "mochi1": ("MochiTransformer3DModel", "diffusers 0.42.1, single_file_utils.py", _mochi)}


def authors_rows(only: str = ""):
    for name, (cls, made_by, tensors) in AUTHORS.items():
        if only not in name:
            continue
        try:
            with torch.device("meta"):
                made = _two_blocks(tensors())
        except models.NotHere as reason:
            print(f"skipped {name}: {reason}", flush=True)
            continue
        yield {"id": name, "class": cls, "made_by": made_by, "tensors": made}


def _compare(path: pathlib.Path, made, write: bool) -> int:
    """Prints how each row compares with the stored one, and stores it; returns how many differ."""
    stored = {}
    if path.exists():
        stored = {row["id"]: row for row in map(json.loads, path.read_text().splitlines())}
    differing = 0
    for row in made:
        is_equal = stored.get(row["id"]) == row
        differing += not is_equal
        print(f"{'equal  ' if is_equal else 'DIFFERS' if row['id'] in stored else 'new    '} {row['id']}", flush=True)
        stored[row["id"]] = row
    if write:
        path.write_text("".join(json.dumps(row) + "\n" for row in stored.values()))
    return differing


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="build again and compare with what is stored")
    parser.add_argument("--write", action="store_true", help="build again and store what differs")
    parser.add_argument("--only", default="", help="ids that hold this text")
    arguments = parser.parse_args()
    if not arguments.check and not arguments.write:
        parser.error("--check or --write")

    differing = sum(_compare(TRUTH / file, made(arguments.only), arguments.write)
                    for file, made in (("classes.jsonl", rows), ("authors_names.jsonl", authors_rows)))
    return 1 if differing and not arguments.write else 0


if __name__ == "__main__":
    sys.exit(main())
