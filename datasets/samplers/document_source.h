#pragma once
// Rows of one document each.
#include <optional>
#include <string>
#include <vector>

#include "datasets/batch.h"
#include "datasets/samplers/reverse_complement.h"
#include "datasets/tokenized_dataset.h"

namespace furlong {

/// Options of a DocumentSource.
struct DocumentOptions {
  std::int64_t sequence_length = 0;  ///< maximum tokens per row; a longer document is split into several rows
  /// true: each target is the next token. false: there are no targets; a MaskedSource selects them.
  bool next_tokens = true;
  /// true: each epoch has its own order, a permutation of all rows drawn from (seed, epoch). false: every epoch has the
  /// order of the dataset.
  bool shuffled = true;
  /// true: pad rows to the longest row of the batch, rounded up to a multiple of 64. false: pad to sequence_length.
  bool pad_to_longest = true;
  std::uint64_t seed = 0;  ///< of the permutations; ignored unless shuffled
  /// Symbols whose targets do not count in the loss.
  std::vector<std::string> ignore_tokens{};
  /// Read half of the rows from the other strand of the DNA or RNA.
  bool reverse_complement = false;
};

/// A row is one document of a split, padded at the end with token id 0; Batch::mask is 1 for tokens and 0 for padding.
/// A document longer than sequence_length gives several rows of consecutive parts. Part of a document that a split cuts
/// off counts as a document. With next_tokens, each token except a document's first is a target once per epoch: the
/// last target of one part is the first input of the next. Documents of one token are skipped. Without next_tokens,
/// each token is an input once per epoch. Sample index i is in epoch i / n_samples().
class DocumentSource : public RowSource {
 public:
  /// `dataset` must outlive the source. Throws UserError if the split has no rows, if the vocabulary lacks a symbol of
  /// ignore_tokens, or if reverse_complement does not apply to it.
  DocumentSource(const TokenizedDataset& dataset, Split split, const DocumentOptions& options);

  /// Returns the number of rows in one epoch.
  std::uint64_t n_samples() const override { return n_rows_; }
  std::int64_t sequence_length() const override { return options_.sequence_length; }
  // See RowSource and BatchSource.
  std::int64_t tokens_in(std::uint64_t index) const override;
  Batch batch(std::uint64_t first, std::int64_t samples) const override;
  Batch single_pass_batch(std::uint64_t first, std::int64_t samples) const override;
  /// Returns how many documents are split into several rows, or an empty string if none is.
  std::string note() const override;

 private:
  struct Document {
    std::uint64_t begin = 0, end = 0;  // in the concatenated ranges of the split
    std::uint64_t first_row = 0;
  };
  struct Row {
    std::uint64_t begin = 0;
    std::int64_t inputs = 0;
  };
  Row row(std::uint64_t index) const;
  Batch make_batch(std::uint64_t first, std::int64_t samples, std::uint64_t end) const;
  void fill(std::uint64_t index, const Row& row, Batch& batch, std::size_t place) const;

  const TokenizedDataset* dataset_;
  Split split_;
  DocumentOptions options_;
  std::vector<bool> ignored_;  // by token id
  std::optional<ReverseComplement> other_strand_;
  std::vector<Document> documents_;
  std::uint64_t n_rows_ = 0, n_cut_ = 0;
};

}  // namespace furlong
