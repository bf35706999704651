#pragma once
// SADERF scaling as part of the weights: queries of each head multiplied by Ψ and keys divided by it, so that both have
// the same mean square in every dimension, and softmax stays what it was.
#include "evaluation/analyze/observed_model.h"

namespace furlong {

struct FoldReport {
  double largest_scaling = 1, least_scaling = 1;       ///< of all Ψ
  double query_norm = 0, key_norm = 0;                 ///< means over heads before,
  double query_norm_after = 0, key_norm_after = 0;     ///< and after
  double largest_logit = 0, largest_logit_change = 0;  ///< over the first batch, of all tokens
};

/// Measures Ψ on the model's data (layers/attention/linear/head_constants.h) and multiplies it into the query and key
/// rows of query_key_value. Where rotary positions come between, which turn pairs of dimensions, Ψ of a pair is the
/// geometric mean of its two; where several query heads read one key head, that of theirs. Then runs the model on the
/// first batch again: throws UserError where logits have changed by more than rounding, and for models in which folding
/// would change something: normalised queries and keys, features that do not estimate softmax.
FoldReport fold_scaling(ObservedModel& observed, Model& model);

}  // namespace furlong
