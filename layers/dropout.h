#pragma once
#include <string>

#include "framework/ops/dropout.h"
#include "layers/context.h"

namespace furlong::layers {

/// Dropout of x [batch, ...] while training; which elements fall depends on (seed, step, name, global sample, element) alone.
inline Variable dropout(ForwardContext& context, const Variable& x, double rate, const std::string& name) {
  if (!context.training || rate == 0) return x;
  const std::uint64_t per_sample = static_cast<std::uint64_t>(x.shape().elements() / x.extent(0));
  return ops::dropout(context.tape, x, rate, RandomKey{context.seed, context.step, random_stream(name)}, context.first_sample * per_sample,
                      context.device_step);
}

}  // namespace furlong::layers
