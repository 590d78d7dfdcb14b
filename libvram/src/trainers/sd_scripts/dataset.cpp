#include "trainers/sd_scripts/dataset.hpp"

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <system_error>

#include "base/text.hpp"
#include "trainers/sd_scripts/buckets.hpp"
#include "trainers/sd_scripts/reading.hpp"
#include "vram/io/image_header.hpp"

namespace vram::trainers::sd_scripts {
namespace {

namespace fs = std::filesystem;

/// glob_images; ".bmp" is one of them, whose header is not read.
bool is_image(const fs::path& path) {
    constexpr std::array<std::string_view, 5> extensions{".png", ".jpg", ".jpeg", ".webp", ".bmp"};
    const std::string extension = lower(path.extension().string());
    return std::find(extensions.begin(), extensions.end(), extension) != extensions.end();
}

constexpr std::int64_t most_entries = 1'000'000;  // of a folder that are looked at: a second's work

/// In order; the first `most_files`, with `cut` where there are more.
std::vector<fs::path> images_in(const fs::path& folder, bool& cut) {
    std::vector<fs::path> out;
    std::error_code error;
    std::int64_t entries = 0;
    for (fs::directory_iterator walk(folder, fs::directory_options::skip_permission_denied, error);
         !error && walk != fs::directory_iterator() && ++entries <= most_entries; walk.increment(error))
        // glob passes over names that start with a dot.
        if (is_image(walk->path()) && !walk->path().filename().string().starts_with('.')) out.push_back(walk->path());
    std::sort(out.begin(), out.end());
    cut = out.size() > static_cast<std::size_t>(most_files);
    if (cut) out.resize(static_cast<std::size_t>(most_files));
    return out;
}

BucketRule rule_of(const DatasetSettings& said) {
    const std::int64_t steps = said.bucket_reso_steps;
    return {{said.width, said.height},
            said.enable_bucket,
            said.bucket_no_upscale,
            said.min_bucket_reso - said.min_bucket_reso % steps,
            (said.max_bucket_reso + steps - 1) / steps * steps,
            steps};
}

class Measure {
  public:
    explicit Measure(Diagnostics& notes) : notes_(notes) {}

    std::vector<job::Batch> of(const std::vector<Dataset>& datasets) {
        for (const Dataset& dataset : datasets) {
            if (dataset.settings.width == 0 || dataset.settings.height == 0) continue;
            const BucketRule rule = rule_of(dataset.settings);
            const std::map<Size, std::int64_t> pictures = buckets(dataset, rule);
            for (const auto& [size, count] : pictures)
                if (size.width > 0 && size.height > 0) add(size, std::min(count, dataset.settings.batch_size));
            if (pictures.empty()) guess(dataset, rule);
        }
        std::vector<job::Batch> out;
        for (const auto& [size, count] : counts_) out.push_back({size.width, size.height, 1, count});
        std::stable_sort(out.begin(), out.end(), [](const job::Batch& a, const job::Batch& b) {
            return a.width * a.height * a.count > b.width * b.height * b.count;
        });
        return out;
    }

  private:
    /// How many pictures, with their repeats, each bucket of a dataset has.
    std::map<Size, std::int64_t> buckets(const Dataset& dataset, const BucketRule& rule) {
        std::map<Size, std::int64_t> out;
        const std::vector<Size> resolutions =
            rule.enabled && !rule.no_upscale ? bucket_resolutions(rule) : std::vector<Size>{};
        std::int64_t trained = 0;
        std::vector<std::pair<Size, std::int64_t>> kept;  // of regularisation: size, repeats
        for (const Subset& subset : dataset.subsets)
            for (const Size image : sizes(subset)) {
                const Size bucket = bucket_of(image, rule, resolutions);
                if (subset.is_reg) {
                    kept.emplace_back(bucket, subset.num_repeats);
                } else {
                    out[bucket] += subset.num_repeats;
                    trained += subset.num_repeats;
                }
            }
        // DreamBoothDataset.__init__: until there are as many of them as of what is trained; past so many rounds each
        // bucket has more than any batch.
        std::int64_t n = 0;
        for (std::int64_t round = 0; n < trained && !kept.empty() && round <= most_items; ++round)
            for (const auto& [bucket, repeats] : kept) {
                const std::int64_t more = round == 0 ? repeats : 1;
                out[bucket] += more;
                n += more;
                if (n >= trained) break;
            }
        return out;
    }

    const std::vector<Size>& sizes(const Subset& subset) {
        const auto [at, fresh] = measured_.try_emplace(subset.image_dir);
        if (!fresh) return at->second;
        std::int64_t bad = 0;
        std::string first;
        bool cut = false;
        const std::vector<fs::path> files = images_in(subset.image_dir, cut);
        if (cut)
            notes_.push_back({Severity::warning,
                              Problem::no_data,
                              subset.at.place,
                              subset.at.key,
                              subset.image_dir,
                              {},
                              "of " + subset.image_dir + " the first " + std::to_string(most_files) +
                                  " pictures by their names are measured"});
        for (const fs::path& file : files) {
            if (const expected<io::ImageSize> size = io::image_size(file)) {
                // As the file stores it: the trainer turns no picture by its EXIF orientation.
                at->second.push_back(size->transposed ? Size{size->height, size->width}
                                                      : Size{size->width, size->height});
            } else if (++bad == 1) {
                first = file.filename().string();
            }
        }
        if (bad > 0)
            notes_.push_back({Severity::warning,
                              Problem::no_data,
                              subset.at.place,
                              subset.at.key,
                              subset.image_dir,
                              {},
                              std::to_string(bad) + " files of " + subset.image_dir + " are no readable images, " +
                                  first + " the first"});
        return at->second;
    }

    void guess(const Dataset& dataset, const BucketRule& rule) {
        const Size size = heaviest_bucket(rule);
        add(size, dataset.settings.batch_size);
        if (++guesses_ > most_guess_notes) return;
        const SaidAt& at = dataset.subsets.empty() ? dataset.said.at("resolution") : dataset.subsets.front().at;
        const std::string folder = dataset.subsets.empty() ? "" : dataset.subsets.front().image_dir;
        notes_.push_back({Severity::note,
                          Problem::no_data,
                          at.place,
                          at.key,
                          folder,
                          {},
                          (folder.empty() ? "no pictures are at hand" : folder + " holds no pictures here") +
                              std::string(": taken for images of ") + std::to_string(size.width) + "x" +
                              std::to_string(size.height) +
                              (rule.enabled ? ", the heaviest bucket at " : ", as without buckets at ") +
                              std::to_string(rule.resolution.width) + "x" + std::to_string(rule.resolution.height)});
    }

    /// Of one size the fullest batch counts.
    void add(Size size, std::int64_t count) {
        std::int64_t& most = counts_[size];
        most = std::max(most, count);
    }

    Diagnostics& notes_;
    std::map<Size, std::int64_t> counts_;
    std::map<std::string, std::vector<Size>> measured_;
    std::size_t guesses_ = 0;
};

}  // namespace

std::vector<job::Batch> batches_of(const std::vector<Dataset>& datasets, Diagnostics& notes) {
    return Measure(notes).of(datasets);
}

}  // namespace vram::trainers::sd_scripts
