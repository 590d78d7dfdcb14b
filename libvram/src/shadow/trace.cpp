#include "vram/shadow/trace.hpp"

#include <algorithm>
#include <initializer_list>

namespace vram::shadow {
namespace {

// A product that stops at 2^60: what is larger is no answer of a convolution, and sums of a few stay within 63 bits.
constexpr std::int64_t enough = std::int64_t{1} << 60;
std::int64_t product(std::initializer_list<std::int64_t> factors) {
    std::int64_t out = 1;
    for (const std::int64_t factor : factors) out = factor > 0 && out > enough / factor ? enough : out * factor;
    return out;
}
std::int64_t places(const std::array<std::int64_t, 3>& sizes) { return product({sizes[0], sizes[1], sizes[2]}); }

}  // namespace

Bytes Convolution::input_bytes() const { return product({batch, channels_in, places(input), size_of(dtype)}); }
Bytes Convolution::output_bytes() const { return product({batch, channels_out, places(output), size_of(dtype)}); }
Bytes Convolution::filter_bytes() const {
    return product({channels_in / groups, channels_out, places(kernel), size_of(dtype)});
}

Bytes Convolution::column_bytes() const {
    // Of the data gradient what comes in is the forward's output.
    const bool backwards = pass == Pass::data_gradient;
    return product({(backwards ? channels_out : channels_in) / groups, places(kernel),
                    places(backwards ? input : output), size_of(dtype)});
}

std::int64_t Convolution::largest_sample() const {
    return std::max(product({channels_in, places(input)}), product({channels_out, places(output)}));
}

const char* to_text(Category category) {
    switch (category) {
        case Category::weights: return "weights";
        case Category::adapter: return "adapter";
        case Category::gradients: return "gradients";
        case Category::optimizer_state: return "optimizer_state";
        case Category::activations: return "activations";
        case Category::checkpoints: return "checkpoints";
        case Category::inputs: return "inputs";
        case Category::latents_and_embeddings: return "latents_and_embeddings";
        case Category::ema: return "ema";
        case Category::model_cache: return "model_cache";
        case Category::workspace: return "workspace";
        case Category::rounding: return "rounding";
        case Category::unallocated: return "unallocated";
        case Category::context: return "context";
        case Category::libraries: return "libraries";
    }
    return "?";
}

}  // namespace vram::shadow
