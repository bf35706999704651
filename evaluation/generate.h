#pragma once
#include <functional>
#include <vector>

#include "trainers/model/model.h"

namespace furlong {

struct GenerateOptions {
  std::int64_t max_tokens = 100;
  double temperature = 1;  ///< 0: always the most probable token
  std::int64_t top_k = 0;  ///< only the k most probable tokens; 0 = all
  double top_p = 1;  ///< only the most probable tokens that together reach this probability (Holtzman et al. 2020)
  std::uint64_t seed = 1;
  std::vector<std::int32_t> stop = {};  ///< tokens at which the text ends, themselves left out
};

struct Generated {
  std::vector<std::int32_t> tokens;  ///< without the prompt
  double prompt_seconds = 0, seconds = 0;
  std::int64_t state_bytes = 0;  ///< what the past takes at the end: constant for linear attention
};

/// The prompt in parallel, then token by token from the recurrent state or the key-value cache. `on_token` is given
/// each one as it comes. Throws UserError for encoders, for an empty prompt where the vocabulary has no document token
/// to begin with, and for more tokens than learned positions.
Generated generate(Model& model, const std::vector<std::int32_t>& prompt, const GenerateOptions& options,
                   const std::function<void(std::int32_t)>& on_token = {});

/// One token drawn from logits with the options' temperature, top_k and top_p; `uniform` in [0, 1).
std::int32_t sample_token(std::vector<float> logits, const GenerateOptions& options, double uniform);

}  // namespace furlong
