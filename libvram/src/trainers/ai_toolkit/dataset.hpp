#pragma once

#include <vector>

#include "trainers/ai_toolkit/config.hpp"
#include "vram/base/diagnostic.hpp"
#include "vram/job/job.hpp"

namespace vram::trainers::ai_toolkit {

struct Architecture;

/// The batches that the datasets yield, each size once, in the order of the datasets and of the sorted files; every
/// batch is full, as the trainer fills a short one up.
///
/// A folder that exists is measured: PNG, JPEG and WebP by their headers, as the trainer walks it (no hidden files, no
/// `_controls`), at most `most_files` of them; videos beside them are counted, and where the dataset wants some taken
/// for the heaviest bucket of its resolution, with a note. One that does not exist, or a list of captions, is taken for
/// the heaviest bucket of its resolution, with a note. Errors: no_data, a folder without a readable image;
/// out_of_range, a square crop that the architecture cannot take. Source: toolkit/data_loader.py, AiToolkitDataset;
/// toolkit/dataloader_mixins.py, setup_buckets (27a03a91).
///
/// A control image is the one of the item's own name in each control folder. Where it is cropped to the item's bucket
/// it is of that size; else it is measured, and where its folder does not exist taken to be as large as the bucket. Of
/// the items in one bucket those with the heaviest control images count.
///
/// Of missing folders at most `most_guess_notes` are named; one more note counts the rest.
[[nodiscard]] std::vector<job::Batch> batches_of(const std::vector<DatasetConfig>& datasets,
                                                 const Architecture& architecture, Diagnostics& complaints,
                                                 Diagnostics& notes);

/// Of each picture the bucket it gets at its resolution, or the heaviest one where no such file is, as often as it has
/// noise levels. Source: BaseSDTrainProcess.setup_validation, which passes over files that are not there.
[[nodiscard]] std::vector<job::Batch> validation_batches(const std::vector<ValidationItem>& items,
                                                         const Architecture& architecture);

inline constexpr std::int64_t most_files = 20'000;
inline constexpr std::int64_t most_guess_notes = 32;

/// Leaves out each dataset that yields the same batches, in the same way, as one before it.
void drop_repeated(std::vector<DatasetConfig>& datasets);

}  // namespace vram::trainers::ai_toolkit
