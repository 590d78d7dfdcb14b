#include <algorithm>
#include <optional>
#include <utility>

#include "trainers/ai_toolkit/architectures/architecture.hpp"
#include "trainers/ai_toolkit/dataset.hpp"
#include "trainers/ai_toolkit/reading.hpp"
#include "trainers/truthy.hpp"

namespace vram::trainers::ai_toolkit {
namespace {

using io::Node;

/// `dataset_path` wins over the older `folder_path`.
void read_folder(Section& section, DatasetConfig& out) {
    static_cast<void>(section.value("folder_path"));
    bool said = false;
    for (const std::string_view key : {"dataset_path", "folder_path"}) {
        if (said || section.value(key) == nullptr) continue;
        const std::string text = section.fields.text(key, "");
        said = !text.empty();
        out.folder = path_of(section, key, text);
        out.folder_at = {section.fields.place(key), section.fields.path(key)};
    }
    if (!said && section.reading.modelled)
        section.fields.complain("folder_path", Problem::missing_key,
                                section.fields.path("folder_path") + " is missing");
}

/// Where its latents and pixels come from.
void read_caching(Section& section, DatasetConfig& out) {
    // Augmented pixels cannot come from a cache: config_modules.py, DatasetConfig.
    bool augmented = false;
    for (const std::string_view key : {"augments", "augmentations"})
        if (const Node* node = section.value(key); node != nullptr && truthy(*node)) augmented = true;
    const bool in_memory = section.flag("cache_latents", false), on_disk = section.flag("cache_latents_to_disk", false);
    out.cache_latents = !augmented && (in_memory || on_disk);
    const bool along = section.flag("load_image_when_caching_latents", false),
               tensors = section.flag("cache_tensors_to_disk", false);
    out.loads_pixels = along || tensors;
}

/// Of a video that many frames are taken; the architecture's VAE wants n · step + 1.
void read_frames(Section& section, DatasetConfig& out) {
    const std::int64_t frames = section.fields.integer("num_frames", {.min = 1, .max = most_frames}, 1);
    const bool automatic = section.flag("auto_frame_count", false), do_i2v = section.flag("do_i2v", false),
               do_audio = section.flag("do_audio", false);
    const Architecture* architecture = section.reading.architecture;
    if (architecture == nullptr) return;
    const std::int64_t step = architecture->frame_step, rest = step == 0 ? 0 : (frames - 1) % step;
    if (step == 0) {
        for (const auto& [key, said] : {std::pair{"num_frames", frames != 1},
                                        {"auto_frame_count", automatic},
                                        {"do_i2v", do_i2v},
                                        {"do_audio", do_audio}})
            if (said) section.refuse(key, std::string(architecture->title) + " trains on images");
        return;
    }
    out.auto_frame_count = automatic;
    out.do_i2v = do_i2v;
    if (architecture->trains_audio) {
        out.do_audio = do_audio;
        out.fps = section.fields.integer("fps", {.min = 1, .max = most_frames}, 24);
    } else if (do_audio) {
        section.refuse("do_audio", std::string(architecture->title) +
                                       " has no sound: how the loader cuts clips to it is "
                                       "not modelled");
    }
    if (rest != 0 && architecture->drops_frames)
        section.fields.complain("num_frames", Problem::out_of_range,
                                section.fields.path("num_frames") + ": " + std::string(architecture->title) +
                                    " encodes " + std::to_string(frames - rest) + " of " + std::to_string(frames) +
                                    " frames",
                                std::to_string(frames - rest), Severity::warning);
    if (rest == 0 || architecture->drops_frames)
        out.num_frames = frames;
    else
        section.fields.complain("num_frames", Problem::out_of_range,
                                section.fields.path("num_frames") + " of " + std::string(architecture->title) +
                                    " must be a multiple of " + std::to_string(step) + " and one more, not " +
                                    std::to_string(frames),
                                std::to_string((frames - 1 + step / 2) / step * step + 1));
}

/// `controls`: kinds of control images that detectors draw once, before all else, while the models are off the GPU.
/// Source: toolkit/dataloader_mixins.py, setup_controls; toolkit/control_generator.py, ensure_unloaded.
bool read_generated_controls(Section& section, DatasetConfig& out) {
    const Node* node = section.value("controls");
    if (node == nullptr || !truthy(*node)) return false;
    bool found = false;
    for (const std::string& kind : section.parts("controls")) {
        if (kind == "inpaint")
            out.inpaints = true;
        else if (kind == "mask")
            out.masks = true;
        else {
            out.controls.push_back(out.folder + "/_controls");
            found = true;
        }
    }
    section.fields.complain(
        "controls", Problem::unsupported,
        "the detectors that draw controls are not played; they run once, before the training, while "
        "the models are off the GPU",
        {}, Severity::note);
    return found;
}

/// `control_path_1` to `_3` win over `control_path`, a text or a list.
void read_controls(Section& section, DatasetConfig& out) {
    std::string_view said = "control_path";
    std::vector<std::string> numbered;
    for (const std::string_view key : {"control_path_1", "control_path_2", "control_path_3"})
        if (const Node* node = section.value(key); node != nullptr && truthy(*node)) {
            numbered.push_back(path_of(section, key, section.fields.text(key, "")));
            said = key;
        }
    const Node* paths = section.value("control_path");
    if (!numbered.empty()) {
        out.controls = std::move(numbered);
    } else if (paths != nullptr && paths->list() != nullptr) {
        for (const std::string& path : section.fields.texts("control_path").value_or(std::vector<std::string>{}))
            out.controls.push_back(path_of(section, "control_path", path));
    } else if (paths != nullptr && truthy(*paths)) {
        out.controls = {path_of(section, "control_path", section.fields.text("control_path", ""))};
    }
    out.small_controls = !section.flag("full_size_control_images", true);
    if (read_generated_controls(section, out)) said = "controls";
    const Architecture* architecture = section.reading.architecture;
    if (architecture == nullptr) return;
    const auto count = static_cast<std::int64_t>(out.controls.size());
    const std::int64_t most = architecture->most_references, fewest = architecture->fewest_references;
    if (count < fewest)
        section.fields.complain(said, Problem::missing_key,
                                section.fields.path(said) + " is missing: " + std::string(architecture->title) +
                                    " needs a control image beside every item");
    if (count == 0) return;
    if (most == 0)  // the loader reads them, and the model never looks at them
        section.fields.complain(said, Problem::unsupported,
                                std::string(architecture->title) + " takes no control images", {}, Severity::warning);
    else if (count > most)
        section.fields.complain(said, Problem::out_of_range,
                                std::string(architecture->title) + " takes at most " + std::to_string(most) +
                                    " control images, not " + std::to_string(count));
    out.controls.resize(static_cast<std::size_t>(std::min(count, most)));
}

struct Resolution {
    std::int64_t value;
    SaidAt at;
};
/// One number, or a list: then there is a dataset for each.
std::vector<Resolution> read_resolutions(Section& section) {
    const std::string path = section.fields.path("resolution");
    const Node* node = section.fields.node("resolution");
    if (node == nullptr) return {{512, {section.fields.place(), path}}};
    const auto values = section.fields.integers("resolution", {.min = 1, .max = most_side},
                                                {.min = 1, .max = most_datasets}, io::Single::is_a_list);
    std::vector<Resolution> out;
    for (std::size_t i = 0; values && i < values->size(); ++i) {
        const bool in_list = node->list() != nullptr;
        out.push_back({(*values)[i],
                       {section.reading.document.place_of(in_list ? (*node->list())[i] : *node),
                        in_list ? path + "[" + std::to_string(i) + "]" : path}});
    }
    return out;
}

class DatasetsReader {
  public:
    explicit DatasetsReader(Config& config) : config_(config) {}

