#include "vram/device/allocator.hpp"

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include "base/blocks.hpp"

namespace vram::device {

namespace {

// Source: c10/core/AllocatorConfig.h; min_block is the base's.
constexpr Bytes small_request = 1 * MiB;  // kSmallSize: the largest of the small pool
constexpr Bytes small_segment = 2 * MiB;  // kSmallBuffer
constexpr Bytes min_large = 10 * MiB;     // kMinLargeAlloc: from here on a segment of its own
constexpr Bytes round_large = 2 * MiB;    // kRoundLarge

constexpr Bytes last_address = Bytes{1} << 61;

// Sizes are multiples of 512. Below 64 units a bin is a size; above, 64 bins divide each power of two.
std::size_t bin_of(Bytes size) {
    const std::uint64_t units = (static_cast<std::uint64_t>(size) >> 9) + 64;
    const auto doublings = static_cast<std::size_t>(std::bit_width(units)) - 7;
    return (doublings << 6) | ((units >> doublings) & 63);
}

// Without a branch: which of the two it is cannot be foretold.
template <class Node>
bool before(const Node& node, Bytes size, Bytes address) {
    return (node.size < size) | ((node.size == size) & (node.address < address));
}

Bytes allowed_by(const AllocatorConfig& config, const Capacity& capacity) {
    if (config.per_process_memory_fraction >= 1) return unlimited;
    return static_cast<Bytes>(config.per_process_memory_fraction * static_cast<double>(capacity.total));
}

}  // namespace

Bytes round_size(Bytes bytes, const AllocatorConfig& config) {
    if (bytes < min_block) return min_block;
    const auto value = static_cast<std::uint64_t>(bytes);
    // Intervals start at 1 MiB = 2^20; what is smaller counts as the first. Source: roundup_power2_divisions(size).
    const int log2 = static_cast<int>(std::bit_width(value)) - 1;
    const auto interval = static_cast<std::size_t>(std::clamp(log2 - 20, 0, 15));
    const std::int64_t divisions = config.roundup_power2_divisions[interval];
    if (divisions > 1 && bytes > min_block * divisions) {
        const Bytes step = (Bytes{1} << log2) >> (std::bit_width(static_cast<std::uint64_t>(divisions)) - 1);
        return step == 0 ? Bytes{1} << (log2 + 1) : round_up(bytes, step);
    }
    return round_up(bytes, min_block);
}

// ---- free blocks by (size, address) ---------------------------------------------------------------------------------

Allocator::Index::Index() {
    filled_[words] = 1;
    filled_words_ = std::uint64_t{1} << words;
}

void Allocator::Index::make_room(std::size_t nodes) {
    links_.resize(bins + nodes);
    second_.resize(bins + nodes);
}

inline void Allocator::Index::put(Links& links, std::size_t link, Block block) {
    const std::size_t own = link_of(block);
    const Block next = std::exchange(links[link].next, block);
    links[own] = {next, static_cast<std::int32_t>(link)};
    links[link_of(next)].from = static_cast<std::int32_t>(own);
}

inline void Allocator::Index::take(Links& links, Block block) {
    const Link link = links[link_of(block)];
    links[static_cast<std::size_t>(link.from)].next = link.next;
    links[link_of(link.next)].from = link.from;
}

std::size_t Allocator::Index::place_in_second(const Node* nodes, std::size_t bin, Bytes size, Bytes address) const {
    std::size_t link = bin;
    while (before(nodes[second_[link].next], size, address)) link = link_of(second_[link].next);
    return link;
}

inline std::size_t Allocator::Index::place(const Node* nodes, std::size_t bin, Bytes size, Bytes address) const {
    constexpr int short_walk = 4;
    if (!before(nodes[links_[bin].next], size, address)) return bin;
    // Blocks are often freed in the order of their addresses.
    const Block latest = links_[bin].from;
    std::size_t link = link_of(before(nodes[latest], size, address) ? latest : links_[bin].next);
    for (int steps = 0; before(nodes[links_[link].next], size, address); ++steps)
        link = steps == short_walk ? place_in_second(nodes, bin, size, address) : link_of(links_[link].next);
    return link;
}

inline void Allocator::Index::insert(std::vector<Node>& nodes, Block block) {
    Node& node = nodes[static_cast<std::size_t>(block)];
    const std::size_t bin = bin_of(node.size);
    node.bin = static_cast<std::uint16_t>(bin);
    filled_[bin >> 6] |= std::uint64_t{1} << (bin & 63);
    filled_words_ |= std::uint64_t{1} << (bin >> 6);
    put(links_, place(nodes.data(), bin, node.size, node.address), block);
    links_[bin].from = block;
    if (in_second_list(block)) put(second_, place_in_second(nodes.data(), bin, node.size, node.address), block);
}

inline void Allocator::Index::erase(const std::vector<Node>& nodes, Block block) {
    take(links_, block);
    if (in_second_list(block)) take(second_, block);
    const std::size_t bin = nodes[static_cast<std::size_t>(block)].bin, word = bin >> 6;
    if (links_[bin].from == block) links_[bin].from = no_block;
    filled_[word] &= ~(std::uint64_t{links_[bin].next == no_block} << (bin & 63));
    filled_words_ &= ~(std::uint64_t{filled_[word] == 0} << word);
}

inline void Allocator::Index::move(std::vector<Node>& nodes, Block block) {
    const Node& node = nodes[static_cast<std::size_t>(block)];
    if (bin_of(node.size) == node.bin) {
        const Link link = links_[link_of(block)];
        const auto from = static_cast<std::size_t>(link.from);
        const bool follows = from < bins || before(nodes[from - bins], node.size, node.address);
        if (follows && !before(nodes[static_cast<std::size_t>(link.next)], node.size, node.address)) return;
    }
    erase(nodes, block);
    insert(nodes, block);
}

inline Block Allocator::Index::first_above(std::size_t bin) const {
    const std::size_t word = bin >> 6;
    const std::uint64_t rest = filled_[word] & ((~std::uint64_t{0} << (bin & 63)) << 1);
    const std::uint64_t above = filled_words_ & ((~std::uint64_t{0} << word) << 1);
    const std::size_t next = rest != 0 ? word : static_cast<std::size_t>(std::countr_zero(above));
    const std::uint64_t bits = rest != 0 ? rest : filled_[next];
    return links_[(next << 6) | static_cast<std::size_t>(std::countr_zero(bits))].next;
}

inline Block Allocator::Index::at_least(const std::vector<Node>& nodes, Bytes size, Bytes address) const {
    const std::size_t bin = bin_of(size);
    const Block best = links_[place(nodes.data(), bin, size, address)].next;
    return best != no_block ? best : first_above(bin);  // every block of a bin above is large enough
}

inline Block Allocator::Index::after(const std::vector<Node>& nodes, Block block) const {
    const Block next = links_[link_of(block)].next;
    return next != no_block ? next : first_above(nodes[static_cast<std::size_t>(block)].bin);
}

Block Allocator::Index::below(const std::vector<Node>& nodes, Bytes size, Bytes address) const {
    std::size_t bin = bin_of(size);
    std::size_t link = place(nodes.data(), bin, size, address);
    while (link < bins) {
        const std::uint64_t rest = filled_[bin >> 6] & ~(~std::uint64_t{0} << (bin & 63));
        const std::uint64_t under = filled_words_ & ~(~std::uint64_t{0} << (bin >> 6));
        if (rest == 0 && under == 0) return no_block;
        const std::size_t word = rest != 0 ? bin >> 6 : static_cast<std::size_t>(std::bit_width(under)) - 1;
        bin = (word << 6) | (static_cast<std::size_t>(std::bit_width(rest != 0 ? rest : filled_[word])) - 1);
        link = place(nodes.data(), bin, size, address);
    }
    return static_cast<Block>(link - bins);
}

// ---- what callers use -----------------------------------------------------------------------------------------------

Allocator::Allocator(const AllocatorConfig& config, Capacity capacity)
    : config_(config),
      capacity_(std::clamp<Bytes>(capacity.reservable, 0, unlimited), std::clamp<Bytes>(capacity.total, 0, unlimited)),
      allowed_(allowed_by(config, capacity_)),
      counts_age_(config.garbage_collection_threshold > 0 && config.per_process_memory_fraction < 1),
      rounds_to_powers_(std::any_of(config.roundup_power2_divisions.begin(), config.roundup_power2_divisions.end(),
                                    [](std::int64_t divisions) { return divisions > 1; })),
      next_address_(config.large_segment_size) {
    nodes_.resize(1);
    nodes_[no_block].size = std::numeric_limits<Bytes>::max();
    make_room(1024);
}

Block Allocator::allocate(Bytes bytes) {
    // torch refuses an exabyte without asking the card; so does this, from a pebibyte on.
    if (bytes > unlimited) {
        ++counters_.failures;
        out_of_memory_ = {bytes, bytes, counters_.allocated, counters_.reserved,
                          capacity_.reservable - counters_.reserved};
        return no_block;
    }
    const Bytes size = rounds_to_powers_ ? round_size(bytes, config_) : round_up(bytes, min_block);
    const bool small = size <= small_request;
    Block block = find_free(small, size);
    const bool is_new = block == no_block;
    if (is_new) {
        block = grow(small, size);
        if (block == no_block) {
            out_of_memory_.requested = bytes;
            return no_block;
        }
    }
    const Bytes remaining = at(block).size - size;
    const bool split = small || config_.expandable_segments
                           ? remaining >= min_block
                           : size < config_.max_split_size && remaining > small_request;
    if (is_new && split) insert_free(block);
    if (split)
        block = take_front(block, size);
    else if (!is_new)
        pool_of(small).index.erase(nodes_, block);
    Node& node = at(block);
    node.state = State::allocated;
    counters_.allocated += node.size;
    counters_.allocated_peak = std::max(counters_.allocated_peak, counters_.allocated);
    return block;
}

inline Block Allocator::take_front(Block block, Bytes size) {
    const Block front = make_node(at(block).address, size, at(block).small, State::allocated);
    Node &rest = at(block), &taken = at(front);
    taken.previous = rest.previous;
    taken.next = block;
    at(taken.previous).next = front;
    rest.previous = front;
    rest.address += size;
    rest.size -= size;
    move_free(block);
    return front;
}

void Allocator::free(Block block) {
    Node& node = at(block);
    counters_.allocated -= node.size;
    const Block previous = node.previous, next = node.next;
    if (at(previous).state == State::free) {
        Node& into = at(previous);
        into.size += node.size;
        into.next = next;
        at(next).previous = previous;
        recycle(block);
        merge(previous, next);
        move_free(previous);
    } else if (at(next).state == State::free) {
        Node& into = at(next);
        into.address = node.address;
        into.size += node.size;
        into.previous = previous;
        at(previous).next = next;
        recycle(block);
        move_free(next);
    } else {
        node.state = State::free;
        insert_free(block);
    }
}

void Allocator::empty_cache() { release_cached(); }

void Allocator::reset_peaks() noexcept {
    counters_.allocated_peak = counters_.allocated;
    counters_.reserved_peak = counters_.reserved;
}

std::vector<Allocator::Piece> Allocator::layout() const {
    std::vector<bool> unused(nodes_.size());
    unused[no_block] = true;
    for (std::size_t i = 0; i < spares_; ++i) unused[static_cast<std::size_t>(spare_[i])] = true;
    std::vector<Piece> out;
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
        if (unused[i]) continue;
        const Node& node = nodes_[i];
        out.push_back({node.address, node.size, node.state, node.small, node.previous == no_block});
    }
    std::sort(out.begin(), out.end(), [](const Piece& a, const Piece& b) { return a.address < b.address; });
    return out;
}

