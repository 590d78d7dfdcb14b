"""Turns a row of reports/oom.jsonl into the log that its trainer would have left: our own texts, in the trainers' formats.

A row holds numbers, the shape of the message, names of frames and a phase; no text of a log. What is written before the failure are
the lines that the trainer prints on its way to that phase, and where the thread does not show the phase, nothing. The kind of the
failure is never looked at. Of the notes only what a log would show is used: the system, offloading, buckets, a back end, speeds.

    python3 tests/diagnose/write_log.py ROWS.jsonl ID [FACTS.json] > run.log
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

GIB = 1024**3
Row = dict[str, Any]


def size(gib: float) -> str:
    """As c10's format_size prints it."""
    bytes_ = round(gib * GIB)
    for limit, unit, scale in ((1024, "bytes", 1), (1024**2, "KiB", 1024), (GIB, "MiB", 1024**2)):
        if bytes_ <= limit:
            return f"{bytes_} bytes" if scale == 1 else f"{bytes_ / scale:.2f} {unit}"
    return f"{bytes_ / GIB:.2f} GiB"


def system(row: Row) -> str:
    said = f"{row['gpu']} {row['notes']} {row['trainer']}"
    return "wsl" if "WSL" in said else "windows" if "Windows" in said else "linux"


# ---- messages -------------------------------------------------------------------------------------------------------------------

HINT_21 = ("If reserved but unallocated memory is large try setting max_split_size_mb to avoid fragmentation.  See documentation for Memory "
           "Management and PYTORCH_CUDA_ALLOC_CONF")
HINT_22 = ("If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  "
           "See documentation for Memory Management  (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)")


def torch1(n: Row) -> str:
    parts = [f"{size(n['capacity_gib'])} total capacity", f"{size(n['allocated_gib'])} already allocated", f"{size(n['free_gib'])} free",
             f"{size((n['allocated_gib'] or 0) + (n['reserved_unallocated_gib'] or 0))} reserved in total by PyTorch"]
    return (f"torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate {size(n['tried_gib'])} (GPU 0; {'; '.join(parts)}) If reserved "
            "memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation.  See documentation for Memory Management and "
            "PYTORCH_CUDA_ALLOC_CONF")


def torch2(n: Row, notes: str, spelling: str, name: str, api: str, hint: str) -> str:
    text = f"{name}: {api} out of memory."
    if n["tried_gib"] is not None:
        text += f" Tried to allocate {size(n['tried_gib'])}."
    if n["capacity_gib"] is not None:
        text += f" GPU 0 has a total {spelling} of {size(n['capacity_gib'])}"
        text += f" of which {size(n['free_gib'])} is free." if n["free_gib"] is not None else "."
    if n["other_processes_gib"]:
        text += f" Process 4711 has {size(n['other_processes_gib'])} memory in use."
    numbered = re.search(r"([\d.]+) GiB; the larger one is this run|numbered process with ([\d.]+) GiB", notes)
    if numbered:
        text += f" Process 815 has {size(float(numbered[1] or numbered[2]))} memory in use."
    if n["process_gib"] is not None:
        text += f" Including non-PyTorch memory, this process has {size(n['process_gib'])} memory in use."
    if n["allocated_gib"] is not None:
        text += f" Of the allocated memory {size(n['allocated_gib'])} is allocated by PyTorch"
        if n["reserved_unallocated_gib"] is not None:
            text += f", and {size(n['reserved_unallocated_gib'])} is reserved by PyTorch but unallocated"
        text += f". {hint}"
    return text


