#pragma once

#include <filesystem>
#include <string>

#include "vram/base/expected.hpp"
#include "vram/io/document.hpp"
#include "vram/io/tensor_file.hpp"

namespace vram::profile {

/// A model as it lies on a disk: what its config.json says, and the headers of its weights.
struct SavedModel {
    std::string path;        // as given
    std::string class_name;  // `_class_name`, or the first of `architectures`; empty where nothing says it
    io::Document config;     // config.json; its root is null for a file
    io::TensorFile weights;  // no tensors where there are none
    Diagnostics notes;
};

/// Which part of a whole pipeline is meant: its `transformer` or `unet`, or the one that a path names.
enum class Wanted : std::uint8_t { denoiser, component };

/// Reads a folder as save_pretrained of diffusers and transformers writes it (config.json beside safetensors, one file
/// or shards with an index), a pipeline's folder (model_index.json), or one file of weights. Nothing but headers is
/// read of weights, and nothing outside of the folder.
///
/// A folder without weights, or with PyTorch pickles alone, is its config (a note).
/// Errors: file_not_found (no such path; a folder without config.json and model_index.json; a component that
/// model_index.json promises); bad_value (a pipeline without a denoiser, or where a component is wanted; config.json or
/// model_index.json itself, whose folder is `nearest`); those of io::open, io::read_tensor_file and
/// io::read_tensor_index.
/// Sources: diffusers 0.42.1, utils/constants.py and pipeline_utils.py; transformers 5.24.0, utils/__init__.py (names
/// of files).
[[nodiscard]] expected<SavedModel> read_saved_model(const std::filesystem::path& path, Wanted wanted);

}  // namespace vram::profile
