#pragma once
// The copy task: a simple test of what an attention can recall (Graves et al. 2014, "Neural Turing Machines", section
// 4.1).
#include <limits>
#include <optional>

#include "datasets/batch.h"
#include "datasets/dataset.h"

namespace furlong {

/// Options of a CopyTask.
struct CopyTaskOptions {
  std::int64_t n_symbols = 32;
  /// Tokens per sequence, even and at least 4: marker, s_1 ... s_k, separator, s_1 ... s_k with k = sequence_length / 2
  /// - 1.
  std::int64_t sequence_length = 0;
  /// 0: all sequences have that k. Otherwise each sequence draws its own k uniformly from min_copy_symbols to
  /// sequence_length / 2 - 1, and is padded with markers.
  std::int64_t min_copy_symbols = 0;
  /// For bidirectional models: the token that replaces each input of the second half. The target is then at the
  /// position of its symbol.
  std::optional<std::int32_t> hidden_as{};
  /// Ids of the symbols, the marker and the separator in another vocabulary. Empty: those of
  /// Vocabulary::copy(n_symbols).
  std::vector<std::int32_t> ids{};
  std::uint64_t seed = 0;
  Split split = Split::train;
};

/// Sample `index` of a split: independent, uniform symbols drawn from (seed, split, index). The targets are the symbols
/// of the second half, each at the preceding token; all other targets are unpredictable and ignored. The accuracy of a
/// batch is thus the accuracy of the copy.
class CopyTask : public BatchSource {
 public:
  /// Number of samples of validation and of test; training has no end.
  static constexpr std::uint64_t held_out_samples = 1024;

  /// Throws UserError if sequence_length is odd or less than 4, or if min_copy_symbols is not in
  /// 0 to sequence_length / 2 - 1.
  explicit CopyTask(const CopyTaskOptions& options);

  std::uint64_t n_samples() const override;
  Batch batch(std::uint64_t first, std::int64_t samples) const override;
  Batch single_pass_batch(std::uint64_t first, std::int64_t samples) const override;

 private:
  Batch make_batch(std::uint64_t first, std::int64_t samples, std::uint64_t end) const;
  void make_sample(std::uint64_t index, Batch& batch, std::int64_t row) const;

  CopyTaskOptions options_;
};

/// A generated task over the symbols of the copy task, as a Dataset. `name`: "copy", as in data.task.
class GeneratedDataset : public Dataset {
 public:
  GeneratedDataset(const std::string& name, std::int64_t n_symbols)
      : path_("data.task: " + name), vocabulary_(Vocabulary::copy(n_symbols)) {}
  const std::string& path() const override { return path_; }
  const Vocabulary& vocabulary() const override { return vocabulary_; }
  std::uint64_t size(Split) const override { return std::numeric_limits<std::uint64_t>::max(); }

 private:
  std::string path_;
  Vocabulary vocabulary_;
};

}  // namespace furlong
