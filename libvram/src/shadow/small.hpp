#pragma once

#include <array>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

namespace vram::shadow {

/// A sequence whose first N elements live inside it; longer ones move to the heap. Tape nodes are full of short lists.
template <class T, std::size_t N>
class Small {
  public:
    Small() = default;
    Small(std::initializer_list<T> items) {
        for (const T& item : items) push_back(item);
    }
    Small(const Small& other) { assign(other); }
    Small(Small&& other) noexcept { swap(other); }
    Small& operator=(const Small& other) {
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
        if (size_ == N) spill();
        if (heap_) {
            heap_->push_back(std::move(item));
        } else {
            inline_[size_] = std::move(item);
        }
        ++size_;
    }
    void resize(std::size_t size) {
        while (size_ < size) push_back(T{});
        while (size_ > size) pop_back();
    }
    void pop_back() {
        --size_;
        if (heap_) {
            heap_->pop_back();
        } else {
            inline_[size_] = T{};
        }
    }
    void clear() {
        if (heap_) {
            heap_.reset();
        } else {
            for (std::uint32_t i = 0; i < size_; ++i) inline_[i] = T{};
        }
        size_ = 0;
    }
    void swap(Small& other) noexcept {
        const std::uint32_t own = heap_ ? 0 : size_, others = other.heap_ ? 0 : other.size_;
        for (std::uint32_t i = 0; i < (own > others ? own : others); ++i) std::swap(inline_[i], other.inline_[i]);
        std::swap(size_, other.size_);
        std::swap(heap_, other.heap_);
    }
    [[nodiscard]] std::size_t size() const noexcept { return size_; }
    [[nodiscard]] bool empty() const noexcept { return size_ == 0; }
    [[nodiscard]] T* begin() noexcept { return heap_ ? heap_->data() : inline_.data(); }
    [[nodiscard]] T* end() noexcept { return begin() + size_; }
    [[nodiscard]] const T* begin() const noexcept { return heap_ ? heap_->data() : inline_.data(); }
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
        if constexpr (std::is_copy_constructible_v<T>)
            for (const T& item : other) push_back(item);
    }
    void spill() {
        if (heap_) return;
        heap_ = std::make_unique<std::vector<T>>();
        heap_->reserve(2 * N + 2);
        for (T& item : inline_) heap_->push_back(std::exchange(item, T{}));
    }

    std::uint32_t size_ = 0;
    std::array<T, N> inline_{};
    std::unique_ptr<std::vector<T>> heap_;  // null while the inline part suffices
};

}  // namespace vram::shadow
