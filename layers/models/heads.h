#pragma once
// What stands on top of an encoder.
#include <optional>
#include <string>

#include "framework/ops/dense/pooling.h"
#include "framework/ops/loss/cross_entropy.h"
#include "layers/linear.h"

namespace furlong::layers {

/// What the data and the objective say about a head.
struct LabelHeadConfig {
  std::int64_t n_classes = 0;
  bool pairs = false;  ///< a label for each two sequences, rows 2i and 2i + 1
  ops::Pooling pooling = ops::Pooling::mean;
};

/// Hidden states [rows, n, d_model] -> pooled to one vector a sequence -> a class. Of a pair the features u, v, u v, u
/// - v go through a layer of d_model with gelu first. Dropout stands in front of the classifier. Parameters:
/// classifier.{weight [n_classes, d_model], bias}; pairs: matching.{weight [d_model, 4 d_model], bias}.
class LabelHead {
 public:
  LabelHead(ParameterStore& store, const ModelConfig& config, const LabelHeadConfig& head);

  /// Mean cross-entropy of labels int32 [samples] (-1: left out). Only positions that context.attention_mask keeps are
  /// pooled.
  ops::CrossEntropyResult loss(ForwardContext& context, const Variable& hidden, const Tensor& labels,
                               const ops::CrossEntropyOptions& options) const;
  /// [samples, n_classes], float32 (float64 for float64).
  Tensor logits(ForwardContext& context, const Variable& hidden) const;

 private:
  Variable features(ForwardContext& context, const Variable& hidden) const;

  LabelHeadConfig head_;
  double dropout_;
  std::optional<Linear> matching_;
  Parameter *weight_, *bias_;
};

}  // namespace furlong::layers
