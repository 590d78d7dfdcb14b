"""The data files beside the code, and vramest's own names: what the words of a row mean."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import vramest

_HERE = Path(__file__).resolve().parent


def _data(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((_HERE / name).read_text(encoding="utf-8"))
    return {key: value for key, value in found.items() if key != "about"}


@dataclass(frozen=True)
class Script:
    """How a trainer of the reports is asked about: `plays` is ai-toolkit, sd-scripts, loop, pipeline or vae.

    `converts`: text encoders come into the row's dtype after they were loaded, and so keep nothing in fp32.
    """

    plays: str
    autocast: bool
    fp32_adapter_with: tuple[str, ...]
    converts: bool


@dataclass(frozen=True)
class Pipeline:
    """What a diffusers pipeline holds beside its denoiser: pipelines.json."""

    text_encoders: tuple[tuple[str, int], ...]  # component, and the tokens that the pipeline pads a prompt to
    vae: str
    guidance: str | None  # None: only its VAE is known here


class Words:
    """Reads the data files once; everything it answers is a name that vramest knows, or None."""

    def __init__(self) -> None:
        self._words = _data("words.json")
        self._pipelines = _data("pipelines.json")
        self.explanations: dict[str, str] = _data("explanations.json")
        self._models = {name.lower(): model for model in vramest.models() for name in (model.id, *model.aliases)}
        cards = vramest.gpus()
        drivers = Counter(card.name.lower() for card in cards)  # cards that differ in memory alone share one
        self._cards = {card.name.lower(): card.id for card in cards if drivers[card.name.lower()] == 1}
        self._cards |= {name.lower(): card.id for card in cards for name in (card.id, *card.aliases)}

    def model(self, word: str) -> str | None:
        """The id of a denoiser."""
        found = self._models.get(self._words["models"].get(word, word).lower())
        return found.id if found is not None and found.kind == "denoiser" else None

    def repository(self, model: str) -> str:
        """The name on the Hub, as configs of trainers give it."""
        return next((alias for alias in self._models[model].aliases if "/" in alias), model)

    def card(self, word: str) -> str | None:
        """The id of a card."""
        return self._cards.get(self._words["cards"].get(word, word).lower())

    def scheme(self, word: str) -> str | None:
        """What `quantize:` of a job takes, or "none"."""
        found: str | None = self._words["quantize"].get(word)
        return found

    def offload(self, word: str | None) -> str | None:
        """`model`: whole models move to the card as they are called; `low_vram`: what ai-toolkit's key of that name does."""
        found: str | None = self._words["offload"].get(word)
        return found

    def dropped(self, te_quantize: str | None) -> tuple[str, ...]:
        """Text encoders that a pipeline was made without."""
        return tuple(self._words["te_dropped"].get(te_quantize, ()))

    def quantized(self, te_quantize: str | None) -> dict[str, str]:
        """Of a row that names the text encoders that are quantised: what `quantize:` of their jobs takes."""
        return dict(self._words["te_quantized"].get(te_quantize, {}))

    def converts(self, series: str) -> bool:
        """Whether a series' script loads in another dtype than the row's, and converts."""
        return bool(self._words["series"].get(series, {}).get("converts", False))

    def versions(self, trainer_version: str | None) -> dict[str, str]:
        """torch's and cuDNN's, as settings of a job: "torch 2.13.0+cu130, cuDNN 92000"."""
        said = trainer_version or ""
        out: dict[str, str] = {}
        if found := re.search(r"\btorch (2\.\d+)", said):
            out["environment.torch"] = found[1]
        if found := re.search(r"\bcuDNN (\d{4,6})\b", said):
            number = int(found[1])
            step = 1000 if number < 10000 else 10000  # 8902 is 8.9.2, 91002 is 9.10.2
            out["environment.cudnn"] = f"{number // step}.{number % step // 100}.{number % 100}"
        return out

    def script(self, trainer: str) -> Script | None:
        """How to ask about the rows of a trainer."""
        found = self._words["trainers"].get(trainer)
        if found is None:
            return None
        fp32_adapter_with = tuple(found.get("fp32_adapter_with", ()))
        return Script(found["as"], found.get("autocast", False), fp32_adapter_with, found.get("converts", False))

    def arch(self, model: str) -> str | None:
        """ai-toolkit's `arch` of a model's id."""
        found: str | None = self._words["ai_toolkit_arch"].get(model)
        return found

    def network_module(self, model: str) -> str | None:
        """sd-scripts' `network_module` of a model's id."""
        found: str | None = self._words["sd_scripts_network_module"].get(model)
        return found

    def qtype(self, word: str) -> str | None:
        """What ai-toolkit's `qtype` takes, of schemes that a job has no word for."""
        found: str | None = self._words["ai_toolkit_qtype"].get(word)
        return found

    def control_images(self, notes: str) -> int | None:
        """How many control images each item has; 0 where the notes speak of none, None where they give no number."""
        said = notes.lower()
        counts: dict[str, int] = self._words["notes"]["control_images"]
        for phrase, count in counts.items():
            if phrase in said:
                return count
        return None if "control image" in said else 0

    def pipeline(self, model: str) -> Pipeline | None:
        """The pipeline of a model's id."""
        found = self._pipelines.get(model)
        if found is None:
            return None
        return Pipeline(tuple(found.get("text_encoders", {}).items()), found["vae"], found.get("guidance"))

    def refused_by_notes(self, notes: str, plays: str) -> tuple[str, str] | None:
        """Why and detail of a Refusal, where a row's notes tell of something that no job of a Script's `plays` has."""
        said = notes.lower()
        for entry in self._words["notes"]["refused"]:
            if entry["says"] in said and plays not in entry.get("but_of", ()):
                return entry["why"], entry["detail"]
        return None

    def notes_say(self, key: str, notes: str) -> bool:
        """Whether the notes hold words.json's phrase of that key: "ema", "highvram", "resident"."""
        return self._words["notes"][key] in notes.lower()

    def text_tokens(self, notes: str) -> int | None:
        """Tokens of a prompt, where the notes give their number."""
        found = re.search(self._words["notes"]["text_tokens"], notes.lower())
        return int(next(group for group in found.groups() if group)) if found else None


@cache
def words() -> Words:
    """The words of this installation, read once."""
    return Words()