def message(row: Row, facts: Row) -> list[str]:
    form, n = facts.get("text", row["message_form"]), row["numbers"]
    trainer = row["trainer"].lower()
    if form == "torch1":
        return [torch1(n)]
    if form == "torch2.1":
        return [torch2(n, row["notes"], "capacty", "torch.cuda.OutOfMemoryError", "CUDA", HINT_21)]
    if form in ("torch2.2", "paraphrased"):
        return [torch2(n, row["notes"], "capacity", "torch.OutOfMemoryError", "CUDA", HINT_22)]
    if form == "hip":
        return [torch2(n, "", "capacity", "torch.OutOfMemoryError", "HIP", HINT_22.replace("CUDA_ALLOC", "HIP_ALLOC"))]
    if form == "cudamallocasync":
        return ["torch.OutOfMemoryError: Allocation on device 0 would exceed allowed memory. (out of memory)",
                f"Currently allocated     : {size(n['allocated_gib'])}", f"Requested               : {size(n['tried_gib'])}",
                f"Device limit            : {size(n['capacity_gib'])}", f"Free (according to CUDA): {size(n['free_gib'])}",
                "PyTorch limit (set by user-supplied memory fraction)", "                        : 17179869184.00 GiB"]  # fmt: skip
    if form == "comfy_short":
        return ["torch.OutOfMemoryError: Allocation on device ", "Got an OOM, unloading all loaded models."]
    if form == "cuda_error":
        return ["RuntimeError: CUDA error: out of memory",
                "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.",
                "For debugging consider passing CUDA_LAUNCH_BLOCKING=1",
                "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions."]
    if form.startswith("cublas_"):
        call = "cublasCreate(handle)" if "alloc" in form or "init" in form else "cublasGemmEx( handle, opa, opb, m, n, k, &falpha, a, ... )"
        return [f"RuntimeError: CUDA error: {form.upper().replace('CUBLAS_', 'CUBLAS_STATUS_')} when calling `{call}`"]
    if form.startswith("cudnn_"):
        return [f"RuntimeError: cuDNN error: {form.upper().replace('CUDNN_', 'CUDNN_STATUS_')}"]
    if form == "no_engine":
        return ["RuntimeError: GET was unable to find an engine to execute this computation"]
    if form == "nccl":
        return ["node1:815:900 [2] enqueue.cc:99 NCCL WARN Cuda failure 'out of memory'",
                "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp, unhandled cuda error (run with NCCL_DEBUG=INFO for details)"]
    if form == "sigkill":
        if "diffusion-pipe" in trainer:
            return ["[2025-01-01 10:00:00,000] [INFO] [launch.py:319:sigkill_handler] Killing subprocess 815",
                    "[2025-01-01 10:00:00,100] [ERROR] [launch.py:325:sigkill_handler] ['python', 'train.py'] exits with return code = -9"]
        if "ai-toolkit" in trainer:
            return ["Job process terminated with signal SIGKILL"]
        return ["subprocess.CalledProcessError: Command '['python', 'train_network.py']' died with <Signals.SIGKILL: 9>."]
    if form == "linux_oom_killer":
        return ["[88888.888888] Out of memory: Killed process 815 (python) total-vm:301234567kB, anon-rss:251234567kB, file-rss:0kB, shmem-rss:0kB, UID:1000"]
    if form == "win_1455":
        return ["OSError: [WinError 1455] The paging file is too small for this operation to complete. Error loading \"caffe2.dll\" or one of its dependencies."]
    if form == "mmap_enomem":
        return ["RuntimeError: unable to mmap 25555555555 bytes from file <model.safetensors>: Cannot allocate memory (12)"]
    if form == "default_cpu_allocator":
        return ["RuntimeError: [enforce fail at alloc_cpu.cpp:114] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 4294967296 "
                "bytes. Error code 12 (Cannot allocate memory)"]
    if form == "memoryerror":
        return ["MemoryError"]
    if form == "swallowed":
        return ["ERROR: Error encoding images ['a.png']: CUDA out of memory. Tried to allocate 2.00 GiB."] if "simple" in trainer else [
            "RuntimeError: OOM during training step 3 times in a row, aborting training"]
    if form == "none":
        return []
    return ["torch.OutOfMemoryError: CUDA out of memory."]  # not_shown


# ---- what trainers print on their way ---------------------------------------------------------------------------------------------