// ---- blocks ---------------------------------------------------------------------------------------------------------

void Allocator::make_room(std::size_t nodes) {
    const std::size_t before = nodes_.size();
    nodes_.resize(nodes);
    spare_.resize(nodes);
    for (Pool& pool : pools_) pool.index.make_room(nodes);
    for (std::size_t i = nodes; i-- > before;) recycle(static_cast<Block>(i));
}

Block Allocator::make_node(Bytes address, Bytes size, bool small, State state) {
    if (spares_ == 0) make_room(2 * nodes_.size());
    const Block block = spare_[--spares_];
    Node& node = at(block);
    node.address = address;
    node.size = size;
    node.previous = node.next = no_block;
    node.state = state;
    node.small = small;
    return block;
}

void Allocator::insert_free(Block block) {
    Pool& pool = pool_of(at(block).small);
    if (counts_age_) at(block).born = pool.lookups;
    pool.index.insert(nodes_, block);
}

inline void Allocator::move_free(Block block) {
    Pool& pool = pool_of(at(block).small);
    if (counts_age_) at(block).born = pool.lookups;
    pool.index.move(nodes_, block);
}

Block Allocator::next_free(Pool& pool, Block block) const { return pool.index.after(nodes_, block); }

// Takes `other`, a neighbour in the same state, into `into`, whose own place in a set is for the caller to see to.
inline void Allocator::merge(Block into, Block other) {
    Node& target = at(into);
    const Node& source = at(other);
    if (source.state != target.state) return;
    if (source.state == State::unmapped)
        std::erase(pool_of(source.small).unmapped, other);
    else
        pool_of(source.small).index.erase(nodes_, other);
    if (target.previous == other) {
        target.address = source.address;
        target.previous = source.previous;
        at(target.previous).next = into;
    } else {
        target.next = source.next;
        at(target.next).previous = into;
    }
    target.size += source.size;
    recycle(other);
}

