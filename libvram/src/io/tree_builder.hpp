#pragma once

#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "vram/io/document.hpp"

namespace vram::io {

/// Grows a tree from a reader's events, in file order. It guards the limits and sees keys that are written twice.
///
/// Each event returns false once the document is refused; the reader then stops, and `failure` says why.
class TreeBuilder {
  public:
    TreeBuilder(Document& document, const Limits& limits) : document_(document), limits_(limits) {}

    bool scalar(Node node);
    bool begin(Kind list_or_map, std::int64_t offset);
    /// Takes the place of the next value's key. `merge`: YAML's `<<`, whose value's members are taken into this map.
    bool key(std::string name, Span span, bool merge = false);
    /// Ends the innermost list or map; without an offset it ends with its last value.
    bool end(std::optional<std::int64_t> offset = {});
    /// As `scalar`, with a copy of a finished node; counts its nodes against Limits::aliased.
    bool alias(const Node& anchored, Span span);
    /// Counts the copy of the last finished node that an anchor needs.
    bool count_copy(const Node& node, Span where);

    bool fail(Problem problem, Span where, std::string text, std::string found = {});
    [[nodiscard]] const std::optional<Diagnostic>& failure() const { return failure_; }

    [[nodiscard]] bool wants_key() const;  // directly in a map, before a key
    [[nodiscard]] bool in_map() const { return !open_.empty() && open_.back().node.is(Kind::map); }
    [[nodiscard]] bool in_list() const { return !open_.empty() && open_.back().node.is(Kind::list); }
    [[nodiscard]] bool at_root() const { return open_.empty(); }
    /// Offset of the first key or item of the innermost list or map, its own begin before that.
    [[nodiscard]] std::int64_t indent_anchor() const;
    /// End of what was last read: a key, a scalar, a bracket.
    [[nodiscard]] std::int64_t cursor() const { return cursor_; }
    [[nodiscard]] const Node& last() const { return *last_; }  // the last finished node; valid until the next event

  private:
    struct Open {
        Node node;
        std::string key{};
        Span key_span{};
        bool has_key = false, merge = false;
        std::optional<std::int64_t> first_key{};
        std::unordered_map<std::string, std::size_t> index{};  // of members
        std::vector<Node> merged{};
    };
    bool place(Node node);
    bool put_member(Open& map, Node node);
    bool merge_into(Open& map, const Node& source);

    Document& document_;
    const Limits& limits_;
    std::vector<Open> open_;
    std::optional<Diagnostic> failure_;
    std::int64_t cursor_ = 0, nodes_ = 0, aliased_ = 0;
    const Node* last_ = nullptr;
};

[[nodiscard]] std::int64_t count_nodes(const Node& node);

}  // namespace vram::io
