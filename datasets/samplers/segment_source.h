#pragma once
// Consecutive segments of long documents, for models that keep their state across training steps.
#include <memory>
#include <string>
#include <vector>

#include "datasets/batch.h"
#include "datasets/tokenized_dataset.h"

namespace furlong {

/// Options of a SegmentSource.
struct SegmentOptions {
  std::int64_t sequence_length = 0;  ///< tokens per segment
  /// Number of streams read in parallel: the rows of all batches of one step.
  std::int64_t rows = 0;
  /// Symbols whose targets do not count in the loss.
  std::vector<std::string> ignore_tokens{};
  /// Start each stream at the start of a document. Ignored if the longest stream would then be more than twice as long
  /// as an even share.
  bool whole_documents = false;
};

/// Cuts documents into segments of `sequence_length` tokens and pads the last segment of each document. No segment
/// spans two documents, and each token except a document's first is a target once. All segments of a split, in order,
/// are divided into `rows` streams of nearly equal length (see whole_documents).
/// Sample i is the next segment of stream i % rows; after its last segment a stream starts again. A batch's `fresh`
/// marks rows whose segment starts a document or a stream: the state from the previous step must be reset for these
/// rows.
class SegmentSource : public BatchSource {
 public:
  /// `dataset` must outlive the source. Throws UserError if the split has fewer segments than rows, or if the
  /// vocabulary lacks a symbol of ignore_tokens.
  SegmentSource(const TokenizedDataset& dataset, Split split, const SegmentOptions& options);

  /// Returns the number of samples until the longest stream, and so every segment, has been read.
  std::uint64_t n_samples() const override;
  /// See BatchSource::batch.
  Batch batch(std::uint64_t first, std::int64_t samples) const override;
  /// Like batch(), but no segment occurs twice: after the end of its stream a row is empty.
  Batch single_pass_batch(std::uint64_t first, std::int64_t samples) const override;

 private:
  struct Document {
    std::uint64_t begin = 0, end = 0;  // in the concatenated ranges of the split
    std::uint64_t first_segment = 0;   // among the segments of the split
  };
  std::vector<std::uint64_t> even_streams() const;
  std::vector<std::uint64_t> document_streams() const;
  Batch make_batch(std::uint64_t first, std::int64_t samples, bool one_pass) const;
  void make_row(std::uint64_t segment, Batch& batch, std::int64_t row) const;

  const TokenizedDataset* dataset_;
  Split split_;
  SegmentOptions options_;
  std::vector<bool> ignored_;  // by token id
  std::vector<Document> documents_;
  std::uint64_t n_segments_ = 0;
  std::vector<std::uint64_t> streams_;  // first segment of each stream, then n_segments_
  std::uint64_t longest_stream_ = 0;
};

}  // namespace furlong
