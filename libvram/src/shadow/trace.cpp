#include "vram/shadow/trace.hpp"

namespace vram::shadow {

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
