#pragma once
// Scores of mutations of a sequence.
#include <filesystem>

#include "evaluation/mutation_file.h"
#include "evaluation/score.h"

namespace furlong {

/// Scores each mutation of the input's only sequence into `output`, in nats: above 0 the model prefers the mutant. A
/// mutation's score is the sum over its substitutions.
/// Masked models (Meier et al. 2021, "Language models enable zero-shot prediction of the effects of mutations on
/// protein function"): masked_marginal, log p(to) - log p(from) at the position with only that position masked;
/// wild_type_marginal, the same with nothing masked.
/// Causal models: log_likelihood_ratio, the mutant's log-likelihood minus the wild type's.
/// Throws UserError naming the line for a letter that the sequence does not have there, a position outside it, and a
/// letter that is no token. `done` is called after each batch. Returns what was read of the input.
ReadSummary score_mutations(Model& model, const SequenceInput& input, const std::filesystem::path& mutations,
                            ScoreFile& output, const ScoreOptions& options, const ShareDone& done = {});

}  // namespace furlong
