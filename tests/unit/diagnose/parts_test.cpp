// The parts of reading a log: phrases, lines, bars, frames, numbers, and the table of changes.
#include <doctest/doctest.h>

#include <set>

#include "base/text.hpp"
#include "diagnose/frames.hpp"
#include "diagnose/lines.hpp"
#include "diagnose/message.hpp"
#include "diagnose/phrases.hpp"
#include "diagnose/progress_bar.hpp"
#include "diagnose/signs.hpp"
#include "vram/diagnose/knowledge.hpp"

using namespace vram;
using namespace vram::diagnosis;

namespace {

std::vector<std::pair<std::string, std::int64_t>> lines_of(std::string_view bytes) {
    std::vector<std::pair<std::string, std::int64_t>> out;
    Lines lines([&](std::string_view line, std::int64_t number) { out.emplace_back(line, number); });
    lines.feed(bytes);
    lines.finish();
    return out;
}

}  // namespace

TEST_CASE("phrases are found wherever they stand, as a search for each would") {
    const std::vector<std::string> words = {"he", "she", "his", "hers", "ush", "SHE", "is h", "kein"};
    Phrases phrases;
    for (std::size_t i = 0; i < words.size(); ++i) phrases.add(words[i], static_cast<std::int32_t>(i));
    phrases.add("", 99);
    phrases.build();
    for (const std::string text : {"ushers", "this he", "HIS HERS", "", "keinhe", "\xFF\xFEushe", "sshehis hers"}) {
        CAPTURE(text);
        std::multiset<std::pair<std::int32_t, std::size_t>> found, sought;
        phrases.scan(text, [&](std::int32_t id, std::size_t end) { found.emplace(id, end); });
        for (std::size_t i = 0; i < words.size(); ++i)
            for (std::size_t at = 0; at + words[i].size() <= text.size(); ++at)
                if (lower(std::string_view(text).substr(at, words[i].size())) == lower(words[i]))
                    sought.emplace(static_cast<std::int32_t>(i), at + words[i].size());
        CHECK(found == sought);
    }
}

