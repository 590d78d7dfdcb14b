#include "trainers/ai_toolkit/dataset.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <tuple>

#include "trainers/ai_toolkit/architectures/architecture.hpp"
#include "trainers/ai_toolkit/buckets.hpp"
#include "trainers/ai_toolkit/reading.hpp"
#include "vram/io/image_header.hpp"

namespace vram::trainers::ai_toolkit {
namespace {

namespace fs = std::filesystem;

bool is_image(const fs::path& path) {
    constexpr std::array<std::string_view, 4> extensions{".jpg", ".jpeg", ".png", ".webp"};
    const std::string extension = lower(path.extension().string());
    return std::find(extensions.begin(), extensions.end(), extension) != extensions.end();
}

bool is_hidden(const fs::path& path) { return path.filename().string().starts_with('.'); }

/// What a folder holds. `files` are sorted; `cut` tells that there are more than are looked at.
struct Listing {
    std::vector<fs::path> files;
    bool cut = false;
};
Listing list(const fs::path& folder) {
    Listing out;
    std::error_code error;
    fs::recursive_directory_iterator walk(folder, fs::directory_options::skip_permission_denied, error);
    std::int64_t entries = 0;
    for (; !error && walk != fs::recursive_directory_iterator(); walk.increment(error)) {
        if (++entries > 10 * most_files || static_cast<std::int64_t>(out.files.size()) >= most_files) {
            out.cut = true;
            break;
        }
        std::error_code unseen;
        const fs::path& path = walk->path();
        if (walk->is_directory(unseen)) {
            if (is_hidden(path)) walk.disable_recursion_pending();
        } else if (!is_hidden(path) && is_image(path) && path.parent_path().filename() != "_controls") {
            out.files.push_back(path);
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
            const std::vector<Size>& images = sizes(dataset);
            if (dataset.square_crop && !images.empty())
                add(dataset, square(dataset));
            else
                for (const Size& image : images) add(dataset, bucket(dataset, image));
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
        add(dataset, size);
        if (++guesses_ > most_guess_notes) return;
        notes_.push_back({Severity::note,
                          Problem::no_data,
                          dataset.folder_at.place,
                          dataset.folder_at.key,
                          dataset.folder,
                          {},
                          dataset.folder + " is no folder here: taken for images of " + std::to_string(size.width) +
                              "x" + std::to_string(size.height) + ", the heaviest bucket at " +
                              std::to_string(dataset.resolution)});
    }

    /// What the folder's images are, each size once.
    const std::vector<Size>& sizes(const DatasetConfig& dataset) {
        const auto [at, fresh] = measured_.try_emplace(dataset.folder);
        if (!fresh) return at->second;
        const Listing listing = list(dataset.folder);
        std::int64_t bad = 0;
        std::string first;
        std::set<std::pair<std::int64_t, std::int64_t>> seen;
        for (const fs::path& file : listing.files) {
            if (const expected<io::ImageSize> size = io::image_size(file)) {
                if (seen.emplace(size->width, size->height).second) at->second.push_back({size->width, size->height});
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
        if (listing.cut)
            notes_.push_back({Severity::warning,
                              Problem::no_data,
                              place,
                              key,
                              dataset.folder,
                              {},
                              dataset.folder + " holds too many files: only a part was measured"});
        if (at->second.empty())
            complaints_.push_back({Severity::error,
                                   Problem::no_data,
                                   place,
                                   key,
                                   dataset.folder,
                                   {},
                                   dataset.folder + " holds no readable image"});
        return at->second;
    }

    void add(const DatasetConfig& dataset, Size size) {
        if (!seen_.emplace(size.width, size.height, dataset.num_frames, dataset.batch_size, dataset.controls).second)
            return;
        // A control image is taken to be of the item's own size.
        const std::vector<job::PictureSize> references(static_cast<std::size_t>(dataset.controls),
                                                       {size.width, size.height});
        batches_.push_back({size.width, size.height, dataset.num_frames, dataset.batch_size, references});
    }

    const Architecture& architecture_;
    Diagnostics& complaints_;
    Diagnostics& notes_;
    std::map<std::string, std::vector<Size>> measured_;  // by folder
    std::vector<job::Batch> batches_;
    // width, height, frames, count, controls
    std::set<std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t>> seen_;
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
    std::set<std::tuple<std::string, std::int64_t, std::int64_t, double, bool, bool, bool, std::int64_t, std::int64_t,
                        bool, bool>>
        seen;
    std::erase_if(datasets, [&](const DatasetConfig& d) {
        return !seen.emplace(d.folder, d.resolution, d.batch_size, d.scale, d.square_crop, d.cache_latents,
                             d.loads_pixels, d.num_frames, d.controls, d.masks, d.prior_reg)
                    .second;
    });
}

}  // namespace vram::trainers::ai_toolkit
