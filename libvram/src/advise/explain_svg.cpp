#include <algorithm>
#include <cmath>

#include "advise/pictures.hpp"
#include "advise/xml.hpp"
#include "vram/advise/explain.hpp"

namespace vram::advise {
namespace {

// A picture of 960 x 440: the run from `left` to `right`, bytes from `bottom` up to `top`.
constexpr double width = 960, height = 440, left = 64, right = 944, top = 56, bottom = 372;

// Text and lines follow the reader's theme; the two areas read on either ground.
constexpr const char* style = R"css(
  svg { color-scheme: light dark; font: 12px system-ui, sans-serif; }
  .ground { fill: #ffffff; }
  text { fill: #1f2328; }
  .quiet { fill: #59636e; }
  .grid { stroke: #d1d9e0; }
  .phase { stroke: #818b98; stroke-dasharray: 2 3; }
  .reserved { fill: #8fb8f0; }
  .allocated { fill: #1f6feb; }
  .card { stroke: #cf222e; stroke-width: 1.5; stroke-dasharray: 7 4; }
  .over { fill: #cf222e; }
  .band { fill: transparent; }
  @media (prefers-color-scheme: dark) {
    .ground { fill: #0d1117; }
    text { fill: #f0f6fc; }
    .quiet { fill: #9198a1; }
    .grid { stroke: #3d444d; }
    .phase { stroke: #9198a1; }
    .reserved { fill: #23508f; }
    .allocated { fill: #58a6ff; }
    .card { stroke: #ff7b72; }
    .over { fill: #ff7b72; }
  }
)css";

/// One decimal, the same on every machine and in every locale.
std::string number(double value) {
    const auto tenths = static_cast<std::int64_t>(std::lround(value * 10));
    const std::string sign = tenths < 0 ? "-" : "";
    const std::int64_t size = tenths < 0 ? -tenths : tenths;
    return sign + std::to_string(size / 10) + (size % 10 == 0 ? "" : "." + std::to_string(size % 10));
}

class Picture {
  public:
    explicit Picture(const Explained& explained)
        : explained_(explained),
          timeline_(explained.timeline),
          full_(full_height(explained) + full_height(explained) / 16) {}

    std::string svg() {
        const report::Report& report = explained_.report;
        out_ = "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " + number(width) + " " + number(height) +
               "\" role=\"img\">\n<title>" + xml(report.reason) + "</title>\n<style>" + style +
               "</style>\n<rect class=\"ground\" width=\"" + number(width) + "\" height=\"" + number(height) + "\"/>\n";
        text(left, 22, "", "start", report.job.model + " (" + report.job.trainer + "): memory over the run");
        legend();
        grid();
        area("reserved", &device::Point::reserved);
        area("allocated", &device::Point::allocated);
        card();
        phases();
        return out_ + "</svg>\n";
    }

  private:
    [[nodiscard]] double y(Bytes bytes) const {
        return bottom - (bottom - top) * static_cast<double>(bytes) / static_cast<double>(full_);
    }
    [[nodiscard]] double x(std::size_t point) const {
        return left + (right - left) * static_cast<double>(point) / static_cast<double>(timeline_.points.size());
    }
    void text(double at_x, double at_y, const std::string& css, const std::string& anchor, const std::string& what) {
        out_ += "<text x=\"" + number(at_x) + "\" y=\"" + number(at_y) + "\"" +
                (css.empty() ? "" : " class=\"" + css + "\"") + " text-anchor=\"" + anchor + "\">" + xml(what) +
                "</text>\n";
    }
    void line(const std::string& css, double x1, double y1, double x2, double y2) {
        out_ += "<line class=\"" + css + "\" x1=\"" + number(x1) + "\" y1=\"" + number(y1) + "\" x2=\"" + number(x2) +
                "\" y2=\"" + number(y2) + "\"/>\n";
    }

    void legend() {
        double at = left;
        for (const auto& [css, what] : {std::pair{"reserved", "reserved by torch"}, {"allocated", "allocated"}}) {
            out_ += "<rect class=\"" + std::string(css) + "\" x=\"" + number(at) +
                    "\" y=\"32\" width=\"12\" height=\"12\"/>\n";
            text(at + 17, 42, "quiet", "start", what);
            at += 140;
        }
    }

    /// Lines at whole powers of two of GiB, or of MiB where the run is small: at most eight of them.
    void grid() {
        Bytes step = full_ < GiB ? MiB : GiB;
        while (full_ / step > 8) step *= 2;
        for (Bytes at = 0; at <= full_; at += step) {
            line("grid", left, y(at), right, y(at));
            const Bytes unit = step < GiB ? MiB : GiB;
            text(left - 8, y(at) + 4, "quiet", "end", std::to_string(at / unit) + (unit == GiB ? " GiB" : " MiB"));
        }
    }

    void area(const std::string& css, Bytes device::Point::*of) {
        out_ += "<path class=\"" + css + "\" d=\"M" + number(left) + " " + number(bottom);
        for (std::size_t i = 0; i < timeline_.points.size(); ++i)
            out_ += "V" + number(y(timeline_.points[i].*of)) + "H" + number(x(i + 1));
        out_ += "V" + number(bottom) + "Z\"/>\n";
    }

    void card() {
        const report::GpuLine& gpu = explained_.report.gpu;
        if (gpu.capacity <= 0) return;
        line("card", left, y(gpu.capacity), right, y(gpu.capacity));
        const std::string name = !gpu.id.empty() ? gpu.id : !gpu.name.empty() ? gpu.name : "the card";
        text(right, y(gpu.capacity) - 5, "over", "end", name + ": " + vram::to_text(gpu.capacity));
    }

    /// Names stand below, in rows so that they do not meet; what has no room has its name where the pointer rests.
    void phases() {
        constexpr std::size_t rows = 4;
        constexpr double letter = 6.6, row_height = 15;
        double taken[rows] = {};
        for (const device::TimelinePart& part : timeline_.parts) {
            const double from = x(part.first_point), to = x(part.first_point + part.points);
            if (part.first_point > 0) line("phase", from, top, from, bottom);
            if (part.phase.empty()) continue;
            Bytes allocated = 0, reserved = 0;
            for (std::size_t i = 0; i < part.points; ++i) {
                allocated = std::max(allocated, timeline_.points[part.first_point + i].allocated);
                reserved = std::max(reserved, timeline_.points[part.first_point + i].reserved);
            }
            out_ += "<rect class=\"band\" x=\"" + number(from) + "\" y=\"" + number(top) + "\" width=\"" +
                    number(to - from) + "\" height=\"" + number(bottom - top) + "\"><title>" + xml(part.phase) +
                    ": up to " + vram::to_text(allocated) + " allocated, " + vram::to_text(reserved) +
                    " reserved</title></rect>\n";
            const double half = static_cast<double>(part.phase.size()) * letter / 2;
            const double middle = std::clamp((from + to) / 2, left + half, std::max(left + half, right - half));
            for (std::size_t row = 0; row < rows; ++row) {
                if (middle - half < taken[row]) continue;
                taken[row] = middle + half + letter;
                text(middle, bottom + row_height * static_cast<double>(row + 1) + 2,
                     part.phase == explained_.moment.phase ? "" : "quiet", "middle", part.phase);
                break;
            }
        }
    }

    const Explained& explained_;
    const device::Timeline& timeline_;
    Bytes full_;  // what the height stands for, with room above
    std::string out_;
};

}  // namespace

std::string to_svg(const Explained& explained) {
    return explained.timeline.points.empty() ? std::string() : Picture(explained).svg();
}

}  // namespace vram::advise
