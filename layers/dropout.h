#pragma once
#include <string>

#include "framework/ops/elementwise/dropout.h"
#include "layers/context.h"

namespace furlong::layers {

/// Applies dropout to x [batch, ...] in training: each element is zero with probability `rate`, 0 <= rate < 1, else
/// multiplied by 1 / (1 - rate). Returns x itself if the context is not in training or if rate is 0.
///
/// The dropped elements depend only on (seed, step, name, global sample, element). With context parallelism
/// (context.exchange), x [batch, n, width] is this rank's segment of each sequence. Elements are then numbered as in
/// the whole sequence, so the result does not depend on the number of ranks. Throws ContractError if rate is outside
/// [0, 1), if the rows of x are not contiguous, or with context parallelism if x does not have three dimensions.
inline Variable dropout(ForwardContext& context, const Variable& x, double rate, const std::string& name) {
  if (!context.training || rate == 0) return x;
  const RandomKey key{context.seed, context.step, random_stream(name)};
  if (!context.exchange) {
    const auto per_sample = static_cast<std::uint64_t>(x.shape().elements() / x.extent(0));
    return ops::dropout(context.tape, x, rate, key, context.first_sample * per_sample, context.device_step);
  }
  require(x.shape().rank() == 3, "dropout of {} in segments of a sequence", x.shape().text());
  const auto width = static_cast<std::uint64_t>(x.extent(2));
  const std::uint64_t per_sample = static_cast<std::uint64_t>(context.exchange->sequence_length()) * width;
  const std::uint64_t first =
      context.first_sample * per_sample + static_cast<std::uint64_t>(context.exchange->first_position()) * width;
  return ops::dropout(context.tape, x, rate, key, first, context.device_step, per_sample);
}

}  // namespace furlong::layers
