#include "vram/io/tensor_file.hpp"

#include <algorithm>
#include <set>
#include <span>
#include <unordered_set>

#include "io/tensor_header.hpp"
#include "vram/io/file.hpp"

namespace vram::io {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t most_complaints = 20;

/// What a whole file or all shards must hold to: TensorFile's promise.
expected<TensorFile> finished(TensorFile file, const std::string& name) {
    std::int64_t numel = 0;
    Bytes bytes = 0;
    std::unordered_set<std::string_view> names;
    for (const StoredTensor& tensor : file.tensors) {
        if (__builtin_add_overflow(numel, tensor.numel, &numel) || __builtin_add_overflow(bytes, tensor.bytes, &bytes))
            return refuse_header(name, Problem::overflow, "its tensors together exceed 63 bits");
        if (!names.insert(tensor.name).second)
            return refuse_header(name, Problem::duplicate_key, tensor.name + " is there twice");
    }
    if (static_cast<std::int64_t>(file.tensors.size()) > most_stored_tensors)
        return refuse_header(name, Problem::file_too_large,
                             "more than " + std::to_string(most_stored_tensors) + " tensors");
    return file;
}

constexpr std::string_view safetensors_ends[] = {".safetensors", ".sft"};
constexpr std::string_view pickle_ends[] = {".bin", ".ckpt", ".pt", ".pth"};

bool ends_with_any(std::string_view name, std::span<const std::string_view> ends) {
    return std::any_of(ends.begin(), ends.end(), [&](std::string_view end) { return name.ends_with(end); });
}

/// torch.save writes a zip, before 1.6 a bare pickle of protocol 2.
bool is_pickle(std::string_view magic, std::string_view name) {
    return magic.starts_with("PK\x03\x04") || magic.starts_with("\x80\x02") || is_pickle_name(name);
}

expected<TensorFile> read_pieces(const Pieces& file, const std::string& name) {
    const std::string magic = file.read(0, 9);
    if (magic.empty()) return refuse_header(name, Problem::empty_file, "an empty file");
    if (magic.starts_with("GGUF")) return read_gguf(file, name);
    if (magic.starts_with("version "))
        return refuse_header(name, Problem::unsupported,
                             "a Git LFS pointer and not the file itself, which `git lfs pull` brings");
    if (ends_with_any(name, safetensors_ends) || (magic.size() == 9 && magic[8] == '{'))
        return read_safetensors(file, name);
    if (is_pickle(magic, name))
        return refuse_header(name, Problem::unsupported,
                             "a PyTorch pickle, which runs code when it is opened and so never is: convert it to "
                             "safetensors");
    return refuse_header(name, Problem::unsupported, "neither safetensors nor GGUF");
}

/// A name in the index's own folder.
bool is_plain_name(const std::string& name) {
    return !name.empty() && name != "." && name != ".." &&
           name.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
}

/// The tensors of each shard, as the index spreads them.
struct Shards {
    const Document& index;
    const fs::path folder;
    Diagnostics complaints;

    void complain(const Member& at, Problem problem, std::string text) {
        if (complaints.size() < most_complaints)
            complaints.push_back({Severity::error,
                                  problem,
                                  index.place_of(at.value),
                                  "weight_map." + at.key,
                                  at.value.spelled(),
                                  {},
                                  std::move(text)});
    }

    void read_shard(const Member& first, const std::string& shard, TensorFile& out) {
        if (!is_plain_name(shard)) {
            complain(first, Problem::bad_value, "a shard is a file beside the index, not " + shard);
            return;
        }
        const expected<TensorFile> read = read_tensor_file(folder / shard);
        if (read) {
            out.tensors.insert(out.tensors.end(), read->tensors.begin(), read->tensors.end());
        } else if (read.error().front().problem == Problem::file_not_found) {
            complain(first, Problem::file_not_found, "the shard " + shard + " is not there");
        } else {
            complaints.insert(complaints.end(), read.error().begin(), read.error().end());
        }
    }
};

}  // namespace

