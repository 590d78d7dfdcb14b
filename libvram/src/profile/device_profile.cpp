#include "vram/profile/device_profile.hpp"

#include <cctype>
#include <utility>

#include "vram/io/document.hpp"
#include "vram/io/fields.hpp"

namespace vram::profile {

namespace {

constexpr io::Choice<Evidence> evidences[] = {{"measured", Evidence::measured}, {"nominal", Evidence::nominal}};

// {low: 24080 MiB, high: 24259 MiB, kind: measured, source: …}; a single `bytes` stands for both ends.
MemoryRange memory_range(io::Fields fields) {
    MemoryRange range;
    if (fields.has("bytes")) {
        range.low = range.high = fields.size("bytes", io::required);
        if (fields.has("low") || fields.has("high"))
            fields.complain("bytes", Problem::conflict, "bytes excludes low and high");
    } else {
        range.low = fields.size("low", io::required);
        range.high = fields.size("high", io::required);
        if (range.high < range.low) fields.complain("high", Problem::out_of_range, "high is below low");
    }
    range.evidence = fields.choice("kind", evidences, io::required);
    range.source = fields.text("source", io::required);
    fields.finish(Severity::error);
    return range;
}

bool is_id(std::string_view text) {
    for (char c : text)
        if (!(std::islower(static_cast<unsigned char>(c)) || std::isdigit(static_cast<unsigned char>(c)) || c == '-'))
            return false;
    return !text.empty();
}

std::string_view stem_of(std::string_view path) {
    if (const auto slash = path.find_last_of("/\\"); slash != std::string_view::npos) path.remove_prefix(slash + 1);
    return path.substr(0, path.find('.'));
}

}  // namespace

std::string_view to_text(Os os) {
    switch (os) {
        case Os::linux_os: return "linux";
        case Os::windows: return "windows";
    }
    return "?";
}

std::string_view to_text(Evidence evidence) {
    switch (evidence) {
        case Evidence::measured: return "measured";
        case Evidence::nominal: return "nominal";
    }
    return "?";
}

Bytes DeviceProfile::cublas_workspace_in(std::int32_t torch_major, std::int32_t torch_minor) const {
    constexpr Bytes before_blackwell = 8 * MiB + 128 * KiB;  // :4096:2:16:8
    const bool knows_blackwell = torch_major > 2 || (torch_major == 2 && torch_minor >= 12);
    return sm >= 100 && !knows_blackwell ? before_blackwell : cublas_workspace;
}

expected<DeviceProfile> read_device_profile(std::string_view text, std::string file_name) {
    const expected<io::Document> document = io::read(text, std::move(file_name), io::Format::yaml);
    if (!document) return Unexpected{document.error()};
    Diagnostics complaints = document->complaints;
    for (Diagnostic& complaint : complaints) complaint.severity = Severity::error;  // a key twice is a mistake of ours

    io::Fields fields(*document, complaints);
    DeviceProfile card;
    static_cast<void>(fields.integer("schema", {.min = 1, .max = 1}, io::required));
    card.id = fields.text("id", io::required);
    if (fields.has("id") && (!is_id(card.id) || card.id != stem_of(document->file_name)))
        fields.complain("id", Problem::bad_value,
                        "id must be the file's name without .yaml: lower case, digits and dashes");
    card.name = fields.text("name", io::required);
    card.aliases = fields.texts("aliases").value_or(std::vector<std::string>{});
    card.architecture = fields.text("architecture", io::required);
    card.sm = static_cast<std::int32_t>(fields.integer("sm", {.min = 50, .max = 199}, io::required));
    card.multiprocessors =
        static_cast<std::int32_t>(fields.integer("multiprocessors", {.min = 1, .max = 1024}, io::required));
    card.memory = fields.size("memory", io::required);
    io::Fields capacity = fields.map("capacity");
    card.linux_capacity = memory_range(capacity.map("linux"));
    card.windows_capacity = memory_range(capacity.map("windows"));
    capacity.finish(Severity::error);
    for (const auto& [key, range] :
         {std::pair{"linux", &card.linux_capacity}, std::pair{"windows", &card.windows_capacity}})
        if (range->high > card.memory || range->low < card.memory / 2)
            fields.complain(
                "capacity", Problem::out_of_range,
                std::string("the capacity for ") + key + " is above the memory on the box, or below half of it");
    card.context = memory_range(fields.map("context"));
    if (card.context.high > 2 * GiB || card.context.low == 0)
        fields.complain("context", Problem::out_of_range, "a context is larger than nothing and below 2 GiB");
    card.cublas_workspace = fields.size("cublas_workspace", io::required);
    card.source = fields.text("source", io::required);
    card.notes = fields.text("notes", "");
    fields.finish(Severity::error);
    if (has_errors(complaints)) return Unexpected{std::move(complaints)};
    return card;
}

}  // namespace vram::profile
