#pragma once
// Samples of several sources, in proportion to weights.
#include <array>
#include <memory>
#include <mutex>
#include <vector>

#include "datasets/batch.h"

namespace furlong {

/// Draws each sample from one of several sources. Samples come in blocks of 2^20: in each block source s gives a fixed
/// number of samples, its weight's share rounded to integers (largest remainder; at least 1 for a weight above 0), at
/// places that a permutation drawn from (seed, block) selects. A source gives its samples in their order, each once
/// before it gives one again. Source and sample are functions of (seed, sample index) alone. Calls are thread-safe.
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
  /// The beginning of a block, as far as it was drawn.
  struct Drawn {
    std::uint64_t block = 0;
    std::vector<std::uint32_t> ranks;      // of each draw among those of its source
    std::vector<std::uint16_t> sources{};  // of each draw
    std::vector<std::uint32_t> counts{};   // of each source
  };
  Drawn& drawn(std::uint64_t block) const;

  std::vector<std::unique_ptr<BatchSource>> sources_;
  std::vector<std::uint64_t> ends_;  // in a block: source s has the places [ends_[s - 1], ends_[s])
  std::uint64_t seed_;
  mutable std::mutex mutex_;
  mutable std::array<Drawn, 2> recent_;  // two, because a batch may cross the end of a block; 6 MiB each
};

}  // namespace furlong
