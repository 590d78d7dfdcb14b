#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "vram/advise/explain.hpp"

namespace vram::advise {

/// What a picture's height stands for: the card, or the run where that is higher. Above 0.
[[nodiscard]] Bytes full_height(const Explained& explained);

/// How many of about `columns` each part gets: as its points, at least one.
[[nodiscard]] std::vector<std::size_t> columns_of(const device::Timeline& timeline, std::size_t columns);

/// A part in so many columns, each the highest of its points; a point that has to fill several stands in each.
[[nodiscard]] std::vector<device::Point> sampled(const device::Timeline& timeline, const device::TimelinePart& part,
                                                 std::size_t columns);

/// A column of a line of text: a blank, or one of the blocks U+2581 to U+2588.
[[nodiscard]] std::string bar_of(Bytes bytes, Bytes full);

}  // namespace vram::advise
