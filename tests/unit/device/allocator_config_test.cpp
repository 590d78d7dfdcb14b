#include "vram/device/allocator_config.hpp"

#include <doctest/doctest.h>

#include <string>

using namespace vram;
using namespace vram::device;

TEST_CASE("allocator settings read as torch reads them") {
    struct Case {
        const char* why;
        const char* text;
        AllocatorConfig config;
    };
    AllocatorConfig expandable;
    expandable.expandable_segments = true;
    AllocatorConfig split;
    split.max_split_size = 128 * MiB;
    split.garbage_collection_threshold = 0.8;
    split.per_process_memory_fraction = 0.9;
    AllocatorConfig segment;
    segment.large_segment_size = segment.max_non_split_rounding = 64 * MiB;
    AllocatorConfig all_eight;
    all_eight.roundup_power2_divisions.fill(8);
    AllocatorConfig list;
    list.roundup_power2_divisions = {8, 8, 8, 8, 8, 8, 8, 2, 4, 2, 4, 1, 1, 1, 1, 1};
    AllocatorConfig async;
    async.backend = AllocatorConfig::Backend::cuda_malloc_async;
    for (const Case& c : {
             Case{"nothing: the defaults", "", {}},
             Case{"one option", "expandable_segments:True", expandable},
             Case{"blanks carry no meaning", " expandable_segments : True ", expandable},
             Case{"a trailing comma is harmless, as in torch", "expandable_segments:True,", expandable},
             Case{"several", "max_split_size_mb:128,garbage_collection_threshold:0.8,per_process_memory_fraction:0.9",
                  split},
             Case{"the segment size is the default of the rounding, wherever it stands",
                  "expandable_segments:False,large_segment_size_mb:64", segment},
             Case{"one number of divisions for all sizes", "roundup_power2_divisions:8", all_eight},
             Case{"PyTorch's own test of the list form", "roundup_power2_divisions:[64:8,128:2,256:4,512:2,1024:4,>:1]",
                  list},
             Case{"the driver's pool", "backend:cudaMallocAsync", async},
             Case{"what is not about device memory is known and changes nothing",
                  "pinned_use_background_threads:True,release_lock_on_cudamalloc:True",
                  {}},
             Case{"more than any card is no limit", "max_split_size_mb:99999999999999999999", {}},
         }) {
        CAPTURE(std::string(c.why));
        const expected<AllocatorConfig> config = parse(c.text);
        REQUIRE(config);
        CHECK(*config == c.config);
    }
}

TEST_CASE("a wrong allocator setting is a complaint with its key and the nearest right one") {
    struct Case {
        const char* text;
        Problem problem;
        const char *key, *found, *nearest;
    };
    for (const Case& c : {
             Case{"expandable_segment:True", Problem::unknown_key, "expandable_segment", "True", "expandable_segments"},
             Case{"max_split_size:128", Problem::unknown_key, "max_split_size", "128", "max_split_size_mb"},
             Case{"expandable_segments:true", Problem::bad_value, "expandable_segments", "true", "True"},
             Case{"expandable_segments:1", Problem::bad_value, "expandable_segments", "1", "True"},
             Case{"backend:cudamallocasync", Problem::bad_value, "backend", "cudamallocasync", "cudaMallocAsync"},
             Case{"max_split_size_mb:19", Problem::out_of_range, "max_split_size_mb", "19", ""},
             Case{"max_split_size_mb:128abc", Problem::wrong_type, "max_split_size_mb", "128abc", ""},
             Case{"max_split_size_mb:-1", Problem::wrong_type, "max_split_size_mb", "-1", ""},
             Case{"max_split_size_mb:[128]", Problem::wrong_type, "max_split_size_mb", "[128]", ""},
             Case{"large_segment_size_mb:10", Problem::out_of_range, "large_segment_size_mb", "10", ""},
             Case{"max_non_split_rounding_mb:19", Problem::out_of_range, "max_non_split_rounding_mb", "19", ""},
             Case{"garbage_collection_threshold:1", Problem::out_of_range, "garbage_collection_threshold", "1", ""},
             Case{"garbage_collection_threshold:nan", Problem::wrong_type, "garbage_collection_threshold", "nan", ""},
             Case{"per_process_memory_fraction:1.5", Problem::out_of_range, "per_process_memory_fraction", "1.5", ""},
             Case{"roundup_power2_divisions:3", Problem::bad_value, "roundup_power2_divisions", "3", ""},
             Case{"roundup_power2_divisions:[100:4]", Problem::bad_value, "roundup_power2_divisions", "[100:4]", ""},
             Case{"roundup_power2_divisions:[256 4]", Problem::syntax, "roundup_power2_divisions", "[2564]", ""},
             Case{"expandable_segments", Problem::syntax, "alloc_conf", "", ""},
             Case{"expandable_segments:", Problem::syntax, "alloc_conf", "", ""},
             Case{"expandable_segments:True:False", Problem::syntax, "alloc_conf", ":", ""},
             Case{"roundup_power2_divisions:[256:4", Problem::syntax, "alloc_conf", "", ""},
             Case{",", Problem::syntax, "alloc_conf", ",", ""},
         }) {
        CAPTURE(std::string(c.text));
        const expected<AllocatorConfig> config = parse(c.text, Place{"job.yaml", 7, 3});
        REQUIRE_FALSE(config);
        REQUIRE(config.error().size() == 1);
        const Diagnostic& complaint = config.error().front();
        CHECK(complaint.severity == Severity::error);
        CHECK(complaint.problem == c.problem);
        CHECK(complaint.key == c.key);
        CHECK(complaint.found == c.found);
        CHECK(complaint.nearest == c.nearest);
        CHECK(complaint.place == Place{"job.yaml", 7, 3});
    }
    // All of them at once.
    CHECK(parse("max_split_size_mb:1,expandable_segments:yes,bakend:native").error().size() == 3);
}

TEST_CASE("settings that are understood and do nothing are noted") {
    Diagnostics notes;
    CHECK(parse("garbage_collection_threshold:0.8", {}, &notes));
    REQUIRE(notes.size() == 1);
    CHECK(notes[0].severity == Severity::note);
    CHECK(notes[0].key == "garbage_collection_threshold");
    notes.clear();
    CHECK(parse("backend:cudaMallocAsync,max_split_size_mb:128", {}, &notes));
    REQUIRE(notes.size() == 1);
    CHECK(notes[0].severity == Severity::warning);
    notes.clear();
    CHECK(parse("expandable_segments:True", {}, &notes));
    CHECK(notes.empty());
}
