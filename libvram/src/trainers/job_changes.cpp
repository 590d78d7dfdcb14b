#include "trainers/job_changes.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "trainers/job_text.hpp"
#include "vram/io/path.hpp"

namespace vram::trainers {
namespace {

using job::Change;
using job::Lever;
using job::Price;

constexpr std::int64_t usual_sides[] = {1536, 1024, 768, 512, 384, 256};
constexpr std::int64_t smallest_rank = 4;
/// Frames of every video model here are n · 4 + 1 or n · 8 + 1.
constexpr std::int64_t frames_step = 8;

std::string bracketed(const std::vector<std::int64_t>& numbers) {
    std::string out;
    for (const std::int64_t number : numbers) out += (out.empty() ? "" : ", ") + std::to_string(number);
    return "[" + out + "]";
}

/// The size with its longer side at `side`, in the same shape, by 64 pixels.
std::vector<std::int64_t> scaled(std::int64_t width, std::int64_t height, std::int64_t side) {
    const std::int64_t longer = std::max(width, height);
    const auto fit = [&](std::int64_t value) { return std::max<std::int64_t>(64, value * side / longer / 64 * 64); };
    return {fit(width), fit(height)};
}

std::optional<std::int64_t> integer_at(const io::Node& root, std::string_view path) {
    const io::Node* node = io::find(root, path);
    const std::int64_t* value = node == nullptr ? nullptr : node->integer();
    return value == nullptr ? std::nullopt : std::optional(*value);
}

/// Whether `key` has a value under the file's `vramest`, as one that stands there or as part of one.
bool is_decided(const io::Node& said, std::string_view key) {
    for (std::size_t end = key.find('.');; end = key.find('.', end + 1)) {
        const io::Node* node = io::find(said, key.substr(0, end));
        if (node == nullptr) return false;
        if (end == std::string_view::npos || !node->is(io::Kind::map)) return true;
    }
}

/// Whether an edit of `path` is one of `own`, of whichever item of the lists that `own` names without a number.
bool is_of(std::string_view path, std::string_view own) {
    while (!own.empty()) {
        if (!path.empty() && path.front() == own.front()) {
            path.remove_prefix(1);
            own.remove_prefix(1);
        } else if (!path.empty() && path.front() == '[') {
            path.remove_prefix(std::min(path.find(']'), path.size() - 1) + 1);
        } else {
            return false;
        }
    }
    return path.empty() || path.front() == '.' || path.front() == '[';
}

class Changes {
  public:
    Changes(const io::Document& document, const job::Job& job) : root_(document.root), job_(job) {}

    std::vector<Change> all() {
        if (const auto* training = std::get_if<job::Training>(&job_.work)) of_training(*training);
        if (std::holds_alternative<job::Call>(job_.work)) of_call();
        frames();
        sizes();
        sample();
        if (job_.dtype == Dtype::f32)
            add({Lever::precision,
                 "bf16 instead of fp32",
                 {{"dtype", "bf16"}},
                 {},
                 Price::precision,
                 "weights and inputs are rounded to 8 bits of mantissa"});
        return std::move(out_);
    }

  private:
    void add(Change change) { out_.push_back(std::move(change)); }

    void of_training(const job::Training& training) {
        if (!training.gradient_checkpointing)
            add({Lever::gradient_checkpointing,
                 "gradient checkpointing",
                 {{"train.gradient_checkpointing", "true"}},
                 {},
                 Price::speed,
                 checkpointing_cost});
        const std::int64_t size = integer_at(root_, "train.batch_size").value_or(1);
        for (const SmallerBatch& batch : smaller_batches(size, training.gradient_accumulation))
            add({Lever::batch_size,
                 "batch size " + text(batch.size) + " instead of " + text(size) + ", accumulated " +
                     text(batch.accumulated) + " times",
                 {{"train.batch_size", text(batch.size)}, {"train.gradient_accumulation", text(batch.accumulated)}},
                 {},
                 Price::speed,
                 "smaller batches use the card less well"});
        const auto* lora = std::get_if<job::Lora>(&training.method);
        if (lora != nullptr) {
            if (job_.quantization == job::Quantization::none) {
                add({Lever::quantization,
                     "the base's linears in 8 bits (quanto)",
                     {{"quantize", "quanto_qfloat8"}},
                     {},
                     Price::precision,
                     "weights of the base are rounded to 8 bits"});
                add({Lever::quantization,
                     "the base's linears in 4 bits (bitsandbytes nf4)",
                     {{"quantize", "bnb_nf4"}},
                     {},
                     Price::quality,
                     "weights of the base are rounded to 4 bits"});
            }
            for (const std::int64_t rank : smaller_ranks(lora->rank))
                if (integer_at(root_, "train.rank"))
                    add({Lever::rank,
                         "rank " + text(rank) + " instead of " + text(lora->rank),
                         {{"train.rank", text(rank)}},
                         {},
                         Price::quality,
                         "the adapter can learn less"});
        }
        if (job::name_of(training.optimizer) == job::AdamW::name())
            add({Lever::optimizer,
                 "AdamW with 8-bit states",
                 {{"train.optimizer", "adamw8bit"}},
                 {},
                 Price::precision,
                 "the optimizer's moments are rounded to 8 bits"});
        if (training.ema)
            add({Lever::ema,
                 "no moving average of the weights",
                 {{"train.ema", "false"}},
                 {},
                 Price::quality,
                 "there is no smoothed copy to save"});
    }