STAGES: dict[str, list[tuple[str, list[str]]]] = {
    "ai-toolkit": [
        ("", ["Running 1 job", "#############################################", "# Running job: my_lora", "#############################################",
              "Running 1 process"]),
        ("model_load", ["Loading transformer"]),
        ("quantize", ["Quantizing Transformer", " - quantizing 57 transformer blocks", " 12%|█▏        | 7/57 [00:01<00:10,  4.90it/s]"]),
        ("model_load2", ["Making pipe", "Preparing Model", "Model Loaded"]),
        ("cache_latents", ["Dataset: /data/pics", "Bucket sizes for /data/pics:", "{buckets}", "1 buckets made", "Caching latents for /data/pics",
                           " - Saving latents to disk", "Caching latents to disk:  10%|█         | 1/10 [00:00<00:04,  2.20it/s]"]),
        ("cache_text", ["Caching text_embeddings for /data/pics", "Caching text embeddings to disk:   0%|          | 0/10 [00:00<?, ?it/s]"]),
        ("sampling", ["Generating baseline samples before training", "Generating Samples:   0%|          | 0/4 [00:00<?, ?it/s]"]),
        ("vae_decode", ["100%|██████████| 25/25 [00:20<00:00,  1.22it/s]"]),
        ("step", ["{bar:my_lora}"]),
        ("save", ["Saving at step 250"]),
    ],
    "sd-scripts": [
        ("", ["INFO     prepare tokenizers", "INFO     number of images (including repeats) / 各bucketの画像枚数（繰り返し回数を含む）", "{buckets}"]),
        ("model_load", ["INFO     preparing accelerator", "INFO     loading model for process 0/1", "INFO     building U-Net"]),
        ("cache_latents", ["INFO     caching latents with caching strategy.", "INFO     caching latents...",
                           "  10%|█         | 1/10 [00:00<00:04,  2.20it/s]"]),
        ("cache_text", ["INFO     move vae and unet to cpu to save memory", "INFO     move text encoders to gpu"]),
        ("model_load2", ["INFO     move vae and unet back to original device", "import network module: networks.lora_flux", "prepare optimizer, data loader etc."]),
        ("step", ["running training / 学習開始", "{bar:steps}"]),
        ("sampling", ["INFO     generating sample images at step / サンプル画像生成 ステップ: 250", "INFO     sample_steps: 20"]),
        ("vae_decode", ["100%|██████████| 20/20 [00:20<00:00,  1.22it/s]"]),
        ("save", ["saving checkpoint: out/my_lora-000001.safetensors"]),
    ],
    "musubi-tuner": [
        ("cache_latents", ["python src/musubi_tuner/wan_cache_latents.py --dataset_config d.toml", "INFO:__main__:Loaded VAE: FrozenDict", "INFO:__main__:Encoding dataset [0]"]),
        ("cache_text", ["python src/musubi_tuner/wan_cache_text_encoder_outputs.py --dataset_config d.toml", "INFO:__main__:Encoding with Text Encoder 1"]),
        ("model_load", ["INFO:musubi_tuner.dataset.bucket:{buckets}", "INFO:musubi_tuner.hv_train_network:preparing accelerator",
                        "INFO:musubi_tuner.hv_train_network:DiT precision: torch.bfloat16", "INFO:musubi_tuner.hv_train_network:Loading DiT model from dit.safetensors"]),
        ("step", ["running training / 学習開始", "{bar:steps}"]),
        ("sampling", ["INFO:musubi_tuner:generating sample images at step / サンプル画像生成 ステップ: 250", "Sampling timesteps for prompt 1:  10%|█         | 2/20 [00:02<00:20,  1.1s/it]"]),
        ("vae_decode", ["Sampling timesteps for prompt 1: 100%|██████████| 20/20 [00:20<00:00,  1.1s/it]", "INFO:musubi_tuner:Decoding video from latents: torch.Size([1, 16, 21, 60, 104])"]),
        ("save", ["saving checkpoint: out/my_lora-000001.safetensors"]),
    ],
    "onetrainer": [
        ("model_load", ["OneTrainer", "Quantizing model weights: 100%|██████████| 304/304 [00:10<00:00, 30.0it/s]", "running model setup"]),
        ("cache_latents", ["creating the data loader/caching"]),
        ("cache_text", ["creating the data loader/caching"]),
        ("step", ["epoch:   0%|          | 0/100 [00:00<?, ?it/s]", "{bar:step}"]),
        ("sampling", ["Sampling ...", "sampling:  10%|█         | 2/20 [00:02<00:20,  1.1s/it]"]),
        ("vae_decode", ["sampling: 100%|██████████| 20/20 [00:20<00:00,  1.1s/it]"]),
        ("save", ["Saving the final model"]),
    ],
    "simpletuner": [
        ("cache_text", ["INFO:SimpleTuner:Moving text encoder 1 to GPU.", "Processing prompts:  10%|█         | 2/20 [00:02<00:20,  1.1s/it]"]),
        ("cache_latents", ["INFO:SimpleTuner:Load VAE: black-forest-labs/FLUX.1-dev", "VAECache has 40 unprocessed files. Continuing to process.",
                           "Processing bucket 1.0:   3%|▎         | 1/40 [00:02<00:40,  1.1s/it]"]),
        ("model_load", ["After nuking text encoders from orbit, we freed 9.1 GB of VRAM. The real memories were the friends we trained a model on along the way."]),
        ("quantize", ["INFO:SimpleTuner:Quantising FluxTransformer2DModel. Using int8-quanto.", "INFO:SimpleTuner:Quanto: Freezing model weights only"]),
        ("step", ["INFO:SimpleTuner:After nuking the VAE from orbit, we freed 163.84 MB of VRAM.", "{bar:Epoch 1/10 Steps}"]),
        ("sampling", ["Processing validation prompts:   0%|          | 0/1 [00:00<?, ?it/s]"]),
        ("vae_decode", ["100%|██████████| 20/20 [00:20<00:00,  1.1s/it]"]),
        ("save", ["Traceback (most recent call last):", '  File "/SimpleTuner/simpletuner/helpers/training/save_hooks.py", line 123, in save_model_hook']),
    ],
    "diffusion-pipe": [
        ("cache_latents", ["[CACHE] Initializing", "{buckets}"]),
        ("cache_text", ["caching text embeddings: (1.0, 1)"]),
        ("model_load", ["trainable params: 76,677,120 || all params: 12,897,722,432 || trainable%: 0.5945"]),
        ("step", ["Global batch size = 1", "{bar:deepspeed}"]),
        ("sampling", ["Running eval"]),
        ("vae_decode", ["Running eval"]),
        ("save", ["Saving model to directory out/epoch1"]),
    ],
    "comfyui": [
        ("", ["Device: cuda:0 {gpu} : cudaMallocAsync", "got prompt"]),
        ("model_load", ["model weight dtype torch.bfloat16, manual cast: None"]),
        ("cache_text", ["Requested to load FluxClipModel_", "loaded completely; 9999.00 MB usable, 4777.00 MB loaded, full load: True"]),
        ("sampling", ["Requested to load Flux", "loaded partially; 5555.00 MB usable, 5111.00 MB loaded, 6222.00 MB offloaded", "  0%|          | 0/20 [00:00<?, ?it/s]"]),
        ("vae_decode", ["100%|██████████| 20/20 [00:20<00:00,  1.1s/it]", "Requested to load AutoencodingEngine"]),
    ],
    "diffusers": [
        ("model_load", ["Distributed environment: NO", "Loading pipeline components...:  40%|████      | 2/5 [00:00<00:01,  2.10it/s]"]),
        ("cache_latents", ["Caching latents:  10%|█         | 2/20 [00:02<00:20,  1.1s/it]"]),
        ("step", ["***** Running training *****", "  Num examples = 12", "{bar:Steps}"]),
        ("sampling", ["Running validation... \n Generating 4 images with prompt: a dog.", "Loading pipeline components...: 100%|██████████| 5/5 [00:00<00:00,  9.10it/s]"]),
        ("vae_decode", ["100%|██████████| 28/28 [00:20<00:00,  1.1s/it]"]),
        ("save", ["Saved state to out/checkpoint-250"]),
    ],
    # Programs whose source was not read: what tqdm draws, and the plainest words.
    "": [
        ("model_load", ["Loading models from: model.safetensors"]),
        ("step", ["{bar:Steps}"]),
        ("sampling", ["  0%|          | 0/25 [00:00<?, ?it/s]"]),
        ("vae_decode", ["100%|██████████| 25/25 [00:20<00:00,  1.1s/it]"]),
        ("save", ["Saving checkpoint at step 250"]),
    ],
    "forge": [
        ("model_load", ["Patching LoRAs for KModel:  43%|████▎     | 130/304 [00:02<00:03, 50.0it/s]"]),
        ("sampling", ["  0%|          | 0/20 [00:00<?, ?it/s]"]),
        ("vae_decode", ["100%|██████████| 20/20 [00:20<00:00,  1.1s/it]"]),
    ],
}  # fmt: skip
PHASE_OF = {"first_steps": "step", "later_steps": "step"}
# Where each trainer's code of a frame lies; what is asked for by no name lies in the trainer's main script.
FILES = {"decode": "diffusers/models/autoencoders/autoencoder_kl.py", "encode": "diffusers/models/autoencoders/autoencoder_kl.py",
         "to": "torch/nn/modules/module.py", "_apply": "torch/nn/modules/module.py", "backward": "torch/_tensor.py", "spawn_main": "multiprocessing/spawn.py",
         "prepare": "accelerate/accelerator.py", "conv3d": "torch/nn/modules/conv.py"}  # fmt: skip
