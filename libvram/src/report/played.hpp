#pragma once

#include <optional>

#include "report/card.hpp"
#include "report/need.hpp"
#include "report/opened.hpp"
#include "shadow/run.hpp"

namespace vram::report {

/// What is asked: all that a report says, or whether the job fits, for less.
enum class Depth : std::uint8_t { report, verdict };

/// A job that was played for some kernels; of Depth::verdict its facts lack what is played aside.
struct Played {
    shadow::Kernels kernels;
    shadow::Trace trace;
    run::Facts facts;
    device::Usage tensors;  // the sum of its trace
};

/// For the card, or where it is null for kernels of sm89. `job` is the one that was opened, or one like it. Errors:
/// those of `guarded`.
[[nodiscard]] expected<Played> play(const Opened& opened, const job::Job& job, const profile::DeviceProfile* card,
                                    const profile::Catalogue& catalogue, Depth depth = Depth::report);

/// What replays without a limit say. Errors: overflow, where a pebibyte is not enough.
[[nodiscard]] expected<Unlimited> unlimited_of(const Opened& opened, const Played& played,
                                               const device::AllocatorConfig& config,
                                               const profile::DeviceProfile* card, Alone alone);

/// How the job's environment lets torch allocate. What of it is ignored on its system goes to `notes`.
[[nodiscard]] device::AllocatorConfig allocator_of(const Opened& opened, Diagnostics& notes);

/// Whether tensors of this many bytes alone are more than torch's allocator could get on the card: then the job does
/// not fit, and no replay can say otherwise.
[[nodiscard]] bool exceeds(Bytes tensors, const device::AllocatorConfig& config, const Card& card);

/// A job on a card. Of Depth::verdict `unlimited` holds no phases by themselves, and is empty where the tensors alone
/// exceed the card.
struct OnCard {
    Card card;
    Played played;
    std::optional<Unlimited> unlimited;
};

/// Plays the job on the card that options, job or driver name, else on the smallest that holds it, or the largest that
/// is known; each card is asked with its own kernels. Errors: those of `play` and `unlimited_of`; bad_value for
/// targets that meet nothing; unknown_gpu where the catalogue has no card.
[[nodiscard]] expected<OnCard> place(const Opened& opened, const CheckOptions& options,
                                     const device::AllocatorConfig& config, const profile::Catalogue& catalogue,
                                     Depth depth);

}  // namespace vram::report
