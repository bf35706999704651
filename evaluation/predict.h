#pragma once
// Labels that a model predicts for sequences: what furlong predict does.
#include "evaluation/predictions.h"
#include "evaluation/sequences/sequence_reader.h"
#include "trainers/model/model.h"

namespace furlong {

struct PredictOptions {
  std::int64_t batch_tokens = 8192;  ///< of a batch, padding included
  /// Longer sequences are cut, as in training; 0: data.sequence_length of the model.
  std::int64_t sequence_length = 0;
  std::function<void(std::uint64_t bytes, std::uint64_t sequences)> progress = {};  ///< ReadOptions::progress
};

/// Writes what a model that learns labels predicts for all sequences of the input to `output`, in order: one row for
/// each sequence, `id` and add_prediction(); labels of tokens: one row for each token, `id`, `position` (from 1,
/// without the frame), `token` and add_prediction(). Of cut sequences there are no rows of later tokens. Throws
/// UserError as read_sequences, and for models that learn no labels, or labels of pairs.
ReadSummary predict(Model& model, const SequenceInput& input, PredictionRows& output,
                    const PredictOptions& options = {});

}  // namespace furlong
