#include "profile/profile_file.hpp"

#include <utility>

namespace vram::profile {

expected<ProfileFile> read_profile_file(std::string_view text, std::string file_name) {
    expected<io::Document> document = io::read(text, std::move(file_name), io::Format::yaml);
    if (!document) return Unexpected{document.error()};
    ProfileFile out{*std::move(document), {}};
    out.complaints = out.document.complaints;
    for (Diagnostic& doubled : out.complaints) doubled.severity = Severity::error;
    return out;
}

std::string_view stem_of(std::string_view file_name) {
    file_name.remove_prefix(file_name.find_last_of('/') + 1);  // npos + 1 is 0
    return file_name.substr(0, file_name.rfind('.'));
}

}  // namespace vram::profile
