#pragma once
// Which tensors of somebody else's checkpoint are which of our parameters. One table serves import, export and the
// report of both.
#include <span>
#include <string>
#include <vector>

#include "framework/core/shape.h"

namespace furlong {

/// How the rows of a foreign matrix lie relative to ours, [outer, inner].
enum class Layout : std::uint8_t {
  plain,
  transposed,  ///< [inner, outer], as GPT-2's Conv1D keeps its weights
  /// Rotary pairs of a head are rows 2i and 2i + 1 (GGUF's Llama), where ours are i and i + d_head / 2.
  interleaved
};

/// One foreign tensor: a parameter of ours, or some of its rows.
struct Part {
  std::string name;
  Shape shape;  ///< in the foreign file
  Layout layout = Layout::plain;
  std::int64_t d_head = 0;  ///< interleaved: rows of a head

  std::int64_t elements() const { return shape.elements(); }
};

/// A parameter of ours, and the foreign tensors that its rows are, one below the other.
struct Mapping {
  std::string parameter;
  std::vector<Part> parts;
  /// The parameter's shape that the parts make.
  Shape shape() const;
};

/// A foreign tensor that repeats another: checked to be equal where both are there, and taken in its place where only
/// it is.
struct Duplicate {
  std::string name, of;
};

/// Copies a part between the foreign layout and ours; both spans hold its elements. Nothing is rounded: the bits are
/// the same there and back.
void to_ours(const Part& part, std::span<const float> foreign, std::span<float> ours);
void to_foreign(const Part& part, std::span<const float> ours, std::span<float> foreign);

}  // namespace furlong
