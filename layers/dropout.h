#pragma once
#include <algorithm>
#include <string>

#include "framework/ops/elementwise/dropout.h"
#include "layers/context.h"

namespace furlong::layers {

/// Applies dropout to x [batch, ...] in training: each element is zero with probability `rate`, 0 <= rate < 1, else
/// multiplied by 1 / (1 - rate). Returns x itself if the context is not in training or if rate is 0.
///
/// The dropped elements depend only on (seed, step, name, global sample, element). Elements of x [batch, n, width] are
/// numbered as in sequences of context.longest_row tokens, so that batches of other lengths in the same step have other
/// numbers. With context parallelism (context.exchange), x is this rank's segment of each sequence. Elements are then
/// numbered as in the whole sequence, so the result does not depend on the number of ranks. Throws ContractError if
/// rate is outside [0, 1), if the rows of x are not contiguous, or with context parallelism if x does not have three
/// dimensions.
inline Variable dropout(ForwardContext& context, const Variable& x, double rate, const std::string& name) {
  if (!context.training || rate == 0 || x.extent(0) == 0) return x;
  const RandomKey key{context.seed, context.step, random_stream(name)};
  if (x.shape().rank() != 3) {
    require(!context.exchange, "dropout of {} in segments of a sequence", x.shape().text());
    const auto per_sample = static_cast<std::uint64_t>(x.shape().elements() / x.extent(0));
    return ops::dropout(context.tape, x, rate, key, context.first_sample * per_sample, context.device_step);
  }
  const std::int64_t n = context.exchange ? context.exchange->sequence_length() : x.extent(1);
  const auto width = static_cast<std::uint64_t>(x.extent(2));
  const std::uint64_t per_sample = static_cast<std::uint64_t>(std::max(n, context.longest_row)) * width;
  const auto position = static_cast<std::uint64_t>(context.exchange ? context.exchange->first_position() : 0);
  const std::uint64_t first = context.first_sample * per_sample + position * width;
  const bool whole = !context.exchange && n >= context.longest_row;
  return ops::dropout(context.tape, x, rate, key, first, context.device_step, whole ? 0 : per_sample);
}

}  // namespace furlong::layers
