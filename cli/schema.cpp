#include <ostream>
#include <string_view>

#include "verbs.hpp"

namespace vram::cli {
namespace {

// JSON Schema 2020-12 of what job-file.md promises. A test holds every key of a report against it.
constexpr std::string_view text = R"json({
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "title": "vramest",
  "description": "$defs/report is what `vramest check --json` prints, $defs/advice what `vramest advise --json` does, $defs/diagnosis what `vramest diagnose --json` does, $defs/max, grow, sweep, explained and risk what these verbs do, $defs/job a job file. Sizes are bytes.",
  "$defs": {
    "bytes": {"type": "integer"},
    "verdict": {"enum": ["fits", "tight", "does_not_fit", "cannot_say"]},
    "side": {"type": "integer", "minimum": 8, "maximum": 32768},
    "size": {"type": "array", "items": {"$ref": "#/$defs/side"}, "minItems": 2, "maxItems": 2},
    "memory": {"description": "bytes, or a text such as 24 GiB", "type": ["integer", "string"]},
    "gpu": {"type": "object", "properties": {"id": {"type": "string"}, "name": {"type": "string"},
                "chosen_by": {"enum": ["flag", "job", "driver", "smallest_that_holds"]}, "capacity": {"$ref": "#/$defs/bytes"},
                "capacity_high": {"$ref": "#/$defs/bytes"}, "usable": {"$ref": "#/$defs/bytes"}, "other_processes": {"$ref": "#/$defs/bytes"}}},
    "settings": {"description": "keys of the job and values (YAML) that make check play it", "type": "object",
                 "additionalProperties": {"type": "string"}},
    "bytes_or_null": {"type": ["integer", "null"]},
    "cell": {"type": "object", "required": ["at", "settings", "verdict"], "properties": {
      "at": {"description": "by axis: the index of its value", "type": "array", "items": {"type": "integer"}},
      "settings": {"$ref": "#/$defs/settings"}, "gpu": {"type": "string"}, "usable": {"$ref": "#/$defs/bytes"},
      "verdict": {"$ref": "#/$defs/verdict"}, "tensors_peak": {"$ref": "#/$defs/bytes"}, "tensors_phase": {"type": "string"},
      "replayed": {"description": "false: the tensors alone exceed the card", "type": "boolean"},
      "device_low": {"$ref": "#/$defs/bytes_or_null"}, "device_high": {"$ref": "#/$defs/bytes_or_null"}, "reason": {"type": "string"},
      "diagnostics": {"$ref": "#/$defs/diagnostics"}}},
    "sweep": {"type": "object", "required": ["schema", "vramest", "source", "axes", "counts", "cells", "diagnostics"], "properties": {
      "schema": {"const": 1}, "vramest": {"type": "string"}, "source": {"type": "string"},
      "axes": {"type": "array", "items": {"type": "object", "properties": {"key": {"type": "string"},
               "values": {"type": "array", "items": {"type": "string"}}}}},
      "counts": {"description": "cells by verdict", "type": "object", "properties": {"fits": {"type": "integer"},
                 "tight": {"type": "integer"}, "does_not_fit": {"type": "integer"}, "cannot_say": {"type": "integer"}}},
      "cells": {"description": "the last axis fastest", "type": "array", "items": {"$ref": "#/$defs/cell"}},
      "diagnostics": {"$ref": "#/$defs/diagnostics"}}},
    "tried": {"type": ["object", "null"], "properties": {
      "value": {"type": "integer"}, "settings": {"$ref": "#/$defs/settings"}, "verdict": {"$ref": "#/$defs/verdict"},
      "tensors_peak": {"$ref": "#/$defs/bytes"}, "tensors_phase": {"type": "string"}, "replayed": {"type": "boolean"},
      "device_low": {"$ref": "#/$defs/bytes_or_null"}, "device_high": {"$ref": "#/$defs/bytes_or_null"}, "reason": {"type": "string"}}},
    "max": {"type": "object", "required": ["schema", "vramest", "source", "gpu", "vary", "keys", "now", "max", "diagnostics"], "properties": {
      "schema": {"const": 1}, "vramest": {"type": "string"}, "source": {"type": "string"}, "gpu": {"$ref": "#/$defs/gpu"},
      "vary": {"type": "array", "items": {"enum": ["batch_size", "resolution", "frames", "rank"]}},
      "keys": {"type": "array", "items": {"type": "string"}}, "now": {"type": ["integer", "null"]},
      "max": {"description": "one; of two axes one a usual value of the second", "type": "array", "items": {"type": "object", "properties": {
        "beside": {"type": "integer"}, "value": {"type": ["integer", "null"]}, "settings": {"$ref": "#/$defs/settings"},
        "phase": {"type": "string"}, "stage": {"type": "string"}, "device_low": {"$ref": "#/$defs/bytes_or_null"},
        "device_high": {"$ref": "#/$defs/bytes_or_null"}, "next": {"$ref": "#/$defs/tried"},
        "smaller_that_fail": {"type": "array", "items": {"type": "integer"}},
        "larger_tried": {"type": "array", "items": {"type": "integer"}},
        "tried": {"type": "array", "items": {"$ref": "#/$defs/tried"}}}}},
      "diagnostics": {"$ref": "#/$defs/diagnostics"}}},
    "grow": {"type": "object", "required": ["schema", "vramest", "source", "gpu", "verdict", "lines", "diagnostics"], "properties": {
      "schema": {"const": 1}, "vramest": {"type": "string"}, "source": {"type": "string"}, "gpu": {"$ref": "#/$defs/gpu"},
      "verdict": {"$ref": "#/$defs/verdict"}, "reason": {"type": "string"}, "device_low": {"$ref": "#/$defs/bytes_or_null"},
      "device_high": {"$ref": "#/$defs/bytes_or_null"},
      "lines": {"type": "array", "items": {"type": "object", "properties": {
        "what": {"enum": ["steps", "resolution", "samples", "batch_size", "frames", "rank", "gradient_checkpointing"]},
        "from": {"type": "string"}, "to": {"type": ["string", "null"]}, "grows": {"type": "boolean"},
        "settings": {"$ref": "#/$defs/settings"}, "device_low": {"$ref": "#/$defs/bytes_or_null"},
        "device_high": {"$ref": "#/$defs/bytes_or_null"}, "why": {"type": "string"}}}},
      "diagnostics": {"$ref": "#/$defs/diagnostics"}}},
    "category": {"enum": ["weights", "adapter", "gradients", "optimizer_state", "activations", "checkpoints", "inputs",
                "latents_and_embeddings", "ema", "model_cache", "workspace", "rounding", "unallocated", "context", "libraries"]},
    "breakdown": {"description": "adds up to device_low and device_high", "type": "array", "items": {"type": "object", "properties": {
                "component": {"type": "string"}, "category": {"$ref": "#/$defs/category"}, "low": {"$ref": "#/$defs/bytes"},
                "high": {"$ref": "#/$defs/bytes"}, "source": {"type": "string"}}}},
    "setting": {"description": "as of --set", "type": "object", "properties": {"key": {"type": "string"}, "value": {"type": "string"}}},
    "report": {
      "type": "object",
      "required": ["schema", "vramest", "job", "gpu", "verdict", "reason", "peak", "counts", "phases", "breakdown", "advice", "risk", "diagnostics"],
      "properties": {
        "schema": {"const": 1},
        "vramest": {"type": "string"},
        "job": {"type": "object", "properties": {"trainer": {"type": "string"}, "model": {"type": "string"}, "source": {"type": "string"},
                "resolved": {"type": "object", "additionalProperties": {"type": "string"}}}},
        "gpu": {"$ref": "#/$defs/gpu"},
        "verdict": {"$ref": "#/$defs/verdict"},
        "reason": {"type": "string"},
        "peak": {"description": "null where the verdict is cannot_say", "type": ["object", "null"], "properties": {
                "phase": {"type": "string"}, "stage": {"type": "string"}, "decides": {"enum": ["tensors", "allocated", "reserved", "device"]},
                "tensors": {"$ref": "#/$defs/bytes"}, "allocated": {"$ref": "#/$defs/bytes"}, "allocated_low": {"$ref": "#/$defs/bytes"},
                "allocated_high": {"$ref": "#/$defs/bytes"}, "reserved": {"$ref": "#/$defs/bytes"}, "reserved_low": {"$ref": "#/$defs/bytes"},
                "reserved_high": {"$ref": "#/$defs/bytes"},
                "device": {"$ref": "#/$defs/bytes"}, "device_low": {"$ref": "#/$defs/bytes"}, "device_high": {"$ref": "#/$defs/bytes"}}},
        "counts": {"type": "object", "properties": {"parameters": {"type": "integer"}, "adapted_modules": {"type": "integer"},
                "adapter_parameters": {"type": "integer"}, "attention_calls": {"type": "object", "properties": {"flash": {"type": "integer"},
                "efficient": {"type": "integer"}, "cudnn": {"type": "integer"}, "math": {"type": "integer"}}}}},
        "stored_weights": {"description": "where the model is a folder or a file: what its headers say, by type", "type": "array",
                "items": {"type": "object", "properties": {"type": {"type": "string"}, "parameters": {"type": "integer"},
                "bytes": {"$ref": "#/$defs/bytes"}}}},
        "weights": {"$ref": "#/$defs/bytes"}, "adapter": {"$ref": "#/$defs/bytes"}, "optimizer_state": {"$ref": "#/$defs/bytes"},
        "gradients": {"$ref": "#/$defs/bytes"}, "inputs": {"$ref": "#/$defs/bytes"}, "targets": {"$ref": "#/$defs/bytes"},
        "kept_for_backward": {"$ref": "#/$defs/bytes"},
        "input_tensors": {"description": "[name, shape, dtype]", "type": "array", "items": {"type": "array", "minItems": 3, "maxItems": 3}},
        "checkpointing": {"type": "object", "properties": {"on": {"type": "boolean"}, "kept": {"$ref": "#/$defs/bytes"},
                "kept_without": {"$ref": "#/$defs/bytes"}, "factor": {"type": "number"},
                "other": {"type": ["object", "null"], "properties": {"phase": {"type": "string"}, "verdict": {"$ref": "#/$defs/verdict"},
                    "device_low": {"$ref": "#/$defs/bytes"}, "device_high": {"$ref": "#/$defs/bytes"}}}}},
        "breaks_first": {"type": ["object", "null"], "properties": {"phase": {"type": "string"}, "stage": {"type": "string"}}},
        "phases": {"type": "array", "items": {"type": "object", "properties": {"name": {"type": "string"}, "kind": {"type": "string"},
                "bucket": {"description": "width, height, frames; null where the phase has none", "type": ["array", "null"]},
                "batch_size": {"type": ["integer", "null"]}, "kept_for_backward": {"$ref": "#/$defs/bytes"},
                "tensors_start": {"$ref": "#/$defs/bytes"}, "tensors_peak": {"$ref": "#/$defs/bytes"}, "tensors_end": {"$ref": "#/$defs/bytes"},
                "allocated_peak": {"$ref": "#/$defs/bytes"}, "reserved_peak": {"$ref": "#/$defs/bytes"}, "device_peak": {"$ref": "#/$defs/bytes"},
                "needs_low": {"$ref": "#/$defs/bytes"}, "needs_high": {"$ref": "#/$defs/bytes"},
                "verdict": {"$ref": "#/$defs/verdict"},
                "stages": {"type": "array", "items": {"type": "object", "properties": {"name": {"type": "string"},
                "tensors_peak": {"$ref": "#/$defs/bytes"}, "tensors_end": {"$ref": "#/$defs/bytes"},
                "allocated_peak": {"$ref": "#/$defs/bytes"}, "reserved_peak": {"$ref": "#/$defs/bytes"}}}}}}},
        "breakdown": {"$ref": "#/$defs/breakdown"},
        "advice": {"type": "array", "items": {"type": "object"}},
        "risk": {"type": "object", "properties": {"level": {"enum": ["low", "medium", "high"]}, "why": {"type": "array", "items": {"type": "string"}}}},
        "diagnostics": {"$ref": "#/$defs/diagnostics"}
      }
    },
    "diagnostics": {"type": "array", "items": {"type": "object", "properties": {"severity": {"enum": ["error", "warning", "note"]},
                "problem": {"type": "string"}, "key": {"type": "string"}, "found": {"type": "string"}, "nearest": {"type": "string"},
                "file": {"type": "string"}, "line": {"type": "integer"}, "column": {"type": "integer"}, "text": {"type": "string"}}}},
    "stated": {"description": "null where the log does not say it", "type": ["integer", "null"]},
    "diagnosis": {
      "type": "object",
      "required": ["schema", "vramest", "source", "recognised", "phase", "kind", "confidence", "pattern", "numbers", "cause", "first_change", "then", "evidence", "looked_for", "diagnostics"],
      "properties": {
        "schema": {"const": 1},
        "vramest": {"type": "string"},
        "source": {"type": "string"},
        "recognised": {"description": "false: nothing was recognised, and looked_for says of what kinds", "type": "boolean"},
        "phase": {"enum": ["model_load", "quantize", "cache_latents", "cache_text", "first_steps", "later_steps", "sampling", "vae_decode", "save", "unknown"]},
        "kind": {"enum": ["config_too_big", "other_process", "fragmentation", "bad_worker_state", "borderline_bucket", "host_ram", "windows_shared_spill",
                 "init_failure_oom", "not_memory", "unknown"]},
        "confidence": {"enum": ["high", "medium", "low"]},
        "pattern": {"description": "the text of the failure; none: seen from the times of the steps",
                 "enum": ["none", "out_of_memory", "skipped_batch", "skipped_three", "driver_warning", "cuda_error", "pinned_memory", "cublas_init", "cudnn_init",
                 "nccl_init", "cudnn_host", "library_failure", "no_engine", "kernel_resources", "kernel_load", "paged_optimizer", "broken_context", "host_killed",
                 "host_killer", "host_allocator", "host_python", "commit_limit", "host_map", "shared_memory"]},
        "trainer": {"type": "string"},
        "system": {"enum": ["linux", "windows", "wsl", "unknown"]},
        "wording": {"description": "which versions write so", "type": "string"},
        "numbers": {"description": "as the message has them, so to two decimals of their unit", "type": "object", "properties": {
                "tried": {"$ref": "#/$defs/stated"}, "capacity": {"$ref": "#/$defs/stated"}, "free": {"$ref": "#/$defs/stated"},
                "process": {"$ref": "#/$defs/stated"}, "allocated": {"$ref": "#/$defs/stated"}, "reserved_unallocated": {"$ref": "#/$defs/stated"},
                "other_processes": {"$ref": "#/$defs/stated"}, "allowed": {"$ref": "#/$defs/stated"}, "host_tried": {"$ref": "#/$defs/stated"},
                "host_process": {"$ref": "#/$defs/stated"}}},
        "short_by": {"$ref": "#/$defs/stated"},
        "step": {"$ref": "#/$defs/stated"}, "steps": {"$ref": "#/$defs/stated"},
        "went_on": {"type": "boolean"},
        "failures": {"type": "integer"},
        "heaviest_bucket": {"type": ["object", "null"], "properties": {"size": {"type": "array", "items": {"type": "integer"}, "minItems": 3, "maxItems": 3},
                "count": {"type": "integer"}}},
        "cause": {"type": "string"},
        "first_change": {"type": "string"},
        "then": {"type": "array", "items": {"type": "string"}},
        "notes": {"type": "array", "items": {"type": "string"}},
        "evidence": {"description": "line 0: from the whole log", "type": "array", "items": {"type": "object", "properties": {"line": {"type": "integer"},
                "text": {"type": "string"}, "says": {"type": "string"}}}},
        "looked_for": {"type": "array", "items": {"type": "string"}},
        "prediction": {"description": "of the config, where one was given", "type": ["object", "null"], "properties": {"verdict": {"$ref": "#/$defs/verdict"},
                "reason": {"type": "string"}, "phase": {"type": "string"}, "breaks": {"type": "boolean"}, "compared": {"type": "boolean"}, "agrees": {"type": "boolean"}, "needs_low": {"$ref": "#/$defs/bytes"},
                "needs_high": {"$ref": "#/$defs/bytes"}, "capacity": {"$ref": "#/$defs/bytes"},
                "change": {"description": "what makes it fit: what it is, then a line for each edit of the config and for what is typed; empty where the failure is none of size, or nothing makes it fit",
                    "type": "array", "items": {"type": "string"}}}},
        "diagnostics": {"$ref": "#/$defs/diagnostics"}
      }
    },
    "change": {
      "type": "object",
      "required": ["lever", "text", "edits", "settings", "price", "cost", "panel", "shell"],
      "additionalProperties": false,
      "properties": {
        "lever": {"enum": ["gradient_checkpointing", "frames", "batch_size", "resolution", "samples", "text_encoder", "latent_cache", "vae_tiling",
                "low_vram", "quantization", "offloading", "optimizer", "precision", "ema", "rank", "allocator", "other_processes", "pace"]},
        "text": {"type": "string"},
        "edits": {"type": "array", "items": {"type": "object", "properties": {"key": {"type": "string"}, "file": {"type": "string"},
                "line": {"type": "integer"}, "column": {"type": "integer"}, "new": {"type": "boolean"}, "before": {"type": ["string", "null"]},
                "after": {"type": ["string", "null"]}}}},
        "settings": {"type": "object", "additionalProperties": {"type": "string"}},
        "price": {"enum": ["nothing", "disk", "previews", "speed", "precision", "quality"]},
        "cost": {"type": "string"}, "panel": {"type": "string"}, "shell": {"type": "string"}}
    },
    "proposal": {
      "type": "object",
      "required": ["changes", "verdict", "phase", "stage", "device_low", "device_high", "saves", "saves_there", "short_of", "short_of_low"],
      "additionalProperties": false,
      "properties": {
        "changes": {"type": "array", "items": {"$ref": "#/$defs/change"}}, "verdict": {"$ref": "#/$defs/verdict"},
        "phase": {"type": "string"}, "stage": {"type": "string"}, "device_low": {"$ref": "#/$defs/bytes"},
        "device_high": {"$ref": "#/$defs/bytes"}, "saves": {"$ref": "#/$defs/bytes"}, "saves_there": {"$ref": "#/$defs/bytes"},
        "short_of": {"$ref": "#/$defs/bytes"}, "short_of_low": {"$ref": "#/$defs/bytes"}}
    },
    "advice": {
      "type": "object",
      "required": ["schema", "vramest", "before", "video", "fits", "helps", "idle", "nearest"],
      "additionalProperties": false,
      "properties": {
        "schema": {"const": 1}, "vramest": {"type": "string"}, "before": {"$ref": "#/$defs/report"}, "video": {"type": "boolean"},
        "fits": {"type": "array", "items": {"$ref": "#/$defs/proposal"}}, "helps": {"type": "array", "items": {"$ref": "#/$defs/proposal"}},
        "idle": {"type": "array", "items": {"$ref": "#/$defs/change"}},
        "nearest": {"anyOf": [{"$ref": "#/$defs/proposal"}, {"type": "null"}]}}
    },
    "explained": {
      "type": "object",
      "required": ["schema", "vramest", "report", "timeline", "moment", "contributions"],
      "properties": {
        "schema": {"const": 1},
        "vramest": {"type": "string"},
        "report": {"$ref": "#/$defs/report"},
        "timeline": {"description": "null where the verdict is cannot_say", "type": ["object", "null"], "properties": {
                "parts": {"description": "phases and what lies between them, events [begin, end)", "type": "array", "items": {"type": "object",
                    "properties": {"phase": {"type": "string"}, "begin": {"type": "integer"}, "end": {"type": "integer"},
                    "first_point": {"type": "integer"}, "points": {"type": "integer"}}}},
                "points": {"description": "[event, allocated, reserved]: the highest from that event to the next point's", "type": "array",
                    "items": {"type": "array", "minItems": 3, "maxItems": 3}}}},
        "moment": {"description": "null where the verdict is cannot_say", "type": ["object", "null"], "properties": {
                "phase": {"type": "string"}, "stage": {"type": "string"}, "tensors": {"$ref": "#/$defs/bytes"},
                "allocated": {"$ref": "#/$defs/bytes"}, "reserved": {"$ref": "#/$defs/bytes"}, "device_low": {"$ref": "#/$defs/bytes"},
                "device_high": {"$ref": "#/$defs/bytes"}, "breakdown": {"$ref": "#/$defs/breakdown"},
                "blocks": {"description": "the largest first, those that are alike together", "type": "array", "items": {"type": "object",
                    "properties": {"count": {"type": "integer"}, "bytes": {"$ref": "#/$defs/bytes"}, "total": {"$ref": "#/$defs/bytes"},
                    "component": {"type": "string"}, "category": {"$ref": "#/$defs/category"}, "op": {"type": "string"},
                    "phase": {"type": "string"}, "stage": {"type": "string"}, "module": {"type": "string"}, "class": {"type": "string"}, "line": {"type": "string"},
                    "backward": {"type": "boolean"}}}},
                "left_out_blocks": {"type": "integer"}, "left_out": {"$ref": "#/$defs/bytes"}}},
        "contributions": {"type": "array", "items": {"type": "object", "properties": {
                "option": {"type": "string"}, "value": {"type": "string"},
                "instead": {"anyOf": [{"$ref": "#/$defs/setting"}, {"type": "null"}]}, "why_not": {"type": "string"},
                "difference": {"description": "the job as it is − with `instead`; null where that was not played", "type": ["object", "null"],
                    "properties": {"device_low": {"$ref": "#/$defs/bytes"}, "device_high": {"$ref": "#/$defs/bytes"},
                    "needs_low": {"description": "of the phase that decides; null where it is gone then", "type": ["integer", "null"]},
                    "needs_high": {"type": ["integer", "null"]}, "tensors": {"$ref": "#/$defs/bytes"},
                    "verdict_without": {"$ref": "#/$defs/verdict"}}}}}}
      }
    },
    "risk": {
      "type": "object",
      "required": ["schema", "vramest", "level", "why", "is_on", "on", "off", "buckets", "breaks_first", "instead", "plan"],
      "properties": {
        "schema": {"const": 1},
        "vramest": {"type": "string"},
        "level": {"description": "of having gradient checkpointing off", "enum": ["low", "medium", "high"]},
        "why": {"type": "array", "items": {"type": "string"}},
        "is_on": {"type": "boolean"},
        "on": {"$ref": "#/$defs/report"},
        "off": {"$ref": "#/$defs/report"},
        "buckets": {"description": "without it", "type": "array", "items": {"type": "object", "properties": {
                "bucket": {"type": "array", "items": {"type": "integer"}}, "batch_size": {"type": "integer"}, "phase": {"type": "string"},
                "needs_low": {"$ref": "#/$defs/bytes"}, "needs_high": {"$ref": "#/$defs/bytes"}, "verdict": {"$ref": "#/$defs/verdict"}}}},
        "breaks_first": {"type": ["object", "null"], "properties": {"phase": {"type": "string"}, "stage": {"type": "string"}}},
        "instead": {"type": "array", "items": {"type": "object", "properties": {"changes": {"type": "array", "items": {"type": "object",
                "properties": {"lever": {"type": "string"}, "text": {"type": "string"}}}}, "verdict": {"$ref": "#/$defs/verdict"},
                "phase": {"type": "string"}, "device_low": {"$ref": "#/$defs/bytes"}, "device_high": {"$ref": "#/$defs/bytes"}}}},
        "plan": {"type": "array", "items": {"type": "object", "properties": {"text": {"type": "string"},
                "settings": {"type": "array", "items": {"$ref": "#/$defs/setting"}}, "verdict": {"$ref": "#/$defs/verdict"},
                "phase": {"type": "string"}, "device_low": {"$ref": "#/$defs/bytes"}, "device_high": {"$ref": "#/$defs/bytes"},
                "why_not": {"type": "string"}}}}
      }
    },
    "job": {
      "type": "object",
      "required": ["vramest", "trainer"],
      "additionalProperties": false,
      "properties": {
        "vramest": {"const": 1},
        "trainer": {"type": "string"},
        "model": {"description": "a profile's name, or the path of a folder or a file of weights", "type": "string"},
        "component": {"type": "string"},
        "op": {"enum": ["encode", "decode", "forward"]},
        "dtype": {"enum": ["bf16", "fp16", "fp32"], "default": "bf16"},
        "quantize": {"type": ["string", "object"], "default": "none"},
        "batch_size": {"type": "integer", "minimum": 1, "maximum": 4096, "default": 1},
        "train": {"type": "object", "required": ["method"], "additionalProperties": false, "properties": {
          "method": {"enum": ["full", "lora", "lokr", "loha", "dora"]},
          "rank": {"type": "integer", "minimum": 1, "maximum": 65536},
          "alpha": {"type": "number"},
          "factor": {"type": "integer"},
          "conv_rank": {"type": "integer"},
          "targets": {"anyOf": [{"enum": ["attention", "blocks", "all"]}, {"type": "array", "items": {"type": "string"}}], "default": "attention"},
          "adapter_dtype": {"enum": ["bf16", "fp16", "fp32"]},
          "gradient_checkpointing": {"type": "boolean", "default": false},
          "batch_size": {"type": "integer", "minimum": 1, "maximum": 4096, "default": 1},
          "gradient_accumulation": {"type": "integer", "minimum": 1, "maximum": 4096, "default": 1},
          "autocast": {"enum": ["none", "bf16", "fp16"], "default": "none"},
          "optimizer": {"type": "string", "default": "adamw"},
          "ema": {"type": "boolean", "default": false}}},
        "data": {"type": "object", "additionalProperties": false, "properties": {
          "resolution": {"anyOf": [{"$ref": "#/$defs/side"}, {"$ref": "#/$defs/size"}]},
          "buckets": {"type": "array", "items": {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 3}},
          "frames": {"type": "integer", "minimum": 1, "maximum": 4097, "default": 1},
          "text_tokens": {"type": "integer", "minimum": 1, "maximum": 131072},
          "reference_images": {"type": "array", "items": {"$ref": "#/$defs/size"}, "default": []}}},
        "sample": {"type": ["object", "null"]},
        "tiling": {"type": "boolean", "default": false},
        "slicing": {"type": "boolean", "default": false},
        "attention_mask": {"type": "boolean", "default": false},
        "all_hidden_states": {"type": "boolean", "default": false},
        "use_cache": {"type": "boolean", "default": false},
        "environment": {"type": "object", "additionalProperties": false, "properties": {
          "torch": {"type": ["string", "number"], "default": "2.13"},
          "cudnn": {"description": "a version of cuDNN such as 9.10.2", "type": ["string", "number"]},
          "alloc_conf": {"type": "string", "default": ""},
          "os": {"enum": ["linux", "windows", "wsl"], "default": "linux"},
          "other_processes": {"$ref": "#/$defs/memory", "default": 0},
          "attention": {"enum": ["auto", "flash", "efficient", "cudnn", "math", "xformers"], "default": "auto"}}},
        "gpu": {"type": "string"},
        "capacity": {"$ref": "#/$defs/memory"}
      }
    }
  }
}
)json";

}  // namespace

int schema(std::ostream& out) {
    out << text;
    return 0;
}

}  // namespace vram::cli
