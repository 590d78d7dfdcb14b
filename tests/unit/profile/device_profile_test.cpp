#include "vram/profile/device_profile.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "profile/embedded.hpp"
#include "vram/device/context.hpp"
#include "vram/profile/device_catalogue.hpp"

using namespace vram;
using namespace vram::profile;

namespace {

constexpr const char* good = R"(schema: 1
id: rtx-0000
name: NVIDIA GeForce RTX 0000
aliases: ["RTX 0000"]
architecture: ada
sm: 89
multiprocessors: 10
memory: 8 GiB
capacity:
  linux: {low: 7.5 GiB, high: 7.75 GiB, kind: nominal, source: a guess}
  windows: {bytes: 8589410304, kind: measured, source: a log}
context: {low: 100 MiB, high: 200 MiB, kind: nominal, source: a guess}
cublas_workspace: 8519680
source: a data sheet
)";

std::string with(std::string_view line, std::string_view instead) {
    std::string text = good;
    const std::size_t at = text.find(line);
    REQUIRE(at != std::string::npos);
    return text.replace(at, line.size(), instead);
}

}  // namespace

TEST_CASE("a device profile reads into plain values") {
    const expected<DeviceProfile> card = read_device_profile(good, "device_profiles/rtx-0000.yaml");
    REQUIRE(card);
    CHECK(card->id == "rtx-0000");
    CHECK(card->sm == 89);
    CHECK(card->memory == 8 * GiB);
    CHECK(card->capacity(Os::linux_os) == MemoryRange{15 * GiB / 2, 31 * GiB / 4, Evidence::nominal, "a guess"});
    CHECK(card->capacity(Os::windows) == MemoryRange{8589410304, 8589410304, Evidence::measured, "a log"});
    CHECK(card->notes.empty());
}

TEST_CASE("a device profile is strict") {
    struct Case {
        const char *why, *line, *instead;
        Problem problem;
        const char *key, *nearest;
    };
    for (const Case& c : {
             Case{"a typo", "multiprocessors:", "multiprocesors:", Problem::unknown_key, "multiprocesors",
                  "multiprocessors"},
             Case{"no number without a source", ", source: a log", "", Problem::missing_key, "capacity.windows.source",
                  ""},
             Case{"the kind is one of two", "kind: measured", "kind: mesured", Problem::bad_value,
                  "capacity.windows.kind", "measured"},
             Case{"both ends or one number", "{bytes: 8589410304,", "{bytes: 8589410304, low: 1,", Problem::conflict,
                  "capacity.windows.bytes", ""},
             Case{"a range goes up", "low: 7.5 GiB", "low: 7.9 GiB", Problem::out_of_range, "capacity.linux.high", ""},
             Case{"more than on the box", "bytes: 8589410304", "bytes: 9000000000", Problem::out_of_range, "capacity",
                  ""},
             Case{"the id is the file's name", "id: rtx-0000", "id: rtx-0001", Problem::bad_value, "id", ""},
             Case{"another schema", "schema: 1", "schema: 2", Problem::out_of_range, "schema", ""},
             Case{"a key twice", "sm: 89", "sm: 89\nsm: 90", Problem::duplicate_key, "sm", ""},
             Case{"an unknown unit", "memory: 8 GiB", "memory: 8 gigs", Problem::bad_unit, "memory", ""},
         }) {
        CAPTURE(std::string(c.why));
        const expected<DeviceProfile> card = read_device_profile(with(c.line, c.instead), "rtx-0000.yaml");
        REQUIRE_FALSE(card);
        const Diagnostics& complaints = card.error();
        const auto found = std::find_if(complaints.begin(), complaints.end(),
                                        [&](const Diagnostic& d) { return d.problem == c.problem; });
        REQUIRE(found != complaints.end());
        CHECK(found->key == c.key);
        CHECK(found->nearest == c.nearest);
        CHECK(found->place.file == "rtx-0000.yaml");
        CHECK(found->place.line > 0);
    }
}

TEST_CASE("every built-in card reads, has its sources, and keeps within its box") {
    const DeviceCatalogue catalogue = DeviceCatalogue::built_in();
    CHECK(catalogue.devices().size() >= 34);
    CHECK(catalogue.devices().size() == embedded_device_profiles().size());
    for (const DeviceProfile& card : catalogue.devices()) {
        CAPTURE(card.id);
        CHECK(catalogue.device(card.id) == &card);
        for (const MemoryRange* range : {&card.linux_capacity, &card.windows_capacity, &card.context}) {
            CHECK_FALSE(range->source.empty());
            CHECK(range->low > 0);
            CHECK(range->low <= range->high);
            // What nobody measured is a range, never a number.
            if (range->evidence == Evidence::nominal) CHECK(range->low < range->high);
        }
        // Windows hides less than Linux, on every card where both are known.
        CHECK(card.windows_capacity.low >= card.linux_capacity.low);
        // 32 MiB for Hopper and, from torch 2.12 on, Blackwell; 8.125 MiB below. Source: CublasHandlePool.cpp.
        CHECK(card.cublas_workspace == (card.sm >= 90 ? 32 * MiB : 8519680));
        CHECK(card.cublas_workspace_in(2, 13) == card.cublas_workspace);
        CHECK(card.cublas_workspace_in(2, 9) == (card.sm == 90 ? 32 * MiB : 8519680));
        CHECK(catalogue.device_of_driver(card.name, card.linux_capacity.low) == &card);
        CHECK(catalogue.device_of_driver(card.name, card.windows_capacity.high) == &card);
    }
    CHECK(std::is_sorted(catalogue.devices().begin(), catalogue.devices().end(),
                         [](const DeviceProfile& a, const DeviceProfile& b) { return a.memory < b.memory; }));
}

