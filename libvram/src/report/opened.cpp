#include "report/opened.hpp"

#include <new>
#include <stdexcept>
#include <utility>

#include "shadow/run.hpp"
#include "vram/io/path.hpp"

namespace vram::report {
namespace {

Unexpected complaint(Problem problem, const io::Document& document, const io::Node& node, std::string key,
                     std::string text, std::string nearest = {}) {
    return {{{Severity::error, problem, document.place_of(node), std::move(key), node.spelled(), std::move(nearest),
              std::move(text)}}};
}

expected<const trainers::Trainer*> named_trainer(const io::Document& document) {
    const io::Node* node = document.root.find("trainer");
    if (node == nullptr)
        return complaint(Problem::missing_key, document, document.root, "trainer", "trainer is missing");
    if (node->text() == nullptr)
        return complaint(Problem::wrong_type, document, *node, "trainer",
                         "trainer must be a text, not " + node->spelled());
    std::vector<std::string_view> ids;
    for (const trainers::Trainer& trainer : trainers::trainers()) {
        if (trainer.id == *node->text()) return &trainer;
        ids.push_back(trainer.id);
    }
    return complaint(Problem::unknown_trainer, document, *node, "trainer", "unknown trainer " + *node->text(),
                     nearest(*node->text(), ids));
}

expected<const trainers::Trainer*> trainer_of(const io::Document& document) {
    if (trainers::is_job_file(document)) return named_trainer(document);
    for (const trainers::Trainer& trainer : trainers::trainers())
        if (trainer.recognises(document)) return &trainer;
    std::string nearest_key;
    if (const io::Map* map = document.root.map())
        for (const io::Member& member : *map)
            if (nearest_key.empty() && member.key != "vramest")
                nearest_key = nearest(member.key, std::vector<std::string>{"vramest"});
    std::string known;
    for (const trainers::Trainer& trainer : trainers::trainers())
        known += (known.empty() ? "" : ", ") + std::string(trainer.id);
    return complaint(Problem::not_a_job, document, document.root, "",
                     "neither a vramest job file (vramest: 1) nor the config of a trainer that we know (" + known + ")",
                     nearest_key);
}

/// Keys that exclude each other: a setting takes the place of what the file says by the other name.
constexpr std::pair<std::string_view, std::string_view> one_of_two[] = {{"data.resolution", "data.buckets"},
                                                                        {"gpu", "capacity"}};

void make_room(io::Document& document, const std::string& prefix, std::string_view key) {
    for (const auto& [one, other] : one_of_two) {
        if (key != one && key != other) continue;
        const std::string excluded = prefix + std::string(key == one ? other : one);
        const io::Node* said = io::find(document.root, excluded);
        if (said != nullptr && said->origin != io::Origin::assigned) io::erase(document.root, excluded);
    }
}

}  // namespace

expected<Opened> open(std::string_view text, std::string file_name, const CheckOptions& options,
                      const profile::Catalogue& catalogue, Diagnostics& notes) {
    const io::Format format = io::format_of(file_name, text);
    expected<io::Document> document = io::read(text, std::move(file_name), format);
    if (!document) return Unexpected{document.error()};
    return open(*std::move(document), options, catalogue, notes);
}

expected<Opened> open(io::Document document, const CheckOptions& options, const profile::Catalogue& catalogue,
                      Diagnostics& notes) {
    Opened opened{nullptr, std::move(document), {}};

    Diagnostics complaints;
    const std::string prefix = trainers::is_job_file(opened.document) ? "" : "vramest.";
    for (const Setting& setting : options.settings) {
        make_room(opened.document, prefix, setting.key);
        if (std::optional<Diagnostic> complaint = io::assign(opened.document, prefix + setting.key, setting.value))
            complaints.push_back(*std::move(complaint));
    }
    const auto failed = [&](const Diagnostics& more) {
        complaints.insert(complaints.end(), more.begin(), more.end());
        return Unexpected{std::move(complaints)};
    };

    const expected<const trainers::Trainer*> trainer = trainer_of(opened.document);
    if (!trainer) return failed(trainer.error());
    opened.trainer = *trainer;
    expected<job::Job> job = opened.trainer->resolve(opened.document, catalogue, notes);
    if (!job) return failed(job.error());
    if (!complaints.empty()) return failed({});
    opened.job = *std::move(job);
    return opened;
}

const io::Node& said(const io::Document& document, std::string_view key) {
    for (const std::string_view prefix : {"", "vramest."})
        if (const io::Node* node = io::find(document.root, std::string(prefix) + std::string(key))) return *node;
    return document.root;
}

expected<run::Facts> guarded(const std::function<run::Facts()>& step, const Opened& opened) {
    const io::Document& document = opened.document;
    const auto failed = [&](Problem problem, std::string text) {
        return Unexpected{{{Severity::error, problem, {document.file_name, 0, 0}, "", "", "", std::move(text)}}};
    };
    // What a folder or a file was read of says its own sizes.
    const bool is_described = !opened.job.described.empty();
    const std::string model = opened.job.component ? "component" : "model";
    try {
        return step();
    } catch (const Overflow& overflow) {
        return failed(Problem::overflow, std::string("this job is too large: ") + overflow.what());
    } catch (const shadow::NoKernel& missing) {
        const std::string key = "environment.attention";
        return complaint(Problem::conflict, document, said(document, key), key, missing.what(), "auto");
    } catch (const shadow::Refused& refused) {
        const std::string text = std::string("PyTorch refuses this job: ") + refused.what();
        const std::string key = refused.key.empty() && is_described ? model : refused.key;
        if (key.empty()) return failed(Problem::out_of_range, text);
        return complaint(Problem::out_of_range, document, said(document, key), key, text);
    } catch (const shadow::TraceTooLong& too_long) {
        return failed(Problem::out_of_range, std::string("this job is too long to be played: ") + too_long.what());
    } catch (const std::bad_alloc&) {
        return failed(Problem::out_of_range, "this job is too long to be played: memory ran out");
    } catch (const std::logic_error& bug) {
        if (is_described)
            return complaint(Problem::unsupported, document, said(document, model), model,
                             "the config of " + opened.job.model + " does not hang together: " + bug.what());
        return failed(Problem::unsupported, std::string("an error of vramest's own: ") + bug.what());
    }
}

}  // namespace vram::report
