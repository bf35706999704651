#pragma once
// Heads of encoders.
#include <optional>
#include <string>

#include "framework/ops/dense/pooling.h"
#include "framework/ops/loss/cross_entropy.h"
#include "layers/linear.h"

namespace furlong::layers {

/// Settings of a head, from the data and the objective.
struct LabelHeadConfig {
  std::int64_t n_classes = 0;
  bool pairs = false;  ///< one label for each pair of sequences, rows 2i and 2i + 1
  ops::Pooling pooling = ops::Pooling::mean;
};

/// Classifier: pools hidden states [rows, n, d_model] to one vector for each sequence and predicts a class. For pairs,
/// the features u, v, u·v and u - v first go through a layer of width d_model with gelu. Dropout precedes the
/// classifier. Parameters: classifier.{weight [n_classes, d_model], bias}; for pairs also matching.{weight [d_model,
/// 4 d_model], bias}.
class LabelHead {
 public:
  /// Declares the parameters in `store`.
  LabelHead(ParameterStore& store, const ModelConfig& config, const LabelHeadConfig& head);

  /// Returns the mean cross-entropy of labels int32 [samples]; labels of -1 are ignored. Pools only positions that
  /// context.attention_mask keeps.
  ops::CrossEntropyResult loss(ForwardContext& context, const Variable& hidden, const Tensor& labels,
                               const ops::CrossEntropyOptions& options) const;
  /// Returns the logits [samples, n_classes], float32 (float64 for float64 states).
  Tensor logits(ForwardContext& context, const Variable& hidden) const;

 private:
  Variable features(ForwardContext& context, const Variable& hidden) const;

  LabelHeadConfig head_;
  double dropout_;
  std::optional<Linear> matching_;
  Parameter *weight_, *bias_;
};

}  // namespace furlong::layers
