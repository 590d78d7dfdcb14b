#include <algorithm>
#include <array>
#include <filesystem>
#include <set>
#include <utility>

#include "trainers/named_model.hpp"
#include "trainers/sd_scripts/dataset.hpp"
#include "trainers/sd_scripts/reading.hpp"
#include "vram/io/fields.hpp"
#include "vram/io/file.hpp"

namespace vram::trainers::sd_scripts {
namespace {

namespace fs = std::filesystem;

// ConfigSanitizer: keys that move no memory. Any other one is an error of voluptuous.
constexpr std::string_view subset_keys[] = {"face_crop_aug_range",
                                            "flip_aug",
                                            "keep_tokens",
                                            "keep_tokens_separator",
                                            "secondary_separator",
                                            "caption_separator",
                                            "enable_wildcard",
                                            "token_warmup_min",
                                            "caption_prefix",
                                            "caption_suffix",
                                            "custom_attributes",
                                            "resize_interpolation",
                                            "caption_dropout_every_n_epochs",
                                            "caption_extension",
                                            "class_tokens",
                                            "cache_info"};
constexpr std::string_view dataset_keys[] = {"validation_seed", "network_multiplier", "resize_interpolation"};

void say(io::Fields& fields, std::string_view key, Said& said) {
    if (fields.has(key)) said.insert_or_assign(std::string(key), SaidAt{fields.place(key), fields.path(key)});
}

/// What general, a dataset and a subset may all say.
void read_pictures(io::Fields& fields, PictureSettings& out, Said& said, std::int64_t& num_repeats) {
    for (const std::string_view key : {"color_aug", "random_crop"}) say(fields, key, said);
    for (const std::string_view key : caption_changes) say(fields, key, said);
    num_repeats = fields.integer("num_repeats", {-most_repeats, most_repeats}, num_repeats);
    out.color_aug = fields.boolean("color_aug", out.color_aug);
    out.random_crop = fields.boolean("random_crop", out.random_crop);
    if (const std::optional<bool> shuffles = fields.boolean(caption_changes[0])) out.changes[0] = *shuffles ? 1 : 0;
    for (std::size_t i = 1; i < caption_changes.size(); ++i)
        out.changes[i] = fields.number(caption_changes[i], io::NumberRange{}, out.changes[i]);
    fields.ignore(subset_keys);
}

/// What general and a dataset may say.
void read_settings(io::Fields& fields, DatasetSettings& out, Said& said, std::int64_t& num_repeats) {
    for (const std::string_view key : {"resolution", "bucket_reso_steps"}) say(fields, key, said);
    if (const auto sides = fields.integers("resolution", {64, most_side}, {2, 2}, io::Single::is_a_list)) {
        out.width = sides->front();
        out.height = sides->back();
    }
    out.batch_size = fields.integer("batch_size", {1, most_items}, out.batch_size);
    out.enable_bucket = fields.boolean("enable_bucket", out.enable_bucket);
    out.bucket_no_upscale = fields.boolean("bucket_no_upscale", out.bucket_no_upscale);
    out.min_bucket_reso = fields.integer("min_bucket_reso", {1, most_side}, out.min_bucket_reso);
    out.max_bucket_reso = fields.integer("max_bucket_reso", {1, most_side}, out.max_bucket_reso);
    out.bucket_reso_steps = fields.integer("bucket_reso_steps", {1, most_side}, out.bucket_reso_steps);
    if (const double split = fields.number("validation_split", io::NumberRange{}, 0.0); split > 0 && split <= 1)
        fields.complain("validation_split", Problem::unsupported,
                        "validation_split is not modelled: part of the pictures is predicted without gradients, too");
    fields.ignore(dataset_keys);
    read_pictures(fields, out.pictures, said, num_repeats);
}

/// Where the trainer is started, or beside the file.
fs::path located(const io::Document& document, const std::string& word) {
    if (word.empty() || is_there(word)) return word;
    const fs::path beside = (fs::path(document.file_name).parent_path() / word).lexically_normal();
    return is_there(beside) ? beside : fs::path(word);
}

class DatasetFile {
  public:
    DatasetFile(const Config& config, const io::Document& file, Diagnostics& complaints)
        : config_(config), file_(file), complaints_(complaints) {}

    std::vector<Dataset> read(Dataset defaults) {
        io::Fields root(file_, complaints_);
        defaults.said_in = file_.file_name;
        std::int64_t repeats = config_.arguments.dataset_repeats;
        io::Fields general = root.map("general");
        read_settings(general, defaults.settings, defaults.said, repeats);
        general.finish();
        std::vector<Dataset> out;
        if (!root.require("datasets")) return out;
        for (io::Fields& one : root.maps("datasets", {1, most_datasets}))
            out.push_back(dataset(one, defaults, repeats));
        root.finish();
        return out;
    }

