#include "trainers/sd_scripts/buckets.hpp"

#include <doctest/doctest.h>

#include <initializer_list>
#include <vector>

using namespace vram::trainers::sd_scripts;

// What library/train_util.py's BucketManager and library/model_util.py's make_bucket_resolutions (48d368fa) give.

TEST_CASE("sd-scripts: sizes of buckets are as near to the resolution's area as their width lets them") {
    CHECK(bucket_resolutions({{512, 512}, true, false, 256, 1024, 64}).size() == 17);
    CHECK(bucket_resolutions({{1024, 1024}, true, false, 256, 1024, 64}).size() == 25);
    const std::vector<Size> odd = bucket_resolutions({{512, 768}, true, false, 256, 1024, 64});
    CHECK(odd.size() == 19);
    CHECK(odd.front() == Size{256, 1024});
    CHECK(odd.back() == Size{1024, 384});
    // The square is there whatever min_bucket_reso says.
    CHECK(bucket_resolutions({{200, 200}, true, false, 256, 320, 64}) == std::vector<Size>{{192, 192}});
}

TEST_CASE("sd-scripts: a picture trains in the bucket of the nearest aspect, or is only made smaller") {
    struct Case {
        const char* why;
        BucketRule rule;
        Size image, bucket;
    };
    const BucketRule large{{1024, 1024}, true, false, 256, 2048, 64}, fine{{768, 768}, true, false, 320, 1536, 32};
    BucketRule as_is = large, as_is_fine = fine;
    as_is.no_upscale = as_is_fine.no_upscale = true;
    for (const Case& c : {
             Case{"one of the sizes", large, {1024, 1024}, {1024, 1024}},
             Case{"made smaller", large, {4000, 3000}, {1152, 896}},
             Case{"upright", large, {3000, 4000}, {896, 1152}},
             Case{"made larger", large, {400, 300}, {1152, 896}},
             Case{"wider than any", large, {6000, 1000}, {2048, 320}},
             Case{"steps of 32", fine, {1920, 1080}, {1024, 576}},
             Case{"narrow, steps of 32", fine, {512, 768}, {608, 928}},
             Case{"not made larger", as_is, {400, 300}, {384, 256}},
             Case{"as large as it may be", as_is, {1024, 1024}, {1024, 1024}},
             Case{"a little too large", as_is, {1365, 768}, {1344, 768}},
             Case{"by its height", as_is, {4000, 3000}, {1088, 832}},
             Case{"beyond max_bucket_reso, which then has no say", as_is, {6000, 1000}, {2304, 384}},
             Case{"not made larger, steps of 32", as_is_fine, {800, 600}, {800, 576}},
             Case{"without buckets all are of one size", {{512, 640}, false}, {4000, 3000}, {512, 640}},
         }) {
        CAPTURE(c.why);
        CHECK(bucket_of(c.image, c.rule, bucket_resolutions(c.rule)) == c.bucket);
    }
}

TEST_CASE("sd-scripts: what is not measured is taken for the largest bucket near a square") {
    CHECK(heaviest_bucket({{1024, 1024}, true, false, 256, 2048, 64}) == Size{1024, 1024});
    CHECK(heaviest_bucket({{1024, 1024}, true, true, 256, 2048, 64}) == Size{1024, 1024});
    CHECK(heaviest_bucket({{512, 640}, false}) == Size{512, 640});
    // 409600 pixels are 640 x 640.
    CHECK(heaviest_bucket({{512, 800}, true, false, 256, 1024, 64}) == Size{640, 640});
    // 393216: 512 x 768 beats 576 x 640 and 640 x 576.
    CHECK(heaviest_bucket({{512, 768}, true, false, 256, 1024, 64}) == Size{512, 768});
}
