#pragma once
// Mutations of a sequence, and how a model judges them.
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "evaluation/score.h"

namespace furlong {

/// One substitution: A23V is `from` A, at `position` 23 counted from 1, `to` V.
struct Substitution {
  std::string from, to;
  std::int64_t position = 0;
};
/// Substitutions at once: A23V:G45D.
struct Mutation {
  std::string text;
  std::uint64_t line = 0;
  std::vector<Substitution> substitutions;
};

/// The first column of each line of a file, which a tab or comma ends. Empty lines, lines that begin with '#', and a
/// header (mutation, mutant or variant) are passed over. Throws UserError naming the line.
std::vector<Mutation> read_mutations(const std::filesystem::path& path);

/// Scores each mutation of the input's only sequence into `output`, in nats: above 0 the model prefers the mutant. A
/// mutation's score is the sum over its substitutions.
/// Masked models (Meier et al. 2021, "Language models enable zero-shot prediction of the effects of mutations on
/// protein function"): masked_marginal, log p(to) - log p(from) at the position where it alone is hidden;
/// wild_type_marginal, the same where nothing is.
/// Causal models: log_likelihood_ratio, the mutant's log-likelihood minus the wild type's.
/// Throws UserError naming the line for a letter that the sequence does not have there, a position outside it, and a
/// letter that is no token.
void score_mutations(Model& model, const SequenceInput& input, const std::filesystem::path& mutations,
                     ScoreFile& output, const ScoreOptions& options);

}  // namespace furlong
