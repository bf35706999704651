#pragma once
// What a training step reads, and where it comes from.
#include <cstdint>
#include <string>
#include <vector>

namespace furlong {

/// A target that is left out of the loss.
inline constexpr std::int32_t ignored_target = -1;

struct Batch {
  std::int64_t batch = 0;             ///< rows
  std::int64_t n = 0;                 ///< tokens in a row
  std::vector<std::int32_t> inputs;   ///< [batch, n]; 0 where padded
  std::vector<std::int32_t> targets;  ///< [batch, n]: a token, or ignored_target; empty where labels are learned
  std::int64_t n_targets = 0;         ///< targets that are not ignored, or labels: what the loss is a mean over
  std::int64_t n_tokens =
      0;  ///< what counts as read: next_token: the targets; otherwise all tokens that are not padding
  std::vector<std::int32_t>
      mask{};  ///< [batch, n]: 1 for a token, 0 for padding; empty: there is none that attention could see
  std::vector<std::int32_t>
      documents{};  ///< [batch, n]: number of the document within the row; empty: attention may cross borders
  std::vector<std::int32_t>
      fresh{};  ///< [batch]: 1 where a row does not go on from the same row of the batch before; empty: none does
  std::vector<std::int32_t>
      labels{};  ///< one for each sample (a row, or a pair of rows), or ignored_target; empty: none
};

/// Makes rows longer by padding. Rows of one document each, without `documents`.
void widen(Batch& batch, std::int64_t n);

/// The samples of each batch that one of several processes reads: together all, one behind the other, none of them one
/// more than another has and more.
struct SampleShare {
  std::int64_t first = 0, samples = 0;
  static SampleShare of(std::int64_t batch_size, int rank, int processes) {
    const std::int64_t first = batch_size * rank / processes;
    return {first, batch_size * (rank + 1) / processes - first};
  }
};

/// Samples by number. A sample is a function of the source's seed and its number, and of nothing else: the same on any
/// number of threads or ranks, and after a resume. What a source refers to has to outlive it.
class BatchSource {
 public:
  virtual ~BatchSource() = default;
  /// Samples that it takes to see everything once.
  virtual std::uint64_t n_samples() const = 0;
  /// Samples [first, first + samples). Any thread may call it.
  virtual Batch batch(std::uint64_t first, std::int64_t samples) const = 0;
  /// The same, with those from n_samples() on empty (inputs 0, all targets and labels ignored): for one pass with
  /// batches of one size.
  virtual Batch batch_of_one_pass(std::uint64_t first, std::int64_t samples) const = 0;
  /// What whoever trains on it should know (documents that are cut), one sentence; empty: nothing.
  virtual std::string note() const { return {}; }
};

/// Samples of one row each, their tokens in front and padding behind.
class RowSource : public BatchSource {
 public:
  /// The longest row.
  virtual std::int64_t sequence_length() const = 0;
  /// How many of sample `index`'s inputs are tokens.
  virtual std::int64_t tokens_in(std::uint64_t index) const = 0;
};

}  // namespace furlong
