#pragma once
// Which elements of the flat store travel together, and which of them each of several processes keeps (ZeRO stage 1:
// Rajbhandari et al. 2020, arXiv:1910.02054, section 5.1).
#include <cstdint>
#include <vector>

#include "framework/autodiff/parameter_store.h"

namespace furlong {

/// Elements [begin, end) of the flat tensors that a process updates and writes to checkpoints. Its own tensors for them
/// (moments) hold them from `place` on.
struct OwnedRange {
  std::int64_t begin = 0, end = 0;
  std::int64_t place = 0;
  bool decays = false;
  bool everywhere = false;  ///< every process has it: what is left of a bucket that does not divide
  std::int64_t elements() const { return end - begin; }
};

/// Buckets are ranges of whole parameters, in the order in which backward is done with them, mostly: from the last
/// parameter to the first, those that do not decay behind all others. A function of the store and of the two numbers
/// alone, and so the same on all processes.
class ShardLayout {
 public:
  struct Bucket {
    std::int64_t begin = 0, end = 0;
    std::int64_t part =
        0;  ///< elements of each process: rank r's begin at begin + r · part; what is behind them everybody has
    bool decays = false;
    std::vector<const Parameter*> parameters;
  };

  /// A bucket ends with the parameter that makes it `bucket_elements` long.
  ShardLayout(const ParameterStore& store, std::int64_t bucket_elements, int processes);

  const std::vector<Bucket>& buckets() const { return buckets_; }
  int processes() const { return processes_; }
  /// Those of one rank, ascending, their places one behind the other.
  std::vector<OwnedRange> ranges(int rank) const;

 private:
  void add_part(const ParameterStore& store, const std::vector<const Parameter*>& ascending, bool decays,
                std::int64_t part_end, std::int64_t bucket_elements);

  std::vector<Bucket> buckets_;
  int processes_;
};

}  // namespace furlong
