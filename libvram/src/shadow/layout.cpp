#include "shadow/layout.hpp"

#include <algorithm>
#include <stdexcept>

namespace vram::shadow {

Dims::Dims(std::initializer_list<std::int64_t> items)
    : Dims(std::span<const std::int64_t>(items.begin(), items.size())) {}

Dims::Dims(std::span<const std::int64_t> items) {
    for (std::int64_t item : items) push_back(item);
}

void Dims::push_back(std::int64_t item) {
    if (rank_ == max_rank) throw std::logic_error("a tensor of more than eight dimensions");
    items_[static_cast<std::size_t>(rank_++)] = item;
}

void Dims::insert(int at, std::int64_t item) {
    push_back(item);
    std::rotate(items_.begin() + at, items_.begin() + rank_ - 1, items_.begin() + rank_);
}

void Dims::erase(int at) {
    std::rotate(items_.begin() + at, items_.begin() + at + 1, items_.begin() + rank_);
    items_[static_cast<std::size_t>(--rank_)] = 0;
}

std::int64_t Dims::product() const {
    std::int64_t out = 1;
    for (std::int64_t item : *this) out = checked_mul(out, item);
    return out;
}

Dims contiguous_strides(const Dims& sizes) {
    Dims out = sizes;
    std::int64_t stride = 1;
    for (int i = sizes.rank() - 1; i >= 0; --i) {
        out[i] = stride;
        stride = checked_mul(stride, std::max<std::int64_t>(sizes[i], 1));
    }
    return out;
}

Dims channels_last_strides(const Dims& sizes) {
    Dims out = sizes;
    out[1] = 1;
    std::int64_t stride = sizes[1];
    for (int i = sizes.rank() - 1; i >= 2; --i) {
        out[i] = stride;
        stride = checked_mul(stride, sizes[i]);
    }
    out[0] = stride;
    return out;
}

Dims broadcast(const Dims& a, const Dims& b) {
    const Dims& wide = a.rank() >= b.rank() ? a : b;
    const Dims& narrow = a.rank() >= b.rank() ? b : a;
    Dims out = wide;
    const int shift = wide.rank() - narrow.rank();
    for (int i = 0; i < narrow.rank(); ++i) {
        std::int64_t& size = out[i + shift];
        if (size == narrow[i] || narrow[i] == 1) continue;
        if (size != 1) throw std::logic_error("shapes that do not broadcast");
        size = narrow[i];
    }
    return out;
}

namespace {

bool is_contiguous(const Dims& sizes, const Dims& strides, std::int64_t numel) {
    if (numel == 0) return true;
    std::int64_t expected = 1;
    for (int i = sizes.rank() - 1; i >= 0; --i) {
        if (sizes[i] == 1) continue;
        if (strides[i] != expected) return false;
        expected *= sizes[i];
    }
    return true;
}

bool is_dense(const Dims& sizes, const Dims& strides) {
    std::array<int, max_rank> order{};
    const int rank = sizes.rank();
    for (int i = 0; i < rank; ++i) order[static_cast<std::size_t>(i)] = i;
    std::stable_sort(order.begin(), order.begin() + rank, [&](int a, int b) {
        if (sizes[a] < 2) return false;
        if (sizes[b] < 2) return true;
        return strides[a] < strides[b];
    });
    std::int64_t expected = 1;
    for (int k = 0; k < rank; ++k) {
        const int i = order[static_cast<std::size_t>(k)];
        if (sizes[i] < 2) return true;
        if (strides[i] != expected) return false;
        expected *= sizes[i];
    }
    return true;
}

bool is_channels_last(const Dims& sizes, const Dims& strides) {
    const int rank = sizes.rank();
    if (rank != 4 && rank != 5) return false;
    std::int64_t expected = 1;
    auto fits = [&](int i) {
        if (sizes[i] != 1 && strides[i] != expected) return false;
        expected *= sizes[i];
        return true;
    };
    if (!fits(1)) return false;
    for (int i = rank - 1; i >= 2; --i)
        if (!fits(i)) return false;
    return fits(0);
}

std::uint64_t hash(const Dims& sizes, const Dims& strides, Dtype dtype) {
    std::uint64_t h = 1469598103934665603ULL ^ static_cast<std::uint64_t>(dtype);
    for (std::int64_t item : sizes) h = (h ^ static_cast<std::uint64_t>(item)) * 0x9E3779B97F4A7C15ULL;
    for (std::int64_t item : strides)
        h = ((h << 7 | h >> 57) ^ static_cast<std::uint64_t>(item)) * 0x9E3779B97F4A7C15ULL;
    return h ^ h >> 32;
}

// Dense strides in the given order of dimensions, innermost first.
Dims strides_in_order(const Dims& sizes, const std::array<int, max_rank>& order) {
    Dims out = sizes;
    std::int64_t stride = 1;
    for (int k = 0; k < sizes.rank(); ++k) {
        const int i = order[static_cast<std::size_t>(k)];
        out[i] = stride;
        stride = checked_mul(stride, std::max<std::int64_t>(sizes[i], 1));
    }
    return out;
}

}  // namespace

void LayoutTable::grow() {
    std::vector<LayoutRef> wider(table_.empty() ? 1024 : 2 * table_.size());
    for (LayoutRef layout : table_) {
        if (layout == nullptr) continue;
        std::size_t at = layout->hash & (wider.size() - 1);
        while (wider[at] != nullptr) at = (at + 1) & (wider.size() - 1);
        wider[at] = layout;
    }
    table_ = std::move(wider);
}

LayoutRef LayoutTable::intern(const Dims& sizes, const Dims& strides, Dtype dtype) {
    if (2 * layouts_.size() >= table_.size()) grow();
    const std::uint64_t key = hash(sizes, strides, dtype);
    std::size_t at = key & (table_.size() - 1);
    for (; table_[at] != nullptr; at = (at + 1) & (table_.size() - 1)) {
        const Layout& known = *table_[at];
        if (known.hash == key && known.dtype == dtype && known.sizes == sizes && known.strides == strides)
            return &known;
    }
    Layout layout;
    layout.sizes = sizes;
    layout.strides = strides;
    layout.dtype = dtype;
    layout.numel = sizes.product();
    std::int64_t reach = layout.numel == 0 ? 0 : 1;
    for (int i = 0; i < sizes.rank() && layout.numel > 0; ++i)
        reach = checked_add(reach, checked_mul(sizes[i] - 1, strides[i]));
    layout.bytes = checked_mul(reach, size_of(dtype));
    layout.contiguous = is_contiguous(sizes, strides, layout.numel);
    layout.dense = layout.contiguous || is_dense(sizes, strides);
    layout.channels_last = !layout.contiguous && is_channels_last(sizes, strides);
    layout.hash = key;
    layouts_.push_back(layout);
    table_[at] = &layouts_.back();
    return table_[at];
}

LayoutRef LayoutTable::contiguous(const Dims& sizes, Dtype dtype) {
    auto key = static_cast<std::uint64_t>(dtype);
    for (std::int64_t item : sizes) key = 31 * key + static_cast<std::uint64_t>(item);
    LayoutRef& latest = contiguous_[(key * 0x9E3779B97F4A7C15ULL) >> 55];
    if (latest == nullptr || latest->dtype != dtype || !(latest->sizes == sizes))
        latest = intern(sizes, contiguous_strides(sizes), dtype);
    return latest;
}

LayoutRef LayoutTable::like(LayoutRef layout, Dtype dtype) {
    if (layout->dense) return layout->dtype == dtype ? layout : intern(layout->sizes, layout->strides, dtype);
    return elementwise({&layout, 1}, dtype);
}

LayoutRef LayoutTable::elementwise(std::span<const LayoutRef> inputs, Dtype dtype) {
    const bool alike = std::all_of(inputs.begin(), inputs.end(), [&](LayoutRef input) { return input == inputs[0]; });
    if (alike && inputs[0]->dense) return like(inputs[0], dtype);

    Dims shape = inputs.front()->sizes;
    for (LayoutRef input : inputs.subspan(1)) shape = broadcast(shape, input->sizes);
    const int rank = shape.rank();

    bool same_shape = true, all_contiguous = true, all_channels_last = true, same_strides = true, all_dense = true;
    for (LayoutRef input : inputs) {
        same_shape = same_shape && input->sizes == shape;
        all_contiguous = all_contiguous && input->contiguous;
        all_channels_last = all_channels_last && input->channels_last;
        same_strides = same_strides && input->strides == inputs.front()->strides;
        all_dense = all_dense && input->dense;
    }
    if (same_shape && all_contiguous) return contiguous(shape, dtype);
    if (same_shape && same_strides && all_dense) return intern(shape, inputs.front()->strides, dtype);

    // Insertion sort of the dimensions, innermost first, by all inputs' strides; a stride of 0 has no say.
    std::array<int, max_rank> order{};
    for (int i = 0; i < rank; ++i) order[static_cast<std::size_t>(i)] = rank - 1 - i;
    const auto stride = [&](LayoutRef input, int dim) -> std::int64_t {
        const int own = dim - (rank - input->rank());
        if (own < 0 || (input->sizes[own] == 1 && shape[dim] != 1)) return 0;
        return input->strides[own];
    };
    const auto should_swap = [&](int a, int b) {
        for (LayoutRef input : inputs) {
            const std::int64_t stride_a = stride(input, a), stride_b = stride(input, b);
            if (stride_a == 0 || stride_b == 0) continue;
            if (stride_a != stride_b) return stride_a < stride_b ? -1 : 1;
            if (shape[a] > shape[b]) return 1;
        }
        return 0;
    };
    for (int i = 1; i < rank; ++i) {
        int at = i;
        for (int j = i - 1; j >= 0; --j) {
            int& left = order[static_cast<std::size_t>(j)];
            int& right = order[static_cast<std::size_t>(at)];
            const int comparison = should_swap(left, right);
            if (comparison > 0) {
                std::swap(left, right);
                at = j;
            } else if (comparison < 0) {
                break;
            }
        }
    }
    bool natural = true;
    for (int i = 0; i < rank; ++i) natural = natural && order[static_cast<std::size_t>(i)] == rank - 1 - i;
    if (natural) return contiguous(shape, dtype);
    return intern(shape, strides_in_order(shape, order), dtype);
}

}  // namespace vram::shadow
