#include "trainers/ai_toolkit/dataset.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <tuple>

#include "base/text.hpp"
#include "trainers/ai_toolkit/architectures/architecture.hpp"
#include "trainers/ai_toolkit/buckets.hpp"
#include "trainers/ai_toolkit/reading.hpp"
#include "vram/io/image_header.hpp"

namespace vram::trainers::ai_toolkit {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 4> image_extensions{".jpg", ".jpeg", ".png", ".webp"};

bool is_one_of(const fs::path& path, std::span<const std::string_view> extensions) {
    const std::string extension = lower(path.extension().string());
    return std::find(extensions.begin(), extensions.end(), extension) != extensions.end();
}
bool is_image(const fs::path& path) { return is_one_of(path, image_extensions); }
bool is_clip(const fs::path& path) {
    constexpr std::array<std::string_view, 8> extensions{".mp4", ".avi", ".mov", ".webm",
                                                         ".mkv", ".wmv", ".m4v", ".flv"};
    return is_one_of(path, extensions);
}
/// A dataset that looks for videos, too; its images are videos of one frame.
bool is_video(const DatasetConfig& dataset) { return dataset.num_frames > 1 || dataset.auto_frame_count; }

bool is_hidden(const fs::path& path) { return path.filename().string().starts_with('.'); }

/// What a folder holds. `files` are sorted; `cut` tells that there are more than are looked at.
struct Listing {
    std::vector<fs::path> files;  // images
    std::int64_t clips = 0;
    bool cut = false;
};
Listing list(const fs::path& folder) {
    Listing out;
    std::error_code error;
    fs::recursive_directory_iterator walk(folder, fs::directory_options::skip_permission_denied, error);
    std::int64_t entries = 0;
    for (; !error && walk != fs::recursive_directory_iterator(); walk.increment(error)) {
        const auto found = static_cast<std::int64_t>(out.files.size()) + out.clips;
        if (++entries > 10 * most_files || found >= most_files) {
            out.cut = true;
            break;
        }
        std::error_code unseen;
        const fs::path& path = walk->path();
        if (walk->is_directory(unseen)) {
            if (is_hidden(path)) walk.disable_recursion_pending();
        } else if (!is_hidden(path) && path.parent_path().filename() != "_controls") {
            if (is_image(path)) out.files.push_back(path);
            if (is_clip(path)) ++out.clips;
        }
    }
    std::sort(out.files.begin(), out.files.end());
    return out;
}

class Measure {
  public:
    Measure(const Architecture& architecture, Diagnostics& complaints, Diagnostics& notes)
        : architecture_(architecture), complaints_(complaints), notes_(notes) {}

    std::vector<job::Batch> of(const std::vector<DatasetConfig>& datasets) {
        for (const DatasetConfig& dataset : datasets) {
            std::error_code error;
            if (!fs::is_directory(fs::path(dataset.folder), error)) {
                guess(dataset);
                continue;
            }
            const Folder& folder = measured(dataset);
            const bool has_clips = folder.clips > 0 && is_video(dataset);
            DatasetConfig of_images = dataset;
            of_images.num_frames = 1;
            if (has_clips) guess(dataset);
            if (folder.images.empty() && !has_clips)
                complaints_.push_back({Severity::error,
                                       Problem::no_data,
                                       dataset.folder_at.place,
                                       dataset.folder_at.key,
                                       dataset.folder,
                                       {},
                                       dataset.folder + " holds no readable image"});
            const Size cropped = dataset.square_crop && !folder.images.empty() ? square(dataset) : Size{};
            for (const Item& item : folder.images)
                add(of_images, dataset.square_crop ? cropped : bucket(dataset, {item.image[0], item.image[1]}),
                    item.controls);
        }
        if (guesses_ > most_guess_notes)
            notes_.push_back({Severity::note,
                              Problem::no_data,
                              datasets.front().folder_at.place,
                              {},
                              {},
                              {},
                              std::to_string(guesses_ - most_guess_notes) +
                                  " more datasets have no folder here, and are taken for their heaviest buckets"});
        return std::move(batches_);
    }

  private:
    /// An image, and its control images where they are measured; one of width 0 is as large as the item.
    struct Item {
        job::PictureSize image;
        std::vector<job::PictureSize> controls;
        auto operator<=>(const Item&) const = default;
    };
    static constexpr job::PictureSize own_size{0, 0};

    /// setup_buckets
    [[nodiscard]] Size bucket(const DatasetConfig& dataset, Size image) const {
        const std::int64_t bucket_step = architecture_.bucket_step;
        constexpr double most = 1 << 30;  // their product fits
        const Size scaled{static_cast<std::int64_t>(std::min(most, static_cast<double>(image.width) * dataset.scale)),
                          static_cast<std::int64_t>(std::min(most, static_cast<double>(image.height) * dataset.scale))};
        if (scaled.width < 1 || scaled.height < 1) return {bucket_step, bucket_step};
        return bucket_of(scaled, dataset.resolution, bucket_step);
    }

