#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "vram/base/bytes.hpp"
#include "vram/base/dtype.hpp"

namespace vram::run {

/// A tensor that the model is handed: the contract of a recording.
struct InputTensor {
    std::string name;
    std::vector<std::int64_t> shape;
    Dtype dtype = Dtype::f32;
    bool operator==(const InputTensor&) const = default;
};

struct Counts {
    std::int64_t parameters = 0;  // of the base model
    std::int64_t adapted_modules = 0, adapter_parameters = 0;
    std::int64_t attention_flash = 0, attention_efficient = 0, attention_cudnn = 0,
                 attention_math = 0;  // the whole play
    bool operator==(const Counts&) const = default;
};

/// What a phase was, beside what its events say. `name` is the phase's mark in the trace.
struct PhaseFacts {
    std::string name;                      // "step 1", "bucket 768x1344", "sample", "call", …
    std::string kind;                      // load, quantize, cache, sample, train, save, call
    std::array<std::int64_t, 3> bucket{};  // width, height, frames; zeros where the phase has none
    std::int64_t batch_size = 0;           // 0 where the phase has none
    Bytes kept_for_backward = 0;           // forward's end minus its start, tensors
    bool operator==(const PhaseFacts&) const = default;
};

/// What a played job was: the figures of a report that are not peaks. Bytes are of tensors, each storage once, rounded
/// to 512.
struct Facts {
    Counts counts;
    Bytes weights = 0, adapter = 0, optimizer_state = 0, gradients = 0, inputs = 0, targets = 0;
    Bytes kept_for_backward = 0;           // of step 2
    Bytes kept_without_checkpointing = 0;  // the same step played without; equal to kept_for_backward where it is off
    bool checkpointing = false;
    std::vector<InputTensor> input_tensors;
    std::vector<PhaseFacts> phases;  // in the order played
    bool operator==(const Facts&) const = default;
};

}  // namespace vram::run
