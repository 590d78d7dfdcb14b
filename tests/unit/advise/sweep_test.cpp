#include "vram/advise/sweep.hpp"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

using namespace vram;
using advise::Axis;
using report::Verdict;

namespace {

const profile::Catalogue& catalogue() {
    static const profile::Catalogue all = profile::Catalogue::built_in();
    return all;
}

const std::string sd15 =
    "vramest: 1\ntrainer: torch\nmodel: sd15\ntrain: {method: lora, rank: 4}\ndata: {resolution: 256}\n"
    "gpu: rtx-4090\n";

advise::Sweep sweep(const std::vector<Axis>& axes, const std::string& text = sd15,
                    const report::CheckOptions& options = {}) {
    return advise::sweep(text, "job.yaml", axes, options, catalogue());
}

/// A trial that nobody made, so that what is printed of it is known.
report::Trial made(Verdict verdict, Bytes low, Bytes high) {
    report::Trial trial;
    trial.verdict = verdict;
    trial.gpu = {"rtx-4090", "", report::ChosenBy::flag, 24 * GiB, 24 * GiB, 0};
    trial.tensors_peak = GiB;
    trial.tensors_phase = "step 1";
    trial.replayed = high > 0;
    trial.device_low = low;
    trial.device_high = high;
    if (verdict == Verdict::cannot_say) trial.reason = "job.yaml:1:1: a reason, \"quoted\" & <odd>";
    return trial;
}

advise::Sweep made_sweep() {
    advise::Sweep out{
        "job.yaml", {{"train.batch_size", {"1", "2"}}, {"data.resolution", {"512", "[768, 512]"}}}, {}, {}};
    const report::Trial trials[] = {made(Verdict::fits, 10 * GiB, 11 * GiB), made(Verdict::tight, 23 * GiB, 25 * GiB),
                                    made(Verdict::does_not_fit, 80 * GiB, 0), made(Verdict::cannot_say, 0, 0)};
    for (std::size_t i = 0; i < 4; ++i) {
        advise::Cell cell{{i / 2, i % 2}, {}, trials[i]};
        for (std::size_t axis = 0; axis < 2; ++axis)
            cell.settings.push_back({out.axes[axis].key, out.axes[axis].values[cell.at[axis]]});
        out.cells.push_back(std::move(cell));
    }
    return out;
}

}  // namespace

TEST_CASE("commas outside of brackets and quotes separate values") {
    struct Case {
        const char* text;
        std::vector<std::string> values;
    };
    for (const Case& c : {
             Case{"k=1,2,4", {"1", "2", "4"}},
             Case{"k=1", {"1"}},
             Case{"k=[512, 768],1024", {"[512, 768]", "1024"}},
             Case{"k=[[1,2],[3,4]],[[5,6]]", {"[[1,2],[3,4]]", "[[5,6]]"}},
             Case{"k={a: 1, b: 2},{a: 3}", {"{a: 1, b: 2}", "{a: 3}"}},
             Case{"k='a,b',c", {"'a,b'", "c"}},
             Case{"k=\"a,b\",'c,d'", {"\"a,b\"", "'c,d'"}},
             Case{"k=it's,that's", {"it's", "that's"}},
             Case{"k=['a,b', c],d", {"['a,b', c]", "d"}},
             Case{"k=a=b,c", {"a=b", "c"}},
             Case{"k=", {""}},
             Case{"k=1,,2", {"1", "", "2"}},
             Case{"k=1,", {"1", ""}},
             Case{"k=]],1", {"]]", "1"}},
         }) {
        CAPTURE(c.text);
        const expected<Axis> axis = advise::axis_of(c.text);
        REQUIRE(axis);
        CHECK(axis->key == "k");
        CHECK(axis->values == c.values);
    }
    for (const char* wrong : {"k", "=1", ""}) CHECK_FALSE(advise::axis_of(wrong));
}

