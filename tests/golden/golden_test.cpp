#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "vram/report/check.hpp"

// Whole reports, text and JSON, beside the jobs that give them. VRAM_REWRITE=1 writes them anew; a person then reads
// the difference, and the commit says which fact changed.

using namespace vram;
namespace fs = std::filesystem;

namespace {

std::string read(const fs::path& path) {
    const std::ifstream file(path, std::ios::binary);
    std::ostringstream text;
    if (file) text << file.rdbuf();
    return text.str();
}

std::vector<fs::path> jobs() {
    std::vector<fs::path> found;
    for (const fs::directory_entry& entry : fs::directory_iterator(fs::path(VRAM_SOURCE_DIR) / "tests" / "golden"))
        if (entry.path().extension() == ".yaml") found.push_back(entry.path());
    std::sort(found.begin(), found.end());
    return found;
}

const profile::Catalogue& catalogue() {
    static const profile::Catalogue built_in = profile::Catalogue::built_in();
    return built_in;
}

report::Report check(const fs::path& job) { return report::check(read(job), job.filename().string(), {}, catalogue()); }

void compare(fs::path beside, const char* extension, const std::string& answer) {
    const fs::path path = beside.replace_extension(extension);
    CAPTURE(path.filename().string());
    if (std::getenv("VRAM_REWRITE") != nullptr) std::ofstream(path, std::ios::binary) << answer;
    CHECK(read(path) == answer);
}

}  // namespace

TEST_CASE("golden: the answers about these jobs are those that a person has read") {
    REQUIRE(jobs().size() >= 4);
    for (const fs::path& job : jobs()) {
        const report::Report report = check(job);
        compare(job, ".txt", report::to_text(report));
        compare(job, ".json", report::to_json(report) + "\n");
    }
}

TEST_CASE("eight threads say what one says, to the byte") {
    // Runs share nothing but the catalogue, which nobody writes; each thread takes the jobs in an order of its own.
    const std::vector<fs::path> all = jobs();
    std::vector<std::string> alone;
    for (const fs::path& job : all) alone.push_back(report::to_json(check(job)));

    constexpr std::size_t threads = 8;
    std::vector<std::vector<std::string>> together(threads, std::vector<std::string>(all.size()));
    std::vector<std::thread> running;
    for (std::size_t thread = 0; thread < threads; ++thread)
        running.emplace_back([&, thread] {
            for (std::size_t i = 0; i < all.size(); ++i) {
                const std::size_t job = (i + thread) % all.size();
                together[thread][job] = report::to_json(check(all[job]));
            }
        });
    for (std::thread& thread : running) thread.join();
    for (const std::vector<std::string>& answers : together) CHECK(answers == alone);
}
