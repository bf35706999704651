#pragma once
// Heads of encoders.
#include <optional>
#include <string>

#include "datasets/label_kind.h"
#include "framework/ops/dense/pooling.h"
#include "framework/ops/loss/element_loss.h"
#include "layers/linear.h"

namespace furlong::layers {

/// Settings of a head, from the data and the objective.
struct LabelHeadConfig {
  std::int64_t n_classes = 0;  ///< outputs
  bool pairs = false;          ///< one label for each pair of sequences, rows 2i and 2i + 1
  ops::Pooling pooling = ops::Pooling::mean;
  LabelKind kind = LabelKind::classes;
};

/// The labels of a batch.
struct LabelTargets {
  /// int32 [samples] ([rows, n] for LabelKind::tokens): a class; 0 for LabelKind::numbers and sets. -1 is ignored.
  Tensor labels;
  Tensor values;  ///< LabelKind::numbers, sets: [samples, n_classes], see ops::element_loss; otherwise undefined
};

/// Predicts labels from hidden states [rows, n, d_model]. The states of each sequence are pooled to one vector, except
/// for LabelKind::tokens, where each token's state is classified. For pairs, the features u, v, u·v and u - v first go
/// through a layer of width d_model with gelu. Dropout precedes the classifier. Parameters: classifier.{weight
/// [n_classes, d_model], bias}; for pairs also matching.{weight [d_model, 4 d_model], bias}.
class LabelHead {
 public:
  /// Declares the parameters in `store`.
  LabelHead(ParameterStore& store, const ModelConfig& config, const LabelHeadConfig& head);

  /// Returns the mean loss of the labels that are not ignored: cross-entropy for classes and tokens, squared error for
  /// numbers, binary cross-entropy for sets (the last two: mean over outputs). Pools only positions that
  /// context.attention_mask keeps.
  ops::CrossEntropyResult loss(ForwardContext& context, const Variable& hidden, const LabelTargets& targets,
                               const ops::CrossEntropyOptions& options) const;
  /// Returns the logits [samples, n_classes] ([rows · n, n_classes] for LabelKind::tokens), float32 (float64 for
  /// float64 states).
  Tensor logits(ForwardContext& context, const Variable& hidden) const;

 private:
  Variable features(ForwardContext& context, const Variable& hidden) const;

  LabelHeadConfig head_;
  double dropout_;
  std::optional<Linear> matching_;
  Parameter *weight_, *bias_;
};

}  // namespace furlong::layers
