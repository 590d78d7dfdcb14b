// Deterministic mutations of a few seeds, for every test run. `fuzz_smoke [runs] [seed]` runs longer or otherwise.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <random>

#include "one_input.hpp"
#include "seeds.hpp"

namespace {

class Mutator {
  public:
    explicit Mutator(std::uint64_t seed) : random_(seed) {}

    std::string next() {
        std::string text = pick(seeds_);
        for (std::size_t changes = below(8); changes > 0; --changes) change(text);
        constexpr std::size_t longest = 4096;
        if (text.size() > longest) text.resize(longest);
        return text;
    }

  private:
    // Not std::uniform_int_distribution: each standard library draws its own numbers from it.
    std::size_t below(std::size_t n) { return n == 0 ? 0 : static_cast<std::size_t>(random_() % n); }
    const std::string& pick(const std::vector<std::string>& from) { return from[below(from.size())]; }

    void change(std::string& text) {
        const std::size_t at = below(text.size() + 1), length = std::min(below(16), text.size() - at);
        switch (below(7)) {
            case 0: text.insert(at, pick(vram::fuzz::tokens())); break;
            case 1: text.erase(at, length); break;
            case 2: text.insert(below(text.size() + 1), text.substr(at, length)); break;
            case 3: text.resize(at); break;
            case 4: text.replace(at, length, pick(vram::fuzz::tokens())); break;
            case 5:
                if (at < text.size()) text[at] = static_cast<char>(below(256));
                break;
            case 6: {
                const std::string& other = pick(seeds_);
                text = text.substr(0, at) + other.substr(below(other.size()));
                break;
            }
        }
    }

    std::mt19937_64 random_;
    std::vector<std::string> seeds_ = vram::fuzz::seeds();
};

std::string escaped(const std::string& text) {
    std::string out;
    for (const char c : text) {
        std::array<char, 8> code{};
        if (c >= ' ' && c < '\x7F' && c != '\\' && c != '"')
            out += c;
        else if (std::snprintf(code.data(), code.size(), "\\x%02x",
                               static_cast<unsigned>(static_cast<unsigned char>(c))) > 0)
            out += code.data();
    }
    return out;
}

}  // namespace

int main(int argc, char** argv) {
    const long runs = argc > 1 ? std::atol(argv[1]) : 20'000;
    const long seed = argc > 2 ? std::atol(argv[2]) : 1;
    for (const std::string& text : vram::fuzz::seeds())
        if (const std::string law = vram::fuzz::check_one(text); !law.empty()) {
            std::cout << "seed: " << law << "\n" << escaped(text) << "\n";
            return 1;
        }
    Mutator mutator(static_cast<std::uint64_t>(seed));
    for (long run = 0; run < runs; ++run) {
        const std::string text = mutator.next();
        if (const std::string law = vram::fuzz::check_one(text); !law.empty()) {
            std::cout << "run " << run << ": " << law << "\n" << escaped(text) << "\n";
            return 1;
        }
    }
    std::cout << runs << " inputs, every law held\n";
    return 0;
}
