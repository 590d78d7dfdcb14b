#include "vram/profile/catalogue.hpp"

#include <algorithm>
#include <cctype>
#include <stdexcept>
#include <unordered_map>

#include "profile/shelf.hpp"

namespace vram::profile {
namespace {

struct ModelTraits {
    using Profile = ModelProfile;
    struct All {
        std::vector<ModelProfile> models;                    // by id
        std::unordered_map<std::string, std::size_t> index;  // folded name → models
    };

    static expected<ModelProfile> read(std::string_view text, std::string file_name) {
        return read_model_profile(text, std::move(file_name));
    }
    static std::string fold(std::string_view word) {
        std::string out(word);
        std::transform(out.begin(), out.end(), out.begin(),
                       [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
        return out;
    }
    static std::vector<std::string> names_of(const ModelProfile& profile) {
        std::vector<std::string> names = profile.aliases;
        names.push_back(profile.id);
        return names;
    }
    static bool answers_to(const ModelProfile& profile, const std::string& folded) {
        const std::vector<std::string> names = names_of(profile);
        return std::any_of(names.begin(), names.end(), [&](const std::string& name) { return fold(name) == folded; });
    }
    static const ModelProfile* find(const All& all, const std::string& folded) {
        const auto it = all.index.find(folded);
        return it == all.index.end() ? nullptr : &all.models[it->second];
    }
    static expected<All> gather(std::vector<ModelProfile> models) {
        All all{std::move(models), {}};
        std::sort(all.models.begin(), all.models.end(),
                  [](const ModelProfile& a, const ModelProfile& b) { return a.id < b.id; });
        Diagnostics complaints;
        for (std::size_t i = 0; i < all.models.size(); ++i)
            for (const std::string& name : names_of(all.models[i])) {
                const auto [it, is_new] = all.index.emplace(fold(name), i);
                if (is_new || it->second == i) continue;
                const std::string text =
                    "profiles " + all.models[it->second].id + " and " + all.models[i].id + " share the name " + name;
                complaints.push_back({Severity::error, Problem::duplicate_key, {}, "aliases", name, {}, text});
            }
        if (!complaints.empty()) return Unexpected{std::move(complaints)};
        return all;
    }
};

struct ClassTraits {
    using Profile = ModelClass;
    using All = std::vector<ModelClass>;  // by name

    static expected<ModelClass> read(std::string_view text, std::string file_name) {
        return read_model_class(text, std::move(file_name));
    }
    static std::string fold(std::string_view word) { return std::string(word); }
    static bool answers_to(const ModelClass& one, std::string_view name) {
        return one.name == name || std::find(one.also.begin(), one.also.end(), name) != one.also.end();
    }
    static const ModelClass* find(const All& all, std::string_view name) {
        const auto found =
            std::find_if(all.begin(), all.end(), [&](const ModelClass& one) { return answers_to(one, name); });
        return found == all.end() ? nullptr : &*found;
    }
    static expected<All> gather(std::vector<ModelClass> classes) {
        std::sort(classes.begin(), classes.end(),
                  [](const ModelClass& a, const ModelClass& b) { return a.name < b.name; });
        return classes;
    }
};

}  // namespace

class Catalogue::Models : public Shelf<ModelTraits> {
  public:
    using Shelf::Shelf;
};
class Catalogue::Classes : public Shelf<ClassTraits> {
  public:
    using Shelf::Shelf;
};

Catalogue::Catalogue(std::shared_ptr<const Models> models, std::shared_ptr<const Classes> classes,
                     DeviceCatalogue cards)
    : models_(std::move(models)), classes_(std::move(classes)), cards_(std::move(cards)) {}

Catalogue Catalogue::built_in() {
    return {std::make_shared<Models>(embedded_model_profiles()), std::make_shared<Classes>(embedded_model_classes()),
            DeviceCatalogue::built_in()};
}

expected<Catalogue> Catalogue::of(std::vector<ModelProfile> models, DeviceCatalogue cards,
                                  std::vector<ModelClass> classes) {
    expected<ModelTraits::All> all = ModelTraits::gather(std::move(models));
    if (!all) return Unexpected{std::move(all.error())};
    return Catalogue(std::make_shared<Models>(*std::move(all)),
                     std::make_shared<Classes>(*ClassTraits::gather(std::move(classes))), std::move(cards));
}

const ModelClass* Catalogue::model_class(std::string_view name) const { return classes_->find(name); }
const std::vector<ModelClass>& Catalogue::model_classes() const { return classes_->all(); }

const ModelProfile* Catalogue::model(std::string_view word) const { return models_->find(word); }
const std::vector<ModelProfile>& Catalogue::models() const { return models_->all().models; }

const ModelProfile& Catalogue::model_of(std::string_view id) const {
    const ModelProfile* profile = model(id);
    if (profile == nullptr || profile->id != id) throw std::logic_error("no model profile " + std::string(id));
    return *profile;
}

std::string Catalogue::nearest_model(std::string_view word) const {
    std::vector<std::string> names;
    for (const ModelProfile& profile : models()) {
        names.push_back(profile.id);
        names.insert(names.end(), profile.aliases.begin(), profile.aliases.end());
    }
    return nearest(word, names);
}

}  // namespace vram::profile
