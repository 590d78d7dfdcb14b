#include <algorithm>
#include <optional>
#include <utility>

#include "io/tensor_header.hpp"

namespace vram::io {
namespace {

constexpr std::int64_t most_keys = 100'000, most_dimensions = 4;
constexpr std::int64_t most_name = 4096;
constexpr int most_depth = 8;  // of arrays in arrays

/// A block of `elements` in `bytes`. Source: ggml.h (enum ggml_type), ggml-common.h (static asserts of each block).
struct BlockType {
    std::int64_t id;
    std::string_view name;
    std::int64_t elements, bytes;
};
constexpr BlockType block_types[] = {
    {0, "F32", 1, 4},         {1, "F16", 1, 2},         {2, "Q4_0", 32, 18},      {3, "Q4_1", 32, 20},
    {6, "Q5_0", 32, 22},      {7, "Q5_1", 32, 24},      {8, "Q8_0", 32, 34},      {9, "Q8_1", 32, 36},
    {10, "Q2_K", 256, 84},    {11, "Q3_K", 256, 110},   {12, "Q4_K", 256, 144},   {13, "Q5_K", 256, 176},
    {14, "Q6_K", 256, 210},   {15, "Q8_K", 256, 292},   {16, "IQ2_XXS", 256, 66}, {17, "IQ2_XS", 256, 74},
    {18, "IQ3_XXS", 256, 98}, {19, "IQ1_S", 256, 50},   {20, "IQ4_NL", 32, 18},   {21, "IQ3_S", 256, 110},
    {22, "IQ2_S", 256, 82},   {23, "IQ4_XS", 256, 136}, {24, "I8", 1, 1},         {25, "I16", 1, 2},
    {26, "I32", 1, 4},        {27, "I64", 1, 8},        {28, "F64", 1, 8},        {29, "IQ1_M", 256, 56},
    {30, "BF16", 1, 2},       {34, "TQ1_0", 256, 54},   {35, "TQ2_0", 256, 66},   {39, "MXFP4", 32, 17},
    {40, "NVFP4", 64, 36},    {41, "Q1_0", 128, 18},
};
const BlockType* block_type(std::int64_t id) {
    const auto* found = std::find_if(std::begin(block_types), std::end(block_types),
                                     [id](const BlockType& type) { return type.id == id; });
    return found == std::end(block_types) ? nullptr : found;
}

// Types of metadata. Source: docs/gguf.md, enum gguf_metadata_value_type.
constexpr std::int64_t value_uint32 = 4, value_string = 8, value_array = 9;
constexpr std::int64_t value_bytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

/// Reads on and on from a file, a window at a time.
class Cursor {
  public:
    explicit Cursor(const Pieces& file) : file_(file) {}

    [[nodiscard]] std::int64_t at() const { return at_; }
    [[nodiscard]] bool failed() const { return failed_; }

    std::int64_t number(std::int64_t size) {
        const std::string_view bytes = take(size);
        return failed_ ? 0 : whole(bytes, 0, static_cast<std::size_t>(size), End::little);
    }
    /// A count, which is unsigned: too large ones fail.
    std::int64_t count(std::int64_t most) {
        const std::int64_t value = number(8);
        if (value < 0 || value > most) failed_ = true;
        return failed_ ? 0 : value;
    }
    std::string text(std::int64_t most) { return std::string(take(count(most))); }
    void skip(std::int64_t bytes) {
        if (bytes < 0 || bytes > std::min(file_.size, most_header_bytes) - at_) failed_ = true;
        if (!failed_) at_ += bytes;
    }

    /// The next bytes, until the next call.
    std::string_view take(std::int64_t size) {
        constexpr std::int64_t window = 1 << 16;
        const std::int64_t begin = at_;
        skip(size);
        if (failed_) return {};
        if (begin < start_ || at_ > start_ + static_cast<std::int64_t>(buffer_.size())) {
            start_ = begin;
            buffer_ = file_.read(begin, std::max(window, size));
        }
        if (at_ > start_ + static_cast<std::int64_t>(buffer_.size())) failed_ = true;  // the file has shrunk
        return failed_ ? std::string_view()
                       : std::string_view(buffer_).substr(static_cast<std::size_t>(begin - start_),
                                                          static_cast<std::size_t>(size));
    }

