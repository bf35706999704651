#pragma once
#include <optional>
#include <string>

#include "framework/autodiff/parameter_store.h"
#include "framework/ops/linear.h"
#include "layers/context.h"

namespace furlong::layers {

/// y = x · weightᵀ + bias with named parameters `name`.weight [outer, inner] and, when asked for, `name`.bias [outer].
class Linear {
 public:
  Linear(ParameterStore& store, const std::string& name, std::int64_t inner, std::int64_t outer, bool bias, double initial_deviation)
      : weight_(&store.add(name + ".weight", {outer, inner}, Initializer::normal(initial_deviation), true)),
        bias_(bias ? &store.add(name + ".bias", {outer}, Initializer::zeros(), false) : nullptr) {}

  Variable forward(ForwardContext& context, const Variable& x,
                   ops::GemmEpilogue::Activation activation = ops::GemmEpilogue::Activation::none) const {
    if (!bias_) return ops::linear(context.tape, x, weight_->variable(), nullptr, activation);
    const Variable bias = bias_->variable();
    return ops::linear(context.tape, x, weight_->variable(), &bias, activation);
  }

 private:
  Parameter* weight_;
  Parameter* bias_;
};

}  // namespace furlong::layers
