#pragma once
// Rows of one document each: what a model that was made for documents is trained and measured on.
#include <string>
#include <vector>

#include "datasets/batch.h"
#include "datasets/token_store.h"

namespace furlong {

struct DocumentOptions {
  std::int64_t sequence_length = 0;  ///< longest row; a longer document gives several
  bool next_tokens =
      true;  ///< targets are the tokens that follow; else there are none, and a MaskedSource is to choose some
  bool shuffled = true;        ///< each epoch in an order of its own; else as the store has them
  bool pad_to_longest = true;  ///< rows as long as the batch's longest, rounded up to 64; else sequence_length
  std::uint64_t seed = 0;      ///< of the order
  std::vector<std::string> ignore_tokens{};  ///< targets of these symbols are left out of the loss
};

/// A row is a document of a split, from its first token on, or where that is longer than sequence_length the next part
/// of it, and so on; padded behind with zeros under a mask. With next_tokens each token but a document's first is a
/// target once in an epoch (parts then overlap by the token that is the one's last target and the other's first input),
/// and documents of one token are left out; without, each token is in one row. The order of epoch e is a permutation of
/// the rows drawn from (seed, e). A part of a document that a split cuts off counts as one.
class DocumentSource : public RowSource {
 public:
  /// The store has to outlive the source. Throws UserError when the split has no rows, or a symbol is not in the
  /// vocabulary.
  DocumentSource(const TokenStore& store, Split split, const DocumentOptions& options);

  std::uint64_t n_samples() const override { return n_rows_; }
  std::int64_t sequence_length() const override { return options_.sequence_length; }
  std::int64_t tokens_in(std::uint64_t index) const override;
  Batch batch(std::uint64_t first, std::int64_t samples) const override;
  Batch batch_of_one_pass(std::uint64_t first, std::int64_t samples) const override;
  std::string note() const override;

 private:
  struct Document {
    std::uint64_t begin = 0, end = 0;  // in the split's ranges laid end to end
    std::uint64_t first_row = 0;
  };
  struct Row {
    std::uint64_t begin = 0;
    std::int64_t inputs = 0;
  };
  Row row(std::uint64_t index) const;
  Batch make_batch(std::uint64_t first, std::int64_t samples, std::uint64_t end) const;
  void fill(const Row& row, Batch& batch, std::size_t place) const;

  const TokenStore* store_;
  Split split_;
  DocumentOptions options_;
  std::vector<bool> ignored_;  // by token id
  std::vector<Document> documents_;
  std::uint64_t n_rows_ = 0, n_cut_ = 0;
};

}  // namespace furlong
