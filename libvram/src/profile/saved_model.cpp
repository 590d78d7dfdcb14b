#include "profile/saved_model.hpp"

#include <algorithm>
#include <cctype>
#include <system_error>

#include "vram/io/file.hpp"

namespace vram::profile {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t most_entries = 10'000;  // of a folder; what a save writes are a few hundred
constexpr std::string_view denoiser_folders[] = {"transformer", "unet"};  // of a pipeline

Unexpected refuse(const fs::path& path, Problem problem, std::string why, std::string nearest = {}) {
    return {{{Severity::error, problem, {path.string(), 0, 0}, {}, {}, std::move(nearest), std::move(why)}}};
}

bool is_file(const fs::path& path) {
    std::error_code error;
    return fs::is_regular_file(path, error);
}

/// The names of a folder's files, sorted.
std::vector<std::string> files_of(const fs::path& folder) {
    std::vector<std::string> names;
    std::error_code error, ignored;
    for (fs::directory_iterator entry(folder, error), end; !error && entry != end && names.size() < most_entries;
         entry.increment(error))
        if (entry->is_regular_file(ignored)) names.push_back(entry->path().filename().string());
    std::sort(names.begin(), names.end());
    return names;
}

/// "model.fp16.safetensors.index.json" → "model.fp16".
std::string_view stem_before(std::string_view name, std::string_view end) {
    name.remove_suffix(end.size());
    return name;
}

/// What save_pretrained calls its weights.
bool is_own_name(std::string_view stem) { return stem == "diffusion_pytorch_model" || stem == "model"; }
/// "model-00001-of-00003.safetensors"
bool is_shard(std::string_view name) {
    const std::size_t of = name.find("-of-");
    return of != std::string_view::npos && of > 0 && std::isdigit(static_cast<unsigned char>(name[of - 1])) != 0;
}
/// One with a variant ("model.fp16") or any other name comes after that without.
bool comes_first(const std::string& a, const std::string& b) {
    return std::pair(!is_own_name(a), a) < std::pair(!is_own_name(b), b);
}

/// The weights of a folder; none, with a note, where none can be read.
expected<io::TensorFile> read_weights(const fs::path& folder, Diagnostics& notes) {
    constexpr std::string_view index_end = ".safetensors.index.json", file_end = ".safetensors";
    std::vector<std::string> indices, files, shards;
    bool has_pickles = false;
    for (const std::string& name : files_of(folder)) {
        if (name.ends_with(index_end))
            indices.emplace_back(stem_before(name, index_end));
        else if (name.ends_with(file_end))
            (is_shard(name) ? shards : files).emplace_back(stem_before(name, file_end));
        has_pickles = has_pickles || io::is_pickle_name(name) || name.ends_with(".bin.index.json");
    }
    const auto note = [&](std::string text) {
        notes.push_back(
            {Severity::note, Problem::file_not_found, {folder.string(), 0, 0}, {}, {}, {}, std::move(text)});
    };
    std::sort(indices.begin(), indices.end(), comes_first);
    std::sort(files.begin(), files.end(), comes_first);
    if (!indices.empty() && (files.empty() || comes_first(indices.front(), files.front())))
        return io::read_tensor_index(folder / (indices.front() + std::string(index_end)));
    if (!files.empty()) {
        if (files.size() > 1 && !is_own_name(files.front()))
            note("of its files of weights, " + files.front() + ".safetensors is read");
        return io::read_tensor_file(folder / (files.front() + std::string(file_end)));
    }
    if (!shards.empty())
        return refuse(folder, Problem::file_not_found,
                      "shards without their index, a file that ends with " + std::string(index_end));
    note(has_pickles ? "its weights are PyTorch pickles, which are never opened: its config.json alone counts"
                     : "no weights are there: its config.json alone counts");
    return io::TensorFile{};
}

/// A class's name as Python allows it; whatever else stands there is none.
std::string name_in(const io::Node* node) {
    if (node == nullptr || node->text() == nullptr) return {};
    const auto allowed = [](char c) {
        return c == '_' || (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
    };
    const std::string& name = *node->text();
    return std::all_of(name.begin(), name.end(), allowed) ? name : std::string();
}

std::string class_of(const io::Node& config) {
    if (std::string name = name_in(config.find("_class_name")); !name.empty()) return name;
    if (const io::Node* list = config.find("architectures"); list != nullptr && list->list() != nullptr)
        if (!list->list()->empty()) return name_in(&list->list()->front());
    return {};
}

/// {"transformer": ["diffusers", "FluxTransformer2DModel"], "unet": [null, null]}: is one there?
bool has_component(const io::Node& index, std::string_view name) {
    const io::Node* node = index.find(name);
    if (node == nullptr || node->list() == nullptr || node->list()->size() != 2) return false;
    return node->list()->back().text() != nullptr;
}

/// What may be meant in a folder that says nothing: a denoiser's own folder, or a file of weights.
std::string nearest_within(const fs::path& folder) {
    for (const std::string_view name : denoiser_folders)
        if (is_file(folder / name / "config.json")) return (folder / name).string();
    for (const std::string& name : files_of(folder))
        if (io::is_tensor_file_name(name)) return (folder / name).string();
    return {};
}

expected<SavedModel> read_folder(const fs::path& folder, Wanted wanted);

expected<SavedModel> read_pipeline(const fs::path& folder, Wanted wanted) {
    const expected<io::Document> index = io::open(folder / "model_index.json");
    if (!index) return Unexpected{index.error()};
    if (wanted == Wanted::component)
        return refuse(folder, Problem::bad_value, "a whole pipeline: name the folder of one of its components",
                      has_component(index->root, "vae") ? (folder / "vae").string() : "");
    for (const std::string_view name : denoiser_folders) {
        if (!has_component(index->root, name)) continue;
        const fs::path part = folder / name;
        if (!is_file(part / "config.json"))
            return refuse(part, Problem::file_not_found, "model_index.json promises this component's config.json");
        expected<SavedModel> model = read_folder(part, wanted);
        if (model && has_component(index->root, "transformer_2"))
            model->notes.push_back({Severity::note,
                                    Problem::unsupported,
                                    {folder.string(), 0, 0},
                                    {},
                                    {},
                                    {},
                                    "of its two experts, transformer is taken, and transformer_2 is not"});
        return model;
    }
    return refuse(folder, Problem::bad_value, "a pipeline without a transformer and a unet");
}

expected<SavedModel> read_folder(const fs::path& folder, Wanted wanted) {
    if (is_file(folder / "model_index.json")) return read_pipeline(folder, wanted);
    if (!is_file(folder / "config.json")) {
        return refuse(folder, Problem::file_not_found, "a folder with neither config.json nor model_index.json",
                      nearest_within(folder));
    }
    expected<io::Document> config = io::open(folder / "config.json");
    if (!config) return Unexpected{config.error()};
    if (!config->root.is(io::Kind::map))
        return refuse(folder / "config.json", Problem::wrong_type, "a config.json holds a map");
    SavedModel model{folder.string(), class_of(config->root), *std::move(config), {}, {}};
    model.notes = model.config.complaints;
    expected<io::TensorFile> weights = read_weights(folder, model.notes);
    if (!weights) return Unexpected{weights.error()};
    model.weights = *std::move(weights);
    return model;
}

}  // namespace

expected<SavedModel> read_saved_model(const fs::path& path, Wanted wanted) {
    if (path.native().find(fs::path::value_type{}) != fs::path::string_type::npos)
        return refuse({}, Problem::file_not_found, "a path holds no NUL");
    std::error_code error;
    if (fs::is_directory(path, error)) return read_folder(path, wanted);
    if ((path.filename() == "config.json" || path.filename() == "model_index.json") && is_file(path))
        return refuse(path, Problem::bad_value, "no weights: name the folder that this file is in",
                      path.has_parent_path() ? path.parent_path().string() : ".");
    expected<io::TensorFile> weights =
        path.string().ends_with(".index.json") ? io::read_tensor_index(path) : io::read_tensor_file(path);
    if (!weights) {
        Diagnostics complaints = weights.error();
        if (!fs::exists(path, error)) complaints.front().text = "there is no such file or folder";
        return Unexpected{std::move(complaints)};
    }
    return SavedModel{path.string(), {}, {}, *std::move(weights), {}};
}

}  // namespace vram::profile