    void of_call() {
        struct Way {
            const char *key, *text, *cost;
        };
        if (job_.component)
            for (const Way& way :
                 {Way{"tiling", "the VAE in tiles", "tiles overlap, and are computed one after the other"},
                  Way{"slicing", "the VAE one picture at a time", "pictures are computed one after the other"}})
                add({Lever::vae_tiling, way.text, {{way.key, "true"}}, {}, Price::speed, way.cost});
        const std::int64_t size = integer_at(root_, "batch_size").value_or(1);
        for (const SmallerBatch& batch : smaller_batches(size, 1))
            add({Lever::batch_size,
                 "batch size " + text(batch.size) + " instead of " + text(size),
                 {{"batch_size", text(batch.size)}},
                 {},
                 Price::speed,
                 "more calls for as many items"});
    }

    void frames() {
        const std::optional<std::int64_t> said = integer_at(root_, "data.frames");
        for (const std::int64_t frames : fewer_frames(said.value_or(1), frames_step))
            add({Lever::frames,
                 text(frames) + " frames instead of " + text(*said),
                 {{"data.frames", text(frames)}},
                 {},
                 Price::quality,
                 "shorter clips hold less motion"});
    }

    void sizes() {
        if (const io::Node* buckets = io::find(root_, "data.buckets"); buckets != nullptr && buckets->list() != nullptr)
            return drop_buckets(*buckets->list());
        std::int64_t width = 0, height = 0;
        if (const auto side = integer_at(root_, "data.resolution")) {
            width = height = *side;
        } else if (const auto first = integer_at(root_, "data.resolution[0]")) {
            width = *first;
            height = integer_at(root_, "data.resolution[1]").value_or(*first);
        }
        for (const std::int64_t side : smaller_sides(std::max(width, height)))
            resolution("data.resolution", Lever::resolution, scaled(width, height, side), width, height);
    }
    void resolution(const std::string& key, Lever lever, const std::vector<std::int64_t>& size, std::int64_t width,
                    std::int64_t height) {
        const bool previews = lever == Lever::samples;
        add({lever,
             (previews ? "samples of " : "") + text(size[0]) + "x" + text(size[1]) + " instead of " + text(width) +
                 "x" + text(height),
             {{key, bracketed(size)}},
             {},
             previews ? Price::previews : Price::quality,
             previews ? "smaller pictures to look at" : "fine detail is not learnt"});
    }
    /// The largest goes first, then the next.
    void drop_buckets(const io::List& buckets) {
        std::vector<std::pair<std::int64_t, std::size_t>> by_size;
        for (std::size_t i = 0; i < buckets.size(); ++i) {
            std::int64_t size = 1;
            if (buckets[i].list() == nullptr) return;
            for (const io::Node& side : *buckets[i].list()) size *= side.integer() != nullptr ? *side.integer() : 1;
            by_size.emplace_back(size, i);
        }
        std::sort(by_size.rbegin(), by_size.rend());
        std::vector<std::size_t> gone;
        for (std::size_t n = 0; n + 1 < by_size.size(); ++n) {
            gone.push_back(by_size[n].second);
            if (by_size[n].first == by_size[n + 1].first) continue;  // as large as the next: both or none
            std::vector<std::size_t> last_first = gone;
            std::sort(last_first.rbegin(), last_first.rend());
            std::vector<io::Edit> edits;
            for (const std::size_t i : last_first) edits.push_back({"data.buckets[" + std::to_string(i) + "]", {}});
            add({Lever::resolution,
                 "without the " + (gone.size() == 1 ? std::string("largest bucket")
                                                    : std::to_string(gone.size()) + " largest buckets"),
                 std::move(edits),
                 {},
                 Price::quality,
                 "their pictures are not learnt from"});
        }
    }

