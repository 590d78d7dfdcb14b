#include "trainers/sd_scripts/buckets.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <set>

namespace vram::trainers::sd_scripts {
namespace {

double aspect(Size size) { return static_cast<double>(size.width) / static_cast<double>(size.height); }
std::int64_t area(Size size) { return size.width * size.height; }

/// round_to_steps
std::int64_t rounded(double side, std::int64_t steps) {
    const auto whole = static_cast<std::int64_t>(side + 0.5);
    return whole - whole % steps;
}

/// select_bucket where a picture is only ever made smaller.
Size shrunk(Size image, const BucketRule& rule) {
    Size resized = image;
    if (const std::int64_t most = area(rule.resolution); area(image) > most) {
        const double ratio = aspect(image);
        const double width = std::sqrt(static_cast<double>(most) * ratio), height = static_cast<double>(most) / width;
        const std::int64_t by_width = rounded(width, rule.steps), by_height = rounded(height, rule.steps);
        const std::int64_t height_of_it = rounded(static_cast<double>(by_width) / ratio, rule.steps);
        const std::int64_t width_of_it = rounded(static_cast<double>(by_height) * ratio, rule.steps);
        if (height_of_it == 0 || by_height == 0) return {};  // Python divides by 0
        const double off_by_width = std::abs(aspect({by_width, height_of_it}) - ratio);
        const double off_by_height = std::abs(aspect({width_of_it, by_height}) - ratio);
        if (off_by_width < off_by_height)
            resized = {by_width, static_cast<std::int64_t>(static_cast<double>(by_width) / ratio + 0.5)};
        else
            resized = {static_cast<std::int64_t>(static_cast<double>(by_height) * ratio + 0.5), by_height};
    }
    return {resized.width - resized.width % rule.steps, resized.height - resized.height % rule.steps};
}

}  // namespace

std::vector<Size> bucket_resolutions(const BucketRule& rule) {
    const std::int64_t most = area(rule.resolution), steps = rule.steps;
    std::set<Size> out;
    const auto root =
        static_cast<std::int64_t>(std::floor(std::sqrt(static_cast<double>(most)) / static_cast<double>(steps)));
    out.insert({root * steps, root * steps});
    for (std::int64_t width = std::max<std::int64_t>(rule.min, 1); width <= rule.max; width += steps) {
        const std::int64_t height = std::min(rule.max, most / width / steps * steps);
        if (height < rule.min) continue;
        out.insert({width, height});
        out.insert({height, width});
    }
    return {out.begin(), out.end()};
}

Size bucket_of(Size image, const BucketRule& rule, const std::vector<Size>& resolutions) {
    if (!rule.enabled) return rule.resolution;
    if (rule.no_upscale) return shrunk(image, rule);
    if (std::find(resolutions.begin(), resolutions.end(), image) != resolutions.end()) return image;
    const double ratio = aspect(image);
    // The first of equals, as argmin has it.
    return *std::min_element(resolutions.begin(), resolutions.end(),
                             [&](Size a, Size b) { return std::abs(aspect(a) - ratio) < std::abs(aspect(b) - ratio); });
}

Size heaviest_bucket(const BucketRule& rule) {
    if (!rule.enabled) return rule.resolution;
    std::vector<Size> all;
    if (rule.no_upscale) {
        // A picture of just this size stays as it is.
        const std::int64_t cells = area(rule.resolution) / (rule.steps * rule.steps);
        for (std::int64_t height = 1; height * height <= cells; ++height)
            all.push_back({cells / height * rule.steps, height * rule.steps});
    } else {
        all = bucket_resolutions(rule);
    }
    const auto is_wide = [](Size size) {
        return std::max(size.width, size.height) > 2 * std::min(size.width, size.height);
    };
    const auto off_square = [](Size size) { return std::abs(size.width - size.height); };
    Size best = all.front();
    for (const Size size : all) {
        const bool better = is_wide(best) != is_wide(size) ? is_wide(best)
                            : area(size) != area(best)     ? area(size) > area(best)
                                                           : off_square(size) < off_square(best);
        if (better) best = size;
    }
    return best;
}

}  // namespace vram::trainers::sd_scripts