Block Allocator::find_free(bool small, Bytes size) {
    Pool& pool = pool_of(small);
    if (counts_age_) ++pool.lookups;
    Block block = pool.index.at_least(nodes_, size, 0);
    if (block == no_block) return no_block;
    if (config_.expandable_segments) {
        // A block in front of unmapped addresses counts as large as it could grow.
        const auto could_be = [this](Block candidate) {
            const Node& node = at(candidate);
            const bool grows = node.next != no_block && at(node.next).state == State::unmapped;
            return node.size + (grows ? at(node.next).size : 0);
        };
        for (Block next = next_free(pool, block); next != no_block && could_be(next) < could_be(block);
             next = next_free(pool, block))
            block = next;
    }
    // A veto is a miss: no other block is tried.
    const Bytes found = at(block).size;
    if (size < config_.max_split_size && found >= config_.max_split_size) return no_block;
    if (size >= config_.max_split_size && found >= size + config_.max_non_split_rounding) return no_block;
    return block;
}

// ---- segments -------------------------------------------------------------------------------------------------------

void Allocator::reserve(Bytes bytes) noexcept {
    counters_.reserved += bytes;
    counters_.reserved_peak = std::max(counters_.reserved_peak, counters_.reserved);
}

Block Allocator::grow(bool small, Bytes size) {
    if (counts_age_) collect_garbage();
    const Bytes segment = small              ? small_segment
                          : size < min_large ? config_.large_segment_size
                                             : round_up(size, round_large);
    Block block = no_block;
    const bool refused = config_.throw_on_cudamalloc_oom && config_.per_process_memory_fraction < 1 &&
                         counters_.reserved + segment > allowed_;
    if (!refused) {
        block = obtain(small, size, segment);
        if (block == no_block && release_oversized(small, size)) block = obtain(small, size, segment);
        if (block == no_block) {
            release_cached();
            ++counters_.retries;
            block = obtain(small, size, segment);
        }
    }
    if (block == no_block) {
        ++counters_.failures;
        out_of_memory_ = {0, segment, counters_.allocated, counters_.reserved,
                          capacity_.reservable - counters_.reserved};
    }
    return block;
}

