#include "report/card.hpp"

#include <algorithm>

#include "vram/device/allocator_config.hpp"

namespace vram::report {
namespace {

constexpr std::int32_t usual_multiprocessors = 128;  // of the kernels that are assumed until a card is chosen

// What drivers for Linux keep of the size that nvidia-smi shows, on the measured cards (device_profiles/README.md).
constexpr Bytes least_kept = 240 * MiB, most_kept = 530 * MiB;

profile::Os system_of(const job::Environment& environment) {
    return environment.os == job::Environment::Os::linux_ ? profile::Os::linux_os : profile::Os::windows;
}

Card unknown_card(const DriverCard& driver, const job::Environment& environment) {
    const bool is_linux = system_of(environment) == profile::Os::linux_os;
    Card card = card_of(std::max<Bytes>(0, driver.total - (is_linux ? most_kept : 0)), environment, ChosenBy::driver);
    card.line.capacity_high = std::max<Bytes>(0, driver.total - (is_linux ? least_kept : 0));
    card.line.name = driver.name;
    return card;
}

}  // namespace

Bytes Card::outside_low() const {
    Bytes total = 0;
    for (const device::OutsidePart& part : outside) total += part.low;
    return total;
}
Bytes Card::outside_high() const {
    Bytes total = 0;
    for (const device::OutsidePart& part : outside) total += part.high;
    return total;
}

Card card_of(const profile::DeviceProfile& profile, const job::Environment& environment, ChosenBy chosen_by) {
    const profile::Os os = system_of(environment);
    const profile::MemoryRange& capacity = profile.capacity(os);
    const Bytes high = capacity.evidence == profile::Evidence::nominal ? capacity.high : capacity.low;
    return {{profile.id, profile.name, chosen_by, capacity.low, high, environment.other_processes},
            &profile,
            device::outside_parts(profile, os)};
}

Card card_of(Bytes capacity, const job::Environment& environment, ChosenBy chosen_by) {
    const profile::MemoryRange context = device::context_by_size(usual_multiprocessors);
    return {{"", "", chosen_by, capacity, capacity, environment.other_processes},
            nullptr,
            {{shadow::Category::context, context.low, context.high, context.source}}};
}

std::optional<Diagnostic> complaint_of(const CheckOptions& options, const profile::DeviceCatalogue& cards) {
    if (!options.gpu.empty() && cards.device(options.gpu) == nullptr)
        return Diagnostic{Severity::error,
                          Problem::unknown_gpu,
                          {"--gpu", 0, 0},
                          "gpu",
                          options.gpu,
                          cards.nearest_device(options.gpu),
                          "unknown GPU " + options.gpu};
    if (options.capacity != 0 && (options.capacity < job::smallest_capacity || options.capacity > device::unlimited))
        return Diagnostic{Severity::error,
                          Problem::out_of_range,
                          {"--capacity", 0, 0},
                          "capacity",
                          std::to_string(options.capacity),
                          {},
                          "capacity must be from 512 MiB to 1 PiB, not " + vram::to_text(options.capacity) +
                              "; a bare number counts bytes"};
    return std::nullopt;
}

Card named_card(const CheckOptions& options, const job::Job& job, const profile::DeviceCatalogue& cards) {
    if (!options.gpu.empty()) return card_of(*cards.device(options.gpu), job.environment, ChosenBy::flag);
    if (options.capacity > 0) return card_of(options.capacity, job.environment, ChosenBy::flag);
    if (!job.card.gpu.empty()) return card_of(*cards.device(job.card.gpu), job.environment, ChosenBy::job);
    if (job.card.capacity > 0) return card_of(job.card.capacity, job.environment, ChosenBy::job);
    if (options.driver) {
        const profile::DeviceProfile* profile = cards.device_of_driver(options.driver->name, options.driver->total);
        return profile != nullptr ? card_of(*profile, job.environment, ChosenBy::driver)
                                  : unknown_card(*options.driver, job.environment);
    }
    return Card{};
}

}  // namespace vram::report