  private:
    Dataset dataset(io::Fields& fields, Dataset out, std::int64_t repeats) {
        read_settings(fields, out.settings, out.said, repeats);
        if (SaidAt& at = out.said.at("resolution"); out.settings.width == 0 && at.place.file != file_.file_name)
            at = {fields.place("resolution"), fields.path("resolution")};  // where it is missing
        for (io::Fields& one : fields.maps("subsets", {0, most_datasets})) {
            std::int64_t own = repeats;
            Subset subset;
            subset.pictures = out.settings.pictures;
            subset.said = out.said;
            read_pictures(one, subset.pictures, subset.said, own);
            subset.num_repeats = own;
            subset.is_reg = one.boolean("is_reg", false);
            if (one.boolean("alpha_mask", false))
                one.complain("alpha_mask", Problem::unsupported,
                             "alpha_mask is not modelled: each picture's alpha channel weighs the loss");
            if (config_.said.find("masked_loss") == nullptr && one.has("conditioning_data_dir"))
                one.complain("conditioning_data_dir", Problem::unsupported,
                             "conditioning_data_dir is not modelled: a picture comes along beside each one", {});
            one.ignore(std::array<std::string_view, 2>{"metadata_file", "conditioning_data_dir"});
            subset.image_dir =
                one.has("metadata_file") ? one.text("image_dir", "") : one.text("image_dir", io::required);
            subset.image_dir = located(file_, subset.image_dir).string();
            subset.at = {one.place("image_dir"), one.path("image_dir")};
            one.finish();
            if (subset.num_repeats > 0) out.subsets.push_back(std::move(subset));
        }
        fields.finish();
        return out;
    }

