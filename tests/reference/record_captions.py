"""Records a denoiser's call with captions of several lengths, on a fake GPU.

    python record_captions.py --check [--only TEXT]

The options are those of record_optimizers.py. Z-Image takes a list of captions, which guidance in training makes of a blank
prompt and a caption: the shorter ones are padded, and attention gets a mask. The model is shrunken to a block of each kind. A
row's stages are "attach" (of a memory manager, from a checkout that VRAMEST_AI_TOOLKIT names), "input", "no_grad" (a call without gradients), "forward" and "backward" (of a call whose pictures ask for
gradients), each with the rotary tables in place. Rows of truth/captions.jsonl are as those of truth/optimizers.jsonl.
"""

import fake_cuda

if __name__ == "__main__":
    fake_cuda.ensure()

import pathlib
import sys
import types

import networks
import quantized
import record_optimizers
from record_optimizers import stages

STORED = pathlib.Path(__file__).with_name("truth") / "captions.jsonl"


def cases() -> list:
    out = [{"id": f"z_image-{'-'.join(map(str, captions))}", "captions": captions, "width": 256, "height": 192}
           for captions in ([40, 8], [8, 100], [8, 40, 72], [50, 50])]
    # Its layers in host memory, as ai-toolkit's z_image.py attaches a memory manager to it.
    out += [row | {"id": row["id"] + "-offloaded", "offloaded": True} for row in (out[0], out[3])]
    return out


def record(case: dict) -> tuple:
    """(row, recorder) of a case."""
    fake_cuda.install()
    import torch
    from diffusers import ZImageTransformer2DModel

    from recorder import Loss, no_garbage_collector

    if case.get("offloaded"):
        networks.pretend()

    recorder = record_optimizers.values(set())
    captions, size = case["captions"], (16, 1, case["height"] // 8, case["width"] // 8)

    def made(*shape, **more):
        return torch.empty(shape, dtype=torch.bfloat16, device="cuda:0", **more)

    with no_garbage_collector(), fake_cuda.fake_mode(), recorder:
        torch.set_default_dtype(torch.bfloat16)
        with torch.device("cuda:0"):
            model = ZImageTransformer2DModel(in_channels=16, dim=256, n_layers=1, n_refiner_layers=1, n_heads=2, n_kv_heads=2,
                                             qk_norm=True, cap_feat_dim=128)
        torch.set_default_dtype(torch.float32)
        model.requires_grad_(False)
        model.rope_embedder(torch.zeros((1, 3), dtype=torch.int32, device="cuda:0"))
        if case.get("offloaded"):
            recorder.mark("attach")
            quantized.attach(model, [model.x_pad_token, model.cap_pad_token])
        recorder.mark("input")
        x = [made(*size) for _ in captions]
        t = made(len(captions))
        cap_feats = [made(length, 128) for length in captions]
        recorder.mark("no_grad")
        with torch.no_grad():
            out = model(x, t, cap_feats, return_dict=False)[0]
        del out
        for one in x:
            one.requires_grad_()
        recorder.mark("forward")
        out = model(x, t, cap_feats, return_dict=False)[0]
        recorder.mark("backward")
        Loss.apply(torch.stack(out)).backward()
        recorder.mark("end")
    result = {"stages": stages(recorder, empty=False)}  # attention kernels return tensors of no bytes, too
    return {"case": case, "made_by": f"diffusers, torch {torch.__version__}", "result": result}, recorder


if __name__ == "__main__":
    table = types.SimpleNamespace(cases=cases, is_there=lambda case: "offloaded" not in case or networks.is_there(case),
                                  MISSING=networks.MISSING)
    sys.exit(record_optimizers.main(__doc__, table, record, STORED))
