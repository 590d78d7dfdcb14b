#pragma once

#include <array>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <type_traits>
#include <utility>

namespace vram::shadow {

/// A sequence whose first N elements live inside it; longer ones move to the heap. Tape nodes are full of short lists.
template <class T, std::size_t N>
class Small {
  public:
    Small() = default;
    Small(std::initializer_list<T> items) {
        for (const T& item : items) push_back(item);
    }
    Small(const Small& other) requires std::is_copy_constructible_v<T> { assign(other); }
    Small(Small&& other) noexcept { swap(other); }
    Small& operator=(const Small& other) requires std::is_copy_constructible_v<T> {
        if (this != &other) {
            clear();
            assign(other);
        }
        return *this;
    }
    Small& operator=(Small&& other) noexcept {
        swap(other);
        return *this;
    }
    ~Small() = default;

    void push_back(T item) {
        if (size_ == capacity_) grow();
        begin()[size_++] = std::move(item);
    }
    void resize(std::size_t size) {
        while (capacity_ < size) grow();
        while (size_ > size) pop_back();
        size_ = static_cast<std::uint32_t>(size);  // what lies beyond the end is T{}
    }
    void pop_back() { begin()[--size_] = T{}; }
    void clear() {
        if (heap_) {
            heap_.reset();
            capacity_ = N;
        } else {
            for (std::uint32_t i = 0; i < size_; ++i) inline_[i] = T{};
        }
        size_ = 0;
    }
    void swap(Small& other) noexcept {
        const std::uint32_t own = heap_ ? 0 : size_, others = other.heap_ ? 0 : other.size_;
        for (std::uint32_t i = 0; i < (own > others ? own : others); ++i) std::swap(inline_[i], other.inline_[i]);
        std::swap(size_, other.size_);
        std::swap(capacity_, other.capacity_);
        std::swap(heap_, other.heap_);
    }
    [[nodiscard]] std::size_t size() const noexcept { return size_; }
    [[nodiscard]] bool empty() const noexcept { return size_ == 0; }
    [[nodiscard]] T* begin() noexcept { return heap_ ? heap_.get() : inline_.data(); }
    [[nodiscard]] T* end() noexcept { return begin() + size_; }
    [[nodiscard]] const T* begin() const noexcept { return heap_ ? heap_.get() : inline_.data(); }
    [[nodiscard]] const T* end() const noexcept { return begin() + size_; }
    [[nodiscard]] T& operator[](std::size_t i) {
        assert(i < size_);
        return begin()[i];
    }
    [[nodiscard]] const T& operator[](std::size_t i) const {
        assert(i < size_);
        return begin()[i];
    }
    [[nodiscard]] T& back() { return begin()[size_ - 1]; }

  private:
    void assign(const Small& other) {
        for (const T& item : other) push_back(item);
    }
    void grow() {
        const std::uint32_t wide = 2 * capacity_;
        auto wider = std::make_unique<T[]>(wide);
        for (std::uint32_t i = 0; i < size_; ++i) wider[i] = std::exchange(begin()[i], T{});
        heap_ = std::move(wider);
        capacity_ = wide;
    }

    std::uint32_t size_ = 0, capacity_ = N;
    std::array<T, N> inline_{};
    std::unique_ptr<T[]> heap_;  // null while the inline part suffices
};

}  // namespace vram::shadow