  private:
    const Pieces& file_;
    std::string buffer_;
    std::int64_t start_ = 0, at_ = 0;
    bool failed_ = false;
};

void skip_value(Cursor& file, std::int64_t type, int depth) {
    if (type < 0 || type >= static_cast<std::int64_t>(std::size(value_bytes)) || depth > most_depth) {
        file.skip(-1);
    } else if (type == value_string) {
        file.skip(file.count(most_header_bytes));
    } else if (type == value_array) {
        const std::int64_t item = file.number(4);
        const std::int64_t items = file.count(most_header_bytes);
        if (item >= 0 && item < static_cast<std::int64_t>(std::size(value_bytes)) && value_bytes[item] > 0)
            file.skip(items * value_bytes[item]);
        else
            for (std::int64_t i = 0; i < items && !file.failed(); ++i) skip_value(file, item, depth + 1);
    } else {
        file.skip(value_bytes[type]);
    }
}

}  // namespace

expected<TensorFile> read_gguf(const Pieces& pieces, const std::string& name) {
    const auto refuse = [&](Problem problem, std::string why) { return refuse_header(name, problem, std::move(why)); };
    Cursor file(pieces);
    const auto broken = [&](const std::string& where) {
        return refuse(Problem::syntax,
                      "a GGUF that is cut off or corrupt in " + where + ", at byte " + std::to_string(file.at()));
    };
    file.skip(4);  // the magic
    const std::int64_t version = file.number(4);
    if (file.failed()) return broken("its first bytes");
    if (version != 2 && version != 3)
        return refuse(Problem::unsupported, version > 0 && version % 0x10000 == 0
                                                ? "a GGUF for big-endian machines"
                                                : "GGUF version " + std::to_string(version) + "; 2 and 3 are known");
    const std::int64_t count = file.count(most_stored_tensors), keys = file.count(most_keys);
    if (file.failed()) return broken("its counts of tensors and keys");

    TensorFile out{TensorFormat::gguf, {}};
    std::int64_t alignment = 32;  // docs/gguf.md: general.alignment
    for (std::int64_t i = 0; i < keys; ++i) {
        const std::string key = file.text(most_name);
        const std::int64_t type = file.number(4);
        if (key == "general.alignment" && type == value_uint32)
            alignment = file.number(4);
        else
            skip_value(file, type, 0);
        if (file.failed()) return broken("key " + std::to_string(i + 1) + " of " + std::to_string(keys));
    }
    if (alignment < 1 || alignment > MiB) return refuse(Problem::out_of_range, "general.alignment is out of range");

    std::vector<std::int64_t> offsets;
    for (std::int64_t i = 0; i < count; ++i) {
        StoredTensor tensor{file.text(most_name), {}, {}, 0, 0};
        const std::int64_t dimensions = file.number(4);
        if (dimensions > most_dimensions) file.skip(-1);
        for (std::int64_t d = 0; d < dimensions && !file.failed(); ++d) tensor.shape.push_back(file.count(INT64_MAX));
        const std::int64_t id = file.number(4), offset = file.count(INT64_MAX);
        if (file.failed()) return broken("tensor " + std::to_string(i + 1) + " of " + std::to_string(count));
        const BlockType* type = block_type(id);
        if (type == nullptr)
            return refuse(Problem::unsupported,
                          tensor.name + " has the type " + std::to_string(id) + ", which is none that ggml has named");
        // The innermost dimension comes first, and is cut into blocks.
        const std::int64_t row = tensor.shape.empty() ? 1 : tensor.shape.front();
        std::reverse(tensor.shape.begin(), tensor.shape.end());
        const std::optional<std::int64_t> numel = numel_of(tensor.shape);
        if (row % type->elements != 0)
            return refuse(Problem::syntax, tensor.name + " has rows of " + std::to_string(row) + ", and blocks of " +
                                               std::string(type->name) + " have " + std::to_string(type->elements));
        if (!numel || __builtin_mul_overflow(*numel / type->elements, type->bytes, &tensor.bytes))
            return refuse(Problem::overflow, tensor.name + " exceeds 63 bits");
        tensor.type = type->name;
        tensor.numel = *numel;
        out.tensors.push_back(std::move(tensor));
        offsets.push_back(offset);
    }
    const std::int64_t data = count == 0 ? pieces.size : round_up(file.at(), alignment);
    for (std::size_t i = 0; i < offsets.size(); ++i) {
        const StoredTensor& tensor = out.tensors[i];
        // Each step is looked at before the next, as an offset is any number.
        if (pieces.size < data || offsets[i] > pieces.size - data || tensor.bytes > pieces.size - data - offsets[i])
            return refuse(Problem::syntax, "cut off: the data of " + tensor.name + " ends behind the file's end");
    }
    return out;
}

}  // namespace vram::io
