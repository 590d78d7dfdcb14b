#include "vram/io/path.hpp"

#include <utility>

#include "io/steps.hpp"

namespace vram::io {

namespace {

void mark_assigned(Node& node) {
    node.origin = Origin::assigned;
    node.span = {};
    if (auto* list = std::get_if<List>(&node.value))
        for (Node& item : *list) mark_assigned(item);
    if (auto* map = std::get_if<Map>(&node.value))
        for (Member& member : *map) {
            member.key_span = {};
            mark_assigned(member.value);
        }
}

Diagnostic complaint(std::string_view path, Problem problem, std::string_view found, std::string text) {
    return {Severity::error, problem, {"--set", 0, 0}, std::string(path), std::string(found), {}, std::move(text)};
}

/// The value as it stands in a flow: "4" in `[4]`, but a comment or a second line is not one.
expected<Node> value_of(std::string_view text) {
    if (text.find_first_not_of(" \t") == std::string_view::npos) return Node{};
    expected<Document> document = read(text, "--set", Format::yaml);
    if (!document) return Unexpected{document.error()};
    return std::move(document->root);
}

}  // namespace

const Node* find(const Node& root, std::string_view path) {
    const std::optional<std::vector<Step>> steps = steps_of(path);
    if (!steps) return nullptr;
    const Met met = walk(root, *steps);
    return met.steps == steps->size() ? met.node : nullptr;
}

bool erase(Node& root, std::string_view path) {
    const std::optional<std::vector<Step>> steps = steps_of(path);
    if (!steps || steps->back().item) return false;
    const std::string_view key = steps->back().key;
    const std::size_t above = path.size() - key.size();
    // What `find` gives lies within this root, which the caller may change.
    Node* map = above == 0 ? &root : const_cast<Node*>(find(root, path.substr(0, above - 1)));
    if (map == nullptr || !map->is(Kind::map)) return false;
    return std::erase_if(std::get<Map>(map->value), [&](const Member& member) { return member.key == key; }) > 0;
}

std::optional<Diagnostic> assign(Document& document, std::string_view path, std::string_view value) {
    const std::string name(path);
    const std::optional<std::vector<Step>> steps = steps_of(path);
    if (!steps) return complaint(path, Problem::unknown_option, path, "--set takes key=value, not " + name + "=…");
    expected<Node> parsed = value_of(value);
    if (!parsed) {
        const Diagnostic& first = parsed.error().front();
        return complaint(path, first.problem, value, "the value of --set " + name + " cannot be read: " + first.text);
    }
    // First a look without touching anything, so that a refusal leaves no half-made maps behind.
    const Node* look = &document.root;
    for (const Step& step : *steps) {
        if (step.item) {
            const std::size_t size = look && look->list() ? look->list()->size() : 0;
            if (look && !look->is(Kind::list) && !look->is(Kind::null))
                return complaint(path, Problem::wrong_type, look->spelled(),
                                 name + ": there is " + std::string(to_text(look->kind())) + " where a list must be");
            if (*step.item > size)
                return complaint(path, Problem::out_of_range, std::to_string(*step.item),
                                 name + ": the list has " + std::to_string(size) + " items");
            look = *step.item < size ? &(*look->list())[*step.item] : nullptr;
        } else {
            if (look && !look->is(Kind::map) && !look->is(Kind::null))
                return complaint(path, Problem::wrong_type, look->spelled(),
                                 name + ": there is " + std::string(to_text(look->kind())) + " where a map must be");
            look = look ? look->find(step.key) : nullptr;
        }
    }
    Node* node = &document.root;
    for (const Step& step : *steps) {
        if (step.item) {
            if (!node->is(Kind::list)) *node = Node{.value = List{}, .origin = Origin::assigned};
            List& list = std::get<List>(node->value);
            if (*step.item == list.size()) list.push_back({.origin = Origin::assigned});
            node = &list[*step.item];
        } else {
            if (!node->is(Kind::map)) *node = Node{.value = Map{}, .origin = Origin::assigned};
            Member* found = nullptr;
            for (Member& member : std::get<Map>(node->value))
                if (member.key == step.key) found = &member;
            node = found ? &found->value : &node->put(std::string(step.key), {.origin = Origin::assigned});
        }
    }
    *node = std::move(*parsed);
    mark_assigned(*node);
    return std::nullopt;
}

}  // namespace vram::io
