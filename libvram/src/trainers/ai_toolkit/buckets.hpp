#pragma once

#include <cstdint>

namespace vram::trainers::ai_toolkit {

struct Size {
    std::int64_t width = 0, height = 0;
    bool operator==(const Size&) const = default;
};

/// The bucket that an image of `image` pixels (both sides > 0) trains in: never larger than resolution², both sides
/// multiples of `step` > 0, as near as possible to the image's own area below that cap. Since 2026-05-28; before,
/// tables decided. Arithmetic is that of Python's floats. Errors: none; sides beyond 2^26 are not exact. Source:
/// toolkit/buckets.py, get_bucket_for_image_size.
[[nodiscard]] Size bucket_of(Size image, std::int64_t resolution, std::int64_t step);

/// The largest bucket that some image gets at this resolution, among those whose long side is at most twice the short
/// one: the one nearest to a square. What a dataset that cannot be measured is taken for.
[[nodiscard]] Size heaviest_bucket(std::int64_t resolution, std::int64_t step);

}  // namespace vram::trainers::ai_toolkit
