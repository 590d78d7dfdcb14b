#include "trainers/ai_toolkit/buckets.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>

namespace vram::trainers::ai_toolkit {

Size bucket_of(Size image, std::int64_t resolution, std::int64_t step) {
    const std::int64_t total_pixels = image.width * image.height;
    const std::int64_t max_pixels = resolution * resolution;
    const std::int64_t target_pixels = std::min(total_pixels, max_pixels);
    const double scaler = std::pow(static_cast<double>(target_pixels) / static_cast<double>(total_pixels), 0.5);
    const double w_raw = static_cast<double>(image.width) * scaler / static_cast<double>(step);
    const double h_raw = static_cast<double>(image.height) * scaler / static_cast<double>(step);
    const auto low_w = static_cast<std::int64_t>(std::floor(w_raw)),
               high_w = static_cast<std::int64_t>(std::ceil(w_raw));
    const auto low_h = static_cast<std::int64_t>(std::floor(h_raw)),
               high_h = static_cast<std::int64_t>(std::ceil(h_raw));

    // In this order: the first of equals wins.
    const std::array<Size, 4> candidates{Size{low_w, low_h}, Size{low_w, high_h}, Size{high_w, low_h},
                                         Size{high_w, high_h}};
    Size best;
    std::int64_t best_distance = 0;
    for (const Size& candidate : candidates) {
        const std::int64_t area = candidate.width * step * candidate.height * step;
        if (area == 0 || area > max_pixels) continue;
        const std::int64_t distance = std::abs(area - target_pixels);
        if (best.width != 0 && distance >= best_distance) continue;
        best = {candidate.width * step, candidate.height * step};
        best_distance = distance;
    }
    if (best.width == 0) return {std::max(step, low_w * step), std::max(step, low_h * step)};
    return best;
}

Size heaviest_bucket(std::int64_t resolution, std::int64_t step) {
    const std::int64_t cells = resolution * resolution / (step * step);
    for (std::int64_t area = cells; area > 0; --area) {
        auto height = static_cast<std::int64_t>(std::sqrt(static_cast<double>(area)));
        while (height > 1 && area % height != 0) --height;
        if (const std::int64_t width = area / height; width <= 2 * height) return {width * step, height * step};
    }
    return {step, step};
}

}  // namespace vram::trainers::ai_toolkit
