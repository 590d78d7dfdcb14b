#pragma once

#include <cstdint>
#include <vector>

namespace vram::trainers::sd_scripts {

/// In pixels.
struct Size {
    std::int64_t width = 0, height = 0;
    auto operator<=>(const Size&) const = default;
};

/// What a dataset says of its buckets; sides in pixels.
struct BucketRule {
    Size resolution{};  // the most pixels of a picture; without buckets the size of all of them
    bool enabled = false, no_upscale = false;
    std::int64_t min = 256, max = 1024, steps = 64;
};

/// The sizes that pictures are scaled to where they may be enlarged, in order of width and height; never empty, as the
/// square below the resolution is one whatever `min` and `max` say. `steps` > 0 divides min and max.
/// Source: library/model_util.py, make_bucket_resolutions.
[[nodiscard]] std::vector<Size> bucket_resolutions(const BucketRule& rule);

/// The size that a picture of these pixels (both > 0) trains in. Arithmetic is that of Python's floats; a side of 0
/// comes out for a picture so narrow that the trainer itself cannot go on.
/// Source: library/train_util.py, BucketManager.select_bucket; BaseDataset.make_buckets without buckets.
[[nodiscard]] Size bucket_of(Size image, const BucketRule& rule, const std::vector<Size>& resolutions);

/// The largest size that some picture gets, among those whose long side is at most twice the short one: the one nearest
/// to a square. What a dataset that cannot be measured is taken for.
[[nodiscard]] Size heaviest_bucket(const BucketRule& rule);

}  // namespace vram::trainers::sd_scripts
