#pragma once
// Measures of predicted labels of tokens.
#include <cstdint>
#include <vector>

#include "evaluation/measures/multi_label.h"

namespace furlong {

/// How often each label was predicted for tokens of each label.
class TokenLabelCounts {
 public:
  explicit TokenLabelCounts(std::size_t n_labels) : n_(n_labels), counts_(n_labels * n_labels, 0) {}
  void add(std::size_t target, std::size_t predicted) { ++counts_[target * n_ + predicted]; }

  /// Returns the decisions for one label.
  LabelDecisions decisions(std::size_t label) const;
  /// Returns the mean F1 over the labels that occur as a target or as a prediction; 0 if there is none.
  double f1_macro() const;

 private:
  std::size_t n_;
  std::vector<std::int64_t> counts_;  // [target, predicted]
};

}  // namespace furlong
