#pragma once
// Long documents in consecutive segments: what a model needs that carries its state from one training step to the next.
#include <memory>
#include <string>
#include <vector>

#include "datasets/batch.h"
#include "datasets/token_store.h"

namespace furlong {

struct SegmentOptions {
  std::int64_t sequence_length = 0;  ///< tokens of a segment
  std::int64_t rows = 0;  ///< stretches that are walked through at the same time: the rows of all batches of one step
  std::vector<std::string> ignore_tokens{};  ///< targets of these symbols are left out of the loss
  /// Stretches begin with a document, unless that makes the longest of them more than twice as long as an even share.
  bool whole_documents = false;
};

/// Documents cut into segments of `sequence_length` tokens, the last one of each padded, so that no segment holds two
/// documents and each token but a document's first is a target once. All segments of a split, in order, are shared out
/// in `rows` stretches of nearly equal length (see whole_documents). Sample i is the next segment of stretch i % rows;
/// at its end a stretch begins again. A batch's `fresh` marks the rows whose segment begins a document or a stretch:
/// for these the state that comes from the step before has to be emptied.
class SegmentSource : public BatchSource {
 public:
  /// The store has to outlive the source. Throws UserError when the split has fewer segments than rows, or a symbol is
  /// not in the vocabulary.
  SegmentSource(const TokenStore& store, Split split, const SegmentOptions& options);

  /// Enough for the longest stretch, and so for each segment.
  std::uint64_t n_samples() const override;
  Batch batch(std::uint64_t first, std::int64_t samples) const override;
  /// The same, and no segment a second time: where a stretch has ended, its row is empty.
  Batch batch_of_one_pass(std::uint64_t first, std::int64_t samples) const override;

 private:
  struct Document {
    std::uint64_t begin = 0, end = 0;  // in the split's ranges laid end to end
    std::uint64_t first_segment = 0;   // of the split's
  };
  std::vector<std::uint64_t> even_stretches() const;
  std::vector<std::uint64_t> stretches_of_documents() const;
  Batch make_batch(std::uint64_t first, std::int64_t samples, bool one_pass) const;
  void make_row(std::uint64_t segment, Batch& batch, std::int64_t row) const;

  const TokenStore* store_;
  Split split_;
  SegmentOptions options_;
  std::vector<bool> ignored_;  // by token id
  std::vector<Document> documents_;
  std::uint64_t n_segments_ = 0;
  std::vector<std::uint64_t> stretches_;  // the first segment of each, and n_segments_
  std::uint64_t longest_stretch_ = 0;
};

}  // namespace furlong
