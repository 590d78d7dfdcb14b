#include "models/patch_embed.hpp"

#include <array>

namespace vram::models {

using namespace shadow;  // NOLINT: the ops of a forward
using nn::Tensor;

Tensor sincos_pos_embed_1d(std::int64_t size, Tensor pos_in) {
    Tensor pos = std::move(pos_in);
    Tensor omega = arange(pos.run(), size / 2, Dtype::f64);  // divided in place
    omega = rdiv_scalar(scalar_pow(omega));
    pos = reshape(pos, {-1});
    const Tensor out = outer(pos, omega);  // [M, D/2]
    const Tensor emb_sin = sin(out);
    const Tensor emb_cos = cos(out);
    return cat({emb_sin, emb_cos}, 1);
}

Tensor sincos_pos_embed_2d(std::int64_t size, const Tensor& grid) {
    const Tensor emb_h = sincos_pos_embed_1d(size / 2, select(grid, 0, 0));
    const Tensor emb_w = sincos_pos_embed_1d(size / 2, select(grid, 0, 1));
    return cat({emb_h, emb_w}, 1);
}

namespace {

// get_2d_sincos_pos_embed: [height * width, size] fp64
Tensor sincos_pos_embed_of(Run& run, std::int64_t size, std::int64_t height, std::int64_t width) {
    Tensor grid_h = div_scalar(arange(run, height, Dtype::f32));
    grid_h = div_scalar(std::move(grid_h));
    Tensor grid_w = div_scalar(arange(run, width, Dtype::f32));
    grid_w = div_scalar(std::move(grid_w));
    Tensor grid;
    {
        const std::array<Tensor, 2> mesh{expand(unsqueeze(grid_w, 0), {height, -1}),
                                         expand(unsqueeze(grid_h, 1), {-1, width})};
        grid = stack(mesh, 0);
    }
    grid = reshape(grid, {2, 1, width, height});
    return sincos_pos_embed_2d(size, grid);
}

}  // namespace

PatchEmbed::PatchEmbed(const nn::Builder& builder, const Sizes& sizes)
    : sizes_(sizes), proj(builder.conv2d("proj", sizes.in_channels, sizes.dim, sizes.patch_size, sizes.patch_size)) {
    const std::int64_t side =
        sizes.pos_embed_max_size > 0 ? sizes.pos_embed_max_size : sizes.sample_size / sizes.patch_size;
    pos_embed = &builder.buffer("pos_embed", {1, checked_mul(side, side), sizes.dim}, Dtype::f32);
}

Tensor PatchEmbed::operator()(Tensor latent_in) const {
    const Tensor held = std::move(latent_in);
    Tensor latent = held;
    const std::int64_t height = latent.size(2) / sizes_.patch_size, width = latent.size(3) / sizes_.patch_size,
                       side = sizes_.sample_size / sizes_.patch_size;
    latent = proj(latent);
    latent = transpose(flatten(latent, 2, 3), 1, 2);  // [B, S, D]
    Tensor table;
    if (sizes_.pos_embed_max_size > 0) {
        table = cropped_pos_embed(height, width);
    } else if (height == side && width == side) {
        table = pos_embed->value;
    } else {
        table = sincos_pos_embed_of(latent.run(), sizes_.dim, height, width);
        table = unsqueeze(to_float(table), 0);
    }
    return to(add(latent, table), latent.dtype());
}

Tensor PatchEmbed::cropped_pos_embed(std::int64_t height, std::int64_t width) const {
    const std::int64_t side = sizes_.pos_embed_max_size;
    const std::int64_t top = (side - height) / 2, left = (side - width) / 2;
    Tensor spatial_pos_embed = reshape(pos_embed->value, {1, side, side, -1});
    spatial_pos_embed = slice(slice(spatial_pos_embed, 1, top, top + height), 2, left, left + width);
    return reshape(spatial_pos_embed, {1, -1, sizes_.dim});
}

Tensor unpatchify(Tensor hidden_states_in, std::int64_t height, std::int64_t width, std::int64_t patch_size,
                  std::int64_t channels) {
    Tensor hidden_states = std::move(hidden_states_in);
    height /= patch_size;
    width /= patch_size;
    hidden_states = reshape(std::move(hidden_states), {-1, height, width, patch_size, patch_size, channels});
    hidden_states = permute(std::move(hidden_states), {0, 5, 1, 3, 2, 4});  // einsum nhwpqc->nchpwq
    return reshape(hidden_states, {-1, channels, height * patch_size, width * patch_size});
}

}  // namespace vram::models