TEST_CASE("what cannot be swept is said, all at once") {
    struct Case {
        const char* why;
        std::vector<Axis> axes;
        std::vector<Problem> problems;
    };
    const std::vector<std::string> thousand = [] {
        std::vector<std::string> out;
        for (int i = 0; i < 1000; ++i) out.push_back(std::to_string(i));
        return out;
    }();
    for (const Case& c : {
             Case{"no values", {{"train.rank", {}}}, {Problem::bad_value}},
             Case{"an empty one", {{"train.rank", {"4", " "}}}, {Problem::bad_value}},
             Case{"the same twice", {{"train.rank", {"4", "8", "4"}}}, {Problem::conflict}},
             Case{"one key twice", {{"train.rank", {"4"}}, {"train.rank", {"8"}}}, {Problem::conflict}},
             Case{"a million million cells",
                  {{"a", thousand}, {"b", thousand}, {"c", thousand}, {"d", thousand}},
                  {Problem::out_of_range}},
             Case{"two things", {{"a", {}}, {"b", {"1", "1"}}}, {Problem::bad_value, Problem::conflict}},
         }) {
        CAPTURE(c.why);
        const advise::Sweep done = sweep(c.axes);
        CHECK(done.cells.empty());
        std::vector<Problem> problems;
        for (const Diagnostic& complaint : done.diagnostics) problems.push_back(complaint.problem);
        CHECK(problems == c.problems);
        CHECK(advise::exit_code(done) == 2);
        CHECK_FALSE(to_text(done).empty());
        CHECK(nlohmann::json::parse(to_json(done)).at("cells").empty());
        CHECK(to_svg(done).starts_with("<svg"));
    }
    CHECK(sweep({{"train.rank", {"4"}}}, "{").diagnostics.front().problem == Problem::syntax);
    report::CheckOptions options;
    options.gpu = "rtx-9999";
    CHECK(sweep({{"train.rank", {"4"}}}, sd15, options).diagnostics.front().problem == Problem::unknown_gpu);
    options.gpu = "rtx-4090";
    CHECK(sweep({{"gpu", {"rtx-4090", "h200"}}}, sd15, options).diagnostics.front().problem == Problem::conflict);
}

TEST_CASE("cells stand with the last axis fastest, and cards can be an axis") {
    const advise::Sweep done = sweep({{"gpu", {"rtx-3070", "h200"}}, {"train.batch_size", {"1", "2", "0"}}});
    REQUIRE(done.cells.size() == 6);
    CHECK(done.cells[1].at == std::vector<std::size_t>{0, 1});
    CHECK(done.cells[1].trial.gpu.id == "rtx-3070");
    CHECK(done.cells[4].settings == std::vector<report::Setting>{{"gpu", "h200"}, {"train.batch_size", "2"}});
    CHECK(done.cells[4].trial.gpu.id == "h200");
    CHECK(done.cells[5].trial.verdict == Verdict::cannot_say);
    CHECK(done.cells[5].trial.reason.find("train.batch_size") != std::string::npos);
    CHECK(advise::exit_code(done) == 0);
    CHECK(advise::exit_code(sweep({{"train.batch_size", {"0"}}})) == 2);
}

TEST_CASE("a sweep of nothing is one check") {
    const advise::Sweep done = sweep({});
    REQUIRE(done.cells.size() == 1);
    CHECK(done.cells.front().trial.verdict == Verdict::fits);
    CHECK(to_text(done).find("1 fits") != std::string::npos);
}

TEST_CASE("progress counts every cell") {
    std::vector<std::size_t> seen;
    const advise::Sweep done = advise::sweep(sd15, "job.yaml", {{"train.batch_size", {"1", "2", "3"}}}, {}, catalogue(),
                                             [&](std::size_t cells, std::size_t all) {
                                                 CHECK(all == 3);
                                                 seen.push_back(cells);
                                             });
    CHECK(done.cells.size() == 3);
    CHECK(seen == std::vector<std::size_t>{1, 2, 3});
}