Block Allocator::obtain(bool small, Bytes size, Bytes segment) {
    if (counters_.reserved + segment > allowed_ || next_address_ > last_address) return no_block;
    if (config_.expandable_segments) return obtain_pages(small, size);
    if (counters_.reserved + segment > capacity_.reservable) return no_block;
    const Block block = make_node(next_address_, segment, small, State::free);
    next_address_ += segment;
    ++counters_.segments;
    reserve(segment);
    return block;
}

// The first run of free and unmapped blocks, by address, that could hold `size`; else a new segment's addresses.
Block Allocator::find_expandable(bool small, Bytes size) {
    Pool& pool = pool_of(small);
    const auto usable = [this](Block block) { return block != no_block && at(block).state != State::allocated; };
    for (Block block : pool.unmapped) {
        const Block first = usable(at(block).previous) ? at(block).previous : block;
        Bytes room = 0;
        for (Block piece = first; room < size && usable(piece); piece = at(piece).next) room += at(piece).size;
        if (room >= size) return first;
    }
    // Addresses for 9/8 of the card, of which pages are mapped as they are needed.
    const Bytes page = small ? small_segment : config_.large_segment_size;
    const Bytes space = round_up(capacity_.total + capacity_.total / 8, page);
    Bytes address = round_up(next_address_, page);
    if (pool.address_space.empty()) {
        next_address_ = address + space;
    } else {
        address = pool.address_space.back();
        pool.address_space.pop_back();
    }
    const Block block = make_node(address, space, small, State::unmapped);
    pool.unmapped.insert(std::upper_bound(pool.unmapped.begin(), pool.unmapped.end(), address,
                                          [this](Bytes value, Block other) { return value < at(other).address; }),
                         block);
    return block;
}

