#include "trainers/surroundings.hpp"

#include <charconv>

#include "vram/device/allocator_config.hpp"
#include "vram/profile/device_catalogue.hpp"

namespace vram::trainers {
namespace {

using job::Card;
using job::Environment;

constexpr io::Choice<Environment::Os> systems[] = {
    {"linux", Environment::Os::linux_}, {"windows", Environment::Os::windows}, {"wsl", Environment::Os::wsl}};
constexpr io::Choice<Environment::Attention> attentions[] = {
    {"auto", Environment::Attention::automatic},      {"flash", Environment::Attention::flash},
    {"efficient", Environment::Attention::efficient}, {"math", Environment::Attention::math},
    {"cudnn", Environment::Attention::cudnn},         {"xformers", Environment::Attention::xformers}};

// What may be named. Of what differs between them, the size of cuBLAS workspaces and who computes convolutions are told
// apart; all else is as recorded from the newest but one (tests/reference).
constexpr std::int32_t oldest_minor = 1, newest_minor = 14, recorded_minor = 13;

/// "2.13", "2.13.1+cu130" → 2 and 13; false: no version.
bool parse_version(std::string_view text, std::int32_t& major, std::int32_t& minor) {
    const char* end = text.data() + text.size();
    const auto [dot, error] = std::from_chars(text.data(), end, major);
    if (error != std::errc{} || dot == end || *dot != '.') return false;
    const auto [rest, second] = std::from_chars(dot + 1, end, minor);
    return second == std::errc{} && major >= 0 && minor >= 0 && (rest == end || *rest == '.' || *rest == '+');
}

void read_torch(io::Fields& fields, Environment& environment, Diagnostics& notes) {
    const std::optional<std::string> written = fields.word("torch");
    if (!written) return;
    std::int32_t major = 0, minor = 0;
    if (!parse_version(*written, major, minor)) {
        fields.complain("torch", Problem::bad_value,
                        fields.path("torch") + " must be a version such as 2.13, not " + *written);
        return;
    }
    if (major != 2 || minor < oldest_minor || minor > newest_minor) {
        fields.complain("torch", Problem::unsupported,
                        "torch " + *written + " is not modelled: 2." + std::to_string(oldest_minor) + " to 2." +
                            std::to_string(newest_minor) + " are");
        return;
    }
    environment.torch_major = major;
    environment.torch_minor = minor;
    if (minor != recorded_minor)
        notes.push_back({Severity::note,
                         Problem::unsupported,
                         fields.place("torch"),
                         fields.path("torch"),
                         *written,
                         {},
                         "torch " + *written + " is played as 2.13, whose runs were recorded"});
}

/// "9.10.2" → 91002, as cudnnGetVersion counts; 8.9.2 is 8902 there. 0: no version of 8 or 9.
std::int32_t cudnn_version(std::string_view text) {
    std::int32_t parts[3] = {0, 0, 0};
    const char* at = text.data();
    const char* const end = at + text.size();
    for (int i = 0; i < 3; ++i) {
        const auto [rest, error] = std::from_chars(at, end, parts[i]);
        if (error != std::errc{} || parts[i] < 0 || parts[i] > 99) return 0;
        at = rest;
        if (i == 2 || at == end || *at != '.') break;
        ++at;
    }
    const bool whole = at == end || *at == '.';  // a fourth number is the build's
    if (!whole || (parts[0] != 8 && parts[0] != 9)) return 0;
    return parts[0] * (parts[0] == 8 ? 1000 : 10000) + parts[1] * 100 + parts[2];
}

void read_cudnn(io::Fields& fields, Environment& environment) {
    const std::optional<std::string> written = fields.word("cudnn");
    if (!written) return;
    environment.cudnn = cudnn_version(*written);
    if (environment.cudnn == 0)
        fields.complain("cudnn", Problem::bad_value,
                        fields.path("cudnn") + " must be a version of cuDNN 8 or 9 such as 9.10.2, not " + *written);
}

void read_alloc_conf(io::Fields& fields, Environment& environment, Diagnostics& notes) {
    const std::optional<std::string> conf = fields.text("alloc_conf");
    if (!conf) return;
    Diagnostics understood;
    const expected<device::AllocatorConfig> config = device::parse(*conf, {}, &understood);
    for (const Diagnostic& complaint : config ? Diagnostics{} : config.error())
        fields.complain("alloc_conf", complaint.problem, complaint.text, complaint.nearest);
    for (const Diagnostic& note : understood) notes.push_back(note);
    environment.alloc_conf = *conf;
}

template <class T>
std::string_view word_of(std::span<const io::Choice<T>> table, T value) {
    for (const io::Choice<T>& choice : table)
        if (choice.value == value) return choice.word;
    return "?";
}

}  // namespace

Environment read_environment(io::Fields& job, Diagnostics& notes) {
    Environment environment;
    io::Fields fields = job.map("environment");
    read_torch(fields, environment, notes);
    read_cudnn(fields, environment);
    read_alloc_conf(fields, environment, notes);
    environment.os = fields.choice("os", systems, environment.os);
    environment.other_processes = fields.size("other_processes", 0);
    if (environment.other_processes > device::unlimited)
        fields.complain(
            "other_processes", Problem::out_of_range,
            fields.path("other_processes") + " exceeds any card: " + vram::to_text(environment.other_processes));
    environment.attention = fields.choice("attention", attentions, environment.attention);
    if (environment.attention == Environment::Attention::cudnn ||
        environment.attention == Environment::Attention::xformers)
        fields.complain("attention", Problem::unsupported,
                        "the memory of " + std::string(to_text(environment.attention)) + " is not modelled", "auto");
    fields.finish();
    return environment;
}

Card read_card(io::Fields& job, const profile::DeviceCatalogue& cards) {
    Card card;
    const std::optional<std::string> gpu = job.word("gpu");
    const std::optional<Bytes> capacity = job.size("capacity");
    if (gpu && capacity) job.complain("capacity", Problem::conflict, "gpu and capacity exclude each other");
    if (gpu) {
        if (const profile::DeviceProfile* device = cards.device(*gpu))
            card.gpu = device->id;
        else
            job.complain("gpu", Problem::unknown_gpu, "unknown GPU " + *gpu, cards.nearest_device(*gpu));
    }
    if (capacity) {
        card.capacity = *capacity;
        if (*capacity < job::smallest_capacity || *capacity > device::unlimited)
            job.complain("capacity", Problem::out_of_range,
                         "capacity must be from 512 MiB to 1 PiB, not " + vram::to_text(*capacity) +
                             "; a bare number counts bytes");
    }
    return card;
}

std::string_view to_text(Environment::Os os) { return word_of<Environment::Os>(systems, os); }
std::string_view to_text(Environment::Attention attention) {
    return word_of<Environment::Attention>(attentions, attention);
}

}  // namespace vram::trainers
