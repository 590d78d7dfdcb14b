#pragma once

#include <deque>
#include <mutex>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "profile/embedded.hpp"
#include "vram/base/expected.hpp"

namespace vram::profile {

/// The profiles of one kind: all of them at hand, or those that are built in, of which each file is read when it is
/// first asked for. What it hands out lives as long as the shelf. Threads may share it.
///
/// `Traits` says what a profile is:
///     Profile, All                                          one, and all of them with an index
///     static expected<Profile> read(text, file_name)
///     static expected<All> gather(std::vector<Profile>)     complains of names that are given twice
///     static std::string fold(word)                         what makes two spellings one name
///     static bool answers_to(const Profile&, folded)        by id or alias
///     static const Profile* find(const All&, folded)        by any name
/// Throws std::logic_error where a built-in file has a complaint, which is a bug of ours that a test looks for.
template <class Traits>
class Shelf {
  public:
    using Profile = typename Traits::Profile;
    using All = typename Traits::All;

    explicit Shelf(All all) : all_(std::move(all)) {}
    explicit Shelf(std::span<const EmbeddedFile> files) : files_(files) {}

    [[nodiscard]] const All& all() const {
        const std::scoped_lock lock(mutex_);
        return everything();
    }

    /// The profile of that name, or null. A name stands in its file, so files without the word are not read.
    [[nodiscard]] const Profile* find(std::string_view word) const {
        const std::scoped_lock lock(mutex_);
        const std::string folded = Traits::fold(word);
        if (all_) return Traits::find(*all_, folded);
        if (folded.empty()) return nullptr;
        for (const Read& read : read_)
            if (Traits::answers_to(read.profile, folded)) return &read.profile;
        for (const EmbeddedFile& file : files_) {
            if (was_read(file) || Traits::fold(file.text).find(folded) == std::string::npos) continue;
            const Profile& profile =
                read_.emplace_back(&file, checked(Traits::read(file.text, std::string(file.name)))).profile;
            if (Traits::answers_to(profile, folded)) return &profile;
        }
        return Traits::find(everything(), folded);
    }

  private:
    struct Read {
        Read(const EmbeddedFile* of, Profile read) : file(of), profile(std::move(read)) {}
        const EmbeddedFile* file;
        Profile profile;
    };

    template <class T>
    static T checked(expected<T> read) {
        if (!read) throw std::logic_error("a built-in profile is broken: " + to_text(read.error().front()));
        return *std::move(read);
    }
    [[nodiscard]] bool was_read(const EmbeddedFile& file) const {
        for (const Read& read : read_)
            if (read.file == &file) return true;
        return false;
    }
    const All& everything() const {
        if (!all_) {
            std::vector<Profile> profiles;
            for (const EmbeddedFile& file : files_)
                profiles.push_back(checked(Traits::read(file.text, std::string(file.name))));
            all_ = checked(Traits::gather(std::move(profiles)));
        }
        return *all_;
    }

    std::span<const EmbeddedFile> files_;
    mutable std::mutex mutex_;
    mutable std::deque<Read> read_;  // those that were asked for before all were
    mutable std::optional<All> all_;
};

}  // namespace vram::profile
