#pragma once
// What became of every tensor of an import or a conversion.
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "framework/core/shape.h"

namespace furlong {

/// Tensors of a source, and parameters of the model that is made of it.
struct TensorReport {
  struct Matched {
    std::string parameter;
    Shape shape;
    std::vector<std::string>
        foreign;              ///< one, or those whose rows lie one below the other; empty: our own of that name
    std::string stored_type;  ///< of the first
  };
  struct Named {
    std::string name;
    Shape shape;
    std::string note;
  };
  std::vector<Matched> matched;
  std::vector<Named>
      missing;  ///< foreign tensors that the model needs and the file lacks; the note says for which parameter
  std::vector<Named> unexpected;  ///< foreign tensors that belong nowhere
  std::vector<Named> misshapen;   ///< foreign tensors with another shape than the config asks for; the note says which
  std::vector<Named> unequal;     ///< tensors that should repeat another and do not
  std::vector<Named>
      reinitialised;               ///< parameters with initial values, or others than the source's; the note says which
  std::vector<Named> left_behind;  ///< of our own source: what only its attention needed
  std::vector<Named> carried;      ///< kept for export, not computed with

  bool is_faultless(bool allow_missing, bool allow_unexpected) const;
  /// "2 missing (h.0.ln_1.weight [4], h.0.ln_1.bias [4])": what is_faultless objects to, counted, the first few named.
  std::string faults(bool allow_missing, bool allow_unexpected) const;
  /// A line for each tensor; those that differ in nothing but the layer's number share one.
  std::string text() const;
  nlohmann::ordered_json json() const;
};

}  // namespace furlong
