#include "trainers/torch/sizes.hpp"

#include <algorithm>

#include "vram/io/path.hpp"

namespace vram::trainers::torch {
namespace {

using job::Batch;
using profile::ModelKind;
using profile::ModelProfile;

constexpr io::IntegerRange side{8, 32768}, frames_range{1, 4097}, tokens_range{1, 131072};
constexpr std::int64_t most_buckets = 64, most_reference_images = 16;

/// The multiple of `step` nearest to `value`, at least one step; ties go up.
std::int64_t nearest_multiple(std::int64_t value, std::int64_t step) {
    return std::max(step, (value + step / 2) / step * step);
}

class Reader {
  public:
    Reader(const io::Document& document, io::Fields& data, const ModelProfile* profile, Diagnostics& complaints)
        : document_(document), data_(data), profile_(profile), complaints_(complaints) {}

    std::vector<Batch> batches(bool trains, std::int64_t batch_size, Diagnostics& notes) {
        const std::optional<std::int64_t> written_frames = data_.integer("frames", frames_range);
        const std::int64_t frames = written_frames.value_or(1);
        if (written_frames) check_frames("data.frames", frames);
        if (profile_ != nullptr && !written_frames && !data_.has("buckets") && profile_->defaults.frames > 1)
            notes.push_back({Severity::note,
                             Problem::missing_key,
                             data_.place(),
                             "data.frames",
                             {},
                             {},
                             "data.frames is not said: one frame is played; " + profile_->id + " is usually given " +
                                 std::to_string(profile_->defaults.frames)});
        if (data_.has("buckets") && data_.has("resolution"))
            data_.complain("buckets", Problem::conflict, "data.buckets and data.resolution exclude each other");
        if (data_.has("buckets") && !trains)
            data_.complain("buckets", Problem::conflict, "data.buckets needs train; a call has one data.resolution");
        std::vector<Batch> out =
            data_.has("buckets") ? buckets(frames, batch_size, notes) : std::vector{resolution(frames, batch_size)};
        return out.empty() ? std::vector{Batch{0, 0, frames, batch_size}} : out;
    }

    std::vector<std::array<std::int64_t, 2>> reference_images() {
        std::vector<std::array<std::int64_t, 2>> out;
        const auto written = data_.integer_lists("reference_images", side, {2, 2}, {0, most_reference_images});
        if (!written) return out;
        if (!written->empty() && profile_ != nullptr && !profile_->reference_images)
            data_.complain("reference_images", Problem::unsupported, profile_->id + " takes no reference images");
        for (std::size_t i = 0; i < written->size(); ++i) {
            const auto& size = (*written)[i];
            check_sides("data.reference_images[" + std::to_string(i) + "]", size[0], size[1]);
            out.push_back({size[0], size[1]});
        }
        return out;
    }

  private:
    Batch resolution(std::int64_t frames, std::int64_t batch_size) {
        const auto written = data_.integers("resolution", side, {2, 2}, io::Single::is_a_list);
        if (written) {
            const std::int64_t width = written->front(), height = written->back();
            if (written->size() == 1)
                check_side("data.resolution", width);
            else
                check_sides("data.resolution", width, height);
            check_fixed("data.resolution", width, height);
            return {width, height, frames, batch_size};
        }
        if (profile_ == nullptr || data_.has("resolution")) return {0, 0, frames, batch_size};
        // A VAE of sound has no pictures' size; whoever else has no default must be told.
        if (profile_->defaults.width == 0 && profile_->kind != ModelKind::vae) (void)data_.require("resolution");
        return {profile_->defaults.width, profile_->defaults.height, frames, batch_size};
    }

    std::vector<Batch> buckets(std::int64_t frames, std::int64_t batch_size, Diagnostics& notes) {
        std::vector<Batch> out;
        const auto written = data_.integer_lists("buckets", {1, side.max}, {2, 3}, {1, most_buckets});
        if (!written) return out;
        for (std::size_t i = 0; i < written->size(); ++i) {
            const auto& size = (*written)[i];
            const std::string path = "data.buckets[" + std::to_string(i) + "]";
            const Batch batch{size[0], size[1], size.size() == 3 ? size[2] : frames, batch_size};
            check_sides(path, batch.width, batch.height);
            check_fixed(path, batch.width, batch.height);
            if (size.size() == 3) check_frames(path + "[2]", batch.frames);
            if (std::find(out.begin(), out.end(), batch) == out.end())
                out.push_back(batch);
            else
                notes.push_back({Severity::note,
                                 Problem::conflict,
                                 place_of(path),
                                 path,
                                 {},
                                 {},
                                 path + " is there before; it is played once"});
        }
        return out;
    }

