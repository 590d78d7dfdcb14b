#include <stdexcept>

#include "vram/profile/model_profile.hpp"

namespace vram::profile {
namespace {

[[noreturn]] void bug(const Config& config, std::string_view key, std::string_view what) {
    throw std::logic_error("profile " + config.profile + ": config." + std::string(key) + " " + std::string(what));
}

const Config::Value* find(const Config& config, std::string_view key) {
    const auto it = config.values.find(key);
    return it == config.values.end() ? nullptr : &it->second;
}

const Config::Value& require(const Config& config, std::string_view key) {
    const Config::Value* value = find(config, key);
    if (value == nullptr) bug(config, key, "is missing");
    return *value;
}

template <class T>
const T& as(const Config& config, std::string_view key, const Config::Value& value, std::string_view due) {
    const T* typed = std::get_if<T>(&value);
    if (typed == nullptr) bug(config, key, std::string("is not ") + std::string(due));
    return *typed;
}

double as_number(const Config& config, std::string_view key, const Config::Value& value) {
    if (const std::int64_t* whole = std::get_if<std::int64_t>(&value)) return static_cast<double>(*whole);
    return as<double>(config, key, value, "a number");
}

}  // namespace

bool Config::boolean(std::string_view key) const { return as<bool>(*this, key, require(*this, key), "true or false"); }
bool Config::boolean(std::string_view key, bool fallback) const { return has(key) ? boolean(key) : fallback; }

std::int64_t Config::integer(std::string_view key) const {
    return as<std::int64_t>(*this, key, require(*this, key), "a whole number");
}
std::int64_t Config::integer(std::string_view key, std::int64_t fallback) const {
    return has(key) ? integer(key) : fallback;
}

double Config::number(std::string_view key) const { return as_number(*this, key, require(*this, key)); }
double Config::number(std::string_view key, double fallback) const { return has(key) ? number(key) : fallback; }

const std::string& Config::text(std::string_view key) const {
    return as<std::string>(*this, key, require(*this, key), "a text");
}
std::string Config::text(std::string_view key, std::string_view fallback) const {
    return has(key) ? text(key) : std::string(fallback);
}

const std::vector<std::int64_t>& Config::integers(std::string_view key) const {
    return as<std::vector<std::int64_t>>(*this, key, require(*this, key), "a list of whole numbers");
}
std::vector<std::int64_t> Config::integers(std::string_view key, std::vector<std::int64_t> fallback) const {
    return has(key) ? integers(key) : std::move(fallback);
}

const std::vector<std::string>& Config::texts(std::string_view key) const {
    return as<std::vector<std::string>>(*this, key, require(*this, key), "a list of texts");
}

}  // namespace vram::profile
