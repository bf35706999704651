#include "layers/models/heads.h"

#include "framework/ops/elementwise/activation.h"
#include "framework/primitives/arithmetic.h"
#include "framework/primitives/gemm.h"
#include "layers/dropout.h"

namespace furlong::layers {

LabelHead::LabelHead(ParameterStore& store, const ModelConfig& config, const LabelHeadConfig& head)
    : head_(head), dropout_(config.dropout) {
  require(!head.pairs || head.kind != LabelKind::tokens, "label head: a label for each token of a pair");
  require(config.d_model > 0 && head.n_classes > 0, "label head: {} classes with d_model {}", head.n_classes,
          config.d_model);
  if (head.pairs)
    matching_.emplace(store, "matching", 4 * config.d_model, config.d_model, true, config.initializer_range);
  weight_ = &store.add("classifier.weight", {head.n_classes, config.d_model},
                       Initializer::normal(config.initializer_range), true);
  bias_ = &store.add("classifier.bias", {head.n_classes}, Initializer::zeros(), false);
}

Variable LabelHead::features(ForwardContext& context, const Variable& hidden) const {
  if (head_.kind == LabelKind::tokens) return dropout(context, hidden, dropout_, "classifier.dropout");
  Variable pooled = ops::pool(context.tape, hidden, context.attention_mask.keys, head_.pooling);
  // Random numbers are keyed by samples; a pair is one sample.
  ForwardContext of_samples = context;
  if (matching_) {
    of_samples.first_sample /= 2;
    pooled = ops::activation(context.tape, matching_->forward(context, ops::pair_features(context.tape, pooled)),
                             ops::ActivationKind::gelu);
  }
  return dropout(of_samples, pooled, dropout_, "classifier.dropout");
}

ops::CrossEntropyResult LabelHead::loss(ForwardContext& context, const Variable& hidden, const LabelTargets& targets,
                                        const ops::CrossEntropyOptions& options) const {
  const Tape::Scope scope(context.tape, "classifier");
  const Variable weight = weight_->variable(), bias = bias_->variable(), x = features(context, hidden);
  if (head_.kind == LabelKind::classes || head_.kind == LabelKind::tokens)
    return ops::cross_entropy(context.tape, x, weight, &bias, targets.labels, options);
  const auto kind =
      head_.kind == LabelKind::numbers ? ops::ElementLoss::squared_error : ops::ElementLoss::binary_cross_entropy;
  return ops::element_loss(context.tape, kind, x, weight, &bias, targets.labels, targets.values, options);
}

Tensor LabelHead::logits(ForwardContext& context, const Variable& hidden) const {
  const Tensor x = features(context, hidden).value();
  const Tensor rows = x.reshape({x.shape().rows(), x.extent(-1)});
  const DType dtype = accumulate_dtype(rows.dtype());
  const Tensor result = Tensor::empty({rows.extent(0), head_.n_classes}, dtype, rows.device());
  const Tensor bias = Tensor::empty({head_.n_classes}, dtype, rows.device());
  ops::convert(context.stream(), bias, bias_->variable().value());
  ops::gemm(context.stream(), rows, false, weight_->variable().value(), true, result, GradientMode::overwrite,
            {.bias = &bias});
  return result;
}

}  // namespace furlong::layers
