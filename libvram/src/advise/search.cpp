#include "advise/search.hpp"

#include "advise/found.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <utility>

#include "report/card.hpp"
#include "vram/io/path.hpp"
#include "vram/profile/catalogue.hpp"

namespace vram::advise {
namespace {

using job::Batch;
using report::Opened;
using report::Setting;

constexpr std::int64_t most_batch = 4096, least_side = 128, most_side = 8192, side_step = 64, most_frames = 4097;
constexpr std::int64_t ranks[] = {1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024};

std::int64_t pixels(const Batch& batch) { return batch.width * batch.height; }

std::int64_t root(std::int64_t square) {
    return static_cast<std::int64_t>(std::llround(std::sqrt(static_cast<double>(square))));
}

/// Whether a trainer's own file leaves its sizes to the datasets.
bool leaves_sizes(const Opened& opened) {
    if (trainers::is_job_file(opened.document)) return false;
    const io::Node* resolution = io::find(opened.document.root, "vramest.data.resolution");
    return io::find(opened.document.root, "vramest.data.buckets") == nullptr &&
           (resolution == nullptr || resolution->list() == nullptr);
}

void put(std::vector<std::int64_t>& values, std::int64_t value) {
    const auto at = std::lower_bound(values.begin(), values.end(), value);
    if (at == values.end() || *at != value) values.insert(at, value);
}

std::string pair_text(std::int64_t width, std::int64_t height) {
    return "[" + std::to_string(width) + ", " + std::to_string(height) + "]";
}

std::string buckets_text(const std::vector<Batch>& sizes) {
    std::string out;
    for (const Batch& size : sizes)
        out += (out.empty() ? "[[" : ", [") + std::to_string(size.width) + ", " + std::to_string(size.height) + ", " +
               std::to_string(size.frames) + "]";
    return out + "]";
}

/// Plays values of one line, each once.
class Searcher {
  public:
    Searcher(const io::Document& document, const Axes& axes, const Line& line, const report::CheckOptions& options,
             const profile::Catalogue& catalogue)
        : document_(document), axes_(axes), line_(line), options_(options), catalogue_(catalogue) {}

    Most search() {
        const std::size_t end = line_.values.size();
        const auto at = std::lower_bound(line_.values.begin(), line_.values.end(), line_.from);
        const std::size_t from = std::min(static_cast<std::size_t>(at - line_.values.begin()), end - 1);
        std::optional<std::size_t> best;
        for (const std::size_t start : {from, std::size_t{0}})
            if (!best && fits(start)) best = start;
        // A step beyond one that fails may fit, as what is reserved is not monotone.
        for (std::size_t i = 1; !best && i < std::min(end, 1 + beyond); ++i)
            if (fits(i)) best = i;
        Most out;
        while (best) {
            best = climb(*best);
            std::optional<std::size_t> further;
            for (std::size_t i = *best + 1; i < std::min(end, *best + 2 + beyond); ++i)
                if (fits(i)) further = i;
            if (!further) break;
            best = further;
        }
        if (best) {
            out.best = played_.at(*best);
            if (*best + 1 < end) out.next = played_.at(*best + 1);
        }
        for (auto& [index, tried] : played_) out.tried.push_back(std::move(tried));
        return out;
    }

  private:
    static constexpr std::size_t beyond = 2;  // steps behind the first that does not fit

    bool fits(std::size_t index) {
        const auto found = played_.find(index);
        if (found != played_.end()) return found->second.fits();
        Tried tried;
        tried.value = line_.values[index];
        Point point = line_.beside;
        point[line_.vary] = tried.value;
        tried.settings = axes_.settings(point);
        report::CheckOptions here = options_;
        here.settings.insert(here.settings.end(), tried.settings.begin(), tried.settings.end());
        tried.trial = report::try_job(document_, here, catalogue_);
        return played_.emplace(index, std::move(tried)).first->second.fits();
    }

    /// From one that fits to one whose next step does not: by doubling, then by halving.
    std::size_t climb(std::size_t good) {
        const std::size_t end = line_.values.size();
        std::size_t bad = end;
        for (std::size_t step = 1; good + 1 < bad; step *= 2) {
            const std::size_t next = std::min(good + step, end - 1);
            if (!fits(next)) {
                bad = next;
                break;
            }
            good = next;
            if (good + 1 == end) return good;
        }
        while (bad - good > 1) {
            const std::size_t middle = good + (bad - good) / 2;
            (fits(middle) ? good : bad) = middle;
        }
        return good;
    }