    Size square(const DatasetConfig& dataset) {
        const std::int64_t step = architecture_.divisible_by;
        if (dataset.resolution % step != 0)
            complaints_.push_back({Severity::error, Problem::out_of_range, dataset.resolution_at.place,
                                   dataset.resolution_at.key, std::to_string(dataset.resolution),
                                   std::to_string(std::max(step, (dataset.resolution + step / 2) / step * step)),
                                   "with square_crop " + std::string(architecture_.title) +
                                       " needs a resolution that " + std::to_string(step) + " divides, not " +
                                       std::to_string(dataset.resolution)});
        return {dataset.resolution, dataset.resolution};
    }

    void guess(const DatasetConfig& dataset) {
        const Size size =
            dataset.square_crop ? square(dataset) : heaviest_bucket(dataset.resolution, architecture_.bucket_step);
        const std::string folder = dataset.folder;
        if (dataset.auto_frame_count) {
            complaints_.push_back({Severity::error,
                                   Problem::no_data,
                                   dataset.folder_at.place,
                                   dataset.folder_at.key,
                                   folder,
                                   {},
                                   "with auto_frame_count the clips of " + folder +
                                       " say how many frames there are, and they are not read: say it "
                                       "with data.frames"});
            return;
        }
        add(dataset, size, std::vector(dataset.controls.size(), own_size));
        if (++guesses_ > most_guess_notes) return;
        std::error_code error;
        const std::string what = fs::is_directory(fs::path(folder), error) ? "the videos of " + folder + " are not read"
                                                                           : folder + " is no folder here";
        const std::string frames =
            dataset.num_frames > 1 ? " and " + std::to_string(dataset.num_frames) + " frames" : "";
        const std::string controls = dataset.controls.empty() ? "" : ", and control images as large";
        notes_.push_back({Severity::note,
                          Problem::no_data,
                          dataset.folder_at.place,
                          dataset.folder_at.key,
                          dataset.folder,
                          {},
                          what + ": taken for " + (frames.empty() ? "images" : "videos") + " of " +
                              std::to_string(size.width) + "x" + std::to_string(size.height) + frames +
                              ", the heaviest bucket at " + std::to_string(dataset.resolution) + controls});
    }

    /// Of each control folder the image of this name, as ControlFileItemDTOMixin looks for it.
    std::vector<job::PictureSize> controls_of(const DatasetConfig& dataset, const fs::path& file) {
        std::vector<job::PictureSize> out;
        for (const std::string& folder : dataset.controls) {
            std::error_code error;
            if (!architecture_.use_raw_control_images || !fs::is_directory(fs::path(folder), error)) {
                out.push_back(own_size);
                continue;
            }
            for (const std::string_view extension : image_extensions) {
                fs::path control = fs::path(folder) / file.stem();
                control += extension;
                if (!fs::exists(control, error)) continue;
                const expected<io::ImageSize> size = io::image_size(control);
                out.push_back(size ? job::PictureSize{size->width, size->height} : own_size);
                break;
            }
        }
        return out;
    }

    void note_controls(const DatasetConfig& dataset) {
        if (!architecture_.use_raw_control_images || dataset.small_controls) return;
        for (const std::string& folder : dataset.controls) {
            std::error_code error;
            if (fs::is_directory(fs::path(folder), error) || !noted_.insert(folder).second) continue;
            notes_.push_back({Severity::note,
                              Problem::no_data,
                              dataset.folder_at.place,
                              dataset.folder_at.key,
                              folder,
                              {},
                              folder + " is no folder here: its control images are taken to be as large as the items"});
        }
    }