CACHE_SCRIPTS = {"cache_latents": "cache_latents.py", "cache_text": "cache_text_encoder_outputs.py"}
NODES = re.compile(r"(VAEDecode|VAEEncode|KSampler|Sampler|TextEncode|Loader|Validate|TrainLoop)")


def family(trainer: str) -> str:
    name = trainer.lower()
    for words, known in (("ai-toolkit", "ai-toolkit"), ("sd-scripts", "sd-scripts"), ("kohya", "sd-scripts"), ("musubi", "musubi-tuner"), ("onetrainer", "onetrainer"),
                         ("simpletuner", "simpletuner"), ("diffusion-pipe", "diffusion-pipe"), ("comfy", "comfyui"), ("diffusers", "diffusers"),
                         ("finetrainers", "diffusers"), ("forge", "forge")):  # fmt: skip
        if words in name and not (known == "sd-scripts" and "comfy" in name):
            return known
    return ""


def buckets_of(row: Row, facts: Row) -> list[list[int]]:
    return facts.get("buckets", [])


def bucket_lines(kind: str, buckets: list[list[int]]) -> list[str]:
    lines = []
    for i, (w, h, f, count) in enumerate(buckets or [[1024, 1024, 1, 10]]):
        if kind == "ai-toolkit":
            lines.append(f"{w}x{h}: {count} files")
        elif kind == "sd-scripts":
            lines.append(f"INFO     bucket {i}: resolution ({w}, {h}), count: {count}")
        elif kind == "musubi-tuner":
            lines.append(f"bucket: ({w}, {h}, {f}), count: {count}")
        else:
            lines.append(f"caching latents: ({w}, {h}, {f})")
    return lines


