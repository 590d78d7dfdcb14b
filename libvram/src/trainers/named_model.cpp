#include "trainers/named_model.hpp"

#include <filesystem>

#include "models/described.hpp"
#include "vram/profile/catalogue.hpp"

namespace vram::trainers {

namespace fs = std::filesystem;

namespace {

using profile::ModelKind;
using profile::ModelProfile;

/// What no name of a model is.
bool is_path(std::string_view word) {
    return word.starts_with('.') || word.starts_with('/') || word.starts_with('~') || word.ends_with('/') ||
           word.find('\\') != std::string_view::npos || io::is_tensor_file_name(word) || io::is_pickle_name(word) ||
           word.ends_with(".safetensors.index.json");
}

/// A relative path counts from the folder of the file that says it.
fs::path located(const io::Document& document, const std::string& word) {
    return (fs::path(document.file_name).parent_path() / word).lexically_normal();
}

/// A path below `path` as the config would say it.
std::string as_written(const std::string& nearest, const fs::path& path, const std::string& word) {
    return nearest.starts_with(path.string()) ? word + nearest.substr(path.string().size()) : nearest;
}

/// Its text with its place, without how severe it is and what is nearest.
std::string bare_text(Diagnostic found) {
    found.severity = Severity::error;
    found.nearest.clear();
    return to_text(found);
}

class Reader {
  public:
    Reader(const io::Document& document, io::Fields& job, std::string_view key, bool component,
           const profile::Catalogue& catalogue, Diagnostics& notes)
        : document_(document), job_(job), key_(key), component_(component), catalogue_(catalogue), notes_(notes) {}

    NamedModel read() {
        const std::string word = job_.text(key_, io::required);
        if (word.empty()) {
            if (const io::Node* node = job_.node(key_); node != nullptr && node->text() != nullptr)
                complain(Problem::bad_value, std::string(key_) + " is empty");
            return {};
        }
        const fs::path path = located(document_, word);
        NamedModel out;
        if (const ModelProfile* profile = catalogue_.model(word)) {
            out.profile = *profile;
            if (is_there(path))
                note("the profile " + profile->id + " is meant; write ./" + word + " for what lies there");
        } else if (is_there(path)) {
            out = describe(path, word);
        } else if (is_path(word)) {
            complain(Problem::file_not_found,
                     "there is no " + path.string() + (word.starts_with('~') ? "; write out what ~ stands for" : ""));
        } else {
            const bool may_be_path = word.find('/') != std::string::npos;
            complain(Problem::unknown_model,
                     "unknown model " + word + (may_be_path ? ", and nothing lies at " + path.string() : ""),
                     catalogue_.nearest_model(word));
        }
        if (out.profile && component_ != (out.profile->kind != ModelKind::denoiser)) {
            complain(Problem::conflict, out.profile->id + " is a " + std::string(to_text(out.profile->kind)) +
                                            ": write " + (component_ ? "model: " : "component: ") + word);
            return {};
        }
        return out;
    }

  private:
    NamedModel describe(const fs::path& path, const std::string& word) {
        const Diagnostic said{Severity::error, Problem::unsupported, job_.place(key_), job_.path(key_), word, {}, {}};
        Diagnostics complaints;
        NamedModel out = describe_model(path, component_, said, catalogue_, complaints, notes_);
        for (const Diagnostic& complaint : complaints) complain(complaint.problem, complaint.text, complaint.nearest);
        return out;
    }

    void complain(Problem problem, std::string text, std::string nearest = {}) {
        job_.complain(key_, problem, std::move(text), std::move(nearest));
    }
    void note(std::string text) {
        notes_.push_back(
            {Severity::note, Problem::unknown_model, job_.place(key_), job_.path(key_), {}, {}, std::move(text)});
    }

    const io::Document& document_;
    io::Fields& job_;
    std::string_view key_;
    bool component_;
    const profile::Catalogue& catalogue_;
    Diagnostics& notes_;
};

}  // namespace

bool is_there(const fs::path& path) {
    std::error_code error;
    return path.native().find(fs::path::value_type{}) == fs::path::string_type::npos && fs::exists(path, error);
}

NamedModel describe_model(const fs::path& path, bool component, const Diagnostic& said,
                          const profile::Catalogue& catalogue, Diagnostics& complaints, Diagnostics& notes) {
    const auto tell = [&](Diagnostics& to, const Diagnostic& found, Severity severity, Problem problem) {
        to.push_back({severity, problem, said.place, said.key, said.found, as_written(found.nearest, path, said.found),
                      bare_text(found)});
    };
    const profile::Wanted wanted = component ? profile::Wanted::component : profile::Wanted::denoiser;
    expected<models::Described> described = models::describe(path, wanted, catalogue);
    if (!described) {
        for (const Diagnostic& complaint : described.error())
            if (complaint.severity == Severity::error) tell(complaints, complaint, Severity::error, complaint.problem);
        return {};
    }
    NamedModel out;
    out.was_read = true;
    for (const io::StoredType& type : described->stored) out.stored.push_back({type.type, type.numel, type.bytes});
    for (const Diagnostic& found : described->notes) tell(notes, found, found.severity, Problem::unknown_model);
    out.profile = std::move(described->profile);
    if (out.profile) {
        out.profile->id = out.profile->config.profile = said.found;
    } else {
        out.weights_only = job::WeightsOnly{said};
        out.weights_only->why.text = said.found + ": " + described->why_not;
    }
    return out;
}

NamedModel read_model(const io::Document& document, io::Fields& job, std::string_view key, bool component,
                      const profile::Catalogue& catalogue, Diagnostics& notes) {
    return Reader(document, job, key, component, catalogue, notes).read();
}

const ModelProfile& profile_of(const job::Job& job, const profile::Catalogue& catalogue, std::string_view id) {
    for (const ModelProfile& described : job.described)
        if (described.id == id) return described;
    return catalogue.model_of(id);
}

}  // namespace vram::trainers
