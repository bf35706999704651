#pragma once
// Tests of what a causal model recalls from its context, over the tokens of any vocabulary.
#include <array>
#include <memory>
#include <optional>
#include <string>

#include "datasets/batch.h"
#include "datasets/dataset.h"
#include "datasets/vocabulary.h"

namespace furlong {

/// Each sequence ends in an answer, or has several, that follow from earlier tokens:
///  - associative: pairs of a key and a value, then the keys again in another order among random symbols. The answers
///    are the values (multi-query associative recall; Arora et al. 2023, "Zoology");
///  - passkey: five digits hidden in a repetitive text that ends with the question for them (Mohtashami & Jaggi 2023,
///    "Landmark Attention"). The answer is the digits;
///  - copy: random symbols, a separator, and the symbols again, which are the answers (CopyTask);
///  - induction: random symbols whose last one, or last few, occurred once before. The answer is what followed there
///    (Olsson et al. 2022, "In-context Learning and Induction Heads").
enum class Recall : std::uint8_t { associative, passkey, copy, induction };
constexpr auto names_of(Recall) { return std::array{"associative_recall", "passkey", "copy", "induction"}; }

/// Options of a recall task.
struct RecallOptions {
  Recall task = Recall::associative;
  std::int64_t sequence_length = 0;  ///< even, at least 16
  std::int64_t pairs = 0;            ///< of keys and values; associative only
  std::uint64_t seed = 1;
  /// The token before each sequence. Without it, a separator of the vocabulary.
  std::optional<std::int32_t> start{};
  Split split = Split::test;  ///< training has no end; copy supports the test split alone
};

/// Tokens that recall tasks use.
struct RecallTokens {
  /// Drawn as random symbols: of bytes the printable ones, of alphabets the letters of single bases and residues, of a
  /// tokenizer the words, if it has 256 of them.
  std::vector<std::int32_t> symbols;
  std::int32_t start = 0, separator = 0;  ///< none of `symbols`
};
RecallTokens recall_tokens(const Vocabulary& vocabulary, std::optional<std::int32_t> start = {});

/// Returns why the vocabulary or the length does not fit the task; empty if they do.
std::string recall_obstacle(const Vocabulary& vocabulary, const RecallOptions& options);

/// Returns a source of sequences of a recall task: tokens, and the answers as targets, each at the preceding token.
/// Sample i depends on the options and i alone; validation and test have CopyTask::held_out_samples of them. Throws
/// UserError if recall_obstacle() is not empty. `vocabulary` must outlive the source.
std::unique_ptr<BatchSource> make_recall_task(const Vocabulary& vocabulary, const RecallOptions& options);

}  // namespace furlong
