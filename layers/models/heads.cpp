#include "layers/models/heads.h"

#include "framework/ops/elementwise/activation.h"
#include "framework/primitives/arithmetic.h"
#include "framework/primitives/gemm.h"
#include "layers/dropout.h"

namespace furlong::layers {

LabelHead::LabelHead(ParameterStore& store, const ModelConfig& config, const LabelHeadConfig& head)
    : head_(head), dropout_(config.dropout) {
  require(config.d_model > 0 && head.n_classes > 0, "label head: {} classes with d_model {}", head.n_classes,
          config.d_model);
  if (head.pairs)
    matching_.emplace(store, "matching", 4 * config.d_model, config.d_model, true, config.initializer_range);
  weight_ = &store.add("classifier.weight", {head.n_classes, config.d_model},
                       Initializer::normal(config.initializer_range), true);
  bias_ = &store.add("classifier.bias", {head.n_classes}, Initializer::zeros(), false);
}

Variable LabelHead::features(ForwardContext& context, const Variable& hidden) const {
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

ops::CrossEntropyResult LabelHead::loss(ForwardContext& context, const Variable& hidden, const Tensor& labels,
                                        const ops::CrossEntropyOptions& options) const {
  const Tape::Scope scope(context.tape, "classifier");
  const Variable bias = bias_->variable();
  return ops::cross_entropy(context.tape, features(context, hidden), weight_->variable(), &bias, labels, options);
}

Tensor LabelHead::logits(ForwardContext& context, const Variable& hidden) const {
  const Tensor pooled = features(context, hidden).value();
  const DType dtype = accumulate_dtype(pooled.dtype());
  const Tensor result = Tensor::empty({pooled.extent(0), head_.n_classes}, dtype, pooled.device());
  const Tensor bias = Tensor::empty({head_.n_classes}, dtype, pooled.device());
  ops::convert(context.stream(), bias, bias_->variable().value());
  ops::gemm(context.stream(), pooled, false, weight_->variable().value(), true, result, GradientMode::overwrite,
            {.bias = &bias});
  return result;
}

}  // namespace furlong::layers
