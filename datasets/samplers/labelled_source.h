#pragma once
// Batches of labelled documents, one document or a pair of documents per sample.
#include <optional>

#include "datasets/batch.h"
#include "datasets/tokenized_dataset.h"

namespace furlong {

/// Options of a LabelledSource.
struct LabelledOptions {
  std::int64_t sequence_length = 0;  ///< longest row; longer documents are truncated
  /// true: each epoch has its own order. false: the order of the dataset.
  bool shuffled = true;
  bool pairs = false;  ///< a sample is two documents, in rows 2i and 2i + 1
  /// true: pad rows to the longest row of the batch, rounded up to a multiple of 64. false: pad to sequence_length.
  bool pad_to_longest = true;
  /// Token to put before each document (a class token), unless the document already starts with it.
  std::optional<std::int32_t> first_token{};
  std::uint64_t seed = 0;  ///< seed of the order
};

/// Whole documents of a split, padded with zeros and masked. Documents that lie only partly in the split are skipped.
/// Each sample occurs once per epoch; the order of epoch e is a permutation drawn from (seed, e).
class LabelledSource : public BatchSource {
 public:
  /// `dataset` must outlive the source. Throws UserError if the dataset has no labels, if its labels belong to single
  /// documents but `pairs` is set (or the reverse), or if the split has no whole document.
  LabelledSource(const TokenizedDataset& dataset, Split split, const LabelledOptions& options);

  std::uint64_t n_samples() const override { return samples_.size(); }
  /// Returns the number of documents longer than a row.
  std::uint64_t n_truncated() const { return n_cut_; }
  Batch batch(std::uint64_t first, std::int64_t samples) const override;
  Batch single_pass_batch(std::uint64_t first, std::int64_t samples) const override;
  std::string note() const override;

 private:
  struct Document {
    std::uint64_t position;  // in the split
    std::int64_t length;     // tokens of the document that fit in a row
    bool fronted;            // whether first_token is put before them
    std::int64_t tokens() const { return length + (fronted ? 1 : 0); }
  };
  struct Sample {
    std::array<Document, 2> documents;
    std::int32_t label;
  };
  std::uint64_t rows_per_sample() const { return options_.pairs ? 2 : 1; }
  bool needs_front(std::uint64_t position) const;
  void find_samples();
  const Sample& sample(std::uint64_t index) const;
  Batch make_batch(std::uint64_t first, std::int64_t samples, std::uint64_t end) const;

  const TokenizedDataset* dataset_;
  Split split_;
  LabelledOptions options_;
  std::vector<Sample> samples_;
  std::uint64_t n_cut_ = 0;
};

/// Returns element `index` of a permutation of [0, size) drawn from (seed, epoch).
std::uint64_t permuted_index(std::uint64_t index, std::uint64_t size, std::uint64_t seed, std::uint64_t epoch);

}  // namespace furlong
