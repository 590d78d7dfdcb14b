#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "trainers/sd_scripts/arguments.hpp"
#include "vram/base/diagnostic.hpp"
#include "vram/job/job.hpp"

namespace vram::trainers::sd_scripts {

/// Where what a dataset or a folder says is said, by the key. read_datasets makes it hold resolution,
/// bucket_reso_steps, color_aug, random_crop and each of caption_changes, whoever says them: where nobody does, where
/// they would be.
using Said = std::map<std::string, SaidAt, std::less<>>;

/// A folder of pictures.
struct Subset {
    std::string image_dir;
    SaidAt at;  // of the folder
    std::int64_t num_repeats = 1;
    bool is_reg = false;
    PictureSettings pictures{};
    Said said{};  // of `pictures`
    bool operator==(const Subset&) const = default;
};

/// Pictures that are put into batches together.
struct Dataset {
    DatasetSettings settings;
    std::vector<Subset> subsets;
    std::string said_in;  // the file that says it, where that is not the one that is read: its `batch_size` wins
    Said said{};          // of `settings`
    bool operator==(const Dataset&) const = default;
};

inline constexpr std::int64_t most_files = 20'000;   // of a folder that are measured
inline constexpr std::size_t most_guess_notes = 32;  // of datasets without pictures, told one by one

/// The datasets of `dataset_config`, read from where the trainer is started or from beside the file; the one of
/// train_data_dir's folders `N_name`, and reg_data_dir's; where nothing of that is there, one without subsets, with a
/// note.
/// Source: library/config_util.py (48d368fa), ConfigSanitizer, BlueprintGenerator,
/// generate_dreambooth_subsets_config_by_subdirs.
[[nodiscard]] std::vector<Dataset> read_datasets(const io::Document& document, const Config& config,
                                                 Diagnostics& complaints, Diagnostics& notes);

/// What the trainer's own checks refuse of a dataset: sides and steps of buckets, caches that its pictures or captions
/// do not stand still for.
void check_datasets(const io::Document& document, const Config& config, const std::vector<Dataset>& datasets,
                    Diagnostics& complaints, Diagnostics& notes);

/// The batches that the datasets yield, each size once. A folder that is there is measured: PNG, JPEG and WebP by their
/// headers, not the folders in it; a bucket of fewer pictures than a batch makes a smaller batch. A dataset without any
/// is taken for its heaviest bucket.
/// Source: library/train_util.py, DreamBoothDataset, BaseDataset.make_buckets.
[[nodiscard]] std::vector<job::Batch> batches_of(const std::vector<Dataset>& datasets, Diagnostics& notes);

}  // namespace vram::trainers::sd_scripts
