#pragma once
// Sequences to be copied: the plainest test of what an attention can recall (Graves et al. 2014, "Neural Turing
// Machines", section 4.1).
#include <limits>
#include <optional>

#include "datasets/batch.h"
#include "datasets/dataset.h"

namespace furlong {

struct CopyTaskOptions {
  std::int64_t n_symbols = 32;
  /// Tokens of a sequence, even and at least 4: marker, s_1 ... s_k, separator, s_1 ... s_k with k = sequence_length /
  /// 2 - 1.
  std::int64_t sequence_length = 0;
  /// Where it is not 0: each sequence has its own k, uniform from this one to sequence_length / 2 - 1, and is padded
  /// with markers.
  std::int64_t shortest_copy = 0;
  /// For models that see both ways: the token that the second half is shown as; each target then stands at its own
  /// place.
  std::optional<std::int32_t> hidden_as{};
  std::uint64_t seed = 0;
  Split split = Split::train;
};

/// Sample `index` of a split: independent, uniform symbols from the random numbers of (seed, split, index), made as
/// they are asked for. The targets are the symbols of the second half, each at the token before it; everything else,
/// which cannot be known, is left out. So the accuracy of a batch is that of the copy. Ids are those of
/// Vocabulary::copy(n_symbols).
class CopyTask : public BatchSource {
 public:
  /// Samples of validation and test; training has no end.
  static constexpr std::uint64_t held_out_samples = 1024;

  /// Throws UserError where the sequence length is odd or under 4, or where shortest_copy does not fit into it.
  explicit CopyTask(const CopyTaskOptions& options);

  std::uint64_t n_samples() const override;
  Batch batch(std::uint64_t first, std::int64_t samples) const override;
  Batch batch_of_one_pass(std::uint64_t first, std::int64_t samples) const override;

 private:
  Batch make_batch(std::uint64_t first, std::int64_t samples, std::uint64_t end) const;
  void make_sample(std::uint64_t index, Batch& batch, std::int64_t row) const;

  CopyTaskOptions options_;
};

/// The copy task in the place of a token store.
class CopyData : public Dataset {
 public:
  explicit CopyData(std::int64_t n_symbols) : vocabulary_(Vocabulary::copy(n_symbols)) {}
  const std::string& path() const override { return path_; }
  const Vocabulary& vocabulary() const override { return vocabulary_; }
  std::uint64_t size(Split) const override { return std::numeric_limits<std::uint64_t>::max(); }

 private:
  std::string path_ = "the copy task";
  Vocabulary vocabulary_;
};

}  // namespace furlong