    void sample() {
        if (job_.sampling.images.empty() || io::find(root_, "sample") == nullptr) return;
        const job::Batch& image = job_.sampling.images.front();
        for (const std::int64_t side : smaller_sides(std::max(image.width, image.height)))
            resolution("sample.resolution", Lever::samples, scaled(image.width, image.height, side), image.width,
                       image.height);
        for (const std::int64_t frames : fewer_frames(image.frames, frames_step))
            add({Lever::samples,
                 "samples of " + text(frames) + " frames instead of " + text(image.frames),
                 {{"sample.frames", text(frames)}},
                 {},
                 Price::previews,
                 "shorter clips to look at"});
        add({Lever::samples,
             "no samples while training",
             {{"sample", {}}},
             {},
             Price::previews,
             "nothing to look at before the end"});
        add({Lever::pace,
             "fewer steps a sample",
             {{"sample.steps", text(std::max<std::int64_t>(1, job_.sampling.steps / 2))}},
             {},
             Price::previews});
    }

    const io::Node& root_;
    const job::Job& job_;
    std::vector<Change> out_;
};

}  // namespace

std::vector<SmallerBatch> smaller_batches(std::int64_t size, std::int64_t accumulated) {
    std::vector<SmallerBatch> out;
    for (std::int64_t smaller = size / 2; smaller >= 1; smaller /= 2)
        if (size % smaller == 0) out.push_back({smaller, accumulated * (size / smaller)});
    return out;
}

std::vector<std::int64_t> fewer_frames(std::int64_t frames, std::int64_t step) {
    std::vector<std::int64_t> out;
    for (std::int64_t now = frames; now > 1;) {
        now = std::min(now - 1, now * 3 / 4);
        now = (now - 1) / step * step + 1;
        out.push_back(now);
    }
    return out;
}

std::vector<std::int64_t> smaller_sides(std::int64_t side) {
    std::vector<std::int64_t> out;
    std::copy_if(std::begin(usual_sides), std::end(usual_sides), std::back_inserter(out),
                 [&](std::int64_t usual) { return usual < side; });
    return out;
}

std::vector<std::int64_t> smaller_ranks(std::int64_t rank) {
    std::vector<std::int64_t> out;
    for (std::int64_t smaller = rank / 2; smaller >= smallest_rank; smaller /= 2) out.push_back(smaller);
    return out;
}

std::vector<Change> surrounding_changes(const job::Job& job) {
    std::vector<Change> out;
    const job::Environment& environment = job.environment;
    // Source: torch warns that Windows does not have them.
    if (environment.os == job::Environment::Os::linux_ &&
        environment.alloc_conf.find("expandable_segments") == std::string::npos) {
        const std::string conf =
            environment.alloc_conf + (environment.alloc_conf.empty() ? "" : ",") + "expandable_segments:True";
        out.push_back({Lever::allocator,
                       "expandable segments, so that free memory is in one piece",
                       {},
                       {{"environment.alloc_conf", conf}},
                       Price::nothing,
                       {},
                       {},
                       "export PYTORCH_CUDA_ALLOC_CONF=" + conf});
    }
    if (environment.other_processes > 0)
        out.push_back({Lever::other_processes,
                       "nothing else on the card",
                       {},
                       {{"environment.other_processes", "0B"}},
                       Price::nothing,
                       {},
                       {},
                       "close what else holds " + vram::to_text(environment.other_processes) + " of the card"});
    return out;
}

void drop_decided(const io::Document& document, std::span<const DecidedBy> keys, std::vector<Change>& changes) {
    const io::Node* said = document.root.find("vramest");
    if (said == nullptr) return;
    std::vector<std::string_view> decided;
    for (const DecidedBy& key : keys)
        if (is_decided(*said, key.job_key)) decided.push_back(key.own);
    const auto is_in_vain = [&](const io::Edit& edit) {
        return std::any_of(decided.begin(), decided.end(), [&](std::string_view own) { return is_of(edit.path, own); });
    };
    std::erase_if(changes, [&](const Change& change) {
        return std::any_of(change.edits.begin(), change.edits.end(), is_in_vain);
    });
}

std::vector<Change> job_changes(const io::Document& document, const job::Job& job) {
    return Changes(document, job).all();
}

}  // namespace vram::trainers
