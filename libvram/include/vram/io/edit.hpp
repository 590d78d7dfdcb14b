#pragma once

#include <optional>
#include <string>
#include <vector>

#include "vram/io/document.hpp"

namespace vram::io {

/// One change of what a document says.
struct Edit {
    std::string path;                  // as `find` takes it: "config.process[0].train.batch_size"
    std::optional<std::string> value;  // as `assign` reads it, a YAML flow value; nothing: the member or item goes
    bool operator==(const Edit&) const = default;
};

/// Where an edit lands, for people.
struct Edited {
    Edit edit;
    Place place{};         // in the text before: of the value, or of what stands before a key that is new
    bool is_new = false;   // nothing stood there
    std::string before{};  // what stood there, as in the file: "4", "[512, 768]"; of a long one its kind
    std::string after{};   // what stands there now; empty where it went
    bool operator==(const Edited&) const = default;
};

struct EditedDocument {
    Document document;          // with its new text
    std::vector<Edited> edits;  // in the order that was asked for
};

/// The document with the edits made in its text, in place, in the file's own format: comments, order, quotes, blank
/// lines and line ends of all else stay as they are. A new key goes behind the last one of its map, in the indentation
/// of its neighbours; maps that are missing on the way are written too. Edits are made one after the other.
///
/// The result has been read again and says what it should and nothing else. Of a document that was built in code there
/// is no text, and its tree alone is changed. Errors, with the place and key:
/// unknown_option (a malformed path, or nothing to take away), wrong_type and out_of_range as of `assign`, unsupported
/// for what cannot be said in place: a value that comes out of an anchor or a merge key, the only member of a map taken
/// away.
[[nodiscard]] expected<EditedDocument> edited(const Document& document, const std::vector<Edit>& edits);

}  // namespace vram::io
