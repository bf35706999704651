#pragma once
// What a model reaches that has looked at nothing: the baseline that losses and accuracies are measured from.
#include "datasets/dataset.h"
#include "trainers/settings/settings.h"

namespace furlong {

/// The unigram baseline: each target is predicted from how often tokens (labels) occur in general.
struct Chance {
  double accuracy = 0;  ///< share among the targets of the one that is most frequent in the training split
  double loss =
      0;  ///< mean over the targets, nats, of -ln of a token's share of the training split, its counts plus one each
  std::int64_t targets = 0;  ///< tokens or labels that were predicted
  std::int64_t bytes =
      0;  ///< next_token with bytes or a byte-level tokenizer: of the text that the targets are; otherwise 0
};

/// Over the same targets as evaluate() with the same arguments. Tokens that are never targets do not count; of a
/// training split the first 2^27 tokens are counted; of the copy task the symbols are equally frequent by definition.
/// `vocabulary` is the model's. Throws UserError where the split cannot be read, or has no targets.
Chance chance(const Settings& settings, const Vocabulary& vocabulary, const Dataset& data, Split split,
              std::int64_t sequence_length, std::int64_t batch_size, std::int64_t max_batches = 0);

}  // namespace furlong
