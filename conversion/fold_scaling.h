#pragma once
// Folds SADERF scaling into the weights: multiplies the queries of each head by Ψ and divides its keys by Ψ. Queries
// and keys then have the same mean square in every dimension, and softmax attention is unchanged.
#include "evaluation/analyze/observed_model.h"

namespace furlong {

/// What folding changed.
struct FoldReport {
  double largest_scaling = 1, least_scaling = 1;       ///< over all Ψ
  double query_norm = 0, key_norm = 0;                 ///< mean over heads, before folding
  double query_norm_after = 0, key_norm_after = 0;     ///< mean over heads, after folding
  double largest_logit = 0, largest_logit_change = 0;  ///< over at most 256 tokens of the first batch
};

/// Measures Ψ on the model's data (layers/attention/linear/head_constants.h) and multiplies it into the query and key
/// rows of query_key_value. With rotary positions both dimensions of a rotary pair get the same Ψ. If several query
/// heads share a key head, they share Ψ. Runs the model on the first batch before and after. Throws ContractError if
/// the logits of softmax attention change by more than rounding. Throws UserError for models that folding would change:
/// normalized queries and keys, adapters, feature maps that do not estimate softmax.
FoldReport fold_scaling(ObservedModel& observed, Model& model);

}  // namespace furlong
