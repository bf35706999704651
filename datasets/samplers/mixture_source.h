#pragma once
// Samples of several sources, in proportion to weights.
#include <memory>
#include <vector>

#include "datasets/batch.h"

namespace furlong {

/// Draws each sample from one of several sources. Samples come in blocks of 2^20: in each block source s gives a fixed
/// number of samples, its weight's share rounded to integers (largest remainder; at least 1 for a weight above 0), at
/// places that a permutation drawn from (seed, block) selects. Source and sample are therefore functions of (seed,
/// sample index) alone, and a source gives each of its samples once before it gives one again.
class MixtureSource : public BatchSource {
 public:
  static constexpr std::uint64_t block_size = std::uint64_t{1} << 20;

  /// One weight for each source: finite, not negative, not all 0. At most 2^16 sources.
  MixtureSource(std::vector<std::unique_ptr<BatchSource>> sources, const std::vector<double>& weights,
                std::uint64_t seed);

  struct Draw {
    std::size_t source = 0;
    std::uint64_t index = 0;  ///< of the sample in its source
  };
  Draw draw(std::uint64_t index) const;

  /// Returns the sum over all sources.
  std::uint64_t n_samples() const override;
  /// Rows have the length of the longest one.
  Batch batch(std::uint64_t first, std::int64_t samples) const override;
  Batch single_pass_batch(std::uint64_t first, std::int64_t samples) const override;
  std::string note() const override;

 private:
  std::vector<std::unique_ptr<BatchSource>> sources_;
  std::vector<std::uint64_t> ends_;  // in a block: source s has the places [ends_[s - 1], ends_[s])
  std::uint64_t seed_;
};

}  // namespace furlong