TEST_CASE("a card is found by what people and drivers call it") {
    const DeviceCatalogue catalogue = DeviceCatalogue::built_in();
    struct Case {
        const char *word, *id;
    };
    for (const Case& c :
         {Case{"RTX 4090", "rtx-4090"}, Case{"rtx4090", "rtx-4090"}, Case{"NVIDIA GeForce RTX 4090", "rtx-4090"},
          Case{"4070 ti super", "rtx-4070-ti-super"}, Case{"RTX 3080", "rtx-3080-10gb"},
          Case{"rtx-3080-12gb", "rtx-3080-12gb"}, Case{"A100 80GB", "a100-80gb"}, Case{"H100", "h100-sxm"},
          Case{"Tesla T4", "t4"}, Case{"nvidia l4", "l4"}, Case{"RTX 4090 Laptop GPU", "rtx-4090-laptop"}}) {
        CAPTURE(std::string(c.word));
        REQUIRE(catalogue.device(c.word) != nullptr);
        CHECK(catalogue.device(c.word)->id == c.id);
        const DeviceProfile* alone = DeviceCatalogue::built_in().device(c.word);
        CHECK(alone != nullptr);  // in a catalogue that has read nothing else
    }
    CHECK(catalogue.device("RTX 4091") == nullptr);
    CHECK(catalogue.device("") == nullptr);
    CHECK(catalogue.nearest_device("rtx-409O") == "rtx-4090");
    // One name, two cards: the total tells.
    REQUIRE(catalogue.device_of_driver("NVIDIA GeForce RTX 4060 Ti", 15944 * MiB) != nullptr);
    CHECK(catalogue.device_of_driver("NVIDIA GeForce RTX 4060 Ti", 15944 * MiB)->id == "rtx-4060-ti-16gb");
    CHECK(catalogue.device_of_driver("NVIDIA GeForce RTX 4060 Ti", 8188 * MiB)->id == "rtx-4060-ti-8gb");
    CHECK(catalogue.device_of_driver("NVIDIA GeForce RTX 4090", 12 * GiB) == nullptr);
}

TEST_CASE("two cards of one name are a complaint") {
    const expected<DeviceProfile> card = read_device_profile(good, "rtx-0000.yaml");
    REQUIRE(card);
    DeviceProfile other = *card;
    other.id = "rtx-0001";
    CHECK(DeviceCatalogue::of({*card}));
    const expected<DeviceCatalogue> both = DeviceCatalogue::of({*card, other});
    REQUIRE_FALSE(both);
    CHECK(both.error().front().problem == Problem::duplicate_key);
    CHECK(both.error().front().found == "RTX 0000");
}

TEST_CASE("what stands outside of the allocator has a range and a source") {
    const expected<DeviceProfile> card = read_device_profile(good, "rtx-0000.yaml");
    REQUIRE(card);
    const auto lazy = device::outside_parts(*card, Os::linux_os);
    REQUIRE(lazy.size() == 1);
    CHECK(lazy[0] == device::OutsidePart{shadow::Category::context, 100 * MiB, 200 * MiB, "a guess"});
    const auto windows = device::outside_parts(*card, Os::windows);
    CHECK(windows[0].low == 100 * MiB);
    CHECK(windows[0].high == 300 * MiB);
    const auto eager = device::outside_parts(*card, Os::linux_os, device::ModuleLoading::eager);
    REQUIRE(eager.size() == 2);
    CHECK(eager[1].category == shadow::Category::libraries);
    CHECK(eager[1].low == 379584512);

    // The estimate by size holds every built-in card's own range, or comes close.
    const DeviceCatalogue catalogue = DeviceCatalogue::built_in();
    for (const DeviceProfile& known : catalogue.devices()) {
        if (known.context.evidence == Evidence::nominal) continue;
        CAPTURE(known.id);
        const MemoryRange estimate = device::context_by_size(known.multiprocessors);
        CHECK(estimate.low <= known.context.low);
        CHECK(estimate.high >= known.context.high);
    }
}
