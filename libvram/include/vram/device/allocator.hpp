#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "vram/base/bytes.hpp"
#include "vram/device/allocator_config.hpp"

namespace vram::device {

/// What the card offers.
struct Capacity {
    /// All of it may become segments. More than `unlimited` means `unlimited`.
    Capacity(Bytes bytes) : reservable(bytes), total(bytes) {}  // NOLINT: a plain number is the common case
    Capacity(Bytes reservable_bytes, Bytes total_bytes) : reservable(reservable_bytes), total(total_bytes) {}

    Bytes reservable;  // what segments may add up to: total − context, libraries and other processes
    Bytes total;       // as torch.cuda.get_device_properties says: the base of memory fraction and virtual addresses
};

/// Why an allocation failed, in the terms of torch's message. All bytes, at that moment, after the retry.
struct OutOfMemory {
    Bytes requested = 0;  // by the tensor or kernel
    Bytes tried = 0;      // "Tried to allocate": the segment, not the tensor
    Bytes allocated = 0;
    Bytes reserved = 0;
    Bytes free = 0;  // capacity − reserved: what CUDA still had
    bool operator==(const OutOfMemory&) const = default;
};

/// torch.cuda.memory_stats, as far as one stream needs it.
struct Counters {
    Bytes allocated = 0, allocated_peak = 0;  // allocated_bytes.all: whole blocks, with their unsplit remainders
    Bytes reserved = 0, reserved_peak = 0;    // reserved_bytes.all
    std::int64_t segments = 0;                // cudaMalloc'ed and not given back; expandable ones not counted
    std::int64_t retries = 0;                 // num_alloc_retries
    std::int64_t failures = 0;                // num_ooms
    bool operator==(const Counters&) const = default;
};

/// A request as the native allocator rounds it: to 512 bytes, or as roundup_power2_divisions says. bytes > 0.
[[nodiscard]] Bytes round_size(Bytes bytes, const AllocatorConfig& config);

/// Names a live block of an allocator; free for use again after `free`.
using Block = std::int32_t;
inline constexpr Block no_block = 0;

/// torch's native caching allocator for one device and one stream, without the device: the same blocks at simulated
/// addresses, so fragmentation is a result.
///
///     segment  ┌───────────┬──────┬───────────────────┐   what cudaMalloc gave
///     blocks   │ allocated │ free │     allocated     │   tile the segment; two free ones never touch
///              └───────────┴──────┴───────────────────┘
///
/// A request takes the smallest free block of its pool that holds it (up to 1 MiB the small pool; ties: the lowest
/// address), at its low end; the rest goes back unless it is too small to split off. A freed block merges with free
/// neighbours. Memory returns to the card only by empty_cache, by garbage collection, or when a request fails.
/// Not in it: several streams, record_stream, graph pools, MemPools.
/// Source: c10/cuda/CUDACachingAllocator.cpp, 2.9 and later; the rules below 2.9 differ only in the options they know.
class Allocator {
  public:
    explicit Allocator(const AllocatorConfig& config, Capacity capacity = unlimited);

    /// A block for `bytes` > 0, or no_block: out of memory, see out_of_memory(); the allocator stays usable.
    [[nodiscard]] Block allocate(Bytes bytes);
    /// `block` is live: from allocate, not freed since.
    void free(Block block);
    /// torch.cuda.empty_cache(): gives back every segment (expandable: every page) that is free as a whole.
    void empty_cache();
    /// torch.cuda.reset_peak_memory_stats(): peaks start again from what is current.
    void reset_peaks() noexcept;

    [[nodiscard]] const Counters& counters() const noexcept { return counters_; }
    /// About the last failure.
    [[nodiscard]] const OutOfMemory& out_of_memory() const noexcept { return out_of_memory_; }
    /// Size of a live block, at least what was asked for.
    [[nodiscard]] Bytes size_of(Block block) const { return nodes_[static_cast<std::size_t>(block)].size; }

    enum class State : std::uint8_t { free, allocated, unmapped };
    struct Piece {
        Bytes address, size;
        State state;
        bool small;   // its pool
        bool starts;  // first of its segment
        bool operator==(const Piece&) const = default;
    };
    /// Every block by address, as torch.cuda.memory_snapshot() would list them, unmapped address space included. Slow.
    [[nodiscard]] std::vector<Piece> layout() const;

  private:
    /// Half a cache line, and within one: a free block is found by looking at many.
    struct alignas(32) Node {
        Bytes address = 0, size = 0;
        Block previous = no_block, next = no_block;  // neighbours in the segment
        std::uint16_t bin = 0;                       // of the index that it is in
        State state = State::allocated;
        bool small = false;
        std::uint32_t born = 0;  // garbage collection: the pool's lookups when it became free
    };
    static_assert(sizeof(Node) == 32);
    /// Free blocks of one pool by (size, address). A bin holds sizes that agree in their first seven bits, as a list in
    /// order; a bitmap finds the next bin that is not empty. Nearly all bins hold one or two blocks. For the few that
    /// hold hundreds, each thirty-second block stands in a second list of its bin, too, which long walks take.
    class Index {
      public:
        Index();
        /// For blocks below `nodes`.
        void make_room(std::size_t nodes);
        void insert(std::vector<Node>& nodes, Block block);
        void erase(const std::vector<Node>& nodes, Block block);
        /// Of a block in the index, whose size or address has changed.
        void move(std::vector<Node>& nodes, Block block);
        /// The first with (size, address) >= these, or no_block.
        [[nodiscard]] Block at_least(const std::vector<Node>& nodes, Bytes size, Bytes address) const;
        /// The one after `block`, which is in the index, or no_block.
        [[nodiscard]] Block after(const std::vector<Node>& nodes, Block block) const;
        /// The last with (size, address) < these, or no_block.
        [[nodiscard]] Block below(const std::vector<Node>& nodes, Bytes size, Bytes address) const;