def clock(seconds: float) -> str:
    return f"{int(seconds) // 60:02d}:{int(seconds) % 60:02d}"


def bar_lines(name: str, done: int, total: int, paces: list[float]) -> list[str]:
    """Every step of a bar up to `done`; the seconds of each."""
    lines, elapsed = [], 0.0
    for n in range(done + 1):
        seconds = paces[min(n, len(paces) - 1)]
        elapsed += seconds if n else 0
        if name == "deepspeed":
            if n:
                lines.append(f"[2025-01-01 10:00:00,000] [INFO] steps: {n} loss: 0.1234 iter time (s): {seconds:.3f} samples/sec: {1 / seconds:.3f}")
            continue
        rate = "?it/s" if n == 0 else f"{1 / seconds:5.2f}it/s" if seconds < 1 else f"{seconds:5.2f}s/it"
        loss = ", loss=0.123" if n else ""
        lines.append(f"{name}: {100 * n // total:3d}%|{'█' * (10 * n // total):<10}| {n}/{total} [{clock(elapsed)}<{'?' if n == 0 else clock((total - n) * seconds)}, {rate}{loss}]")
    return lines


def steps_done(row: Row, facts: Row) -> int:
    if "steps_done" in facts:
        return facts["steps_done"]
    if row["phase_true"] != "later_steps":
        return 0
    said = re.search(r"step (\d+)", row["notes"])
    return min(int(said[1]), 400) if said else 57


