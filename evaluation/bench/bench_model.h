#pragma once
// furlong bench model: measures training steps, evaluation and generation of a model on random tokens.
#include <string>
#include <vector>

#include "datasets/vocabulary.h"
#include "trainers/model/model.h"

namespace furlong {

/// Options of bench_model().
struct BenchModelOptions {
  std::int64_t repeat = 5;
  std::int64_t max_tokens = 32;  ///< generated tokens, at most half of a length
  Device device;
};

/// Runs of one part, without those that warm up.
struct BenchRuns {
  std::vector<double> seconds;  ///< of each repetition, in order
  double median_seconds() const;
};

/// Generation of `batch` sequences: a prompt, then `tokens` steps of one token for each sequence.
struct BenchGeneration {
  std::int64_t batch = 1, prompt_tokens = 0, tokens = 0;
  BenchRuns prompt, steps;   ///< seconds of the prompt, and of one step: their mean in a repetition
  std::int64_t threads = 1;  ///< of the steps: small models decode one sequence in one thread
  /// Read by a step: each weight that it multiplies, once per use; and the states of all sequences, the mean of all
  /// steps.
  std::int64_t weight_bytes = 0, state_bytes = 0;
  double bytes_per_second() const { return static_cast<double>(weight_bytes + state_bytes) / steps.median_seconds(); }
};

/// Measurements at one sequence length.
struct BenchModelLength {
  std::int64_t n = 0;
  std::int64_t parameters = 0;
  std::int64_t step_tokens = 0, forward_tokens = 0;  ///< of one training step, of one evaluated batch
  /// As furlong plan counts them, but on the CPU without the logits of tokens that are not masked.
  double step_flops = 0;
  std::int64_t peak_bytes = 0;  ///< tensors of a training step: weights, gradients, optimizer, activations
  BenchRuns step, forward;
  std::vector<BenchGeneration> generation;  ///< of one sequence, then of a batch
  std::string no_generation;                ///< if `generation` is empty: why
};

/// Returns the settings for sequences of n tokens. The model stays the same, except that positions without a table of
/// fixed size may be larger. `vocabulary` is that of the data. Throws UserError if the model has no place for n tokens,
/// if a step does not fit in memory, and for settings that bench_model() does not support.
Settings bench_model_settings(const Settings& settings, std::int64_t n, const Vocabulary& vocabulary,
                              const Device& device);

/// Makes a new model for data with this vocabulary and measures it with furlong train's own steps, in alternation with
/// evaluation and generation. Settings are those of bench_model_settings(). Reads no data.
BenchModelLength bench_model(const Settings& settings, const Vocabulary& vocabulary, const BenchModelOptions& options);

}  // namespace furlong
