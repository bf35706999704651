#pragma once
// The random numbers of one generated sample.
#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "framework/core/random.h"

namespace furlong {

/// A stream of random numbers. It depends on the key and on the first word alone.
class Draws {
 public:
  explicit Draws(const RandomKey& key, std::uint64_t first_word = 0)
      : key_(key), next_(first_word), block_(philox(key, first_word / 4)) {}
  /// Returns a number in [0, bound), uniform up to a bias of bound / 2^32.
  std::size_t below(std::size_t bound) { return word() * std::uint64_t{bound} >> 32; }
  /// Returns a uniform number in [0, 1) with 32 bits.
  double uniform() { return static_cast<double>(word()) * 0x1p-32; }
  /// Moves `count` random elements to the front, in random order.
  template <class T>
  void shuffle(std::vector<T>& values, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) std::swap(values[i], values[i + below(values.size() - i)]);
  }

 private:
  std::uint32_t word() {
    const std::uint32_t found = block_[next_ % 4];
    if (++next_ % 4 == 0) block_ = philox(key_, next_ / 4);
    return found;
  }

  RandomKey key_;
  std::uint64_t next_;                  // word
  std::array<std::uint32_t, 4> block_;  // the words next_ / 4 * 4 and after
};

}  // namespace furlong
