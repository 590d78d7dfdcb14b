#include "advise/pictures.hpp"

#include <algorithm>
#include <array>

namespace vram::advise {

Bytes full_height(const Explained& explained) {
    Bytes full = std::max<Bytes>(1, explained.report.gpu.capacity);
    for (const device::Point& point : explained.timeline.points) full = std::max(full, point.reserved);
    return full;
}

std::vector<std::size_t> columns_of(const device::Timeline& timeline, std::size_t columns) {
    std::vector<std::size_t> out;
    for (const device::TimelinePart& part : timeline.parts)
        out.push_back(std::max<std::size_t>(1, part.points * columns / timeline.points.size()));
    return out;
}

std::vector<device::Point> sampled(const device::Timeline& timeline, const device::TimelinePart& part,
                                   std::size_t columns) {
    std::vector<device::Point> out;
    for (std::size_t column = 0; column < columns; ++column) {
        const std::size_t from = part.points * column / columns;
        const std::size_t to = std::max(from + 1, part.points * (column + 1) / columns);
        device::Point highest = timeline.points[part.first_point + from];
        for (std::size_t i = from; i < to; ++i) {
            const device::Point& point = timeline.points[part.first_point + i];
            highest.allocated = std::max(highest.allocated, point.allocated);
            highest.reserved = std::max(highest.reserved, point.reserved);
        }
        out.push_back(highest);
    }
    return out;
}

std::string bar_of(Bytes bytes, Bytes full) {
    static constexpr std::array bars{"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    if (bytes <= 0) return " ";
    const double eighths = static_cast<double>(bytes) / static_cast<double>(full) * static_cast<double>(bars.size());
    return bars[std::min(static_cast<std::size_t>(eighths), bars.size() - 1)];
}

}  // namespace vram::advise