// Backs the first `size` bytes of an unmapped block by pages, all of them or none; it ends up in the index, merged.
bool Allocator::map(Block block, Bytes size) {
    const bool small = at(block).small;
    const Bytes mapped = round_up(size, small ? small_segment : config_.large_segment_size);
    if (counters_.reserved + mapped > capacity_.reservable) return false;
    Pool& pool = pool_of(small);
    if (mapped < at(block).size) {
        const Block rest = make_node(at(block).address + mapped, at(block).size - mapped, small, State::unmapped);
        Node& node = at(block);
        at(rest).previous = block;
        at(rest).next = node.next;
        if (node.next != no_block) at(node.next).previous = rest;
        node.next = rest;
        node.size = mapped;
        std::replace(pool.unmapped.begin(), pool.unmapped.end(), block, rest);
    } else {
        std::erase(pool.unmapped, block);
    }
    at(block).state = State::free;
    merge(block, at(block).previous);
    merge(block, at(block).next);
    insert_free(block);
    reserve(mapped);
    return true;
}

Block Allocator::obtain_pages(bool small, Bytes size) {
    Block block = find_expandable(small, size);
    if (at(block).state == State::unmapped && !map(block, std::min(at(block).size, size))) return no_block;
    while (at(block).size < size) {
        const Block next = at(block).next;  // unmapped: two free blocks never touch
        if (!map(next, std::min(size - at(block).size, at(next).size))) return no_block;
        block = next;  // which took the block before it in
    }
    pool_of(small).index.erase(nodes_, block);
    return block;
}

// ---- memory that goes back to the card ------------------------------------------------------------------------------

// `block` is free and alone in a cudaMalloc'ed segment.
void Allocator::release(Block block) {
    counters_.reserved -= at(block).size;
    --counters_.segments;
    pool_of(at(block).small).index.erase(nodes_, block);
    recycle(block);
}

// Gives back the whole pages inside a free block; what is left and right of them stays as free blocks.
void Allocator::unmap(Block block) {
    const Node node = at(block);
    Pool& pool = pool_of(node.small);
    const Bytes page = node.small ? small_segment : config_.large_segment_size;
    const Bytes begin = round_up(node.address, page);
    const Bytes end = (node.address + node.size) / page * page;
    if (begin >= end) return;
    pool.index.erase(nodes_, block);
    if (begin > node.address) {
        const Block left = make_node(node.address, begin - node.address, node.small, State::free);
        at(left).previous = node.previous;
        at(left).next = block;
        if (node.previous != no_block) at(node.previous).next = left;
        at(block).previous = left;
        insert_free(left);
    }
    if (end < node.address + node.size) {
        const Block right = make_node(end, node.address + node.size - end, node.small, State::free);
        at(right).previous = block;
        at(right).next = node.next;
        if (node.next != no_block) at(node.next).previous = right;
        at(block).next = right;
        insert_free(right);
    }
    at(block).address = begin;
    at(block).size = end - begin;
    at(block).state = State::unmapped;
    merge(block, at(block).previous);
    merge(block, at(block).next);
    pool.unmapped.insert(std::upper_bound(pool.unmapped.begin(), pool.unmapped.end(), at(block).address,
                                          [this](Bytes value, Block other) { return value < at(other).address; }),
                         block);
    counters_.reserved -= end - begin;
    if (at(block).previous == no_block && at(block).next == no_block) {  // nothing lives in the segment
        std::erase(pool.unmapped, block);
        pool.address_space.push_back(at(block).address);
        recycle(block);
    }
}

