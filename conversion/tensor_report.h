#pragma once
// Lists what happened to every tensor of an import or a conversion.
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "framework/core/shape.h"

namespace furlong {

/// Tensors of a source, and parameters of the model made from it.
struct TensorReport {
  struct Matched {
    std::string parameter;
    Shape shape;
    /// The foreign tensors whose concatenated rows are the parameter; empty for a parameter of a Furlong model.
    std::vector<std::string> foreign;
    std::string stored_type;  ///< of the first foreign tensor
  };
  struct Named {
    std::string name;
    Shape shape;
    std::string note;
  };
  std::vector<Matched> matched;
  std::vector<Named> missing;     ///< foreign tensors that the model needs and the file lacks
  std::vector<Named> unexpected;  ///< foreign tensors without a place in the model
  std::vector<Named> misshapen;   ///< foreign tensors with another shape than the config gives; the note has that shape
  std::vector<Named> unequal;     ///< tensors that should repeat another tensor and do not
  /// Parameters with initial values, or with values other than the source's; the note says which.
  std::vector<Named> reinitialized;
  std::vector<Named> left_behind;  ///< parameters of a Furlong source that only its attention needed
  std::vector<Named> carried;      ///< tensors stored for export and not computed with

  /// Returns true if there are no faults: missing and unexpected tensors (unless allowed), misshapen and unequal ones.
  bool is_faultless(bool allow_missing, bool allow_unexpected) const;
  /// Returns the faults in one line, with counts and the first names:
  /// "2 missing (h.0.ln_1.weight [4]; h.0.ln_1.bias [4])".
  std::string faults(bool allow_missing, bool allow_unexpected) const;
  /// Returns one line for each tensor. Tensors that differ only in the layer's number share a line.
  std::string text() const;
  nlohmann::ordered_json json() const;
};

}  // namespace furlong
