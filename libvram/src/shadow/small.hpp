#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>

namespace vram::shadow {

/// A sequence whose first N elements live inside it; longer ones move to the heap. Tape nodes are full of short lists,
/// most of them empty: what is not in the list is not made.
template <class T, std::size_t N>
class Small {
  public:
    Small() noexcept {}  // NOLINT: the room stays as it is
    Small(std::initializer_list<T> items) {
        for (const T& item : items) push_back(item);
    }
    Small(const Small& other) requires std::is_copy_constructible_v<T> { assign(other); }
    Small(Small&& other) noexcept { take(other); }
    Small& operator=(const Small& other) requires std::is_copy_constructible_v<T> {
        if (this != &other) {
            clear();
            assign(other);
        }
        return *this;
    }
    /// What was in this list is then in the other, and goes when that one goes.
    Small& operator=(Small&& other) noexcept {
        swap(other);
        return *this;
    }
    ~Small() {
        while (size_ > 0) pop_back();
        give_back();
    }

    void push_back(T item) {
        if (size_ == capacity_) grow();
        ::new (static_cast<void*>(items_ + size_)) T(std::move(item));
        ++size_;
    }
    void resize(std::size_t size) {
        while (size_ < size) push_back(T{});
        while (size_ > size) pop_back();
    }
    void pop_back() {
        --size_;
        items_[size_].~T();
    }
    void clear() {
        const std::uint32_t size = std::exchange(size_, 0);
        for (std::uint32_t i = 0; i < size; ++i) items_[i].~T();
        give_back();
    }
    void swap(Small& other) noexcept {
        if (this == &other) return;
        Small held(std::move(other));
        other.take(*this);
        take(held);
    }
    [[nodiscard]] std::size_t size() const noexcept { return size_; }
    [[nodiscard]] bool empty() const noexcept { return size_ == 0; }
    [[nodiscard]] T* begin() noexcept { return items_; }
    [[nodiscard]] T* end() noexcept { return items_ + size_; }
    [[nodiscard]] const T* begin() const noexcept { return items_; }
    [[nodiscard]] const T* end() const noexcept { return items_ + size_; }
    [[nodiscard]] T& operator[](std::size_t i) {
        assert(i < size_);
        return items_[i];
    }
    [[nodiscard]] const T& operator[](std::size_t i) const {
        assert(i < size_);
        return items_[i];
    }
    [[nodiscard]] T& back() { return items_[size_ - 1]; }

  private:
    [[nodiscard]] T* own() noexcept { return reinterpret_cast<T*>(room_); }
    void assign(const Small& other) {
        for (const T& item : other) push_back(item);
    }
    /// This one is empty, and stands on its own room.
    void take(Small& other) noexcept {
        if (other.items_ != other.own()) {
            items_ = std::exchange(other.items_, other.own());
            capacity_ = std::exchange(other.capacity_, static_cast<std::uint32_t>(N));
        } else {
            move_to(items_, other);
        }
        size_ = std::exchange(other.size_, 0);
    }
    static void move_to(T* to, Small& from) noexcept {
        for (std::uint32_t i = 0; i < from.size_; ++i) {
            ::new (static_cast<void*>(to + i)) T(std::move(from.items_[i]));
            from.items_[i].~T();
        }
    }
    void grow() {
        const std::uint32_t wide = 2 * capacity_;
        T* const wider = std::allocator<T>().allocate(wide);
        move_to(wider, *this);
        give_back();
        items_ = wider;
        capacity_ = wide;
    }
    /// The heap's room, whose elements are gone.
    void give_back() noexcept {
        if (items_ == own()) return;
        std::allocator<T>().deallocate(items_, capacity_);
        items_ = own();
        capacity_ = N;
    }

    std::uint32_t size_ = 0, capacity_ = N;
    T* items_ = own();  // the heap's where they are too many
    alignas(T) std::byte room_[N * sizeof(T)];
};

}  // namespace vram::shadow
