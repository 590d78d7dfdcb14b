#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <initializer_list>
#include <span>
#include <vector>

#include "vram/base/bytes.hpp"
#include "vram/base/dtype.hpp"

namespace vram::shadow {

inline constexpr int max_rank = 8;

/// Up to eight sizes or strides, a value.
class Dims {
  public:
    Dims() = default;
    Dims(std::initializer_list<std::int64_t> items);
    explicit Dims(std::span<const std::int64_t> items);
    [[nodiscard]] int rank() const noexcept { return rank_; }
    [[nodiscard]] std::int64_t operator[](int i) const { return items_[static_cast<std::size_t>(i)]; }
    [[nodiscard]] std::int64_t& operator[](int i) { return items_[static_cast<std::size_t>(i)]; }
    void push_back(std::int64_t item);
    void insert(int at, std::int64_t item);
    void erase(int at);
    [[nodiscard]] std::int64_t product() const;  ///< Overflow beyond 63 bits
    [[nodiscard]] const std::int64_t* begin() const noexcept { return items_.data(); }
    [[nodiscard]] const std::int64_t* end() const noexcept { return items_.data() + rank_; }
    bool operator==(const Dims& other) const noexcept {
        if (rank_ != other.rank_) return false;
        for (int i = 0; i < rank_; ++i)
            if (items_[static_cast<std::size_t>(i)] != other.items_[static_cast<std::size_t>(i)]) return false;
        return true;
    }

  private:
    std::array<std::int64_t, max_rank> items_{};
    int rank_ = 0;
};

/// Strides of a C-contiguous tensor of these sizes (torch: a size of 0 counts as 1).
[[nodiscard]] Dims contiguous_strides(const Dims& sizes);

/// Strides in the memory formats channels_last and channels_last_3d: sizes [B, C, (T,) H, W], channels innermost.
[[nodiscard]] Dims channels_last_strides(const Dims& sizes);

/// Sizes, strides and dtype of a tensor. Interned: two equal layouts of one table are one object, so a pointer
/// compares.
struct Layout {
    Dims sizes, strides;
    Dtype dtype = Dtype::f32;
    std::int64_t numel = 1;
    Bytes bytes = 0;             ///< of a fresh storage that holds it: up to the last element reached
    bool contiguous = true;      ///< torch's is_contiguous()
    bool dense = true;           ///< torch's is_non_overlapping_and_dense()
    bool channels_last = false;  ///< is_contiguous(channels_last or channels_last_3d), and not contiguous
    std::uint64_t hash = 0;      ///< of sizes, strides and dtype, for the table
    [[nodiscard]] int rank() const noexcept { return sizes.rank(); }
};
using LayoutRef = const Layout*;

/// Owns the layouts of a run.
class LayoutTable {
  public:
    [[nodiscard]] LayoutRef intern(const Dims& sizes, const Dims& strides, Dtype dtype);
    [[nodiscard]] LayoutRef contiguous(const Dims& sizes, Dtype dtype);
    /// What torch's TensorIterator gives an output that it allocates for these inputs: their common order of
    /// dimensions. Source: aten/src/ATen/TensorIterator.cpp, reorder_dimensions and compute_fast_setup_type.
    [[nodiscard]] LayoutRef elementwise(std::span<const LayoutRef> inputs, Dtype dtype);
    /// The same sizes in another dtype, with the strides that empty_like(preserve_format) chooses.
    [[nodiscard]] LayoutRef like(LayoutRef layout, Dtype dtype);

  private:
    void grow();

    std::deque<Layout> layouts_;
    std::vector<LayoutRef> table_;             // open addressing, a power of two, at most half full
    std::array<LayoutRef, 512> contiguous_{};  // the latest answers of contiguous()
};

/// The broadcast of two shapes; the caller has checked that they fit (a mismatch is a bug of ours: logic_error).
[[nodiscard]] Dims broadcast(const Dims& a, const Dims& b);

}  // namespace vram::shadow