    const io::Document& document_;
    const Axes& axes_;
    const Line& line_;
    const report::CheckOptions& options_;
    const profile::Catalogue& catalogue_;
    std::map<std::size_t, Tried> played_;
};

}  // namespace

Axes::Axes(const Opened& opened, const profile::Catalogue& catalogue)
    : opened_(opened), profile_(catalogue.model(opened.job.model)), trains_(false), says_sizes_(!leaves_sizes(opened)) {
    for (const profile::ModelProfile& described : opened.job.described)
        if (described.id == opened.job.model) profile_ = &described;
    if (const auto* training = std::get_if<job::Training>(&opened.job.work)) {
        own_ = training->batches;
        trains_ = true;
    } else if (const auto* call = std::get_if<job::Call>(&opened.job.work)) {
        own_ = {call->batch};
    }
    if (own_.empty()) own_.emplace_back();
    if (profile_ != nullptr) step_ = std::max<std::int64_t>(profile_->divisible_by, 1);
    // A trainer may ask for more than the model does: what all of the job's sizes keep to, scaled ones do too.
    std::int64_t kept = side_step;
    for (const Batch& batch : own_) kept = std::gcd(kept, std::gcd(batch.width, batch.height));
    step_ = std::lcm(step_, kept);
}

std::string Axes::key(Vary vary) const {
    switch (vary) {
        case Vary::batch_size: return trains_ ? "train.batch_size" : "batch_size";
        case Vary::resolution: return "data.resolution";
        case Vary::frames: return "data.frames";
        case Vary::rank: return "train.rank";
    }
    return {};
}

std::optional<Diagnostic> Axes::complaint(Vary vary) const {
    const auto none = [&](std::string_view where, const std::string& why) {
        const io::Node& at = report::said(opened_.document, where);
        return Diagnostic{Severity::error,
                          Problem::conflict,
                          opened_.document.place_of(at),
                          key(vary),
                          {},
                          {},
                          std::string(to_text(vary)) + " cannot be varied: " + why};
    };
    const std::string model_key = opened_.job.component ? "component" : "model";
    switch (vary) {
        case Vary::batch_size: return std::nullopt;
        case Vary::resolution:
            if (own_.front().width == 0) return none(model_key, opened_.job.model + " takes no pictures");
            if (profile_ != nullptr && profile_->fixed_resolution)
                return none(model_key, opened_.job.model + " takes one size only");
            return std::nullopt;
        case Vary::frames:
            if (!is_video()) return none(model_key, opened_.job.model + " takes single frames");
            return std::nullopt;
        case Vary::rank: {
            const auto* training = std::get_if<job::Training>(&opened_.job.work);
            if (training == nullptr) return none(model_key, "nothing is trained");
            const auto* lora = std::get_if<job::Lora>(&training->method);
            if (lora == nullptr) return none("train.method", "the model is trained in full, without an adapter");
            if (lora->rank == 0 || lora->kind == job::AdapterKind::full_rank)
                return none("train.method", "the adapter has no rank");
            return std::nullopt;
        }
    }
    return std::nullopt;
}

bool Axes::is_video() const { return profile_ != nullptr && profile_->frame_step > 0 && own_.front().width > 0; }

std::int64_t Axes::now(Vary vary) const {
    switch (vary) {
        case Vary::batch_size: return own_.front().count;
        case Vary::resolution: {
            std::int64_t most = 0;
            for (const Batch& batch : own_) most = std::max(most, pixels(batch));
            // A dataset's buckets have fewer pixels than the square that it asks for.
            return says_sizes_ ? root(most) : round_up(root(most), side_step);
        }
        case Vary::frames: {
            std::int64_t most = 1;
            for (const Batch& batch : own_) most = std::max(most, batch.frames);
            return most;
        }
        case Vary::rank:
            if (const auto* training = std::get_if<job::Training>(&opened_.job.work))
                if (const auto* lora = std::get_if<job::Lora>(&training->method)) return lora->rank;
            return 0;
    }
    return 0;
}

std::vector<std::int64_t> Axes::values(Vary vary) const {
    std::vector<std::int64_t> out;
    const auto from_to = [&](std::int64_t first, std::int64_t last, std::int64_t step) {
        for (std::int64_t value = first; value <= last; value += step) out.push_back(value);
    };
    const profile::AtMost most = profile_ == nullptr ? profile::AtMost{} : profile_->at_most;
    switch (vary) {
        case Vary::batch_size: from_to(1, most_batch, 1); break;
        case Vary::resolution: {
            const std::int64_t step = std::lcm(side_step, step_);
            from_to(round_up(least_side, step), most.side > 0 ? std::min(most.side, most_side) : most_side, step);
            break;
        }
        case Vary::frames:
            from_to(1, most.frames > 0 ? std::min(most.frames, most_frames) : most_frames,
                    std::max<std::int64_t>(profile_ == nullptr ? 0 : profile_->frame_step, 1));
            break;
        case Vary::rank: out.assign(std::begin(ranks), std::end(ranks)); break;
    }
    put(out, now(vary));
    if (vary != Vary::resolution || !says_sizes_) return out;
    // Two steps may come to one size, where that is no square; the job's own stays.
    std::vector<std::int64_t> apart;
    for (const std::int64_t side : out) {
        if (apart.empty() || batches({{vary, side}}) != batches({{vary, apart.back()}}))
            apart.push_back(side);
        else if (side == now(vary))
            apart.back() = side;
    }
    return apart;
}

std::vector<std::int64_t> Axes::usual(Vary vary) const {
    static constexpr std::int64_t batches[] = {1, 2, 4, 8, 16, 32, 64};
    static constexpr std::int64_t sides[] = {256, 384, 512, 640, 768, 896, 1024, 1280, 1536, 2048};
    static constexpr std::int64_t seconds[] = {1, 17, 33, 49, 81, 121, 161, 241};
    static constexpr std::int64_t adapters[] = {4, 8, 16, 32, 64, 128, 256};
    const auto pick = [&](std::span<const std::int64_t> wanted) {
        const std::vector<std::int64_t> all = values(vary);
        std::vector<std::int64_t> out;
        for (const std::int64_t value : wanted) {  // the nearest that the axis has, not above
            const auto at = std::upper_bound(all.begin(), all.end(), value);
            if (at != all.begin()) put(out, *std::prev(at));
        }
        put(out, now(vary));
        return out;
    };
    switch (vary) {
        case Vary::batch_size: return pick(batches);
        case Vary::resolution: return pick(sides);
        case Vary::frames: return pick(seconds);
        case Vary::rank: return pick(adapters);
    }
    return {};
}

std::vector<Batch> Axes::batches(const Point& point) const {
    std::vector<Batch> out = own_;
    if (const auto side = point.find(Vary::resolution); side != point.end()) {
        const std::int64_t before = now(Vary::resolution);
        for (Batch& batch : out)
            for (std::int64_t* length : {&batch.width, &batch.height})
                if (side->second != before) *length = std::max(step_, *length * side->second / before / step_ * step_);
    }
    if (const auto frames = point.find(Vary::frames); frames != point.end())
        for (Batch& batch : out) batch.frames = frames->second;
    std::vector<Batch> apart;
    for (const Batch& batch : out)
        if (std::find(apart.begin(), apart.end(), batch) == apart.end()) apart.push_back(batch);
    return apart;
}

std::vector<Setting> Axes::settings(const Point& point) const {
    std::vector<Setting> out;
    const bool resizes = point.contains(Vary::resolution), lasts = point.contains(Vary::frames);
    if (!says_sizes_) {
        for (const Vary vary : {Vary::resolution, Vary::frames})
            if (point.contains(vary)) out.push_back({key(vary), std::to_string(point.at(vary))});
    } else if (resizes || lasts) {
        const std::vector<Batch> sizes = batches(point);
        const Batch& size = sizes.front();
        if (report::said(opened_.document, "data.buckets").list() != nullptr) {  // which say their frames themselves
            out.push_back({"data.buckets", buckets_text(sizes)});
        } else {
            if (resizes)
                out.push_back({key(Vary::resolution), size.width == size.height ? std::to_string(size.width)
                                                                                : pair_text(size.width, size.height)});
            if (lasts) out.push_back({key(Vary::frames), std::to_string(size.frames)});
        }
    }
    for (const Vary vary : {Vary::batch_size, Vary::rank})
        if (point.contains(vary)) out.push_back({key(vary), std::to_string(point.at(vary))});
    return out;
}

std::string Axes::name(Vary vary, std::int64_t value) const {
    if (vary != Vary::resolution || !says_sizes_) return std::to_string(value);
    const std::vector<Batch> sizes = batches({{vary, value}});
    const Batch& largest = *std::max_element(sizes.begin(), sizes.end(),
                                             [](const Batch& a, const Batch& b) { return pixels(a) < pixels(b); });
    if (largest.width == largest.height) return std::to_string(largest.width);
    return std::to_string(largest.width) + "x" + std::to_string(largest.height);
}

Most search(const io::Document& document, const Axes& axes, const Line& line, const report::CheckOptions& options,
            const profile::Catalogue& catalogue) {
    return Searcher(document, axes, line, options, catalogue).search();
}

expected<Opened> open_for(std::string_view verb, const io::Document& document, const report::CheckOptions& options,
                          const profile::Catalogue& catalogue, Diagnostics& notes) {
    expected<Opened> opened = report::open(document, options, catalogue, notes);
    Diagnostics complaints = opened ? Diagnostics{} : opened.error();
    if (std::optional<Diagnostic> complaint = report::complaint_of(options, catalogue.cards()))
        complaints.push_back(*std::move(complaint));
    for (const Diagnostic& note : notes)
        if (note.severity == Severity::error) complaints.push_back(note);
    if (!complaints.empty()) return Unexpected{std::move(complaints)};
    if (const auto* only = std::get_if<job::WeightsOnly>(&opened->job.work)) return Unexpected{{only->why}};
    const report::Card card = report::named_card(options, opened->job, catalogue.cards());
    if (card.profile == nullptr && card.line.capacity == 0) return Unexpected{{card_is_due(verb)}};
    return opened;
}

}  // namespace vram::advise