def paces(row: Row, facts: Row, done: int) -> list[float]:
    """Seconds of each step: slower for good where the notes say that there was no error and it became slow."""
    speeds = re.search(r"from ([\d.]+) to ([\d.]+) it/s", row["notes"])
    if row["message_form"] != "none" or not re.search(r"slow|speed", row["notes"]):
        return [0.8]
    before, after = (1 / float(speeds[1]), 1 / float(speeds[2])) if speeds else (1.0, 5.0)
    return [before] * (2 * done // 3) + [after]


def before_it(row: Row, facts: Row) -> list[str]:
    kind, phase = family(row["trainer"]), row["phase_true"]
    lines: list[str] = []
    if system(row) == "wsl":
        lines.append("Linux 5.15.167.4-microsoft-standard-WSL2")
    if "ZLUDA" in f"{row['gpu']} {row['notes']}":
        lines.append("Device: cuda:0 AMD Radeon RX [ZLUDA] : native")
    if re.search(r"block swap|swapped blocks|blocks_to_swap|layer offload|loader with offload|pinned", row["notes"] + str(row["what_fixed_it"])):
        lines.append("INFO     enable block swap: blocks_to_swap=20")
    stages = STAGES.get(kind, [])
    wanted = PHASE_OF.get(phase, phase)
    names = [name for name, _ in stages]
    if wanted == "unknown" or wanted not in names:
        return lines + (stages[0][1] if stages and stages[0][0] == "" else [])
    done = steps_done(row, facts)
    separate_script = kind == "musubi-tuner"  # caches are runs of their own
    for name, says in stages:
        if separate_script and name != wanted and name.startswith("cache"):
            continue
        if name == "sampling" and wanted in ("step", "save") and names.index("sampling") > names.index("step"):
            continue
        if name == "vae_decode" and wanted not in ("vae_decode",):
            continue
        for line in says:
            if line.endswith("{buckets}"):
                lines += [line.replace("{buckets}", bucket) for bucket in bucket_lines(kind, buckets_of(row, facts))]
            elif line.startswith("{bar:"):
                bar = line[5:-1]
                reached = done if wanted == "step" else max(done, 249)
                lines += bar_lines(bar, reached, 1600, paces(row, facts, reached))
                for _ in range(facts.get("previews", 0)):
                    lines += dict(stages)["sampling"] + bar_lines(bar, reached + 1, 1600, [0.8])[-1:]
                    reached += 1
            else:
                lines.append(line.replace("{gpu}", row["gpu"]))
        if name == wanted:
            break
    return lines


def frames(row: Row) -> list[str]:
    here = system(row)
    root = "C:\\train\\" if here == "windows" else "/home/user/train/"
    site = "venv\\Lib\\site-packages\\" if here == "windows" else "venv/lib/python3.10/site-packages/"
    lines, nodes = [], []
    for hint in row["traceback_hints"]:
        if NODES.search(hint) and "." not in hint:
            nodes.append(hint)
            continue
        if hint.endswith(".py") or hint in ("decorator", "memory_management", "enqueue.cc", "cublasGemmEx", "sigkill_handler"):
            continue
        function = re.sub(r"\[.*?\]", "", hint).split(".")[-1]
        file = FILES.get(function, "")
        if "VAE" in hint or hint.startswith("vae."):
            file = "modules/vae.py"
        where = site + file if "/" in file and not file.startswith("modules") else root + (file or "train.py")
        if family(row["trainer"]) == "musubi-tuner" and row["phase_true"] in CACHE_SCRIPTS and not file:
            where = root + "src/musubi_tuner/" + CACHE_SCRIPTS[row["phase_true"]]
        lines.append(f'  File "{where.replace("/", chr(92)) if here == "windows" else where}", line 123, in {function}')
        lines.append("    the code of that line")
    if lines or nodes:
        lines.insert(0, "Traceback (most recent call last):")
    return [f"Error occurred when executing {node}:" for node in nodes] + lines


def write_log(row: Row, facts: Row | None = None) -> str:
    facts = facts or {}
    text = message(row, facts)
    lines = before_it(row, facts)
    if row["message_form"] != "none":
        lines += frames(row)
    lines += text
    runs = facts.get("runs")  # of one process: whether each failed
    if runs:
        once = lines
        lines = []
        for failed in runs:
            lines += once if failed else ["got prompt", "100%|██████████| 20/20 [00:20<00:00,  1.1s/it]"]
            lines.append("Prompt executed in 21.00 seconds")
    return "\n".join(lines) + "\n"


def rows_of(path: str | Path) -> list[Row]:
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines() if line.strip()]


def main() -> int:
    rows, wanted = rows_of(sys.argv[1]), sys.argv[2]
    facts = json.loads(Path(sys.argv[3]).read_text(encoding="utf-8")) if len(sys.argv) > 3 else {}
    for row in rows:
        if row["id"] == wanted:
            sys.stdout.write(write_log(row, facts.get(wanted, {})))
            return 0
    sys.stderr.write(f"no row {wanted}\n")
    return 2


if __name__ == "__main__":
    sys.exit(main())
