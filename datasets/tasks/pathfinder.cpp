#include "datasets/tasks/pathfinder.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>
#include <optional>

#include "framework/core/error.h"

namespace furlong {
namespace {

using Point = PathfinderPoint;
using Dash = PathfinderDash;

constexpr double pi = std::numbers::pi;
/// Numbers of dashes, dots, radii and turns are those of Long Range Arena's data.
constexpr std::array shapes{PathfinderShape{.size = 32,
                                            .distractors = 5,
                                            .dash = 2,
                                            .gap = 1.75,
                                            .separation = 2.5,
                                            .thickness = 0.75,
                                            .dot_radius = 1.5,
                                            .start_distance = 7,
                                            .max_turn = pi / 2},
                            PathfinderShape{.size = 64,
                                            .distractors = 5,
                                            .dash = 4,
                                            .gap = 2.5,
                                            .separation = 4,
                                            .thickness = 1,
                                            .dot_radius = 2.5,
                                            .start_distance = 12,
                                            .max_turn = pi / 3.6},
                            PathfinderShape{.size = 128,
                                            .distractors = 8,
                                            .dash = 6,
                                            .gap = 4,
                                            .separation = 6,
                                            .thickness = 1.5,
                                            .dot_radius = 3,
                                            .start_distance = 20,
                                            .max_turn = pi / 3.6}};

Point moved(const Point& from, double angle, double length) {
  return {from.x + length * std::cos(angle), from.y + length * std::sin(angle)};
}

double distance(const Point& point, const Dash& dash) {
  const double x = dash.end.x - dash.begin.x, y = dash.end.y - dash.begin.y, squared = x * x + y * y;
  const double along = squared > 0 ? ((point.x - dash.begin.x) * x + (point.y - dash.begin.y) * y) / squared : 0;
  const double t = std::clamp(along, 0.0, 1.0);
  return std::hypot(point.x - dash.begin.x - t * x, point.y - dash.begin.y - t * y);
}

/// Returns on which side of the line through the dash the point is: positive, negative, or 0.
double side(const Point& point, const Dash& dash) {
  return (dash.end.x - dash.begin.x) * (point.y - dash.begin.y) -
         (dash.end.y - dash.begin.y) * (point.x - dash.begin.x);
}

bool cross(const Dash& a, const Dash& b) {
  return side(b.begin, a) * side(b.end, a) < 0 && side(a.begin, b) * side(a.end, b) < 0;
}

/// Grows the paths of one scene.
class SceneBuilder {
 public:
  SceneBuilder(const PathfinderShape& shape, Draws& draws) : shape_(shape), draws_(draws) {}

  PathfinderScene build() {
    constexpr int attempts = 100000;  // far more than needed
    int attempt = 0;
    while (!grow_long_paths()) require(++attempt < attempts, "no room for paths in {} pixels", shape_.size);
    for (std::int64_t i = 0; i < shape_.distractors; ++i) grow_distractor();
    PathfinderScene scene;
    const std::size_t from = draws_.below(2);
    scene.connected = draws_.below(2) == 1;
    scene.dots = {paths_[from].front().begin, paths_[scene.connected ? from : 1 - from].back().end};
    for (const auto& path : paths_) scene.dashes.insert(scene.dashes.end(), path.begin(), path.end());
    return scene;
  }

 private:
  /// Grows paths 0 and 1 alternately, so that neither has more room. A path that meets an obstacle loses its last
  /// dashes and grows again. Returns whether both fit.
  bool grow_long_paths() {
    constexpr int obstacles = 30;
    paths_.assign(2, {});
    const Point first = random_point();
    const std::array starts{first, moved(first, 2 * pi * draws_.uniform(), shape_.start_distance)};
    ends_.assign(starts.begin(), starts.end());
    for (int met = 0; met < obstacles;) {
      std::size_t number = paths_[1].size() < paths_[0].size() ? 1 : 0;
      if (std::ssize(paths_[number]) == shape_.path_dashes) {  // both are complete
        if (is_clear(0) && is_clear(1)) {
          for (const auto& path : {paths_[0], paths_[1]}) ends_.push_back(path.back().end);
          return true;
        }
        if (is_clear(0)) number = 1;
      } else if (const auto dash = next_dash(number, starts[number])) {
        paths_[number].push_back(*dash);
        continue;
      }
      ++met;
      paths_[number].resize(paths_[number].size() - std::min<std::size_t>(paths_[number].size(), 3));
    }
    return false;
  }

  void grow_distractor() {
    constexpr int attempts = 50;
    const std::size_t number = paths_.size();
    paths_.emplace_back();
    for (int attempt = 0; attempt < attempts; ++attempt) {
      const Point start = random_point();
      while (std::ssize(paths_[number]) < shape_.distractor_dashes) {
        const auto dash = next_dash(number, start);
        if (!dash) break;
        paths_[number].push_back(*dash);
      }
      if (std::ssize(paths_[number]) == shape_.distractor_dashes) return;
      paths_[number].clear();
    }
    paths_.pop_back();
  }

  Point random_point() {
    const auto width = static_cast<double>(shape_.size);
    const double x = width * draws_.uniform();
    return {x, width * draws_.uniform()};
  }

