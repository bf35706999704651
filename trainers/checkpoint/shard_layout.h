#pragma once
// Buckets of the flat parameter tensors, and the part of each bucket that each rank owns (ZeRO stage 1: Rajbhandari et
// al. 2020, arXiv:1910.02054, section 5.1).
#include <cstdint>
#include <vector>

#include "framework/autodiff/parameter_store.h"

namespace furlong {

/// Elements [begin, end) of the flat parameter tensors that a rank updates and writes to checkpoints. In the rank's own
/// tensors (moments, EMA) they start at `place`.
struct OwnedRange {
  std::int64_t begin = 0, end = 0;
  std::int64_t place = 0;
  bool decays = false;
  /// every rank has these elements: the remainder of a bucket that does not divide by the world size
  bool everywhere = false;
  std::int64_t elements() const { return end - begin; }
};

/// Splits the flat tensors into buckets of whole parameters. Buckets run from the last parameter to the first, mostly
/// the order in which backward finishes them; parameters without weight decay come after all others. The layout depends
/// on the store and on the two numbers alone, so all ranks compute the same one.
class ShardLayout {
 public:
  struct Bucket {
    std::int64_t begin = 0, end = 0;
    /// Elements of each rank: those of rank r begin at begin + r · part. Every rank has the remainder after them.
    std::int64_t part = 0;
    bool decays = false;
    std::vector<const Parameter*> parameters;
  };

  /// A bucket ends with the parameter that brings it to `bucket_elements` or more. `processes` is the world
  /// size. Throws ContractError unless both are positive.
  ShardLayout(const ParameterStore& store, std::int64_t bucket_elements, int processes);

  /// Returns all buckets, in the order in which gradients are reduced.
  const std::vector<Bucket>& buckets() const { return buckets_; }
  /// Returns the world size.
  int processes() const { return processes_; }
  /// Returns the ranges of one rank, ascending; each `place` follows the end of the range before it.
  std::vector<OwnedRange> ranges(int rank) const;

 private:
  void add_part(const ParameterStore& store, const std::vector<const Parameter*>& ascending, bool decays,
                std::int64_t part_end, std::int64_t bucket_elements);

  std::vector<Bucket> buckets_;
  int processes_;
};

}  // namespace furlong
