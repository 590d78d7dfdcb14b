#pragma once

#include <cstddef>
#include <memory>
#include <vector>

namespace vram::shadow {

/// Objects of one kind that come and go by the thousand: made `N` at a time, handed out again when given back. They
/// stay where they are, and all die with the pool.
template <class T, std::size_t N>
class Pool {
  public:
    /// One that nobody holds, as its last holder left it.
    [[nodiscard]] T* take() {
        if (free_.empty()) grow();
        T* out = free_.back();
        free_.pop_back();
        return out;
    }
    void give_back(T* object) noexcept { free_.push_back(object); }  // there is room: see grow

  private:
    void grow() {
        chunks_.push_back(std::make_unique<T[]>(N));
        free_.reserve(chunks_.size() * N);
        for (std::size_t i = N; i-- > 0;) free_.push_back(&chunks_.back()[i]);
    }

    std::vector<T*> free_;
    std::vector<std::unique_ptr<T[]>> chunks_;  // dies first: what dies with it may give others back
};

}  // namespace vram::shadow
