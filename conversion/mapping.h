#pragma once
// Maps the tensors of a foreign checkpoint to Furlong's parameters. One table serves import, export and their reports.
#include <span>
#include <string>
#include <vector>

#include "framework/core/shape.h"

namespace furlong {

/// Layout of a foreign matrix, compared with Furlong's [out_features, in_features].
enum class Layout : std::uint8_t {
  plain,
  transposed,  ///< [in_features, out_features], as in GPT-2's Conv1D
  /// The rotary pair i of a head is in rows 2i and 2i + 1 (GGUF's Llama) instead of i and i + d_head / 2.
  interleaved
};

/// One foreign tensor: a whole parameter, or some of its rows.
struct Part {
  std::string name;
  Shape shape;  ///< in the foreign file
  Layout layout = Layout::plain;
  std::int64_t d_head = 0;  ///< interleaved: number of rows of a head

  std::int64_t elements() const { return shape.elements(); }
};

/// A parameter, and the foreign tensors whose concatenated rows it holds.
struct Mapping {
  std::string parameter;
  std::vector<Part> parts;
  /// Returns the shape of the parameter.
  Shape shape() const;
};

/// A foreign tensor `name` that repeats the tensor `of`. If both exist they must be equal; if only `name` exists, it is
/// read instead of `of`.
struct Duplicate {
  std::string name, of;
};

/// Copies a part from the foreign layout to Furlong's. Both spans hold part.elements() values. Nothing is rounded.
void to_ours(const Part& part, std::span<const float> foreign, std::span<float> ours);
/// Copies a part back: the inverse of to_ours().
void to_foreign(const Part& part, std::span<const float> ours, std::span<float> foreign);

}  // namespace furlong
