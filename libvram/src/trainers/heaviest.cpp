#include "trainers/heaviest.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

namespace vram::trainers {
namespace {

std::int64_t pixels_of(const job::Batch& batch) { return batch.width * batch.height * batch.frames; }

}  // namespace

std::vector<job::Batch> heaviest(const std::vector<job::Batch>& batches, std::size_t most, std::int64_t text_tokens) {
    if (batches.size() <= most) return batches;
    std::vector<std::size_t> order(batches.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
        return std::pair(pixels_of(batches[a]), batches[a].count) > std::pair(pixels_of(batches[b]), batches[b].count);
    });
    // From the most pixels down, whatever has more items than all before it is exceeded by none.
    std::vector<bool> exceeded(batches.size(), true);
    std::int64_t most_items = 0;
    for (const std::size_t i : order) {
        if (batches[i].count <= most_items) continue;
        most_items = batches[i].count;
        exceeded[i] = false;
    }
    const auto tokens = [&](std::size_t i) {
        constexpr std::int64_t pixels_a_token = 16 * 16;
        return batches[i].count * (pixels_of(batches[i]) / pixels_a_token + text_tokens);
    };
    // The first of `order` has the most pixels, and stays.
    std::stable_sort(order.begin() + 1, order.end(), [&](std::size_t a, std::size_t b) {
        return std::pair(!exceeded[a], tokens(a)) > std::pair(!exceeded[b], tokens(b));
    });
    order.resize(most);
    std::sort(order.begin(), order.end());
    std::vector<job::Batch> out;
    for (const std::size_t i : order) out.push_back(batches[i]);
    return out;
}

}  // namespace vram::trainers