TEST_CASE("a setting takes the place of what excludes it in the file") {
    const std::string buckets =
        "vramest: 1\ntrainer: torch\nmodel: sd15\ntrain: {method: lora, rank: 4}\n"
        "data: {buckets: [[256, 256], [512, 512]]}\ncapacity: 80GiB\n";
    const advise::Sweep done = sweep({{"data.resolution", {"256"}}, {"gpu", {"rtx-4090"}}}, buckets);
    REQUIRE(done.cells.size() == 1);
    CHECK(done.cells.front().trial.verdict == Verdict::fits);
    CHECK(done.cells.front().trial.gpu.id == "rtx-4090");
    report::CheckOptions both;
    both.settings = {{"data.resolution", "256"}};
    CHECK(sweep({{"data.buckets", {"[[256, 256]]"}}}, buckets, both).cells.front().trial.verdict ==
          Verdict::cannot_say);
}

TEST_CASE("a table for terminals") {
    CHECK(to_text(made_sweep()) == R"(1 fits, 1 tight, 1 does not fit, 1 cannot say; rtx-4090 has 24.00 GiB

train.batch_size \ data.resolution         512  [768, 512]
1                                        11.00      25.00~
2                                      >80.00x           ?

GiB of the card; ~ tight, x does not fit (its least; > more than that), ? cannot say

? job.yaml:1:1: a reason, "quoted" & <odd>
)");
}

TEST_CASE("CSV quotes what needs it, and leaves open what nobody replayed") {
    CHECK(to_csv(made_sweep()) ==
          "train.batch_size,data.resolution,verdict,card,usable,tensors_peak,device_low,device_high,reason\n"
          "1,512,fits,rtx-4090,25769803776,1073741824,10737418240,11811160064,\n"
          "1,\"[768, 512]\",tight,rtx-4090,25769803776,1073741824,24696061952,26843545600,\n"
          "2,512,does_not_fit,rtx-4090,25769803776,1073741824,85899345920,,\n"
          "2,\"[768, 512]\",cannot_say,rtx-4090,,,,,\"job.yaml:1:1: a reason, \"\"quoted\"\" & <odd>\"\n");
}

TEST_CASE("JSON carries bytes, and complaints where a cell was refused") {
    const nlohmann::json told = nlohmann::json::parse(to_json(sweep({{"train.batch_size", {"1", "0"}}})));
    CHECK(told.at("axes").at(0).at("key") == "train.batch_size");
    CHECK(told.at("counts").at("fits") == 1);
    CHECK(told.at("cells").at(0).at("device_high").is_number_integer());
    CHECK_FALSE(told.at("cells").at(0).contains("diagnostics"));
    CHECK(told.at("cells").at(1).at("device_high").is_null());
    CHECK(told.at("cells").at(1).at("diagnostics").at(0).at("problem") == "out_of_range");
}

TEST_CASE("a picture has a cell for each, escapes what XML would read, and follows the reader's ground") {
    const std::string svg = to_svg(made_sweep());
    const auto count = [&](const std::string& what) {
        std::size_t found = 0;
        for (std::size_t at = svg.find(what); at != std::string::npos; at = svg.find(what, at + 1)) ++found;
        return found;
    };
    CHECK(svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\""));
    CHECK(count("<rect") == 4 + 4 + 1);  // cells, the key's, the ground
    CHECK(count("<title>") == 4 + 1);
    for (const char* part : {"prefers-color-scheme: dark", ">11.00<", ">25.00~<", ">&gt;80.00x<", ">?<",
                             "train.batch_size", "[768, 512]", "&quot;quoted&quot; &amp; &lt;odd&gt;"}) {
        CAPTURE(part);
        CHECK(svg.find(part) != std::string::npos);
    }
    advise::Sweep three = made_sweep();
    three.axes.insert(three.axes.begin(), Axis{"train.rank", {"4", "8\x01\xff"}});
    const std::vector<advise::Cell> cells = three.cells;
    three.cells.clear();
    for (std::size_t rank = 0; rank < 2; ++rank)
        for (advise::Cell cell : cells) {
            cell.at.insert(cell.at.begin(), rank);
            three.cells.push_back(std::move(cell));
        }
    const std::string panels = to_svg(three);
    CHECK(panels.find("train.rank=4<") != std::string::npos);
    CHECK(panels.find("train.rank=8?"
                      "?<") != std::string::npos);
    CHECK(to_text(three).find("train.rank=4\n") != std::string::npos);
}
