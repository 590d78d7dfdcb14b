#pragma once

#include <optional>
#include <vector>

#include "vram/device/context.hpp"
#include "vram/job/job.hpp"
#include "vram/report/check.hpp"

namespace vram::report {

/// What a verdict is about: how much there is, and what stands beside torch's reserved memory.
struct Card {
    GpuLine line;
    const profile::DeviceProfile* profile = nullptr;  // null: only a capacity is known
    std::vector<device::OutsidePart> outside;

    [[nodiscard]] Bytes outside_low() const;
    [[nodiscard]] Bytes outside_high() const;
};

[[nodiscard]] Card card_of(const profile::DeviceProfile& profile, const job::Environment& environment,
                           ChosenBy chosen_by);
/// A total as torch reports it and nothing else: the context is that of a card with sm89's 128 multiprocessors.
[[nodiscard]] Card card_of(Bytes capacity, const job::Environment& environment, ChosenBy chosen_by);

/// What is wrong with the card that the options name: unknown_gpu, or out_of_range of a capacity that no card has.
[[nodiscard]] std::optional<Diagnostic> complaint_of(const CheckOptions& options,
                                                     const profile::DeviceCatalogue& cards);

/// The card that options, job or driver name, in this order; null profile and zero capacity where none does. There is
/// no complaint_of the options.
[[nodiscard]] Card named_card(const CheckOptions& options, const job::Job& job, const profile::DeviceCatalogue& cards);

}  // namespace vram::report
