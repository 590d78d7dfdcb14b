#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <tuple>
#include <vector>

#include "vram/device/allocator.hpp"

namespace vram::device {

/// The rules of c10/cuda/CUDACachingAllocator.cpp once more, slowly: ordered sets of pointers, nothing clever, written
/// from PyTorch's text and not from allocator.cpp, so that the two can be compared step by step. Same simulated
/// addresses: segments go up, an expandable segment's addresses are reused once it went back.
class ReferenceAllocator {
  public:
    struct Piece {
        Bytes address = 0, size = 0;
        bool small = false, allocated = false, mapped = true, expandable = false;
        Piece *previous = nullptr, *next = nullptr;
        std::int64_t base_age = 0;
        [[nodiscard]] bool is_split() const { return previous != nullptr || next != nullptr; }
    };
    struct BySize {
        bool operator()(const Piece* a, const Piece* b) const {
            return std::tie(a->size, a->address) < std::tie(b->size, b->address);
        }
    };
    struct ByAddress {
        bool operator()(const Piece* a, const Piece* b) const { return a->address < b->address; }
    };
    struct FreeSet {
        std::set<Piece*, BySize> blocks;
        std::set<Piece*, ByAddress> unmapped;
        std::int64_t calls = 0;
        std::vector<Bytes> spare;
        void insert(Piece* piece) {
            piece->base_age = calls;
            blocks.insert(piece);
        }
    };

    ReferenceAllocator(const AllocatorConfig& config, Capacity capacity) : config_(config), capacity_(capacity) {
        if (config.per_process_memory_fraction < 1)
            allowed_ = static_cast<Bytes>(config.per_process_memory_fraction * static_cast<double>(capacity.total));
        next_address_ = config.large_segment_size;
    }

    Piece* allocate(Bytes bytes) {
        const Bytes size = round(bytes);
        const bool small = size <= 1 * MiB;
        const Bytes segment = small             ? 2 * MiB
                              : size < 10 * MiB ? config_.large_segment_size
                                                : (size + 2 * MiB - 1) / (2 * MiB) * (2 * MiB);
        Piece* found = get_free_block(small, size);
        bool refused = false;
        if (found == nullptr) {
            if (has_limit() && config_.garbage_collection_threshold > 0) collect();
            refused = config_.throw_on_cudamalloc_oom && has_limit() && stats.reserved + segment > allowed_;
            if (!refused) {
                found = alloc_block(small, size, segment, false);
                if (found == nullptr && release_available(small, size))
                    found = alloc_block(small, size, segment, false);
                if (found == nullptr) {
                    release_blocks(false);
                    release_blocks(true);
                    found = alloc_block(small, size, segment, true);
                }
            }
        }
        if (found == nullptr) {
            ++stats.failures;
            failure = {bytes, segment, stats.allocated, stats.reserved, capacity_.reservable - stats.reserved};
            return nullptr;
        }
        const Bytes remaining = found->size - size;
        const bool split = small || config_.expandable_segments ? remaining >= 512
                                                                : size < config_.max_split_size && remaining > 1 * MiB;
        if (split) {
            Piece* rest = found;
            found = make(rest->address, size, small);
            found->expandable = rest->expandable;
            found->previous = rest->previous;
            if (found->previous != nullptr) found->previous->next = found;
            found->next = rest;
            rest->previous = found;
            rest->address += size;
            rest->size -= size;
            pool(small).insert(rest);
        }
        found->allocated = true;
        stats.allocated += found->size;
        stats.allocated_peak = std::max(stats.allocated_peak, stats.allocated);
        return found;
    }

    void free(Piece* piece) {
        piece->allocated = false;
        stats.allocated -= piece->size;
        Piece* const before = piece->previous;
        Piece* const after = piece->next;
        merge(piece, before);
        merge(piece, after);
        pool(piece->small).insert(piece);
    }

    void empty_cache() {
        release_blocks(false);
        release_blocks(true);
    }

