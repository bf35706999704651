// Pathfinder: labels are checked by following the dashes from dot to dot.
#include "datasets/tasks/pathfinder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "framework/core/error.h"
#include "tests/temporary_folder.h"

namespace furlong {
namespace {

using Dash = PathfinderDash;

Dash dash(double x0, double y0, double x1, double y1) { return {{x0, y0}, {x1, y1}}; }
double distance(const PathfinderPoint& a, const PathfinderPoint& b) { return std::hypot(a.x - b.x, a.y - b.y); }

TEST(PathfinderGeometry, DistancesComputedByHand) {
  EXPECT_DOUBLE_EQ(distance_between(dash(0, 0, 2, 0), dash(0, 3, 2, 3)), 3);  // parallel
  EXPECT_DOUBLE_EQ(distance_between(dash(0, 0, 1, 0), dash(3, 0, 4, 0)), 2);  // in line
  EXPECT_DOUBLE_EQ(distance_between(dash(0, 0, 2, 2), dash(0, 2, 2, 0)), 0);  // crossing
  EXPECT_DOUBLE_EQ(distance_between(dash(0, 0, 4, 0), dash(2, 1, 2, 5)), 1);  // a T
  EXPECT_DOUBLE_EQ(distance_between(dash(0, 0, 1, 0), dash(4, 4, 4, 9)), 5);  // 3, 4, 5
  EXPECT_DOUBLE_EQ(distance_between(dash(0, 0, 4, 0), dash(1, 2, 1, 2)), 2);  // a point
}

TEST(PathfinderGeometry, PixelsComputedByHand) {
  PathfinderShape shape = PathfinderShape::of_size(32);
  shape.thickness = 1;
  shape.dot_radius = 1.5;
  // Centers of pixels are at halves. A dash along row 2, from column 1 to column 4; dots at (20.5, 20.5) and (28, 8).
  PathfinderScene scene{{dash(1.5, 2.5, 4.5, 2.5)}, {PathfinderPoint{20.5, 20.5}, {28, 8}}, false};
  const std::vector<std::int32_t> pixels = draw_scene(scene, shape);
  const auto at = [&](std::size_t x, std::size_t y) { return pixels[y * 32 + x]; };
  for (std::size_t x = 1; x <= 4; ++x) EXPECT_EQ(at(x, 2), 255);
  EXPECT_EQ(at(0, 2) + at(5, 2) + at(2, 1) + at(2, 3), 0);  // at distance 1: 0.5 + 0.5 - 1 is covered
  EXPECT_EQ(at(20, 20), 255);
  EXPECT_EQ(at(21, 20), 255);
  EXPECT_EQ(at(21, 21), std::lround(255 * (2 - std::sqrt(2))));
  EXPECT_EQ(at(22, 20), 0);
  EXPECT_EQ(at(27, 7), 255);  // at distance sqrt(0.5) of a dot at a corner
  EXPECT_EQ(at(29, 8), std::lround(255 * (2 - std::sqrt(2.5))));
  int lit = 0;
  for (const std::int32_t pixel : pixels) lit += pixel > 0;
  EXPECT_EQ(lit, 4 + 9 + 12);
}

/// Returns for each dash the number of its connected group: dashes at most `reach` apart are connected.
std::vector<std::size_t> groups_of(const std::vector<Dash>& dashes, double reach) {
  std::vector<std::size_t> group(dashes.size());
  for (std::size_t i = 0; i < group.size(); ++i) group[i] = i;
  for (bool changed = true; changed;) {
    changed = false;
    for (std::size_t i = 0; i < dashes.size(); ++i) {
      for (std::size_t j = 0; j < dashes.size(); ++j) {
        if (group[j] >= group[i] || distance_between(dashes[i], dashes[j]) > reach) continue;
        group[i] = group[j];
        changed = true;
      }
    }
  }
  return group;
}

class PathfinderSizes : public ::testing::TestWithParam<std::int64_t> {};

TEST_P(PathfinderSizes, DotsAreConnectedThroughDashesIfTheLabelSaysSo) {
  const Pathfinder task(GetParam(), 5);
  const PathfinderShape& shape = task.shape();
  int connected = 0;
  double shortest = 1e9;
  for (std::uint64_t i = 0; i < 100; ++i) {
    const PathfinderScene scene = task.scene(Split::validation, i);
    const std::vector<std::size_t> groups = groups_of(scene.dashes, 1.001 * shape.gap);
    std::array<std::size_t, 2> of_dot{groups.size(), groups.size()};
    for (std::size_t d = 0; d < scene.dashes.size(); ++d) {
      for (std::size_t dot = 0; dot < 2; ++dot) {
        const PathfinderPoint& point = scene.dots[dot];
        if (distance_between(scene.dashes[d], {point, point}) < 1e-9) of_dot[dot] = groups[d];
      }
    }
    ASSERT_TRUE(of_dot[0] < groups.size() && of_dot[1] < groups.size()) << "a dot that is not at a dash";
    EXPECT_EQ(of_dot[0] == of_dot[1], scene.connected) << i;
    EXPECT_EQ(task.sample(Split::validation, i).label, scene.connected ? 1 : 0);
    connected += scene.connected;
    std::vector<std::int64_t> sizes(scene.dashes.size(), 0);
    for (const std::size_t group : groups) ++sizes[group];
    EXPECT_EQ(sizes[of_dot[0]], shape.path_dashes);
    EXPECT_EQ(sizes[of_dot[1]], shape.path_dashes);
    EXPECT_GT(std::ssize(scene.dashes), 2 * shape.path_dashes) << "at least one distractor";
    for (std::size_t a = 0; a < scene.dashes.size(); ++a) {
      for (std::size_t b = a + 1; b < scene.dashes.size(); ++b) {
        const double apart = distance_between(scene.dashes[a], scene.dashes[b]);
        const bool follows = b == a + 1 && scene.dashes[a].path == scene.dashes[b].path;
        if (follows) {
          EXPECT_NEAR(apart, shape.gap, 1e-9);
        } else {
          shortest = std::min(shortest, apart);
        }
      }
    }
  }
  EXPECT_GE(shortest, shape.separation);
  EXPECT_GT(connected, 25);
  EXPECT_LT(connected, 75);
}
INSTANTIATE_TEST_SUITE_P(Sizes, PathfinderSizes, ::testing::Values(32, 64, 128));

/// Follows lit pixels from one dot, over gaps of `reach`, and returns whether the other dot is reached.
bool is_reached(const std::vector<std::int32_t>& pixels, std::int64_t size, const PathfinderScene& scene,
                double reach) {
  const auto place = [&](const PathfinderPoint& point) {
    return static_cast<std::int64_t>(point.y) * size + static_cast<std::int64_t>(point.x);
  };
  std::vector<std::int64_t> open{place(scene.dots[0])};
  std::set<std::int64_t> seen(open.begin(), open.end());
  const auto steps = static_cast<std::int64_t>(reach);
  while (!open.empty()) {
    const std::int64_t from = open.back(), x = from % size, y = from / size;
    open.pop_back();
    for (std::int64_t dy = -steps; dy <= steps; ++dy) {
      for (std::int64_t dx = -steps; dx <= steps; ++dx) {
        if (static_cast<double>(dx * dx + dy * dy) > reach * reach) continue;
        if (x + dx < 0 || x + dx >= size || y + dy < 0 || y + dy >= size) continue;
        const std::int64_t to = from + dy * size + dx;
        if (pixels[static_cast<std::size_t>(to)] > 127 && seen.insert(to).second) open.push_back(to);
      }
    }
  }
  return seen.contains(place(scene.dots[1]));
}

TEST(Pathfinder, LabelFollowsFromThePixels) {
  struct Case {
    std::int64_t size;
    double reach;
    int least;
  };
  // Rounding to pixels can close a gap, or open one; at 32 pixels a gap is as wide as a pixel.
  for (const auto& [size, reach, least] : {Case{128, 4.7, 57}, Case{64, 3.7, 45}}) {
    const Pathfinder task(size, 3);
    int agree = 0;
    for (std::uint64_t i = 0; i < 60; ++i) {
      const PathfinderScene scene = task.scene(Split::train, i);
      agree += is_reached(task.sample(Split::train, i).tokens, size, scene, reach) == scene.connected;
    }
    EXPECT_GE(agree, least) << size;
  }
}

TEST(Pathfinder, LabelsAreBalancedAndDotsDoNotGiveThemAway) {
  const Pathfinder task(32, 1);
  std::array<std::vector<double>, 2> distances;
  for (std::uint64_t i = 0; i < 2000; ++i) {
    const PathfinderScene scene = task.scene(Split::train, i);
    distances[scene.connected ? 1 : 0].push_back(distance(scene.dots[0], scene.dots[1]));
  }
  EXPECT_NEAR(static_cast<double>(distances[1].size()), 1000, 90);  // 4 standard deviations
  // The largest difference of the two distribution functions: 0.087 is exceeded by chance with probability 0.001.
  double largest = 0;
  for (const double limit : distances[0]) {
    std::array<double, 2> below{};
    for (std::size_t label = 0; label < 2; ++label)
      below[label] = static_cast<double>(std::count_if(distances[label].begin(), distances[label].end(),
                                                       [&](double one) { return one <= limit; })) /
                     static_cast<double>(distances[label].size());
    largest = std::max(largest, std::abs(below[0] - below[1]));
  }
  EXPECT_LT(largest, 0.087);
}

TEST(Pathfinder, SampleDependsOnSeedSplitAndIndexAlone) {
  const Pathfinder task(32, 1), other(32, 2);
  const std::vector<std::int32_t> third = task.sample(Split::train, 3).tokens;
  EXPECT_EQ(third.size(), 1024u);
  task.sample(Split::train, 900);
  EXPECT_EQ(task.sample(Split::train, 3).tokens, third);
  EXPECT_NE(other.sample(Split::train, 3).tokens, third);
  EXPECT_NE(task.sample(Split::test, 3).tokens, third);
  EXPECT_NE(task.sample(Split::train, 4).tokens, third);
}

TEST(Pathfinder, RejectsOtherSizes) {
  EXPECT_THAT(testing::message_of<UserError>([] { Pathfinder(33, 1); }),
              ::testing::HasSubstr("--size 33: expected 32"));
}

}  // namespace
}  // namespace furlong
