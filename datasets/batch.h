#pragma once
// The batches that training steps read, and the interface of their sources.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace furlong {

/// A target that does not count in the loss.
inline constexpr std::int32_t ignored_target = -1;

/// The tokens, targets and labels of one training or evaluation step.
struct Batch {
  std::int64_t batch = 0;            ///< number of rows
  std::int64_t n = 0;                ///< tokens per row
  std::vector<std::int32_t> inputs;  ///< [batch, n]; 0 in padding
  /// [batch, n]: a token id, the label of a token, or ignored_target. Empty if the objective learns labels of
  /// documents.
  std::vector<std::int32_t> targets;
  /// Number of targets or labels that are not ignored: the loss is a mean over these.
  std::int64_t n_targets = 0;
  /// Tokens that count as read: the targets for next-token prediction, otherwise all tokens except padding.
  std::int64_t n_tokens = 0;
  /// [batch, n]: 1 for a token, 0 for padding. Empty if no row has padding that attention could attend to.
  std::vector<std::int32_t> mask{};
  /// [batch]: number of inputs of each row that are tokens; padding follows them. Empty if no row has padding, or only
  /// padding that `mask` shows.
  std::vector<std::int32_t> lengths{};
  /// [batch, n]: index of the document within the row. Empty if attention may cross document boundaries.
  std::vector<std::int32_t> documents{};
  /// [batch]: 1 if the row does not continue the same row of the previous batch. Empty if no row continues one.
  std::vector<std::int32_t> fresh{};
  /// One label per sample (a row, or a pair of rows), or ignored_target. Empty if the batch has no labels.
  /// 0 instead of a label if `values` has it.
  std::vector<std::int32_t> labels{};
  /// [samples, outputs]: the scaled numbers of each sample, or 1 for labels that it has and 0 for others; float32 as
  /// their bits (ops::element_loss). Empty if labels are classes.
  std::vector<std::int32_t> values{};
};

/// Returns int32 [batch · n]: 1 for tokens, 0 for padding.
std::vector<std::int32_t> real_tokens(const Batch& batch);

/// Pads all rows to `n` tokens. The batch must not have `documents`. Throws ContractError if `n` is less than batch.n.
void widen(Batch& batch, std::int64_t n);

/// Adds the samples of `more` after those of `batch`, which may be empty, and widens rows to the longer length. Only
/// rows of equal length may have `documents`. Batches of streams (`fresh`) cannot be joined.
void append(Batch& batch, Batch more);

/// The samples of each batch that one of several ranks reads. The shares are contiguous, cover the batch, and differ in
/// size by at most one sample.
struct SampleShare {
  /// The samples [first, first + samples) of the batch.
  std::int64_t first = 0, samples = 0;
  /// Returns the share of `rank` in a batch of `batch_size` samples.
  static SampleShare of(std::int64_t batch_size, int rank, int world_size) {
    const std::int64_t first = batch_size * rank / world_size;
    return {first, batch_size * (rank + 1) / world_size - first};
  }
};

/// Samples by index. A sample depends only on the source's seed and the sample's index: it is the same on any number of
/// threads or ranks, and after a resume. Objects that a source refers to must outlive it.
class BatchSource {
 public:
  virtual ~BatchSource() = default;
  /// Returns the number of samples in one pass over the data.
  virtual std::uint64_t n_samples() const = 0;
  /// Returns samples [first, first + samples). Thread-safe.
  virtual Batch batch(std::uint64_t first, std::int64_t samples) const = 0;
  /// Like batch(), but samples from n_samples() on are empty: inputs are 0, all targets and labels are ignored. This
  /// makes one pass possible with batches of equal size.
  virtual Batch single_pass_batch(std::uint64_t first, std::int64_t samples) const = 0;
  /// Returns `batch_size`, or the number of samples of a pass if that is smaller; at least 1.
  std::int64_t rows_of_one_pass(std::int64_t batch_size) const {
    const auto most = static_cast<std::uint64_t>(batch_size);
    return static_cast<std::int64_t>(std::clamp<std::uint64_t>(n_samples(), 1, most));
  }
  /// Returns a one-sentence notice for the user (for example: documents are truncated), or an empty string.
  virtual std::string note() const { return {}; }
};

/// A source whose samples are one row each: tokens first, then padding.
class RowSource : public BatchSource {
 public:
  /// Returns the length of the longest row.
  virtual std::int64_t sequence_length() const = 0;
  /// Returns the number of inputs of sample `index` that are tokens, not padding.
  virtual std::int64_t tokens_in(std::uint64_t index) const = 0;
};

}  // namespace furlong