    [[nodiscard]] std::vector<Allocator::Piece> layout() const {
        std::vector<Allocator::Piece> out;
        for (const auto& [pointer, owner] : pieces_)
            out.push_back({pointer->address, pointer->size,
                           pointer->allocated ? Allocator::State::allocated
                           : pointer->mapped  ? Allocator::State::free
                                              : Allocator::State::unmapped,
                           pointer->small, pointer->previous == nullptr});
        std::sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.address < b.address; });
        return out;
    }

    Counters stats;
    OutOfMemory failure;

  private:
    [[nodiscard]] bool has_limit() const { return config_.per_process_memory_fraction < 1; }
    FreeSet& pool(bool small) { return small ? small_ : large_; }

    Piece* make(Bytes address, Bytes size, bool small) {
        auto owner = std::make_unique<Piece>();
        owner->address = address;
        owner->size = size;
        owner->small = small;
        Piece* const piece = owner.get();
        pieces_.emplace(piece, std::move(owner));
        return piece;
    }
    void destroy(Piece* piece) { pieces_.erase(piece); }

    [[nodiscard]] Bytes round(Bytes bytes) const {
        if (bytes < 512) return 512;
        Bytes floor = 1;
        std::size_t log = 0;
        while (floor * 2 <= bytes) {
            floor *= 2;
            ++log;
        }
        const std::size_t interval = std::min<std::size_t>(log > 20 ? log - 20 : 0, 15);
        const std::int64_t divisions = config_.roundup_power2_divisions[interval];
        if (divisions > 1 && bytes > 512 * divisions) {
            if (bytes == floor) return bytes;
            Bytes up = floor;
            while (up < bytes) up += floor / divisions;
            return up;
        }
        return (bytes + 511) / 512 * 512;
    }

    static Bytes expandable_size(const Piece* piece) {
        return piece->size + (piece->next != nullptr && !piece->next->mapped ? piece->next->size : 0);
    }

    Piece* get_free_block(bool small, Bytes size) {
        FreeSet& free_set = pool(small);
        if (has_limit() && config_.garbage_collection_threshold > 0) ++free_set.calls;
        Piece key;
        key.size = size;
        auto it = free_set.blocks.lower_bound(&key);
        if (it == free_set.blocks.end()) return nullptr;
        if ((*it)->expandable) {
            auto next = std::next(it);
            while (next != free_set.blocks.end() && expandable_size(*next) < expandable_size(*it)) it = next++;
        }
        if (size < config_.max_split_size && (*it)->size >= config_.max_split_size) return nullptr;
        if (size >= config_.max_split_size && (*it)->size >= size + config_.max_non_split_rounding) return nullptr;
        Piece* const found = *it;
        free_set.blocks.erase(it);
        return found;
    }

    Piece* alloc_block(bool small, Bytes size, Bytes segment, bool retry) {
        if (retry) ++stats.retries;
        if (has_limit() && stats.reserved + segment > allowed_) return nullptr;
        if (config_.expandable_segments) return try_expandable(small, size);
        if (stats.reserved + segment > capacity_.reservable) return nullptr;
        Piece* const piece = make(next_address_, segment, small);
        next_address_ += segment;
        ++stats.segments;
        reserve(segment);
        return piece;
    }
    void reserve(Bytes bytes) {
        stats.reserved += bytes;
        stats.reserved_peak = std::max(stats.reserved_peak, stats.reserved);
    }

    Piece* find_expandable(bool small, Bytes size) {
        const auto allocatable = [](const Piece* piece) { return piece != nullptr && !piece->allocated; };
        for (Piece* piece : pool(small).unmapped) {
            Piece* const first = allocatable(piece->previous) ? piece->previous : piece;
            Bytes bytes = 0;
            for (const Piece* p = first; bytes < size && allocatable(p); p = p->next) bytes += p->size;
            if (bytes >= size) return first;
        }
        const Bytes page = page_of(small);
        const Bytes space = (capacity_.total + capacity_.total / 8 + page - 1) / page * page;
        Bytes address = (next_address_ + page - 1) / page * page;
        if (pool(small).spare.empty()) {
            next_address_ = address + space;
        } else {
            address = pool(small).spare.back();
            pool(small).spare.pop_back();
        }
        Piece* const piece = make(address, space, small);
        piece->mapped = false;
        piece->expandable = true;
        pool(small).unmapped.insert(piece);
        return piece;
    }

    bool map(Piece* piece, Bytes size) {
        const Bytes page = page_of(piece->small);
        Bytes mapped = 0;
        while (mapped < size) mapped += page;
        if (stats.reserved + mapped > capacity_.reservable) return false;
        FreeSet& free_set = pool(piece->small);
        free_set.unmapped.erase(piece);
        piece->mapped = true;
        if (mapped < piece->size) {
            Piece* const rest = make(piece->address + mapped, piece->size - mapped, piece->small);
            rest->mapped = false;
            rest->expandable = true;
            rest->previous = piece;
            rest->next = piece->next;
            if (rest->next != nullptr) rest->next->previous = rest;
            piece->next = rest;
            free_set.unmapped.insert(rest);
            piece->size = mapped;
        }
        merge(piece, piece->previous);
        merge(piece, piece->next);
        free_set.insert(piece);
        reserve(mapped);
        return true;
    }

    Piece* try_expandable(bool small, Bytes size) {
        Piece* candidate = find_expandable(small, size);
        if (!candidate->mapped && !map(candidate, std::min(candidate->size, size))) return nullptr;
        while (candidate->size < size) {
            Piece* const next = candidate->next;
            if (!map(next, std::min(size - candidate->size, next->size))) return nullptr;
            candidate = next;
        }
        pool(small).blocks.erase(candidate);
        return candidate;
    }

    void merge(Piece* into, Piece* other) {
        if (other == nullptr || other->allocated || other->mapped != into->mapped) return;
        if (other->mapped)
            pool(into->small).blocks.erase(other);
        else
            pool(into->small).unmapped.erase(other);
        if (into->previous == other) {
            into->address = other->address;
            into->previous = other->previous;
            if (into->previous != nullptr) into->previous->next = into;
        } else {
            into->next = other->next;
            if (into->next != nullptr) into->next->previous = into;
        }
        into->size += other->size;
        destroy(other);
    }

    void collect() {
        const auto threshold = static_cast<Bytes>(config_.garbage_collection_threshold * static_cast<double>(allowed_));
        if (stats.reserved <= threshold) return;
        const Bytes target = stats.reserved - threshold;
        Bytes reclaimed = 0;
        std::int64_t total_age = 0, count = 0;
        for (const Piece* piece : large_.blocks)
            if (!piece->is_split()) {
                total_age += large_.calls - piece->base_age;
                ++count;
            }
        bool freed = count > 0;
        while (reclaimed < target && freed && count > 0) {
            const double threshold_age = static_cast<double>(total_age) / static_cast<double>(count);
            freed = false;
            for (auto it = large_.blocks.begin(); it != large_.blocks.end();) {
                Piece* const piece = *it++;
                const std::int64_t age = large_.calls - piece->base_age;
                if (piece->is_split() || piece->expandable || static_cast<double>(age) < threshold_age) continue;
                freed = true;
                reclaimed += piece->size;
                total_age -= age;
                --count;
                release(piece);
            }
        }
    }

    bool release_available(bool small, Bytes size) {
        if (config_.max_split_size >= unlimited) return false;
        FreeSet& free_set = pool(small);
        Piece key;
        key.size = std::max(size, config_.max_split_size);
        auto it = free_set.blocks.lower_bound(&key);
        if (it != free_set.blocks.end() && !(*it)->expandable) {
            release(*it);
            return true;
        }
        if (it == free_set.blocks.begin()) return false;
        Bytes released = 0;
        --it;
        while (released < key.size && (*it)->size >= config_.max_split_size) {
            Piece* const piece = *it;
            const bool is_first = it == free_set.blocks.begin();
            if (!is_first) --it;
            if (!piece->expandable) {
                released += piece->size;
                release(piece);
            }
            if (is_first) break;
        }
        return released >= key.size;
    }

    void release(Piece* piece) {
        stats.reserved -= piece->size;
        --stats.segments;
        pool(piece->small).blocks.erase(piece);
        destroy(piece);
    }

    void unmap(Piece* piece) {
        const Bytes page = page_of(piece->small);
        const Bytes begin = (piece->address + page - 1) / page * page;
        const Bytes end = (piece->address + piece->size) / page * page;
        if (begin >= end) return;
        FreeSet& free_set = pool(piece->small);
        free_set.blocks.erase(piece);
        if (begin > piece->address) {
            Piece* const left = make(piece->address, begin - piece->address, piece->small);
            left->expandable = true;
            left->previous = piece->previous;
            left->next = piece;
            if (left->previous != nullptr) left->previous->next = left;
            piece->previous = left;
            free_set.insert(left);
        }
        if (const Bytes after = piece->address + piece->size - end; after > 0) {
            Piece* const right = make(end, after, piece->small);
            right->expandable = true;
            right->previous = piece;
            right->next = piece->next;
            if (right->next != nullptr) right->next->previous = right;
            piece->next = right;
            free_set.insert(right);
        }
        piece->address = begin;
        piece->size = end - begin;
        piece->mapped = false;
        merge(piece, piece->previous);
        merge(piece, piece->next);
        free_set.unmapped.insert(piece);
        stats.reserved -= end - begin;
    }

    void release_blocks(bool small) {
        FreeSet& free_set = pool(small);
        std::vector<Piece*> to_unmap;
        for (auto it = free_set.blocks.begin(); it != free_set.blocks.end();) {
            Piece* const piece = *it++;
            if (piece->expandable)
                to_unmap.push_back(piece);
            else if (!piece->is_split())
                release(piece);
        }
        for (Piece* piece : to_unmap) {
            unmap(piece);
            if (!piece->is_split()) {
                free_set.unmapped.erase(piece);
                free_set.spare.push_back(piece->address);
                destroy(piece);
            }
        }
    }

    [[nodiscard]] Bytes page_of(bool small) const { return small ? 2 * MiB : config_.large_segment_size; }

    AllocatorConfig config_;
    Capacity capacity_;
    Bytes allowed_ = 0;
    Bytes next_address_ = 0;
    FreeSet small_, large_;
    std::map<const Piece*, std::unique_ptr<Piece>> pieces_;
};

}  // namespace vram::device