bool is_tensor_file_name(std::string_view name) {
    return ends_with_any(name, safetensors_ends) || name.ends_with(".gguf");
}
bool is_pickle_name(std::string_view name) { return ends_with_any(name, pickle_ends); }

std::string_view to_text(TensorFormat format) {
    switch (format) {
        case TensorFormat::safetensors: return "safetensors";
        case TensorFormat::gguf: return "GGUF";
    }
    return "?";
}

Unexpected refuse_header(const std::string& name, Problem problem, std::string why) {
    return {{{Severity::error, problem, {name, 0, 0}, {}, {}, {}, std::move(why)}}};
}

std::optional<std::int64_t> numel_of(const std::vector<std::int64_t>& shape) {
    std::int64_t numel = 1;
    for (const std::int64_t size : shape)
        if (__builtin_mul_overflow(numel, size, &numel)) return {};
    return numel;
}

std::vector<StoredType> by_type(const std::vector<StoredTensor>& tensors) {
    std::vector<StoredType> out;
    for (const StoredTensor& tensor : tensors) {
        auto type = std::find_if(out.begin(), out.end(), [&](const StoredType& t) { return t.type == tensor.type; });
        if (type == out.end()) type = out.insert(out.end(), {tensor.type, 0, 0, 0});
        ++type->tensors;
        type->numel += tensor.numel;
        type->bytes += tensor.bytes;
    }
    std::stable_sort(out.begin(), out.end(),
                     [](const StoredType& a, const StoredType& b) { return a.bytes > b.bytes; });
    return out;
}

expected<TensorFile> tensor_file_of(std::string_view bytes, std::string_view name) {
    expected<TensorFile> file = read_pieces(pieces_of_bytes(bytes), std::string(name));
    return file ? finished(*std::move(file), std::string(name)) : file;
}

expected<TensorFile> read_tensor_file(const fs::path& path) {
    const expected<Pieces> pieces = pieces_of_file(path);
    if (!pieces) return Unexpected{pieces.error()};
    expected<TensorFile> file = read_pieces(*pieces, path.string());
    return file ? finished(*std::move(file), path.string()) : file;
}

expected<TensorFile> read_tensor_index(const fs::path& path) {
    const expected<Document> index =
        open(path, {.bytes = most_header_bytes, .depth = 8, .nodes = 2 * most_stored_tensors});
    if (!index) return Unexpected{index.error()};
    const Node* weights = index->root.find("weight_map");
    if (weights == nullptr || weights->map() == nullptr)
        return refuse_header(path.string(), Problem::missing_key, "its weight_map is missing");
    Shards shards{*index, path.parent_path(), {}};
    TensorFile out;
    std::set<std::string> seen;
    for (const Member& member : *weights->map()) {
        const std::string* shard = member.value.text();
        if (shard == nullptr)
            shards.complain(member, Problem::wrong_type, "a shard's name must be a text");
        else if (seen.insert(*shard).second && static_cast<std::int64_t>(seen.size()) <= most_shards)
            shards.read_shard(member, *shard, out);
        if (static_cast<std::int64_t>(out.tensors.size()) > most_stored_tensors)
            return finished(std::move(out), path.string());
        if (shards.complaints.size() >= most_complaints) return Unexpected{std::move(shards.complaints)};
    }
    if (static_cast<std::int64_t>(seen.size()) > most_shards)
        return refuse_header(path.string(), Problem::file_too_large,
                             "more than " + std::to_string(most_shards) + " shards");
    if (shards.complaints.empty()) {
        std::unordered_set<std::string_view> names;
        for (const StoredTensor& tensor : out.tensors) names.insert(tensor.name);
        for (const Member& member : *weights->map())
            if (!names.contains(member.key))
                shards.complain(member, Problem::missing_key,
                                "the shard " + *member.value.text() + " has no " + member.key);
    }
    if (!shards.complaints.empty()) return Unexpected{std::move(shards.complaints)};
    return finished(std::move(out), path.string());
}

}  // namespace vram::io
