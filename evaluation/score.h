#pragma once
// How probable a model finds sequences: what furlong score does.
#include "evaluation/score_file.h"
#include "evaluation/sequences/sequence_reader.h"
#include "trainers/model/model.h"

namespace furlong {

struct ScoreOptions {
  bool positions = false;            ///< the log-probability of each position as well
  std::string start = "auto";        ///< causal models: the token that stands before each sequence (scoring_frame)
  std::int64_t batch_tokens = 8192;  ///< of a batch, padding included; of a piece of a long sequence
  std::function<void(std::uint64_t bytes, std::uint64_t sequences)> progress = {};  ///< ReadOptions::progress
};

/// The frame that sequences are scored in (frame_of). Of causal models whose tokenizer puts nothing in front, `start`
/// says what stands there, so that the first token is predicted from something: a token's spelling; none: nothing, and
/// the first token has no score; auto: the document token, if the vocabulary has one and the model was trained on
/// windows across documents, else nothing. Throws UserError for a start that is unknown or has no place, and for
/// models without an output layer over tokens.
SequenceFrame scoring_frame(const Model& model, const std::string& start);

/// The most tokens of a sequence, its frame included, in a row of the training: data.sequence_length inputs, and of
/// causal models the target after the last. 0: unknown, as of imported models, or any number (data.stateful).
std::int64_t longest_trained(const Model& model);

/// log p of the tokens that are scored, in order: those between the frame, without the first token of all. Causal: of
/// each token after those before it. Masked: of each token with only that token masked, so that the sum is the
/// pseudo-log-likelihood (Salazar et al. 2020, "Masked Language Model Scoring"). `done` is called after each batch.
std::vector<std::vector<double>> token_log_probabilities(Model& model, const std::vector<Sequence>& sequences,
                                                         const SequenceFrame& frame, std::int64_t batch_tokens,
                                                         const ShareDone& done = {});

/// Scores all sequences of the input into `output`, in order. Causal models take sequences of more than `batch_tokens`
/// tokens in pieces, with the state of their attention in between: the log-likelihood is that of one pass, and where
/// the state has a constant size memory does not grow with length. Throws UserError as read_sequences and
/// scoring_frame.
ReadSummary score(Model& model, const SequenceInput& input, ScoreFile& output, const ScoreOptions& options);

}  // namespace furlong