    /// What the folder's images are, each size once, and how many videos stand beside them.
    struct Folder {
        std::vector<Item> images;
        std::int64_t clips = 0;
    };
    const Folder& measured(const DatasetConfig& dataset) {
        const auto [at, fresh] = measured_.try_emplace({dataset.folder, dataset.controls});
        if (!fresh) return at->second;
        note_controls(dataset);
        const Listing listing = list(dataset.folder);
        at->second.clips = listing.clips;
        std::int64_t bad = 0, alone = 0;
        std::string first, first_alone;
        std::set<Item> seen;
        for (const fs::path& file : listing.files) {
            if (const expected<io::ImageSize> size = io::image_size(file)) {
                Item item{{size->width, size->height}, controls_of(dataset, file)};
                if (static_cast<std::int64_t>(item.controls.size()) < architecture_.fewest_references) {
                    if (++alone == 1) first_alone = file.filename().string();
                    item.controls.resize(static_cast<std::size_t>(architecture_.fewest_references), own_size);
                }
                if (seen.insert(item).second) at->second.images.push_back(std::move(item));
            } else if (++bad == 1) {
                first = file.filename().string();
            }
        }
        const auto& [place, key] = dataset.folder_at;
        if (bad > 0)
            notes_.push_back({Severity::warning,
                              Problem::no_data,
                              place,
                              key,
                              dataset.folder,
                              {},
                              std::to_string(bad) + " files of " + dataset.folder + " are no readable images, " +
                                  first + " the first"});
        if (alone > 0)
            notes_.push_back({Severity::warning,
                              Problem::no_data,
                              place,
                              key,
                              dataset.folder,
                              {},
                              std::to_string(alone) + " images of " + dataset.folder +
                                  " have no control image, at which the trainer stops, " + first_alone +
                                  " the first: they are taken to have one as large"});
        if (listing.cut)
            notes_.push_back({Severity::warning,
                              Problem::no_data,
                              place,
                              key,
                              dataset.folder,
                              {},
                              dataset.folder + " holds too many files: only a part was measured"});
        return at->second;
    }

    void add(const DatasetConfig& dataset, Size size, std::vector<job::PictureSize> references) {
        for (job::PictureSize& reference : references) {
            if (reference == own_size) reference = {size.width, size.height};
            if (dataset.small_controls) reference = {512, 512};
        }
        const auto [at, fresh] =
            seen_.emplace(std::tuple(size.width, size.height, dataset.num_frames, dataset.batch_size, dataset.do_i2v,
                                     dataset.do_audio, dataset.fps),
                          batches_.size());
        if (fresh) {
            batches_.push_back({size.width, size.height, dataset.num_frames, dataset.batch_size, std::move(references),
                                dataset.do_i2v, dataset.do_audio, dataset.fps});
            return;
        }
        std::vector<job::PictureSize>& known = batches_[at->second].references;
        const job::PictureSize item{size.width, size.height};
        if (weight(references, item) > weight(known, item)) known = std::move(references);
    }

    /// What the net is handed of control images, then what the loader hands over, in pixels.
    [[nodiscard]] std::pair<std::int64_t, std::int64_t> weight(const std::vector<job::PictureSize>& references,
                                                               const job::PictureSize& item) const {
        std::int64_t handed = 0, raw = 0;
        for (const job::PictureSize& image : references) {
            const job::PictureSize taken =
                architecture_.reference_size != nullptr ? architecture_.reference_size(image, item) : image;
            handed += taken[0] * taken[1];
            raw += image[0] * image[1];
        }
        return {handed, raw};
    }

    const Architecture& architecture_;
    Diagnostics& complaints_;
    Diagnostics& notes_;
    std::map<std::pair<std::string, std::vector<std::string>>, Folder> measured_;  // by folders
    std::set<std::string> noted_;                                                  // control folders
    std::vector<job::Batch> batches_;
    // width, height, frames, count, do_i2v, do_audio, fps → which batch
    std::map<std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, bool, bool, std::int64_t>, std::size_t>
        seen_;
    std::int64_t guesses_ = 0;
};

}  // namespace

std::vector<job::Batch> batches_of(const std::vector<DatasetConfig>& datasets, const Architecture& architecture,
                                   Diagnostics& complaints, Diagnostics& notes) {
    return Measure(architecture, complaints, notes).of(datasets);
}

std::vector<job::Batch> validation_batches(const std::vector<ValidationItem>& items, const Architecture& architecture) {
    std::vector<job::Batch> out;
    for (const ValidationItem& item : items) {
        Size size = heaviest_bucket(item.resolution, architecture.bucket_step);
        if (const expected<io::ImageSize> image = io::image_size(item.image_path))
            size = bucket_of({image->width, image->height}, item.resolution, architecture.bucket_step);
        job::Batch batch{size.width, size.height, 1, item.sigmas, {}};
        if (std::find(out.begin(), out.end(), batch) == out.end()) out.push_back(std::move(batch));
    }
    return out;
}

void drop_repeated(std::vector<DatasetConfig>& datasets) {
    std::set<std::tuple<std::string, std::int64_t, std::int64_t, double, bool, bool, bool, std::int64_t,
                        std::vector<std::string>, bool, bool, bool, bool, bool, bool, std::int64_t>>
        seen;
    std::erase_if(datasets, [&](const DatasetConfig& d) {
        return !seen.emplace(d.folder, d.resolution, d.batch_size, d.scale, d.square_crop, d.cache_latents,
                             d.loads_pixels, d.num_frames, d.controls, d.small_controls, d.masks, d.prior_reg,
                             d.auto_frame_count, d.do_i2v, d.do_audio, d.fps)
                    .second;
    });
}

}  // namespace vram::trainers::ai_toolkit