      private:
        struct Link {
            Block next = no_block;  // where a list ends
            // Of a block: the link that leads to it. Of a bin: the block that it got last, or no_block.
            std::int32_t from = 0;
        };
        /// Of bins, which lead to their first blocks; then of blocks.
        using Links = std::vector<Link>;
        [[nodiscard]] static std::size_t link_of(Block block) { return bins + static_cast<std::size_t>(block); }
        [[nodiscard]] static bool in_second_list(Block block) { return (block & 31) == 31; }
        static void put(Links& links, std::size_t link, Block block);
        static void take(Links& links, Block block);
        /// The first link of a bin that leads to no block before (size, address).
        [[nodiscard]] std::size_t place(const Node* nodes, std::size_t bin, Bytes size, Bytes address) const;
        [[nodiscard]] std::size_t place_in_second(const Node* nodes, std::size_t bin, Bytes size, Bytes address) const;

        [[nodiscard]] Block first_above(std::size_t bin) const;

        static constexpr std::size_t words = 48, bins = words * 64;
        std::array<std::uint64_t, words + 1> filled_{};  // by bin; the last word is of one bin, which stays empty
        std::uint64_t filled_words_ = 0;
        Links links_, second_;
    };
    struct Pool {
        Index index;
        std::vector<Block> unmapped;       // by address; expandable segments only
        std::vector<Bytes> address_space;  // of expandable segments that went back
        std::uint32_t lookups = 0;         // modulo 2^32, as ages are
    };

    [[nodiscard]] Pool& pool_of(bool small) { return pools_[small ? 0 : 1]; }
    [[nodiscard]] Node& at(Block block) { return nodes_[static_cast<std::size_t>(block)]; }
    void make_room(std::size_t nodes);
    [[nodiscard]] Block make_node(Bytes address, Bytes size, bool small, State state);
    void recycle(Block block) { spare_[spares_++] = block; }
    void insert_free(Block block);
    [[nodiscard]] Block next_free(Pool& pool, Block block) const;

    void move_free(Block block);
    /// The free block that a request gets; it stays in the index.
    [[nodiscard]] Block find_free(bool small, Bytes size);
    /// The low end of a free block in the index; the rest stays there.
    [[nodiscard]] Block take_front(Block block, Bytes size);
    [[nodiscard]] Block grow(bool small, Bytes size);
    [[nodiscard]] Block obtain(bool small, Bytes size, Bytes segment);
    [[nodiscard]] Block obtain_pages(bool small, Bytes size);
    [[nodiscard]] Block find_expandable(bool small, Bytes size);
    [[nodiscard]] bool map(Block block, Bytes size);
    void unmap(Block block);
    void merge(Block into, Block other);
    void collect_garbage();
    [[nodiscard]] bool release_oversized(bool small, Bytes size);
    void release_cached();
    void release(Block block);
    void reserve(Bytes bytes) noexcept;

    AllocatorConfig config_;
    Capacity capacity_;
    Bytes allowed_;          // by the memory fraction
    bool counts_age_;        // garbage collection is on
    bool rounds_to_powers_;  // roundup_power2_divisions is on
    Bytes next_address_;
    /// That of no_block is never free and larger than all: it ends lists, and what is written of a neighbour that is
    /// not there goes into it.
    std::vector<Node> nodes_;
    std::vector<Block> spare_;  // as long as nodes_: those that are no blocks now come first
    std::size_t spares_ = 0;
    std::array<Pool, 2> pools_;
    Counters counters_;
    OutOfMemory out_of_memory_;
};

/// backend:cudaMallocAsync, an approximation: `allocated` counts exact bytes; the driver's pool grows in steps of 32
/// MiB and never fragments; empty_cache trims it to what is live, rounded up to a step; nothing is retried. Source:
/// pytorch PR 65365 (statistics), ComfyUI PR 11154 (the step, as observed). Real pools may fragment (pytorch issue
/// 110194), so `reserved` is a lower bound.
class AsyncAllocator {
  public:
    explicit AsyncAllocator(const AllocatorConfig& config, Capacity capacity = unlimited);

    [[nodiscard]] Block allocate(Bytes bytes);
    void free(Block block);
    void empty_cache();
    void reset_peaks() noexcept;
    [[nodiscard]] const Counters& counters() const noexcept { return counters_; }
    [[nodiscard]] const OutOfMemory& out_of_memory() const noexcept { return out_of_memory_; }

  private:
    Bytes limit_;
    std::vector<Bytes> sizes_;  // by block
    std::vector<Block> recycled_;
    Counters counters_;
    OutOfMemory out_of_memory_;
};

}  // namespace vram::device
