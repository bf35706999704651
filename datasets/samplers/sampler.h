#pragma once
// Batches of windows of a tokenized dataset.
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "datasets/batch.h"
#include "datasets/samplers/reverse_complement.h"
#include "datasets/tokenized_dataset.h"

namespace furlong {

/// Options of a Sampler.
struct SamplerOptions {
  /// `random`: each window starts at any position, with equal probability. `sequential`: consecutive windows, the last
  /// one padded, so that each token of the split is an input exactly once, or each except the first a target if these
  /// are next tokens; then the order repeats.
  enum class Order { random, sequential } order = Order::random;
  std::int64_t sequence_length = 0;  ///< tokens per row
  /// true: each target is the next token. false: there are no targets; a MaskedSource selects them.
  bool next_tokens = true;
  std::uint64_t seed = 0;  ///< of the start positions; ignored by `sequential`
  /// Symbols whose targets do not count in the loss, for example ambiguity codes.
  std::vector<std::string> ignore_tokens;
  /// Number the documents in each row, and ignore targets that belong to another document than their input.
  bool separate_documents = false;
  /// Read half of the samples from the other strand of the DNA or RNA.
  bool reverse_complement = false;
};

/// A sample depends only on (seed, sample index): it is the same on any number of ranks or threads, and a sampler whose
/// counter is set continues exactly. Windows are cut from the concatenated ranges of the split. If two neighbors in a
/// window are not neighbors in the dataset, the target of the first is ignored. A range that starts inside a document
/// counts as a new document.
class Sampler : public RowSource {
 public:
  /// `dataset` must outlive the sampler. Throws UserError if the split is too short (random: sequence_length tokens;
  /// sequential: 1; with next_tokens one more), if the vocabulary lacks a symbol of ignore_tokens, or if
  /// reverse_complement does not apply to it.
  Sampler(const TokenizedDataset& dataset, Split split, const SamplerOptions& options);

  /// Random: returns the number of start positions. Sequential: returns the number of windows in one pass.
  std::uint64_t n_windows() const { return n_windows_; }
  std::uint64_t n_samples() const override { return n_windows_; }
  std::int64_t sequence_length() const override { return options_.sequence_length; }

  /// Writes sample `index` to `inputs` and `targets`, each of sequence_length elements. Returns the number of targets
  /// that are not ignored. Thread-safe.
  std::int64_t sample(std::uint64_t index, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) const;
  /// Writes the index of each input's document within the window, from 0. Padding counts as a further document.
  /// Requires separate_documents.
  void documents(std::uint64_t index, std::span<std::int32_t> numbers) const;
  /// See RowSource::tokens_in.
  std::int64_t tokens_in(std::uint64_t index) const override;
  /// Returns samples [first, first + batch); see BatchSource::batch.
  Batch batch(std::uint64_t first, std::int64_t batch) const override;
  /// Like batch(), but rows from n_windows() on are empty: inputs are 0, all targets are ignored.
  Batch single_pass_batch(std::uint64_t first, std::int64_t batch) const override;

 private:
  std::uint64_t window_start(std::uint64_t index) const;
  /// Positions in (position, position + count) whose token does not follow its predecessor.
  std::vector<std::uint64_t> breaks(std::uint64_t position, std::uint64_t count) const;
  Batch make_batch(std::uint64_t first, std::int64_t batch, std::uint64_t end) const;

  const TokenizedDataset* dataset_;
  Split split_;
  SamplerOptions options_;
  std::vector<bool> ignored_;  // by token id
  std::optional<ReverseComplement> other_strand_;
  /// Start of each document in the concatenated ranges of the split, ascending; null without separate_documents. Shared
  /// by copies.
  std::shared_ptr<const std::vector<std::uint64_t>> starts_;
  std::uint64_t n_windows_ = 0;
};

/// Returns the start of each document in the concatenated ranges of a split, ascending and without duplicates. A range
/// that starts inside a document counts as a new document. Throws UserError if the dataset's offsets are inconsistent.
std::vector<std::uint64_t> document_starts(const TokenizedDataset& dataset, Split split);

}  // namespace furlong
