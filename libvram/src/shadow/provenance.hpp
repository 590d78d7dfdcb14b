#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shadow/node.hpp"
#include "vram/shadow/trace.hpp"

namespace vram::shadow {

class Run;

/// Where the storages of a run come from: the block, in the names of the Python module tree, and the line of the
/// forward. Written where a run without a memo is asked to (Run::provenance); its trace is the same then. Of a block
/// within a block the outer one's name stands, and the inner one's line: the last that called an op, a layer or the run
/// itself. What these call among each other (shadow/, nn/) has none.
class Provenance {
  public:
    struct Block {
        std::string name, class_name;  // "transformer_blocks.3", "FluxTransformerBlock"
    };
    /// A statement that calls an op or a layer.
    struct Line {
        std::string file;  // "models/flux.cpp"
        int number = 0;
        bool operator==(const Line&) const = default;
    };
    /// Of an event: what was called, or whose backward it was.
    struct Birth : Origin {
        bool backward = false;
    };
    [[nodiscard]] const std::vector<Block>& blocks() const noexcept { return blocks_; }
    [[nodiscard]] const std::vector<Line>& lines() const noexcept { return lines_; }
    [[nodiscard]] Birth birth(std::size_t event) const;
    /// The qualified name of the parameter that was put there; empty where none is known.
    [[nodiscard]] std::string parameter_at(Slot slot) const;

    /// `identity`: of a block the address of its trainable parameters, which its calls hand on. What is built at an
    /// address goes before what stood there.
    void name_block(const void* identity, std::string_view name, std::string_view class_name);
    void name_parameter(const Parameter* parameter, std::string name);
    void put(const Parameter* parameter, Slot slot);
    void put(Slot slot, const std::string& name);  ///< what is no parameter yet

    /// An op, a layer or the run was called there.
    void called(const char* file, int line);
    /// What is done now.
    [[nodiscard]] Origin origin() const noexcept { return origin_; }
    /// The event of this place in the run's trace is born now.
    void note(std::size_t event, bool backward);

  private:
    friend class Aside;
    friend class Called;
    friend class OriginScope;
    std::vector<Block> blocks_;
    std::vector<Line> lines_;
    std::map<std::pair<const char*, int>, std::int32_t> line_at_;
    std::vector<Birth> births_;
    std::map<const void*, std::size_t> block_at_;
    std::map<const Parameter*, std::string> names_;
    std::map<Slot, std::string> slots_;
    Origin origin_;
    int depth_ = 0;  // within a call of a block, or aside
};

/// What is born while it lives comes from there: of a node's backward that is what made the node.
class OriginScope {
  public:
    OriginScope(Run& run, Origin origin);
    ~OriginScope() {
        if (to_ != nullptr) to_->origin_ = before_;
    }
    OriginScope(const OriginScope&) = delete;
    OriginScope& operator=(const OriginScope&) = delete;

  protected:
    Provenance* to_;

  private:
    Origin before_;
};

/// A forward that has lines of its own, of the block that is called already.
class ForwardScope : public OriginScope {
  public:
    explicit ForwardScope(Run& run);
};

/// The same of a call of the block of this identity.
class Called : public ForwardScope {
  public:
    Called(Run& run, const void* identity);
    ~Called();
    Called(const Called&) = delete;
    Called& operator=(const Called&) = delete;
};

}  // namespace vram::shadow
