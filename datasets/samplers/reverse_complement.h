#pragma once
// Data augmentation for DNA and RNA: samples read from the other strand.
#include <cstdint>
#include <span>
#include <vector>

#include "datasets/vocabulary.h"

namespace furlong {

/// Replaces half of the samples by their reverse complement, which is the same molecule read from the other strand.
/// Which half depends only on (seed, sample index).
class ReverseComplement {
 public:
  /// Throws UserError unless the vocabulary is that of DNA or RNA.
  ReverseComplement(const Vocabulary& vocabulary, std::uint64_t seed);

  /// Transforms the tokens of sample `index`, if it is one of those. Runs of bases are reversed where they are: other
  /// tokens, such as <document>, keep their places. So do `breaks`, positions whose token does not follow its
  /// predecessor in the dataset, ascending, counted from `origin`, the position of tokens[0].
  void apply(std::uint64_t index, std::span<std::int32_t> tokens, std::span<const std::uint64_t> breaks = {},
             std::uint64_t origin = 0) const;

 private:
  std::vector<std::int32_t> complements_;  // by token id; -1 for tokens other than bases
  std::uint64_t seed_;
};

}  // namespace furlong
