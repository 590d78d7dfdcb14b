#pragma once

#include <utility>
#include <variant>

#include "vram/base/diagnostic.hpp"

namespace vram {

/// What a failing step returns: at least one Diagnostic of severity error.
struct Unexpected {
    Diagnostics complaints;
};

/// A value, or every complaint about the input that should have given it. Failure is a value: nothing is thrown.
template <class T>
class [[nodiscard]] expected {
  public:
    expected(T value) : content_(std::move(value)) {}               // NOLINT: reads as the value
    expected(Unexpected failure) : content_(std::move(failure)) {}  // NOLINT
    [[nodiscard]] bool has_value() const noexcept { return content_.index() == 0; }
    explicit operator bool() const noexcept { return has_value(); }
    [[nodiscard]] T& operator*() & { return std::get<0>(content_); }
    [[nodiscard]] const T& operator*() const& { return std::get<0>(content_); }
    [[nodiscard]] T&& operator*() && { return std::get<0>(std::move(content_)); }
    [[nodiscard]] T* operator->() { return &std::get<0>(content_); }
    [[nodiscard]] const T* operator->() const { return &std::get<0>(content_); }
    [[nodiscard]] const Diagnostics& error() const { return std::get<1>(content_).complaints; }

  private:
    std::variant<T, Unexpected> content_;
};

}  // namespace vram
