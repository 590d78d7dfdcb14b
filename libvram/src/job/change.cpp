#include "vram/job/change.hpp"

namespace vram::job {

std::string_view to_text(Lever lever) {
    switch (lever) {
        case Lever::gradient_checkpointing: return "gradient_checkpointing";
        case Lever::frames: return "frames";
        case Lever::batch_size: return "batch_size";
        case Lever::resolution: return "resolution";
        case Lever::samples: return "samples";
        case Lever::text_encoder: return "text_encoder";
        case Lever::latent_cache: return "latent_cache";
        case Lever::vae_tiling: return "vae_tiling";
        case Lever::low_vram: return "low_vram";
        case Lever::quantization: return "quantization";
        case Lever::offloading: return "offloading";
        case Lever::optimizer: return "optimizer";
        case Lever::precision: return "precision";
        case Lever::ema: return "ema";
        case Lever::rank: return "rank";
        case Lever::allocator: return "allocator";
        case Lever::other_processes: return "other_processes";
        case Lever::pace: return "pace";
    }
    return "";
}

std::string_view to_text(Price price) {
    switch (price) {
        case Price::nothing: return "nothing";
        case Price::disk: return "disk";
        case Price::previews: return "previews";
        case Price::speed: return "speed";
        case Price::precision: return "precision";
        case Price::quality: return "quality";
    }
    return "";
}

}  // namespace vram::job
