"""Which jobs of ai-toolkit with an assistant LoRA are recorded (record_assistants.py), and on which models.

A case is a denoiser, shrunken by keys of its class's config, and what the config says:

    {"id": ..., "arch": as in the trainer's config, "config": {...}, "rank": of the LoRA that trains, "assistant": of the other,
     "filled": parts of names, of which the assistant's file has the layers, "merges": whether the trained one is merged for samples,
     "guidance": of samples, "width", "height", "prompts": tokens of the caption and of ""}

ai-toolkit's own modules come from a checkout that VRAMEST_AI_TOOLKIT names.
"""

import sliders
from sliders import MISSING, class_of, denoiser_of, is_there, model_of, pretend  # noqa: F401


def cases() -> list:
    common = {"arch": "zimage", "config": sliders.Z_IMAGE, "rank": 16, "width": 512, "height": 384, "prompts": [64, 8],
              "batch": 1, "checkpointing": True}
    return [{"id": "zimage-plain", **common, "assistant": 32, "filled": ["layers.0."], "merges": False, "guidance": 1},
            {"id": "zimage-merged", **common, "assistant": 8, "filled": ["layers.0.attention.to_k"], "merges": True,
             "guidance": 1},
            {"id": "zimage-guided", **common, "assistant": 8, "filled": ["layers.0."], "merges": False, "guidance": 4}]
