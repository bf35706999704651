#pragma once
#include <functional>
#include <span>
#include <vector>

#include "trainers/model/model.h"

namespace furlong {

/// Options of generate().
struct GenerateOptions {
  std::int64_t max_tokens = 100;
  double temperature = 1;  ///< 0: always the most probable token
  std::int64_t top_k = 0;  ///< sample from the k most probable tokens; 0: from all
  /// Sample from the most probable tokens that together reach this probability (Holtzman et al. 2020).
  double top_p = 1;
  std::uint64_t seed = 1;  ///< each sample draws its own numbers from it, whatever the number of samples
  std::int64_t samples = 1;
  std::int64_t batch_size = 16;         ///< samples computed at the same time, at most
  std::vector<std::int32_t> stop = {};  ///< tokens that end the text; they are not part of it
};

/// The result of generate().
struct Generated {
  std::vector<std::vector<std::int32_t>> samples;  ///< tokens after the prompt
  double prompt_seconds = 0, seconds = 0;
  /// Size of a sample's recurrent state or key-value cache at the end; constant for linear attention.
  std::int64_t state_bytes = 0;
  std::int64_t tokens() const;  ///< of all samples
  /// Of all samples, without the first token of each, which follows from the prompt; 0 if there are no others.
  double tokens_per_second() const;
};

/// Called by generate() in the calling thread. Each function may be empty.
struct GenerateEvents {
  std::function<void(std::int32_t token)> on_token = {};  ///< for each new token, if there is one sample
  std::function<void(const std::vector<std::int32_t>& tokens)> on_sample = {};  ///< for each sample, in order
  std::function<bool()> stop_requested = {};  ///< asked before each further token; true: all samples end here
};

/// Generates samples that continue a prompt. Processes the prompt once, in parallel, then one token of each sample of a
/// batch at a time, with a recurrent state or key-value cache. Throws UserError for encoders, for an empty prompt if
/// the vocabulary has no document token, for more tokens than learned positions, and for logits that are not finite.
Generated generate(Model& model, const std::vector<std::int32_t>& prompt, const GenerateOptions& options,
                   const GenerateEvents& events = {});

/// Returns a warning if a prompt, with its tokens, is unlike what the model has read in training: one that ends with a
/// space (Vocabulary::prompt_warning), or one without tokens if the model has read no document token. Otherwise empty.
std::string prompt_warning(const Model& model, std::string_view prompt, std::span<const std::int32_t> tokens);

/// While it exists, loops use one thread if a token's products are too small to share: one sequence, and weights of
/// less than 8 MiB, which one core reads from its caches faster than threads wait for each other.
class DecodingThreads {
 public:
  DecodingThreads(const Model& model, std::int64_t batch);
  ~DecodingThreads();
  DecodingThreads(const DecodingThreads&) = delete;
  DecodingThreads& operator=(const DecodingThreads&) = delete;

 private:
  int before_;
};

/// Extends `state` by tokens [batch, n] and returns the logits [batch, vocabulary] that follow each row's last token. A
/// long prompt is processed in pieces, so that memory does not grow with it. The context's tape must not be recording.
Tensor extended_logits(Model& model, layers::ForwardContext& context, std::span<const std::int32_t> tokens,
                       std::int64_t batch, layers::GenerationState& state);

/// Samples a token from logits with the options' temperature, top_k and top_p. `uniform` is a random number in [0, 1).
/// Throws UserError if a logit is NaN or infinity, or if all are -infinity.
std::int32_t sample_token(std::vector<float> logits, const GenerateOptions& options, double uniform);

}  // namespace furlong
