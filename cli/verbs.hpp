#pragma once

#include <ostream>

#include "arguments.hpp"

namespace vram::cli {

// Each verb writes its answer to `out`, complaints to `err`, and returns the exit code.
[[nodiscard]] int check(const Arguments& arguments, std::ostream& out, std::ostream& err);
[[nodiscard]] int advise(const Arguments& arguments, std::ostream& out, std::ostream& err);
[[nodiscard]] int max(const Arguments& arguments, std::ostream& out, std::ostream& err);
[[nodiscard]] int grow(const Arguments& arguments, std::ostream& out, std::ostream& err);
[[nodiscard]] int sweep(const Arguments& arguments, std::ostream& out, std::ostream& err);
[[nodiscard]] int diagnose(const Arguments& arguments, std::ostream& out, std::ostream& err);
[[nodiscard]] int explain(const Arguments& arguments, std::ostream& out, std::ostream& err);
[[nodiscard]] int risk(const Arguments& arguments, std::ostream& out, std::ostream& err);
[[nodiscard]] int trace(const Arguments& arguments, std::ostream& out, std::ostream& err);
[[nodiscard]] int models(const Arguments& arguments, std::ostream& out, std::ostream& err);
[[nodiscard]] int gpus(const Arguments& arguments, std::ostream& out);
[[nodiscard]] int trainers(const Arguments& arguments, std::ostream& out);
[[nodiscard]] int schema(std::ostream& out);

void print_complaints(const Diagnostics& complaints, std::ostream& err);

/// What is said about a job that no verb could act on: the complaints, or with `json` a report that holds them.
/// Returns 2.
[[nodiscard]] int refuse(const Diagnostics& complaints, bool json, std::ostream& out, std::ostream& err);
/// The same of a job that cannot be read, where a verb has an answer of its own to hold the complaints.
template <class Answer>
[[nodiscard]] int refuse_as(const Answer& unread, const Diagnostics& complaints, const Arguments& arguments,
                            std::ostream& out, std::ostream& err) {
    if (arguments.json) out << to_json(unread) << '\n';
    return refuse(complaints, false, out, err);
}

}  // namespace vram::cli
