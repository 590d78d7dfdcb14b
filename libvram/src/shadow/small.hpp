#pragma once

#include <array>
#include <cassert>
#include <cstddef>
#include <initializer_list>
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
    void push_back(T item) {
        if (heap_.empty() && size_ < N) {
            inline_[size_++] = std::move(item);
            return;
        }
        if (heap_.empty()) {
            heap_.reserve(2 * N + 2);
            for (std::size_t i = 0; i < size_; ++i) heap_.push_back(std::move(inline_[i]));
        }
        heap_.push_back(std::move(item));
        ++size_;
    }
    void resize(std::size_t size) {
        while (size_ < size) push_back(T{});
        while (size_ > size) pop_back();
    }
    void pop_back() {
        --size_;
        if (heap_.empty()) {
            inline_[size_] = T{};
        } else {
            heap_.pop_back();
        }
    }
    void clear() {
        for (std::size_t i = 0; heap_.empty() && i < size_; ++i) inline_[i] = T{};
        heap_.clear();
        size_ = 0;
    }
    [[nodiscard]] std::size_t size() const noexcept { return size_; }
    [[nodiscard]] bool empty() const noexcept { return size_ == 0; }
    [[nodiscard]] T* begin() noexcept { return heap_.empty() ? inline_.data() : heap_.data(); }
    [[nodiscard]] T* end() noexcept { return begin() + size_; }
    [[nodiscard]] const T* begin() const noexcept { return heap_.empty() ? inline_.data() : heap_.data(); }
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
    std::size_t size_ = 0;
    std::array<T, N> inline_{};
    std::vector<T> heap_;  // empty while the inline part suffices
};

}  // namespace vram::shadow
