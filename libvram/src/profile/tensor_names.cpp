#include "profile/tensor_names.hpp"

#include <algorithm>

namespace vram::profile {
namespace {

/// The highest N of names that start with `stem` and N, plus one.
std::int64_t layers_under(const Names& names, const std::string& stem) {
    std::int64_t layers = 0;
    for (auto at = names.lower_bound(stem); at != names.end() && at->first.starts_with(stem); ++at) {
        std::int64_t number = 0;
        std::size_t digit = stem.size();
        for (;
             digit < at->first.size() && digit < stem.size() + 6 && at->first[digit] >= '0' && at->first[digit] <= '9';
             ++digit)
            number = 10 * number + (at->first[digit] - '0');
        if (digit > stem.size()) layers = std::max(layers, number + 1);
    }
    return layers;
}

}  // namespace

std::optional<std::string> prefix_of(const Names& names, const NamingScheme& scheme) {
    const auto is_there = [&](const std::string& prefix, const std::string& name) {
        return names.contains(prefix + name);
    };
    const std::string& first = scheme.recognised_by.front();
    for (const auto& [name, tensor] : names) {
        if (!name.ends_with(first)) continue;
        const std::string prefix(name.substr(0, name.size() - first.size()));
        if (!prefix.empty() && !prefix.ends_with('.')) continue;
        const auto here = [&](const std::string& one) { return is_there(prefix, one); };
        if (std::all_of(scheme.recognised_by.begin(), scheme.recognised_by.end(), here) &&
            std::none_of(scheme.without.begin(), scheme.without.end(), here))
            return prefix;
    }
    return {};
}

Said config_of_names(const Names& names, const std::string& prefix, const NamingScheme& scheme) {
    Said said;
    for (const auto& [key, stem] : scheme.layers) said[key] = std::min(layers_under(names, prefix + stem), most_layers);
    for (const auto& [key, tensor] : scheme.present) said[key] = names.contains(prefix + tensor);
    for (const auto& [key, size] : scheme.sizes) {
        const auto found = names.find(prefix + size.tensor);
        if (found == names.end()) continue;
        const std::vector<std::int64_t>& shape = found->second->shape;
        if (size.dimension < static_cast<std::int64_t>(shape.size()))
            if (const std::int64_t value = shape[static_cast<std::size_t>(size.dimension)];
                value >= 1 && value <= most_size)
                said[key] = value;
    }
    return said;
}

}  // namespace vram::profile
