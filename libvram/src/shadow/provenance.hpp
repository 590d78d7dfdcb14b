#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "shadow/run.hpp"

namespace vram::shadow {

/// Where the storages of a run come from, in the names of the Python module tree. Written where a run is asked to
/// (Memo::provenance); its trace is the same then. Of a block within a block the outer one's name stands.
class Provenance {
  public:
    struct Block {
        std::string name, class_name;  // "transformer_blocks.3", "FluxTransformerBlock"
    };
    /// One call, or its backward: what trace.events[first, end) gave birth to.
    struct Call {
        std::size_t first = 0, end = 0;
        std::size_t block = 0;
        bool backward = false;
    };
    [[nodiscard]] const std::vector<Block>& blocks() const noexcept { return blocks_; }
    [[nodiscard]] const std::vector<Call>& calls() const noexcept { return calls_; }  ///< in order, apart
    /// The qualified name of the parameter that was put there; empty where none is known.
    [[nodiscard]] std::string parameter_at(Slot slot) const;

    /// `identity`: of a block the address of its trainable parameters, which its calls hand on. What is built at an
    /// address goes before what stood there.
    void name_block(const void* identity, std::string_view name, std::string_view class_name);
    void name_parameter(const Parameter* parameter, std::string name);
    void put(const Parameter* parameter, Slot slot);
    void put(Slot slot, const std::string& name);  ///< what is no parameter yet

  private:
    friend class Noted;
    friend class Aside;
    std::vector<Block> blocks_;
    std::vector<Call> calls_;
    std::map<const void*, std::size_t> block_at_;
    std::map<const Parameter*, std::string> names_;
    std::map<Slot, std::string> slots_;
    int depth_ = 0;  // within a call that is noted, or aside
};

/// Notes what is born while it lives as this block's.
class Noted {
  public:
    Noted(Run& run, const void* identity, bool backward);
    ~Noted();
    Noted(const Noted&) = delete;
    Noted& operator=(const Noted&) = delete;

  private:
    Run& run_;
    Provenance* to_;
    Provenance::Call call_;
    bool known_ = false;
};

}  // namespace vram::shadow
