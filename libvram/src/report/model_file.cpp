#include "vram/report/model_file.hpp"

#include "models/described.hpp"

namespace vram::report {

expected<ModelFile> read_model_file(const std::filesystem::path& path, const profile::Catalogue& catalogue) {
    expected<models::Described> described = models::describe(path, profile::Wanted::denoiser, catalogue);
    if (!described) return Unexpected{described.error()};
    ModelFile out{described->path, described->class_name, {}, described->why_not, 0, {}, std::move(described->notes)};
    for (const io::StoredType& type : described->stored) {
        out.stored.push_back({type.type, type.numel, type.bytes});
        out.parameters += type.numel;
    }
    if (!described->profile) return out;
    out.family = described->profile->family;
    const expected<std::vector<models::ListedParameter>> listed = models::parameters_of(*described->profile);
    if (!listed) return Unexpected{listed.error()};
    out.parameters = 0;
    for (const models::ListedParameter& parameter : *listed)
        if (!parameter.buffer) out.parameters += models::numel_of(parameter);
    return out;
}

}  // namespace vram::report
