#include "io/tree_builder.hpp"

#include <algorithm>
#include <utility>

namespace vram::io {

namespace {
constexpr std::size_t most_complaints = 100;  // a file with more is not read by a person

void mark_shared(Node& node) {
    node.origin = Origin::shared;
    if (auto* list = std::get_if<List>(&node.value))
        for (Node& item : *list) mark_shared(item);
    if (auto* map = std::get_if<Map>(&node.value))
        for (Member& member : *map) mark_shared(member.value);
}

/// What stands around a byte, up to the next blanks, for a complaint.
std::string word_at(std::string_view text, std::int64_t offset) {
    constexpr std::size_t most = 40;
    const auto is_word = [&](std::size_t i) { return static_cast<unsigned char>(text[i]) > ' '; };
    const auto is_continuation = [&](std::size_t i) { return (static_cast<unsigned char>(text[i]) & 0xC0U) == 0x80U; };
    std::size_t begin = std::min(static_cast<std::size_t>(offset), text.size()), end = begin;
    while (begin > 0 && end - begin < most && is_word(begin - 1)) --begin;
    while (end < text.size() && end - begin < most && is_word(end)) ++end;
    while (begin < end && is_continuation(begin)) ++begin;
    while (end > begin && end < text.size() && is_continuation(end)) --end;
    return std::string(text.substr(begin, end - begin));
}
}  // namespace

std::int64_t count_nodes(const Node& node) {
    std::int64_t count = 1;
    if (const List* list = node.list())
        for (const Node& item : *list) count += count_nodes(item);
    if (const Map* map = node.map())
        for (const Member& member : *map) count += count_nodes(member.value);
    return count;
}

bool TreeBuilder::fail(Problem problem, Span where, std::string text, std::string found) {
    if (found.empty()) found = word_at(document_.text, where.begin);
    if (!failure_)
        failure_ =
            Diagnostic{Severity::error, problem, document_.place_of(where), {}, std::move(found), {}, std::move(text)};
    return false;
}

bool TreeBuilder::wants_key() const { return in_map() && !open_.back().has_key; }

std::int64_t TreeBuilder::indent_anchor() const {
    const Open& open = open_.back();
    return open.first_key.value_or(open.node.span.begin);
}

bool TreeBuilder::begin(Kind list_or_map, std::int64_t offset) {
    if (failure_) return false;
    const Span here{offset, offset};
    if (static_cast<std::int64_t>(open_.size()) >= limits_.depth)
        return fail(Problem::too_deep, here,
                    "lists and maps nest more than " + std::to_string(limits_.depth) + " deep");
    if (++nodes_ > limits_.nodes)
        return fail(Problem::file_too_large, here, "more than " + std::to_string(limits_.nodes) + " values");
    Open open{.node = {.span = here, .origin = Origin::file}};
    if (list_or_map == Kind::list)
        open.node.value = List{};
    else
        open.node.value = Map{};
    open_.push_back(std::move(open));
    cursor_ = std::max(cursor_, offset);
    return true;
}

bool TreeBuilder::key(std::string name, Span span, bool merge) {
    if (failure_) return false;
    Open& map = open_.back();
    if (!map.first_key) map.first_key = span.begin;
    map.key = std::move(name);
    map.key_span = span;
    map.has_key = true;
    map.merge = merge;
    cursor_ = span.end;
    return true;
}

bool TreeBuilder::scalar(Node node) {
    if (failure_) return false;
    if (++nodes_ > limits_.nodes)
        return fail(Problem::file_too_large, node.span, "more than " + std::to_string(limits_.nodes) + " values");
    node.origin = Origin::file;
    return place(std::move(node));
}

bool TreeBuilder::count_copy(const Node& node, Span where) {
    aliased_ += count_nodes(node);
    if (aliased_ <= limits_.aliased) return true;
    return fail(Problem::too_many_aliases, where,
                "anchors and aliases stand for more than " + std::to_string(limits_.aliased) + " values");
}

bool TreeBuilder::alias(const Node& anchored, Span span) {
    if (failure_ || !count_copy(anchored, span)) return false;
    Node node = anchored;
    mark_shared(node);
    node.span = span;
    node.origin = Origin::file;  // `*name` itself stands here once
    return place(std::move(node));
}

bool TreeBuilder::end(std::optional<std::int64_t> offset) {
    if (failure_) return false;
    Open open = std::move(open_.back());
    open_.pop_back();
    for (const Node& source : open.merged)
        if (!merge_into(open, source)) return false;
    if (offset) open.node.span.end = *offset;
    return place(std::move(open.node));
}

bool TreeBuilder::place(Node node) {
    cursor_ = std::max(cursor_, node.span.end);
    if (open_.empty()) {
        document_.root = std::move(node);
        last_ = &document_.root;
        return true;
    }
    Open& parent = open_.back();
    parent.node.span.end = std::max(parent.node.span.end, node.span.end);
    if (parent.node.is(Kind::map)) return put_member(parent, std::move(node));
    List& list = std::get<List>(parent.node.value);
    list.push_back(std::move(node));
    last_ = &list.back();
    return true;
}

bool TreeBuilder::put_member(Open& map, Node node) {
    map.has_key = false;
    if (map.merge) {
        map.merged.push_back(std::move(node));
        last_ = &map.merged.back();
        return true;
    }
    Map& members = std::get<Map>(map.node.value);
    const auto [found, is_new] = map.index.try_emplace(map.key, members.size());
    if (is_new) {
        members.push_back({map.key, map.key_span, std::move(node)});
        last_ = &members.back().value;
        return true;
    }
    Member& member = members[found->second];
    if (document_.complaints.size() < most_complaints)
        document_.complaints.push_back({Severity::warning,
                                        Problem::duplicate_key,
                                        document_.place_of(map.key_span),
                                        map.key,
                                        node.spelled(),
                                        {},
                                        map.key + " is written twice, first in line " +
                                            std::to_string(document_.place_of(member.key_span).line) +
                                            "; the last one counts"});
    member.key_span = map.key_span;
    member.value = std::move(node);
    last_ = &member.value;
    return true;
}

// A key of the map itself wins, wherever it stands; of several merged maps the first (PyYAML's flatten_mapping).
bool TreeBuilder::merge_into(Open& map, const Node& source) {
    if (const List* list = source.list()) {
        for (const Node& item : *list) {
            if (!item.is(Kind::map))
                return fail(Problem::wrong_type, source.span, "a merge key << takes maps", item.spelled());
            if (!merge_into(map, item)) return false;
        }
        return true;
    }
    const Map* from = source.map();
    if (!from) return fail(Problem::wrong_type, source.span, "a merge key << takes a map", source.spelled());
    Map& members = std::get<Map>(map.node.value);
    for (const Member& member : *from) {
        if (!map.index.try_emplace(member.key, members.size()).second) continue;
        if (!count_copy(member.value, source.span)) return false;
        members.push_back(member);
        mark_shared(members.back().value);
    }
    return true;
}

}  // namespace vram::io