    void check_sides(const std::string& path, std::int64_t width, std::int64_t height) {
        check_side(path + "[0]", width);
        check_side(path + "[1]", height);
    }
    void check_side(const std::string& path, std::int64_t value) {
        if (value < side.min) {
            complain(path, value, path + " must be at least " + std::to_string(side.min), std::to_string(side.min));
            return;
        }
        if (profile_ == nullptr) return;
        if (const std::int64_t most = profile_->at_most.side; most > 0 && value > most) {
            complain(path, value, path + " is at most " + std::to_string(most) + " for " + profile_->id,
                     std::to_string(most));
            return;
        }
        if (value % profile_->divisible_by == 0) return;
        complain(path, value,
                 path + " must be divisible by " + std::to_string(profile_->divisible_by) + " for " + profile_->id,
                 std::to_string(nearest_multiple(value, profile_->divisible_by)));
    }
    void check_fixed(const std::string& path, std::int64_t width, std::int64_t height) {
        if (profile_ == nullptr || !profile_->fixed_resolution) return;
        const profile::Defaults& own = profile_->defaults;
        if (width == own.width && height == own.height) return;
        std::string only = "[";
        only.append(std::to_string(own.width)).append(", ").append(std::to_string(own.height)).append("]");
        complain(path, width, path + " must be " + only + " for " + profile_->id, only);
    }
    void check_frames(const std::string& path, std::int64_t value) {
        if (value < frames_range.min || value > frames_range.max) {
            complain(path, value, path + " must be from 1 to " + std::to_string(frames_range.max), {});
            return;
        }
        if (profile_ == nullptr || value == 1) return;
        const std::int64_t most = profile_->at_most.frames;
        if (most > 0 && value > most)
            complain(path, value, path + " is at most " + std::to_string(most) + " for " + profile_->id,
                     std::to_string(most));
        else if (profile_->frame_step == 0)
            complain(path, value, profile_->id + " takes single frames", "1");
        else if ((value - 1) % profile_->frame_step != 0)
            complain(path, value,
                     path + " must be " + std::to_string(profile_->frame_step) + " n + 1 for " + profile_->id,
                     std::to_string(
                         (value - 1 + profile_->frame_step / 2) / profile_->frame_step * profile_->frame_step + 1));
    }
    [[nodiscard]] Place place_of(const std::string& path) const {
        const io::Node* node = io::find(document_.root, path);
        return node == nullptr ? data_.place() : document_.place_of(*node);
    }
    void complain(const std::string& path, std::int64_t found, std::string text, std::string nearest) {
        complaints_.push_back({Severity::error, Problem::out_of_range, place_of(path), path, std::to_string(found),
                               std::move(nearest), std::move(text)});
    }

    const io::Document& document_;
    io::Fields& data_;
    const ModelProfile* profile_;
    Diagnostics& complaints_;
};

void refuse(io::Fields& data, std::string_view key, const ModelProfile& profile) {
    if (data.has(key))
        data.complain(
            key, Problem::conflict,
            data.path(key) + " has no meaning for " + profile.id + ", a " + std::string(to_text(profile.kind)));
}

}  // namespace

Sizes read_sizes(const io::Document& document, io::Fields& job, const ModelProfile* profile, bool trains,
                 std::int64_t batch_size, Diagnostics& complaints, Diagnostics& notes) {
    io::Fields data = job.map("data");
    Reader reader(document, data, profile, complaints);
    Sizes sizes;
    const bool text_only = profile != nullptr && profile->kind == ModelKind::text_encoder;
    const bool pictures_only = profile != nullptr && profile->kind == ModelKind::vae;
    if (text_only) {
        for (std::string_view key : {"resolution", "buckets", "frames"}) refuse(data, key, *profile);
        if (profile->reference_images)
            sizes.reference_images = reader.reference_images();
        else
            refuse(data, "reference_images", *profile);
        sizes.batches = {{0, 0, 1, batch_size}};
    } else {
        sizes.batches = reader.batches(trains, batch_size, notes);
        sizes.reference_images = reader.reference_images();
    }
    if (pictures_only) {
        refuse(data, "text_tokens", *profile);
    } else {
        sizes.text_tokens =
            data.integer("text_tokens", tokens_range, profile == nullptr ? 0 : profile->defaults.text_tokens);
        if (profile != nullptr && sizes.text_tokens == 0) (void)data.require("text_tokens");
        if (profile != nullptr && sizes.text_tokens % profile->text_divisible_by != 0)
            data.complain("text_tokens", Problem::out_of_range,
                          "data.text_tokens must be divisible by " + std::to_string(profile->text_divisible_by) +
                              " for " + profile->id,
                          std::to_string(nearest_multiple(sizes.text_tokens, profile->text_divisible_by)));
        if (const std::int64_t most = profile == nullptr ? 0 : profile->at_most.text_tokens;
            most > 0 && sizes.text_tokens > most)
            data.complain("text_tokens", Problem::out_of_range,
                          "data.text_tokens is at most " + std::to_string(most) + " for " + profile->id,
                          std::to_string(most));
    }
    data.finish();
    return sizes;
}

}  // namespace vram::trainers::torch
