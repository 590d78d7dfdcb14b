#include <algorithm>
#include <array>
#include <optional>

#include "io/tensor_header.hpp"
#include "vram/io/document.hpp"
#include "vram/io/fields.hpp"

namespace vram::io {
namespace {

constexpr Bytes length_bytes = 8;  // of the header, little-endian, before it
constexpr std::size_t most_complaints = 20;

/// Bits of one element. Source: safetensors/src/tensor.rs, Dtype::bitsize.
constexpr Choice<std::int64_t> element_bits[] = {
    {"BOOL", 8},    {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6},     {"U8", 8},          {"I8", 8},
    {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},
    {"U16", 16},    {"F16", 16},    {"BF16", 16},   {"I32", 32},        {"U32", 32},        {"F32", 32},
    {"C64", 64},    {"F64", 64},    {"I64", 64},    {"U64", 64},
};

/// Where a tensor's data lies, behind the header.
struct Extent {
    std::int64_t begin = 0, end = 0;
    const StoredTensor* tensor = nullptr;
};

/// Of a header whose root is a map.
class Reader {
  public:
    Reader(const Document& header, Bytes data) : header_(header), data_(data) {}

    expected<TensorFile> read() {
        TensorFile out;
        std::vector<std::array<std::int64_t, 2>> offsets;
        for (const Member& member : *header_.root.map()) {
            if (complaints_.size() >= most_complaints) break;
            if (member.key != "__metadata__")  // texts of whoever wrote the file
                read_tensor({header_, member.value, member.key, complaints_}, member.key, out, offsets);
        }
        if (complaints_.empty()) check_extents(out, offsets);
        if (!complaints_.empty()) return Unexpected{std::move(complaints_)};
        return out;
    }

  private:
    void read_tensor(Fields entry, const std::string& name, TensorFile& out,
                     std::vector<std::array<std::int64_t, 2>>& offsets) {
        const std::size_t before = complaints_.size();
        const std::int64_t bits = entry.choice("dtype", element_bits, required);
        for (const char* key : {"shape", "data_offsets"}) static_cast<void>(entry.require(key));
        std::vector<std::int64_t> shape = entry.integers("shape", {.min = 0}).value_or(std::vector<std::int64_t>{});
        const auto range = entry.integers("data_offsets", {.min = 0}, {2, 2}).value_or(std::vector<std::int64_t>{0, 0});
        if (complaints_.size() > before) return;
        const std::optional<std::int64_t> numel = numel_of(shape);
        std::int64_t all_bits = 0;
        if (!numel || __builtin_mul_overflow(*numel, bits, &all_bits)) {
            entry.complain("shape", Problem::overflow, name + " exceeds 63 bits");
            return;
        }
        StoredTensor tensor{name, entry.node("dtype")->spelled(), std::move(shape), *numel, all_bits / 8};
        if (all_bits % 8 != 0 || range[1] < range[0] || range[1] - range[0] != tensor.bytes) {
            entry.complain("data_offsets", Problem::syntax,
                           name + " has " + std::to_string(tensor.bytes) + " bytes by its shape and dtype, and " +
                               std::to_string(range[1] - range[0]) + " by its data_offsets");
            return;
        }
        out.tensors.push_back(std::move(tensor));
        offsets.push_back({range[0], range[1]});
    }

    /// Together they are the data: no holes, nothing twice, nothing behind. Source: Metadata::validate.
    void check_extents(const TensorFile& out, const std::vector<std::array<std::int64_t, 2>>& offsets) {
        std::vector<Extent> extents;
        for (std::size_t i = 0; i < offsets.size(); ++i)
            extents.push_back({offsets[i][0], offsets[i][1], &out.tensors[i]});
        std::sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) {
            return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
        });
        std::int64_t at = 0;
        for (const Extent& extent : extents) {
            if (extent.begin != at) {
                complain(*extent.tensor, "the data of " + extent.tensor->name + " begins at byte " +
                                             std::to_string(extent.begin) + ", where " + std::to_string(at) +
                                             " is due");
                return;
            }
            at = extent.end;
        }
        if (at == data_) return;
        const std::string promise = "its header announces " + std::to_string(at) + " bytes of data";
        const std::string found = std::to_string(data_) + " are there";
        complaints_.push_back({Severity::error,
                               Problem::syntax,
                               {header_.file_name, 0, 0},
                               {},
                               {},
                               {},
                               (data_ < at ? "cut off: " : "not a whole safetensors file: ") + promise + ", " + found});
    }

    void complain(const StoredTensor& tensor, std::string text) {
        const Node* node = header_.root.find(tensor.name);
        const Node* offsets = node->find("data_offsets");
        complaints_.push_back({Severity::error,
                               Problem::syntax,
                               header_.place_of(*offsets),
                               tensor.name + ".data_offsets",
                               offsets->spelled(),
                               {},
                               std::move(text)});
    }

    const Document& header_;
    Bytes data_;  // bytes behind the header
    Diagnostics complaints_;
};

}  // namespace

expected<TensorFile> read_safetensors(const Pieces& file, const std::string& name) {
    const auto refuse = [&](Problem problem, std::string why) { return refuse_header(name, problem, std::move(why)); };
    if (file.size < length_bytes) return refuse(Problem::syntax, "cut off before its header");
    const std::int64_t length = whole(file.read(0, length_bytes), 0, length_bytes, End::little);
    if (length < 0 || length > most_header_bytes)
        return refuse(Problem::file_too_large, "no safetensors file: its header would exceed " +
                                                   std::to_string(most_header_bytes / 1'000'000) + " MB");
    if (length > file.size - length_bytes)
        return refuse(Problem::syntax, "cut off within its header, which has " + std::to_string(length) + " bytes");
    constexpr std::int64_t nodes_of_a_tensor = 12;  // with a shape of five dimensions
    expected<Document> header =
        io::read(file.read(length_bytes, length), name, Format::json,
                 {.bytes = most_header_bytes, .depth = 8, .nodes = nodes_of_a_tensor * most_stored_tensors});
    if (!header) return Unexpected{header.error()};
    if (header->root.map() == nullptr) return refuse(Problem::syntax, "its header is no JSON object");
    if (!header->complaints.empty()) {
        for (Diagnostic& doubled : header->complaints) doubled.severity = Severity::error;
        if (header->complaints.size() > most_complaints) header->complaints.resize(most_complaints);
        return Unexpected{header->complaints};
    }
    return Reader(*header, file.size - length_bytes - length).read();
}

}  // namespace vram::io