  /// Returns a dash that continues a path and fits; the first one begins at `start`.
  std::optional<Dash> next_dash(std::size_t number, const Point& start) {
    constexpr int attempts = 12;
    for (int attempt = 0; attempt < attempts; ++attempt) {
      Dash dash{start, {}, static_cast<std::int32_t>(number)};
      double angle = 2 * pi * draws_.uniform();
      if (!paths_[number].empty()) {
        const Dash& last = paths_[number].back();
        const double before = std::atan2(last.end.y - last.begin.y, last.end.x - last.begin.x), turn = random_turn();
        angle = before + turn;
        dash.begin = moved(last.end, before + turn / 2, shape_.gap);
      }
      dash.end = moved(dash.begin, angle, shape_.dash);
      if (fits(dash, number)) return dash;
    }
    return std::nullopt;
  }

  double random_turn() {
    while (true) {
      const double turn = 2 * draws_.uniform() - 1, weight = std::cos(pi / 2 * turn);
      if (draws_.uniform() < weight * weight) return turn * shape_.max_turn;
    }
  }

  bool is_inside(const Point& point) const {
    // A dot at the end of a path is inside, too.
    const double low = shape_.dot_radius, high = static_cast<double>(shape_.size) - low;
    return point.x >= low && point.x <= high && point.y >= low && point.y <= high;
  }

  /// Returns whether a dash is far enough from all others, except the one before it in its path.
  bool fits(const Dash& dash, std::size_t number) const {
    if (!is_inside(dash.begin) || !is_inside(dash.end)) return false;
    for (std::size_t end = 0; end < ends_.size(); ++end)  // of paths 0, 1, 0, 1
      if (end % 2 != number && distance(ends_[end], dash) < dot_clearance()) return false;
    for (std::size_t path = 0; path < paths_.size(); ++path) {
      const std::size_t others = paths_[path].size() - (path == number && !paths_[path].empty() ? 1 : 0);
      for (std::size_t i = 0; i < others; ++i)
        if (distance_between(dash, paths_[path][i]) < shape_.separation) return false;
    }
    return true;
  }

  /// Returns whether a dot at the end of a long path touches no other path.
  bool is_clear(std::size_t number) const {
    const auto& other = paths_[1 - number];
    const Point end = paths_[number].back().end;
    return std::all_of(other.begin(), other.end(),
                       [&](const Dash& dash) { return distance(end, dash) >= dot_clearance(); });
  }
  double dot_clearance() const { return shape_.dot_radius + shape_.gap; }

  const PathfinderShape& shape_;
  Draws& draws_;
  std::vector<std::vector<Dash>> paths_;  // 0 and 1 are the long ones
  std::vector<Point> ends_;               // starts of the long paths, then, when both are complete, their ends
};

}  // namespace

double distance_between(const PathfinderDash& a, const PathfinderDash& b) {
  if (cross(a, b)) return 0;
  return std::min({distance(a.begin, b), distance(a.end, b), distance(b.begin, a), distance(b.end, a)});
}

PathfinderShape PathfinderShape::of_size(std::int64_t size) {
  for (const PathfinderShape& shape : shapes)
    if (shape.size == size) return shape;
  throw UserError("--size {}: expected 32, 64 or 128 pixels", size);
}

std::vector<std::int32_t> draw_scene(const PathfinderScene& scene, const PathfinderShape& shape) {
  std::vector<std::int32_t> pixels(static_cast<std::size_t>(shape.size * shape.size), 0);
  const auto paint = [&](const Dash& dash, double radius) {
    const auto bound = [&](double coordinate) {
      return std::clamp<std::int64_t>(static_cast<std::int64_t>(std::floor(coordinate)), 0, shape.size - 1);
    };
    const double reach = radius + 1;
    const auto [left, right] = std::minmax(dash.begin.x, dash.end.x);
    const auto [top, bottom] = std::minmax(dash.begin.y, dash.end.y);
    for (std::int64_t y = bound(top - reach); y <= bound(bottom + reach); ++y) {
      for (std::int64_t x = bound(left - reach); x <= bound(right + reach); ++x) {
        const Point center{static_cast<double>(x) + 0.5, static_cast<double>(y) + 0.5};
        const double covered = std::clamp(radius + 0.5 - distance(center, dash), 0.0, 1.0);
        std::int32_t& pixel = pixels[static_cast<std::size_t>(y * shape.size + x)];
        pixel = std::max(pixel, static_cast<std::int32_t>(std::lround(255 * covered)));
      }
    }
  };
  for (const Dash& dash : scene.dashes) paint(dash, shape.thickness / 2);
  for (const Point& dot : scene.dots) paint({dot, dot}, shape.dot_radius);
  return pixels;
}

PathfinderScene Pathfinder::scene(Split split, std::uint64_t index) const {
  Draws draws = this->draws(seed_, split, index);
  return SceneBuilder(shape_, draws).build();
}

LabeledSequence Pathfinder::sample(Split split, std::uint64_t index) const {
  const PathfinderScene made = scene(split, index);
  return {draw_scene(made, shape_), made.connected ? 1 : 0};
}

nlohmann::ordered_json Pathfinder::options() const { return {{"size", shape_.size}, {"seed", seed_}}; }

}  // namespace furlong
