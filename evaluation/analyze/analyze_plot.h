#pragma once
// Line plots as SVG, with a logarithmic vertical axis: errors span orders of magnitude.
#include <string>
#include <utility>
#include <vector>

namespace furlong {

struct PlotSeries {
  std::string label;
  std::vector<std::pair<double, double>>
      points;           ///< x, y; points without a place on the axes (y ≤ 0, not finite) are left out
  bool dashed = false;  ///< a baseline: dashed, in grey, without markers
};

struct Plot {
  std::string title, x_label, y_label;
  bool log_x = false;
  /// Where given, x counts these, and they stand under the axis.
  std::vector<std::string> categories;
  std::vector<PlotSeries> series;
};

/// A whole SVG document, readable without colours too (each series has a marker of its own).
std::string svg_of(const Plot& plot);

}  // namespace furlong