    const Config& config_;
    const io::Document& file_;
    Diagnostics& complaints_;
};

/// generate_dreambooth_subsets_config_by_subdirs
void subdirectories(const std::string& folder, const SaidAt& at, bool is_reg, Dataset& out) {
    std::error_code error;
    std::vector<Subset> found;
    for (fs::directory_iterator walk(folder, fs::directory_options::skip_permission_denied, error);
         !error && walk != fs::directory_iterator(); walk.increment(error)) {
        std::error_code unseen;
        if (!walk->is_directory(unseen)) continue;
        const std::string name = walk->path().filename().string();
        const std::optional<std::int64_t> repeats = integer_of(name.substr(0, name.find('_')));
        if (repeats.value_or(0) < 1) continue;
        found.push_back(
            {walk->path().string(), at, std::min(*repeats, most_repeats), is_reg, out.settings.pictures, out.said});
    }
    std::sort(found.begin(), found.end(), [](const Subset& a, const Subset& b) { return a.image_dir < b.image_dir; });
    found.resize(std::min(found.size(), static_cast<std::size_t>(most_datasets)));
    out.subsets.insert(out.subsets.end(), found.begin(), found.end());
}

void note(Diagnostics& notes, const SaidAt& at, const std::string& found, std::string text) {
    notes.push_back({Severity::note, Problem::no_data, at.place, at.key, found, {}, std::move(text)});
}

}  // namespace

std::vector<Dataset> read_datasets(const io::Document& document, const Config& config, Diagnostics& complaints,
                                   Diagnostics& notes) {
    const Arguments& arguments = config.arguments;
    Dataset only;
    only.settings = arguments.dataset;
    for (const std::string_view key : {"resolution", "bucket_reso_steps", "color_aug", "random_crop"})
        only.said.emplace(key, config.at(document, key));
    for (const std::string_view key : caption_changes) only.said.emplace(key, config.at(document, key));
    if (!arguments.dataset_config.empty()) {
        const SaidAt at = config.at(document, "dataset_config");
        const fs::path path = located(document, arguments.dataset_config);
        if (is_there(path)) {
            const expected<io::Document> file = io::open(path);
            if (!file) {
                complaints.insert(complaints.end(), file.error().begin(), file.error().end());
                return {};
            }
            for (const Diagnostic& doubled : file->complaints) notes.push_back(doubled);
            return DatasetFile(config, *file, complaints).read(only);
        }
        if (only.settings.width == 0) {
            complaints.push_back({Severity::error,
                                  Problem::file_not_found,
                                  at.place,
                                  at.key,
                                  arguments.dataset_config,
                                  {},
                                  "there is no " + arguments.dataset_config + " here, which says the resolution"});
            return {};
        }
        note(notes, at, arguments.dataset_config,
             arguments.dataset_config + " is no file here: sizes and batches are taken from " +
                 only.said.at("resolution").key + " and what stands beside it");
        return {only};
    }
    for (const auto& [name, folder] :
         {std::pair{"train_data_dir", &arguments.train_data_dir}, {"reg_data_dir", &arguments.reg_data_dir}}) {
        if (folder->empty()) continue;
        const SaidAt at = config.at(document, name);
        const fs::path path = located(document, *folder);
        std::error_code error;
        if (is_there(path) && fs::is_directory(path, error))
            subdirectories(path.string(), at, std::string_view(name) == "reg_data_dir", only);
        else
            note(notes, at, *folder, *folder + " is no folder here");
    }
    return {only};
}

void check_datasets(const io::Document& document, const Config& config, const std::vector<Dataset>& datasets,
                    Diagnostics& complaints, Diagnostics& notes) {
    const Arguments& arguments = config.arguments;
    const auto complain = [&](Problem problem, const SaidAt& at, std::string found, std::string nearest,
                              std::string text) {
        const auto is_told = [&](const Diagnostic& told) { return told.place == at.place && told.key == at.key; };
        if (std::any_of(complaints.begin(), complaints.end(), is_told)) return;  // of another dataset
        complaints.push_back(
            {Severity::error, problem, at.place, at.key, std::move(found), std::move(nearest), std::move(text)});
    };
    for (const Dataset& dataset : datasets) {
        const DatasetSettings& said = dataset.settings;
        const bool is_sized = said.width != 0 && said.height != 0;
        if (!is_sized && !dataset.said_in.empty())  // of the file itself there is a complaint
            complain(Problem::missing_key, dataset.said.at("resolution"), {}, {}, "a dataset has no resolution");
        std::vector<std::pair<const PictureSettings*, const Said*>> all;
        if (dataset.subsets.empty()) all.emplace_back(&said.pictures, &dataset.said);
        for (const Subset& subset : dataset.subsets) all.emplace_back(&subset.pictures, &subset.said);
        for (const auto& [pictures, at] : all) {
            for (const auto& [name, on] :
                 {std::pair{"color_aug", pictures->color_aug}, {"random_crop", pictures->random_crop}})
                if (arguments.cache_latents && on)
                    complain(Problem::conflict, at->find(name)->second, "true", "false",
                             "the trainer stops: with " + std::string(name) +
                                 " pictures change, and cache_latents keeps them");
            for (std::size_t i = 0; i < caption_changes.size(); ++i)
                if (arguments.cache_text_encoder_outputs && pictures->changes[i] > 0)
                    complain(Problem::conflict, at->find(caption_changes[i])->second, {}, {},
                             "the trainer stops: with " + std::string(caption_changes[i]) +
                                 " captions change, and cache_text_encoder_outputs keeps them");
        }
        if (!said.enable_bucket) continue;
        const std::int64_t steps = said.bucket_reso_steps, divisor = arguments.script->bucket_reso_steps;
        if (steps % divisor != 0)
            complain(Problem::conflict, dataset.said.at("bucket_reso_steps"), std::to_string(steps),
                     std::to_string(std::max(divisor, (steps + divisor / 2) / divisor * divisor)),
                     "the trainer stops: " + std::string(arguments.script->file) + " wants bucket_reso_steps that " +
                         std::to_string(divisor) + " divides, not " + std::to_string(steps));
        // adjust_min_max_bucket_reso_by_steps
        const std::int64_t low = said.min_bucket_reso - said.min_bucket_reso % steps;
        const std::int64_t high = (said.max_bucket_reso + steps - 1) / steps * steps;
        if (is_sized && std::min(said.width, said.height) < low)
            complain(Problem::conflict, dataset.said.at("resolution"), {}, {},
                     "the trainer stops: min_bucket_reso " + std::to_string(low) + " is above the resolution");
        if (is_sized && std::max(said.width, said.height) > high)
            complain(Problem::conflict, dataset.said.at("resolution"), {}, {},
                     "the trainer stops: max_bucket_reso " + std::to_string(high) + " is below the resolution");
    }
    // The batch size of a dataset file wins over the command line's.
    const bool is_said = config.said.find("train_batch_size") != nullptr;
    for (const Dataset& dataset : datasets)
        if (is_said && !dataset.said_in.empty() && dataset.settings.batch_size != arguments.dataset.batch_size) {
            const SaidAt at = config.at(document, "train_batch_size");
            notes.push_back({Severity::note,
                             Problem::conflict,
                             at.place,
                             at.key,
                             std::to_string(arguments.dataset.batch_size),
                             {},
                             dataset.said_in + " says batch_size " + std::to_string(dataset.settings.batch_size) +
                                 ", and that counts"});
            break;
        }
}

}  // namespace vram::trainers::sd_scripts
