#pragma once
// Line plots as SVG, with a logarithmic y axis: errors span orders of magnitude.
#include <string>
#include <utility>
#include <vector>

namespace furlong {

struct PlotSeries {
  std::string label;
  std::vector<std::pair<double, double>> points;  ///< x, y; points that are not finite or have y ≤ 0 are omitted
  bool dashed = false;                            ///< a baseline: dashed, gray, without markers
};

struct Plot {
  std::string title, x_label, y_label;
  bool log_x = false;
  /// If not empty, x is an index into these labels of the axis.
  std::vector<std::string> categories;
  std::vector<PlotSeries> series;
};

/// Returns an SVG document. Each series has its own marker, so that the plot is readable without colors.
std::string svg_of(const Plot& plot);

}  // namespace furlong
