#include "vram/base/bytes.hpp"

#include <doctest/doctest.h>

using namespace vram;

TEST_CASE("sizes read as people write them, and are written back with two decimals") {
    struct Case {
        const char* why;
        const char* text;
        bool valid;
        Bytes bytes;
    };
    for (const Case& c : {
             Case{"binary unit", "24GiB", true, 24 * GiB},
             Case{"a space before the unit", "1.5 MiB", true, 1572864},
             Case{"decimal unit", "1GB", true, 1000000000},
             Case{"plain bytes", "8519680", true, 8519680},
             Case{"negative", "-1", false, 0},
             Case{"beyond 63 bits", "99999999999GiB", false, 0},
             Case{"unknown unit", "24 gibibytes", false, 0},
             Case{"no number", "GiB", false, 0},
             Case{"nothing", "", false, 0},
             Case{"not finite", "infGiB", false, 0},
         }) {
        CAPTURE(c.why);
        Bytes out = 0;
        CHECK(parse_bytes(c.text, out) == c.valid);
        CHECK(out == c.bytes);
    }
    CHECK(to_text(Bytes{24} * GiB) == "24.00 GiB");
    CHECK(to_text(Bytes{-3} * MiB / 2) == "-1.50 MiB");
    CHECK(to_text(Bytes{511}) == "511 B");
}

TEST_CASE("a product or sum beyond 63 bits is an error, not a number") {
    CHECK_THROWS_AS(static_cast<void>(checked_mul(std::int64_t{1} << 40, std::int64_t{1} << 40)), Overflow);
    CHECK_THROWS_AS(static_cast<void>(checked_add(INT64_MAX, 1)), Overflow);
}
