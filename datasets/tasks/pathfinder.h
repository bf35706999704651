#pragma once
// Pathfinder: are two dots ends of the same dashed path? (Linsley et al. 2018, arXiv:1805.08315; as sequences of pixels
// in Long Range Arena, Tay et al. 2020, arXiv:2011.04006.)
#include <array>

#include "datasets/tasks/labeled_task.h"

namespace furlong {

/// The geometry of the images of one size. Lengths are in pixels.
struct PathfinderShape {
  std::int64_t size = 0;               ///< width and height
  std::int64_t path_dashes = 14;       ///< of each of the two long paths
  std::int64_t distractors = 0;        ///< short paths; fewer if they do not fit
  std::int64_t distractor_dashes = 4;  ///< of each short path
  double dash = 0;                     ///< length of a dash
  double gap = 0;                      ///< between consecutive dashes of a path
  double separation = 0;               ///< at least this between all other dashes; above `gap`
  double thickness = 0;                ///< of dashes
  double dot_radius = 0;
  double start_distance = 0;  ///< between the starts of the long paths
  double max_turn = 0;        ///< between consecutive dashes, in radians

  /// Returns the shape of 32 x 32, 64 x 64 or 128 x 128 images (Path-X). Throws UserError for other sizes.
  static PathfinderShape of_size(std::int64_t size);
};

struct PathfinderPoint {
  double x = 0, y = 0;
};

/// A line segment, and the path that it is part of: 0 and 1 are the long ones.
struct PathfinderDash {
  PathfinderPoint begin, end;
  std::int32_t path = 0;
};

/// Returns the distance of two segments, or of a segment and a point (a segment of length 0).
double distance_between(const PathfinderDash& a, const PathfinderDash& b);

/// What an image shows.
struct PathfinderScene {
  std::vector<PathfinderDash> dashes;  ///< of each path in order
  std::array<PathfinderPoint, 2> dots;
  bool connected = false;  ///< whether the dots are the two ends of one path
};

/// Returns the gray values of a scene row by row, white on black, antialiased.
std::vector<std::int32_t> draw_scene(const PathfinderScene& scene, const PathfinderShape& shape);

/// Images with two long dashed paths, short distractors, and two dots. One dot is at the start of a long path, the
/// other at the end of the same path (label 1) or of the other one (label 0), with equal probability. The paths start
/// close together, so that the distance of the dots does not give the label away. Dashes of one path follow each other
/// at the distance `gap`; all others are at least `separation` apart. The label therefore follows from the picture
/// alone. A turn t between dashes has a density proportional to cos²(π/2 · t / max_turn).
class Pathfinder : public LabeledTask {
 public:
  /// Samples of train, validation and test in Long Range Arena.
  static constexpr std::array<std::uint64_t, 3> published_samples{160000, 20000, 20000};

  /// Throws UserError for a size that PathfinderShape does not have.
  Pathfinder(std::int64_t size, std::uint64_t seed) : shape_(PathfinderShape::of_size(size)), seed_(seed) {}

  const PathfinderShape& shape() const { return shape_; }
  PathfinderScene scene(Split split, std::uint64_t index) const;

  std::string name() const override { return "pathfinder"; }
  /// The 256 gray values, as bytes.
  Vocabulary vocabulary() const override { return Vocabulary::bytes(false); }
  std::vector<std::string> labels() const override { return {"apart", "connected"}; }
  LabeledSequence sample(Split split, std::uint64_t index) const override;
  nlohmann::ordered_json options() const override;

 private:
  PathfinderShape shape_;
  std::uint64_t seed_;
};

}  // namespace furlong
