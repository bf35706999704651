#pragma once
// The unigram baseline of losses and accuracies.
#include "datasets/dataset.h"
#include "trainers/settings/settings.h"

namespace furlong {

/// The unigram baseline: predicts each target from the frequencies of tokens (or labels) in the training split.
/// Numbers and sets of labels: from the mean of each output in the training split.
struct UnigramBaseline {
  /// Fraction of targets that equal the most frequent token of the training split; of sets that equal the set of labels
  /// with a frequency above 0.5. NaN for numbers.
  double accuracy = 0;
  /// Mean over the targets of -ln of the token's frequency in the training split, with add-one smoothing, in nats.
  /// Otherwise the objective's loss of the baseline.
  double loss = 0;
  std::int64_t targets = 0;  ///< tokens or labels that were predicted
  /// Bytes of the text of the targets, for next_token with bytes or a tokenizer whose tokens have a number of bytes
  /// (Tokenizer::text_bytes()); otherwise 0.
  std::int64_t bytes = 0;
};

/// Returns the baseline over the same targets as evaluate() with the same arguments. `vocabulary` is the model's.
/// Counts the first 2^27 tokens of the training split, without tokens that are never targets. In the copy task, all
/// symbols are equally frequent. Throws UserError if the split cannot be read or has no targets.
UnigramBaseline chance(const Settings& settings, const Vocabulary& vocabulary, const Dataset& data, Split split,
                       std::int64_t sequence_length, std::int64_t batch_size, std::int64_t max_batches = 0);

}  // namespace furlong