    void read(Section& section) {
        DatasetConfig out;
        read_folder(section, out);
        out.batch_size = config_.train.batch_size;
        if (section.value("batch_size") != nullptr)
            out.batch_size = section.fields.integer("batch_size", {.min = 1, .max = most_items}, 1);
        out.scale = section.fields.number("scale", {.min = 1e-6, .max = 1e6}, 1.0);
        out.square_crop = section.flag("square_crop", false);
        if (!section.flag("buckets", true)) section.refuse("buckets", "without buckets each image has its own size");
        read_frames(section, out);
        read_controls(section, out);
        if (const std::string type = section.fields.text("type", "image"); type != "image")
            section.refuse("type", "only images are");
        read_caching(section, out);
        for (const std::string_view key : {"mask_path", "alpha_mask"})
            if (const Node* node = section.value(key); node != nullptr && truthy(*node)) out.masks = true;
        if (const Node* node = section.value("inpaint_path"); node != nullptr && truthy(*node)) out.inpaints = true;
        out.prior_reg = section.flag("prior_reg", false);
        caching_ += section.flag("cache_text_embeddings", false) ? 1 : 0;
        add(section, out);
        section.finish();
    }

    /// How many cache text embeddings.
    [[nodiscard]] std::int64_t caching() const noexcept { return caching_; }

