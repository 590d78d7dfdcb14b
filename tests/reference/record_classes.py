"""Writes down how many parameters classes make of a config.json: as published, and pruned.

    python record_classes.py --check [--only TEXT]
    python record_classes.py --write [--only TEXT]

Every model and component of `models.py` is built on the meta device, with its published config and with fewer layers, and
its config is written as save_pretrained does. A row of truth/classes.jsonl is

    {"id": "krea2-pruned", "model": "krea2", "class": "Krea2Transformer2DModel", "config": {...}, "parameters": ..., "tensors": ...}
"""

import argparse
import importlib
import json
import pathlib
import sys

import torch

import models

STORED = pathlib.Path(__file__).with_name("truth") / "classes.jsonl"

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
                   "parameters": sum(parameter.numel() for parameter in parameters), "tensors": len(parameters)}


def _full_config(model) -> dict:
    return dict(model.config) if hasattr(model, "to_json_string") else model.config.to_dict()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="build again and compare with what is stored")
    parser.add_argument("--write", action="store_true", help="build again and store what differs")
    parser.add_argument("--only", default="", help="ids that hold this text")
    arguments = parser.parse_args()
    if not arguments.check and not arguments.write:
        parser.error("--check or --write")

    stored = {}
    if STORED.exists():
        stored = {row["id"]: row for row in map(json.loads, STORED.read_text().splitlines())}
    differing = 0
    for row in rows(arguments.only):
        if stored.get(row["id"]) != row:
            differing += 1
            print(f"{'new    ' if row['id'] not in stored else 'DIFFERS'} {row['id']}", flush=True)
            stored[row["id"]] = row
        else:
            print(f"equal   {row['id']}", flush=True)
    if arguments.write:
        STORED.write_text("".join(json.dumps(row) + "\n" for row in stored.values()))
    return 1 if differing and not arguments.write else 0


if __name__ == "__main__":
    sys.exit(main())
