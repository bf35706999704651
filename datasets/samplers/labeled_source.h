#pragma once
// Batches of labeled documents, one document or a pair of documents per sample.
#include <optional>

#include "datasets/batch.h"
#include "datasets/samplers/reverse_complement.h"
#include "datasets/tokenized_dataset.h"

namespace furlong {

/// Options of a LabeledSource.
struct LabeledOptions {
  /// Maximum tokens per row, first_token included; longer documents are truncated at their end.
  std::int64_t sequence_length = 0;
  /// true: each epoch has its own order, a permutation of all samples drawn from (seed, epoch). false: every epoch has
  /// the order of the dataset.
  bool shuffled = true;
  bool pairs = false;  ///< a sample is two documents, in rows 2i and 2i + 1
  /// true: pad rows to the longest row of the batch, rounded up to a multiple of 64. false: pad to sequence_length.
  bool pad_to_longest = true;
  /// Token to put before each document (a class token), unless the document already starts with it.
  std::optional<std::int32_t> first_token{};
  std::uint64_t seed = 0;  ///< of the permutations; ignored unless shuffled
  LabelKind kind = LabelKind::classes;
  /// LabelKind::numbers: those of the model. Empty: those of the dataset.
  std::vector<LabelScale> scales{};
  /// Read half of the samples, both documents of a pair, from the other strand of the DNA or RNA. Their labels stay the
  /// same, so labels of tokens have no such samples.
  bool reverse_complement = false;
};

/// Documents of a split with their labels, one row per document. Rows are padded at the end with token id 0, and
/// Batch::mask is 1 for tokens and 0 for padding. A sample with a document that lies only partly in the split is
/// skipped, so that no document is divided between splits. Each sample occurs once per epoch: sample index i is in
/// epoch i / n_samples().
class LabeledSource : public BatchSource {
 public:
  /// `dataset` must outlive the source. Throws UserError if the dataset has no labels, if its labels belong to single
  /// documents but `pairs` is set (or the reverse), if they are of another kind, or if the split has no complete
  /// sample. Throws ContractError unless sequence_length leaves room for at least one token of a document.
  LabeledSource(const TokenizedDataset& dataset, Split split, const LabeledOptions& options);

  /// Returns the number of samples in one epoch.
  std::uint64_t n_samples() const override { return samples_.size(); }
  /// Returns the index in the dataset of each sample's document (of its pair, with `pairs`), in the order of the first
  /// epoch.
  std::vector<std::uint64_t> documents() const;
  /// Returns samples [first, first + samples); see BatchSource::batch. `inputs` and `mask` are set. LabelKind::tokens:
  /// `targets` too; otherwise `labels`, and `values` unless labels are classes. With `pairs` the batch has 2 * samples
  /// rows.
  Batch batch(std::uint64_t first, std::int64_t samples) const override;
  /// See BatchSource::single_pass_batch. Samples after the first epoch have an empty mask row and an ignored label.
  Batch single_pass_batch(std::uint64_t first, std::int64_t samples) const override;
  /// Returns how many documents are truncated, or an empty string if none is.
  std::string note() const override;

 private:
  struct Document {
    std::uint64_t position;  // in the split
    std::uint64_t start;     // in the dataset
    std::int64_t length;     // tokens of the document that fit in a row
    bool fronted;            // whether first_token is put before them
    std::int64_t tokens() const { return length + (fronted ? 1 : 0); }
  };
  struct Sample {
    std::array<Document, 2> documents;
    std::uint64_t index;  // of the label in the dataset
  };
  std::uint64_t rows_per_sample() const { return options_.pairs ? 2 : 1; }
  bool needs_front(std::uint64_t position) const;
  void check_labels() const;
  void read_labels();
  void find_samples();
  void put_label(const Sample& sample, std::size_t place, Batch& batch) const;
  const Sample& sample(std::uint64_t index) const;
  Batch make_batch(std::uint64_t first, std::int64_t samples, std::uint64_t end) const;

  const TokenizedDataset* dataset_;
  Split split_;
  LabeledOptions options_;
  std::vector<Sample> samples_;
  std::optional<ReverseComplement> other_strand_;
  // Labels of all samples, as in TokenizedDataset.
  std::vector<std::int32_t> labels_;
  std::vector<std::uint64_t> label_ends_;
  std::vector<float> numbers_;  // scaled
  std::size_t outputs_;         // labels, or numbers
  std::uint64_t n_cut_ = 0;
};

/// Returns element `index` of a permutation of [0, size) drawn from (seed, epoch). Constant memory: the
/// permutation is not stored. Throws ContractError if index >= size.
std::uint64_t permuted_index(std::uint64_t index, std::uint64_t size, std::uint64_t seed, std::uint64_t epoch);

}  // namespace furlong