  private:
    void add(Section& section, DatasetConfig& dataset) {
        std::vector<Resolution> resolutions = read_resolutions(section);
        const std::int64_t before = entries_;
        entries_ += static_cast<std::int64_t>(resolutions.size());
        if (entries_ > most_datasets) {
            if (before <= most_datasets)  // once
                section.fields.complain(
                    "resolution", Problem::out_of_range,
                    "with each of its resolutions a dataset, there are more than " + std::to_string(most_datasets));
            return;
        }
        for (Resolution& resolution : resolutions) {
            dataset.resolution = resolution.value;
            dataset.resolution_at = std::move(resolution.at);
            config_.datasets.push_back(dataset);
        }
    }

    Config& config_;
    std::int64_t caching_ = 0, entries_ = 0;
};

/// Where the trainer stops at control images, or without them.
void check_controls(Section& process, const Config& config) {
    const Architecture* architecture = process.reading.architecture;
    if (architecture == nullptr || !process.reading.modelled) return;
    const std::vector<DatasetConfig>& all = config.datasets;
    const auto fails = [](const DatasetConfig& one) {
        return one.cache_latents && !one.loads_pixels && !one.controls.empty();
    };
    if (architecture->controls_need_pixels && std::any_of(all.begin(), all.end(), fails))
        process.fields.complain("datasets", Problem::conflict,
                                "the trainer stops: " + std::string(architecture->title) +
                                    " fits a control image to the pixels, which cached latents come without; "
                                    "load_image_when_caching_latents brings them");
    if (const Node* train = process.value("train");
        architecture->prompts_need_controls && !config.train.validation.empty() && train != nullptr)
        process.reading.complain_at(*train->find("validation_config"), process.fields.path("train.validation_config"),
                                    Problem::conflict,
                                    "the trainer stops: it encodes the prompts of validation_config without a control "
                                    "image, which " +
                                        std::string(architecture->title) + " needs");
}

}  // namespace

void read_datasets(Section& process, Config& config) {
    const Node* node = process.value("datasets");
    const io::List* list = node != nullptr ? node->list() : nullptr;
    const std::string path = process.fields.path("datasets");
    if (node != nullptr && list == nullptr) {
        process.reading.complain_at(*node, path, Problem::wrong_type,
                                    path + " must be a list of datasets, not " + node->spelled());
        return;
    }
    if (list == nullptr || list->empty()) {
        if (process.reading.modelled)
            process.fields.complain("datasets", Problem::missing_key, path + " must be a list of datasets");
        return;
    }
    if (list->size() > static_cast<std::size_t>(most_datasets)) {
        process.fields.complain("datasets", Problem::out_of_range,
                                path + " must hold at most " + std::to_string(most_datasets) + " datasets, not " +
                                    std::to_string(list->size()));
        return;
    }
    DatasetsReader reader(config);
    for (std::size_t i = 0; i < list->size(); ++i) {
        const std::string item = path + "[" + std::to_string(i) + "]";
        if (process.reading.gives_up((*list)[i], item)) return;
        Section section = process.item((*list)[i], item, SectionId::dataset);
        if (!section.fields.is_absent()) reader.read(section);
    }
    // The loader brings no pixels beside cached latents, and where all are cached the VAE is on the host.
    if (const Architecture* architecture = process.reading.architecture;
        architecture != nullptr && architecture->needs_pixels && !config.datasets.empty()) {
        const auto fails = [](const DatasetConfig& dataset) { return dataset.cache_latents && !dataset.loads_pixels; };
        const auto cached = [](const DatasetConfig& dataset) { return dataset.cache_latents; };
        const std::vector<DatasetConfig>& all = config.datasets;
        if (std::any_of(all.begin(), all.end(), fails) || std::all_of(all.begin(), all.end(), cached))
            process.fields.complain("datasets", Problem::conflict,
                                    "the trainer fails with cached latents: " + std::string(architecture->title) +
                                        " encodes the first frame in each step");
    }
    check_controls(process, config);
    drop_repeated(config.datasets);
    if (config.train.cache_text_embeddings) return;
    if (reader.caching() == static_cast<std::int64_t>(list->size()))
        config.train.cache_text_embeddings = true;
    else if (reader.caching() > 0)
        process.fields.complain("datasets", Problem::conflict,
                                "the trainer refuses cache_text_embeddings in some datasets and not in all");
}

}  // namespace vram::trainers::ai_toolkit
