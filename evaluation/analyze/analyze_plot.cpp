#include "evaluation/analyze/analyze_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace furlong {
namespace {

constexpr double width = 900, height = 500, left = 80, top = 48, right = 590, bottom = 436;
constexpr double legend = right + 24;

/// The palette of Okabe and Ito, which is safe for color blindness.
constexpr const char* colors[] = {"#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"};

std::string escaped(const std::string& text) {
  std::string result;
  for (const char letter : text) {
    switch (letter) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      default:
        result += letter;
    }
  }
  return result;
}

class Canvas {
 public:
  explicit Canvas(const Plot& plot) : plot_(plot) {
    bool first = true;
    for (const PlotSeries& series : plot.series) {
      for (const auto& [x, y] : series.points) {
        if (!drawable(x, y)) continue;
        ticks_.insert(x);
        low_ = first ? y : std::min(low_, y);
        high_ = first ? y : std::max(high_, y);
        first = false;
      }
    }
    // Whole decades, or a margin if the range is less than one decade.
    low_ = std::pow(10, std::floor(std::log10(low_ * 0.999)));
    high_ = std::pow(10, std::ceil(std::log10(high_ * 1.001)));
    if (ticks_.empty()) ticks_.insert(1);
  }

  bool drawable(double x, double y) const {
    return std::isfinite(x) && std::isfinite(y) && y > 0 && (!plot_.log_x || x > 0);
  }
  double x_at(double x) const {
    const double from = position(*ticks_.begin()), to = position(*ticks_.rbegin());
    const double room = 18;
    return to > from ? left + room + (position(x) - from) / (to - from) * (right - left - 2 * room)
                     : (left + right) / 2;
  }
  double y_at(double y) const { return bottom - std::log(y / low_) / std::log(high_ / low_) * (bottom - top); }

  std::string document() const {
    std::string svg = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
        "font-family=\"sans-serif\" font-size=\"13\">\n<title>{2}</title>\n<rect width=\"{0}\" height=\"{1}\" "
        "fill=\"white\"/>\n",
        width, height, escaped(plot_.title));
    svg += text(left, 26, plot_.title, "start", " font-size=\"15\" font-weight=\"bold\"");
    svg += axes();
    int number = 0;
    for (std::size_t i = 0; i < plot_.series.size(); ++i)
      svg += series(plot_.series[i], plot_.series[i].dashed ? -1 : number++, i);
    return svg + "</svg>\n";
  }

 private:
  double position(double x) const { return plot_.log_x ? std::log(x) : x; }

  static std::string text(double x, double y, const std::string& words, const char* anchor,
                          const std::string& more = "") {
    return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\"{}>{}</text>\n", x, y, anchor, more,
                       escaped(words));
  }
  static std::string line(double x1, double y1, double x2, double y2, const char* stroke) {
    return fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\"/>\n", x1, y1, x2,
                       y2, stroke);
  }

  std::string axes() const {
    std::string svg;
    for (double decade = low_; decade < high_ * 1.01; decade *= 10) {
      for (const double multiple : {1.0, 2.0, 5.0}) {
        const double y = decade * multiple;
        if (y > high_ * 1.01) break;
        svg += line(left, y_at(y), right, y_at(y), multiple == 1 ? "#cccccc" : "#eeeeee");
        if (multiple == 1 || high_ / low_ < 1001) svg += text(left - 8, y_at(y) + 4, fmt::format("{:.4g}", y), "end");
      }
    }
    // With many categories, only some labels fit.
    const std::size_t every = (ticks_.size() + 23) / 24;
    std::size_t count = 0;
    for (const double x : ticks_) {
      svg += line(x_at(x), bottom, x_at(x), bottom + 5, "#000000");
      if (count++ % every != 0) continue;
      const auto index = static_cast<std::size_t>(x);
      svg +=
          text(x_at(x), bottom + 20, plot_.categories.empty() ? fmt::format("{:.4g}", x) : plot_.categories.at(index),
               "middle", ticks_.size() > 12 ? " font-size=\"10\"" : "");
    }
    svg += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"none\" stroke=\"black\"/>\n", left,
                       top, right - left, bottom - top);
    svg += text((left + right) / 2, bottom + 46, plot_.x_label + (plot_.log_x ? " (logarithmic)" : ""), "middle");
    const double middle = (top + bottom) / 2;
    return svg + text(22, middle, plot_.y_label + " (logarithmic)", "middle",
                      fmt::format(" transform=\"rotate(-90 22 {:.1f})\"", middle));
  }

  static std::string marker(double x, double y, int number, const char* color) {
    switch (number % 4) {
      case 0:
        return fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\" fill=\"{}\"/>\n", x, y, color);
      case 1:
        return fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"7\" height=\"7\" fill=\"{}\"/>\n", x - 3.5, y - 3.5,
                           color);
      case 2:
        return fmt::format("<path d=\"M{:.1f} {:.1f}l5 9h-10z\" fill=\"{}\"/>\n", x, y - 5, color);
      default:
        return fmt::format("<path d=\"M{:.1f} {:.1f}l5 5l-5 5l-5 -5z\" fill=\"{}\"/>\n", x, y - 5, color);
    }
  }

  /// `number` counts series without baselines; -1 for a baseline.
  std::string series(const PlotSeries& series, int number, std::size_t row) const {
    const char* color = number < 0 ? "#777777" : colors[static_cast<std::size_t>(number) % std::size(colors)];
    const char* dashes = number < 0 ? " stroke-dasharray=\"7 4\"" : "";
    std::vector<std::pair<double, double>> points;
    for (const auto& [x, y] : series.points) {
      if (drawable(x, y)) points.emplace_back(x_at(x), y_at(y));
    }
    std::sort(points.begin(), points.end());
    if (number < 0 && points.size() == 1) points = {{left, points[0].second}, {right, points[0].second}};
    std::string path, markers;
    for (const auto& [x, y] : points) {
      path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", x, y);
      if (number >= 0) markers += marker(x, y, number, color);
    }
    const double y = top + 12 + 20 * static_cast<double>(row);
    std::string svg = "<g>\n";
    if (!path.empty())
      svg += fmt::format("<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.8\"{}/>\n", path, color, dashes);
    svg += markers + fmt::format("<path d=\"M{:.1f} {:.1f}h26\" stroke=\"{}\" stroke-width=\"1.8\"{}/>\n", legend, y,
                                 color, dashes);
    if (number >= 0) svg += marker(legend + 13, y, number, color);
    return svg + text(legend + 34, y + 4, series.label, "start", " font-size=\"12\"") + "</g>\n";
  }

  const Plot& plot_;
  std::set<double> ticks_;
  double low_ = 1, high_ = 1;
};

}  // namespace

std::string svg_of(const Plot& plot) { return Canvas(plot).document(); }

}  // namespace furlong
