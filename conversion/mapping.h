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
  std::int64_t d_head = 0;       ///< interleaved: number of rows of a head
  std::int64_t unused_rows = 0;  ///< plain: number of first rows that no parameter holds; they are stored for export

  /// Returns the number of values in the parameter.
  std::int64_t elements() const { return shape.elements() - unused_elements(); }
  /// Returns the number of values in the unused rows.
  std::int64_t unused_elements() const { return unused_rows > 0 ? shape.elements() / shape[0] * unused_rows : 0; }
};

/// A parameter, and the foreign tensors whose concatenated rows it holds.
struct Mapping {
  std::string parameter;
  std::vector<Part> parts;
  /// Returns the shape of the parameter.
  Shape shape() const;
};

/// A foreign tensor `name` that repeats the tensor `of`. If both exist they must be equal, unless they `may_differ`; if
/// only `name` exists, it is read instead of `of`.
struct Duplicate {
  std::string name, of;
  bool may_differ = false;
};

/// Copies a part from the foreign layout to Furlong's. `foreign` holds the values of part.shape, `ours` those of
/// part.elements(). Nothing is rounded.
void to_ours(const Part& part, std::span<const float> foreign, std::span<float> ours);
/// Copies a part back: the inverse of to_ours(). Leaves unused rows unchanged.
void to_foreign(const Part& part, std::span<const float> ours, std::span<float> foreign);

}  // namespace furlong
