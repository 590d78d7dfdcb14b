#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <ostream>
#include <span>

#include "verbs.hpp"
#include "vram/report/model_file.hpp"
#include "vram/report/trainer_list.hpp"

namespace vram::cli {
namespace {

using nlohmann::ordered_json;

void pad(std::ostream& out, const std::string& text, std::size_t width) {
    out << text << std::string(text.size() < width ? width - text.size() : 1, ' ');
}

template <class List, class Of>
std::size_t widest(const List& list, Of of) {
    std::size_t width = 0;
    for (const auto& item : list) width = std::max(width, of(item).size());
    return width + 2;
}

/// "11.90 B": parameters in billions, of those below one "610.86 M".
std::string billions(std::int64_t count) {
    const bool is_small = count < 1'000'000'000;
    const std::int64_t hundredths = (count + (is_small ? 5'000 : 5'000'000)) / (is_small ? 10'000 : 10'000'000);
    const std::string cents = std::to_string(hundredths % 100);
    return std::to_string(hundredths / 100) + "." + (cents.size() < 2 ? "0" : "") + cents + (is_small ? " M" : " B");
}

std::string joined(const std::vector<std::string>& words) {
    std::string out;
    for (const std::string& word : words) out += (out.empty() ? "" : ", ") + word;
    return out;
}

ordered_json json_of(const profile::MemoryRange& range) {
    return {{"low", range.low}, {"high", range.high}, {"evidence", to_text(range.evidence)}, {"source", range.source}};
}

/// "FluxTransformer2DModel (flux)  11.90 B  BF16 22.17 GiB, F32 12.50 KiB  ./transformer", and what is to be said of
/// it.
int model_file(const Arguments& arguments, const profile::Catalogue& catalogue, std::ostream& out, std::ostream& err) {
    const expected<report::ModelFile> file = report::read_model_file(arguments.file, catalogue);
    if (!file) {
        Diagnostics complaints = file.error();
        if (Diagnostic& first = complaints.front(); first.problem == Problem::file_not_found && first.nearest.empty())
            first.nearest = catalogue.nearest_model(arguments.file);
        return refuse(complaints, arguments.json, out, err);
    }
    const bool is_known = file->why_not.empty();
    if (arguments.json) {
        ordered_json stored = ordered_json::array();
        for (const job::StoredWeights& type : file->stored)
            stored.push_back({{"type", type.type}, {"parameters", type.parameters}, {"bytes", type.bytes}});
        ordered_json notes = ordered_json::array();
        for (const Diagnostic& note : file->notes) notes.push_back(to_text(note));
        out << ordered_json{{"path", file->path},
                            {"class", file->class_name},
                            {"family", file->family},
                            {"parameters", file->parameters},
                            {"stored_weights", stored},
                            {"why_not", file->why_not},
                            {"notes", notes}}
                   .dump(2, ' ', false, ordered_json::error_handler_t::replace)
            << '\n';
        return is_known ? 0 : 2;
    }
    std::vector<std::string> types;
    for (const job::StoredWeights& type : file->stored) types.push_back(type.type + " " + to_text(type.bytes));
    out << (file->class_name.empty() ? "no known class" : file->class_name)
        << (is_known ? " (" + file->family + ")" : "") << "  " << billions(file->parameters) << "  "
        << (types.empty() ? "no weights" : joined(types)) << "  " << file->path << '\n';
    if (!is_known) err << file->path << ": " << file->why_not << '\n';
    for (const Diagnostic& note : file->notes) err << to_text(note) << '\n';
    return is_known ? 0 : 2;
}

void profiles(std::span<const profile::ModelProfile> known, bool as_json, std::ostream& out) {
    if (as_json) {
        ordered_json list = ordered_json::array();
        for (const profile::ModelProfile& model : known)
            list.push_back({{"id", model.id},
                            {"kind", to_text(model.kind)},
                            {"family", model.family},
                            {"name", model.name},
                            {"aliases", model.aliases},
                            {"parameters", model.checked.parameters},
                            {"checked_against", model.checked.against},
                            {"source", model.source}});
        out << list.dump(2) << '\n';
        return;
    }
    const std::size_t ids = widest(known, [](const auto& model) { return model.id; });
    for (const profile::ModelProfile& model : known) {
        pad(out, model.id, ids);
        pad(out, std::string(to_text(model.kind)), 14);
        pad(out, billions(model.checked.parameters), 9);
        out << model.name << '\n';
        if (!model.aliases.empty()) out << std::string(ids, ' ') << "also " << joined(model.aliases) << '\n';
        out << std::string(ids, ' ') << model.source << "; parameters: " << model.checked.against << '\n';
    }
}

}  // namespace

int models(const Arguments& arguments, std::ostream& out, std::ostream& err) {
    const profile::Catalogue catalogue = profile::Catalogue::built_in();
    if (arguments.file.empty()) {
        profiles(catalogue.models(), arguments.json, out);
        return 0;
    }
    std::error_code error;
    const profile::ModelProfile* named = catalogue.model(arguments.file);
    if (named == nullptr || std::filesystem::exists(arguments.file, error))
        return model_file(arguments, catalogue, out, err);
    profiles({named, 1}, arguments.json, out);
    return 0;
}

int gpus(const Arguments& arguments, std::ostream& out) {
    const profile::Catalogue catalogue = profile::Catalogue::built_in();
    const std::vector<profile::DeviceProfile>& cards = catalogue.cards().devices();
    if (arguments.json) {
        ordered_json list = ordered_json::array();
        for (const profile::DeviceProfile& card : cards)
            list.push_back(
                {{"id", card.id},
                 {"name", card.name},
                 {"aliases", card.aliases},
                 {"memory", card.memory},
                 {"sm", card.sm},
                 {"capacity", {{"linux", json_of(card.linux_capacity)}, {"windows", json_of(card.windows_capacity)}}},
                 {"context", json_of(card.context)}});
        out << list.dump(2) << '\n';
        return 0;
    }
    const std::size_t ids = widest(cards, [](const auto& card) { return card.id; });
    pad(out, "id", ids);
    pad(out, "for torch", 12);
    pad(out, "memory", 12);
    out << "name\n";
    for (const profile::DeviceProfile& card : cards) {
        pad(out, card.id, ids);
        pad(out, to_text(card.linux_capacity.low), 12);
        pad(out, to_text(card.memory), 12);
        out << card.name << '\n';
    }
    return 0;
}

int trainers(const Arguments& arguments, std::ostream& out) {
    const std::vector<report::TrainerLine> lines = report::trainer_list();
    if (arguments.json) {
        ordered_json list = ordered_json::array();
        for (const report::TrainerLine& line : lines) list.push_back({{"id", line.id}, {"described", line.described}});
        out << list.dump(2) << '\n';
        return 0;
    }
    const std::size_t ids = widest(lines, [](const auto& line) { return line.id; });
    for (const report::TrainerLine& line : lines) {
        pad(out, line.id, ids);
        out << line.described << '\n';
    }
    return 0;
}

}  // namespace vram::cli