TEST_CASE("bytes become lines") {
    using Lined = std::vector<std::pair<std::string, std::int64_t>>;
    struct Case {
        const char* why;
        std::string bytes;
        Lined lines;
    };
    for (const Case& c : {
             Case{"a bar is drawn over itself in one line", "a\rb\rc\nd", {{"a", 1}, {"b", 1}, {"c", 1}, {"d", 2}}},
             Case{"empty lines count and are not handed on", "a\r\n\r\nb\n", {{"a", 1}, {"b", 3}}},
             Case{"NUL and colours go", std::string("a\0b\x1b[1;31mc\x1b[0m", 15), {{"abc", 1}}},
             Case{"a title and a link go", "\x1b]0;title\x07x\x1b]8;;u\x1b\\y", {{"xy", 1}}},
             Case{"an escape that never ends gives way to the next line", "a\x1b[12\nb", {{"a", 1}, {"b", 2}}},
             Case{"half of a UTF-16 unit", "\xFF\xFE" + std::string("a\0b", 3), {{"a", 1}}},
             Case{"a surrogate without its other half", "\xFE\xFF" + std::string("\xD8\x00\x00\x41", 4), {{"A", 1}}},
             Case{"beyond the first plane", std::string("\xFF\xFE\x3D\xD8\x00\xDE", 6), {{"\xF0\x9F\x98\x80", 1}}},
             Case{"nothing", "", {}},
         }) {
        CAPTURE(c.why);
        CHECK(lines_of(c.bytes) == c.lines);
    }
    const Lined pieces = lines_of(std::string(200'000, 'x') + "\ny");
    CHECK(pieces.size() == 5);
    CHECK(pieces.back() == std::pair<std::string, std::int64_t>("y", 2));
}

TEST_CASE("tqdm's bars") {
    struct Case {
        const char* line;
        const char* name;
        std::int64_t done, total, elapsed;
        double seconds;
        bool loss;
    };
    for (const Case& c : {
             Case{"steps:   0%|          | 0/1600 [00:00<?, ?it/s]", "steps", 0, 1600, 0, 0, false},
             Case{"steps:  12%|#2  | 192/1600 [02:01<14:50,  2.00it/s, avr_loss=0.083]", "steps", 192, 1600, 121, 0.5,
                  true},
             Case{"Epoch 1/10 Steps:  1%|1 | 3/99 [1:00:02<9:00:00, 8.50s/it, step_loss=1]", "Epoch 1/10 Steps", 3, 99,
                  3602, 8.5, true},
             Case{"100%|####| 20/20 [00:20<00:00,  1.1s/it]", "", 20, 20, 20, 1.1, false},
         }) {
        CAPTURE(c.line);
        const std::optional<ProgressBar> bar = progress_bar(c.line);
        REQUIRE(bar);
        CHECK(bar->name == c.name);
        CHECK(bar->done == c.done);
        CHECK(bar->total == c.total);
        CHECK(bar->elapsed == c.elapsed);
        CHECK(bar->seconds_per_step == doctest::Approx(c.seconds));
        CHECK(bar->has_loss == c.loss);
    }
    for (const char* line :
         {"model.safetensors:  45%|###  | 2.1G/4.9G [01:00<01:00, 40MB/s]", "50%|", "50%|##", "50%|##|", "50%|## | 1/",
          "50%|## | 99999999999999999999/2 [0:0<0, 1it/s]", "%|%|%|", ""}) {
        CAPTURE(line);
        CHECK_FALSE(progress_bar(line));
    }
}

TEST_CASE("frames of three kinds of stack traces") {
    struct Case {
        const char* line;
        const char* file;
        const char* function;
    };
    for (const Case& c : {
             Case{"  File \"/a b/train.py\", line 3, in process_batch", "/a b/train.py", "process_batch"},
             Case{"  File \"C:\\a\\vae.py\", line 3, in VAE.decode", "C:\\a\\vae.py", "decode"},
             Case{"\xE2\x94\x82 /home/u/train.py:773 in train    \xE2\x94\x82", "/home/u/train.py", "train"},
             Case{"/usr/lib/pipe.py in __call__(self, prompt)", "/usr/lib/pipe.py", "__call__"},
         }) {
        CAPTURE(c.line);
        const std::optional<Frame> frame = frame_of(c.line);
        REQUIRE(frame);
        CHECK(frame->file == c.file);
        CHECK(frame->function == c.function);
    }
    for (const char* line : {"put train.py in the folder", "File \"x", "File \"x\", line 3",
                             "train.py:", "train.py:12 in", "  train.py"}) {
        CAPTURE(line);
        const std::optional<Frame> frame = frame_of(line);
        CHECK((!frame || frame->function.empty()));
    }
}

TEST_CASE("of a stack trace the innermost frame of a place decides") {
    const Knowledge known = Knowledge::built_in();
    const auto of = [&](std::initializer_list<Frame> list) {
        Frames frames;
        for (const Frame& frame : list) frames.add(known.signs(), frame);
        return frames;
    };
    CHECK(of({{"train.py", "sample_images"}, {"vae.py", "decode"}}).place == Where::vae_decode);
    CHECK(of({{"a.py", "load_model"}, {"a.py", "quantize_model"}, {"torch/nn/modules/module.py", "_apply"}}).place ==
          Where::quantize);
    const Frames detail = of({{"train.py", "main"}, {"torch/_tensor.py", "backward"}});
    CHECK_FALSE(detail.place);
    CHECK(detail.detail == Where::step);
    CHECK(of({{"tokenizer.py", "decode"}}).place == std::nullopt);
    CHECK(of({{"torch/nn/modules/module.py", "to"}}).weak == Where::model_load);
}

TEST_CASE("a message's numbers, and what they are not") {
    const Knowledge known = Knowledge::built_in();
    const auto of = [&](std::string_view text) { return read_message(known.signs(), squeezed(text)).numbers; };
    CHECK(of("you tried to allocate 5 bytes").host_tried == 5);
    CHECK_FALSE(of("you tried to allocate 5 bytes").tried);
    CHECK(of("Tried to allocate 20.00 MiB").tried == 20 * MiB);
    CHECK_FALSE(of("Tried to allocate 20.00").tried);
    CHECK_FALSE(of("Tried to allocate more than 1EB memory.").tried);
    CHECK_FALSE(of("Tried to allocate 99999999999999999999 GiB").tried);
    CHECK_FALSE(of("this process has 17179869184.00 GiB memory in use").process);
    CHECK_FALSE(of("this process has 0 bytes memory in use").process);
    CHECK(of("GPU 0 has a total\n[rank0]: capacity of 8.00 GiB").capacity == 8 * GiB);
    // The process that holds what torch allocated is this one; with a clause of its own all listed ones are others.
    const Numbers container =
        of("Process 1 has 0.50 GiB memory in use. Process 2 has 8.40 GiB memory in use. Of the allocated memory 8.00 "
           "GiB is "
           "allocated by PyTorch, and 0.20 GiB is reserved by PyTorch but unallocated.");
    CHECK(container.process == static_cast<Bytes>(8.4 * GiB + 0.5));
    CHECK(container.other_processes == GiB / 2);
    const Numbers foreign =
        of("Process 2 has 20.00 GiB memory in use. Of the allocated memory 1.00 GiB is allocated by PyTorch, and 0 "
           "bytes is "
           "reserved by PyTorch but unallocated.");
    CHECK_FALSE(foreign.process);
    CHECK(foreign.other_processes == 20 * GiB);
}

TEST_CASE("every kind has a change for every phase and system, and leaves out what the job does already") {
    const Knowledge known = Knowledge::built_in();
    for (int kind = 0; kind <= static_cast<int>(Kind::unknown); ++kind)
        for (int phase = 0; phase <= static_cast<int>(Phase::unknown); ++phase)
            for (int system = 0; system <= static_cast<int>(System::unknown); ++system) {
                const Advised advised = first_change(known, static_cast<Kind>(kind), static_cast<Phase>(phase),
                                                     static_cast<System>(system));
                CHECK_FALSE(advised.cause.empty());
                CHECK_FALSE(advised.changes.empty());
            }
    report::Report report;
    CHECK(first_change(known, Kind::config_too_big, Phase::first_steps, System::linux_os, &report).changes.front() ==
          "turn gradient checkpointing on");
    report.job.resolved["train.gradient_checkpointing"] = "true";
    CHECK(first_change(known, Kind::config_too_big, Phase::first_steps, System::linux_os, &report)
              .changes.front()
              .starts_with("set the batch size to 1"));
    CHECK(first_change(known, Kind::host_ram, Phase::save, System::linux_os, nullptr, "shm")
              .changes.front()
              .starts_with("give the container"));
}

TEST_CASE("a table with a mistake is refused at its line") {
    const auto refused = [](std::string_view signs, std::string_view changes) {
        const expected<Knowledge> read = Knowledge::of(signs, changes);
        return read ? std::string() : vram::to_text(read.error().front());
    };
    CHECK(refused("schema: 1\nplaces:\n  - {place: sampel, says: [x]}\n", "").starts_with("failures/signs.yaml:3:13:"));
    CHECK(refused("schema: 1\nfailures:\n  - {pattern: oom, says: [x]}\n", "").find("pattern") != std::string::npos);
    CHECK(refused("schema: 1\n",
                  "schema: 1\nkinds:\n  - {kind: not_memory, cause: c, changes: [{phases: [save], change: x}]}\n")
              .find("no change holds for every phase") != std::string::npos);
    CHECK(refused("schema: 1\n", "schema: 1\nkinds: []\n").find("a kind of failure is missing") != std::string::npos);
}
