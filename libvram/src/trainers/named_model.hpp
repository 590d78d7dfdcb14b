#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "vram/io/fields.hpp"
#include "vram/job/job.hpp"

namespace vram::profile {
class Catalogue;
}

namespace vram::trainers {

/// What a job says of its model.
struct NamedModel {
    std::optional<profile::ModelProfile> profile;  // a known one, or one that was read from a path
    bool was_read = false;                         // from a path
    std::vector<job::StoredWeights> stored;
    std::optional<job::WeightsOnly> weights_only;  // the path is understood, and what lies there is none that is known
};

/// Is there a file or a folder?
[[nodiscard]] bool is_there(const std::filesystem::path& path);

/// What lies at a path that a config names as `said.found`, at `said.place` under `said.key`. Complaints and notes
/// stand there too; the places within the model's own files are in their texts.
[[nodiscard]] NamedModel describe_model(const std::filesystem::path& path, bool component, const Diagnostic& said,
                                        const profile::Catalogue& catalogue, Diagnostics& complaints,
                                        Diagnostics& notes);

/// Reads the value of `key`: the id or another name of a profile, or the path of a folder or a file of weights, from
/// the folder of the job's file on. A name that is known goes before a path of the same spelling (a note then).
///
/// Errors, at the value: unknown_model with the nearest name; file_not_found for what can only be a path; those of
/// models::describe, whose own places stand in the text; conflict where the model is of the other kind.
[[nodiscard]] NamedModel read_model(const io::Document& document, io::Fields& job, std::string_view key, bool component,
                                    const profile::Catalogue& catalogue, Diagnostics& notes);

/// The profile of one of the job's models: a described one, or of the catalogue.
[[nodiscard]] const profile::ModelProfile& profile_of(const job::Job& job, const profile::Catalogue& catalogue,
                                                      std::string_view id);

}  // namespace vram::trainers