void Allocator::release_cached() {
    for (const bool small : {false, true}) {
        Pool& pool = pool_of(small);
        std::vector<Block> whole;
        for (Block block = pool.index.at_least(nodes_, 0, 0); block != no_block; block = next_free(pool, block))
            if (config_.expandable_segments || (at(block).previous == no_block && at(block).next == no_block))
                whole.push_back(block);
        for (Block block : whole) {
            if (config_.expandable_segments)
                unmap(block);
            else
                release(block);
        }
    }
}

// With max_split_size only: gives back blocks that are never split, one that is large enough or else the largest ones.
bool Allocator::release_oversized(bool small, Bytes size) {
    if (config_.max_split_size >= unlimited || config_.expandable_segments) return false;
    Pool& pool = pool_of(small);
    const Bytes wanted = std::max(size, config_.max_split_size);
    if (const Block fitting = pool.index.at_least(nodes_, wanted, 0); fitting != no_block) {
        release(fitting);
        return true;
    }
    Bytes released = 0;
    while (released < wanted) {
        const Block largest = pool.index.below(nodes_, wanted, 0);
        if (largest == no_block || at(largest).size < config_.max_split_size) break;
        released += at(largest).size;
        release(largest);
    }
    return released >= wanted;
}

// Frees segments that were not used for long, by lookups, until reserved is below the threshold.
// Source: garbage_collect_cached_blocks; blocks of expandable segments stay (PR 134338).
void Allocator::collect_garbage() {
    const auto threshold = static_cast<Bytes>(config_.garbage_collection_threshold * static_cast<double>(allowed_));
    if (counters_.reserved <= threshold || config_.expandable_segments) return;
    const Bytes target = counters_.reserved - threshold;
    Pool& pool = pool_of(false);
    std::vector<Block> whole;
    std::int64_t ages = 0;
    for (Block block = pool.index.at_least(nodes_, 0, 0); block != no_block; block = next_free(pool, block)) {
        if (at(block).previous != no_block || at(block).next != no_block) continue;
        whole.push_back(block);
        ages += pool.lookups - at(block).born;
    }
    Bytes reclaimed = 0;
    for (bool freed = true; reclaimed < target && freed && !whole.empty();) {
        const double average = static_cast<double>(ages) / static_cast<double>(whole.size());
        const std::size_t before_pass = whole.size();
        std::erase_if(whole, [&](Block block) {
            const std::int64_t age = pool.lookups - at(block).born;
            if (static_cast<double>(age) < average) return false;
            reclaimed += at(block).size;
            ages -= age;
            release(block);
            return true;
        });
        freed = whole.size() < before_pass;
    }
}

// ---- cudaMallocAsync ------------------------------------------------------------------------------------------------

namespace {
constexpr Bytes async_step = 32 * MiB;
}

AsyncAllocator::AsyncAllocator(const AllocatorConfig& config, Capacity capacity)
    : limit_(std::min(std::clamp<Bytes>(capacity.reservable, 0, unlimited), allowed_by(config, capacity))),
      sizes_(no_block + 1) {}

Block AsyncAllocator::allocate(Bytes bytes) {
    const Bytes due = bytes > unlimited ? bytes : round_up(counters_.allocated + bytes, async_step);
    if (due > std::max(limit_, counters_.reserved)) {
        ++counters_.failures;
        out_of_memory_ = {bytes, bytes, counters_.allocated, counters_.reserved, limit_ - counters_.reserved};
        return no_block;
    }
    counters_.reserved = std::max(counters_.reserved, due);
    counters_.reserved_peak = std::max(counters_.reserved_peak, counters_.reserved);
    counters_.allocated += bytes;
    counters_.allocated_peak = std::max(counters_.allocated_peak, counters_.allocated);
    auto block = static_cast<Block>(sizes_.size());
    if (recycled_.empty()) {
        sizes_.push_back(bytes);
    } else {
        block = recycled_.back();
        recycled_.pop_back();
        sizes_[static_cast<std::size_t>(block)] = bytes;
    }
    return block;
}

void AsyncAllocator::free(Block block) {
    counters_.allocated -= sizes_[static_cast<std::size_t>(block)];
    recycled_.push_back(block);
}

void AsyncAllocator::empty_cache() { counters_.reserved = round_up(counters_.allocated, async_step); }

void AsyncAllocator::reset_peaks() noexcept {
    counters_.allocated_peak = counters_.allocated;
    counters_.reserved_peak = counters_.reserved;
}

}  // namespace vram::device
