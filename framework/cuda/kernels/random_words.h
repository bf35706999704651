#pragma once
// The random words of framework/core/random.h, for a thread that processes several consecutive elements.
#include "framework/cuda/kernels/kernel.h"

namespace furlong {
inline namespace FURLONG_GPU {

/// Sets words[i] = random_word(key, index + i). Any index; a multiple of 4 saves one Philox block.
template <int count>
__device__ inline void random_words(const RandomKey& key, std::uint64_t index, std::uint32_t (&words)[count]) {
  static_assert(count % 4 == 0);
  const auto skipped = static_cast<unsigned>(index % 4);
  std::uint32_t made[count + 4];
  FURLONG_UNROLL
  for (int block = 0; block <= count / 4; ++block) {
    if (block < count / 4 || skipped != 0) {
      const auto four = philox(key, index / 4 + static_cast<unsigned>(block));
      FURLONG_UNROLL
      for (int i = 0; i < 4; ++i) made[4 * block + i] = four[static_cast<std::size_t>(i)];
    } else {
      FURLONG_UNROLL
      for (int i = 0; i < 4; ++i) made[4 * block + i] = 0;
    }
  }
  // Comparisons instead of an index unknown at compile time, which would put the words into local memory.
  FURLONG_UNROLL
  for (int i = 0; i < count; ++i) {
    words[i] = skipped < 2 ? (skipped == 0 ? made[i] : made[i + 1]) : (skipped == 2 ? made[i + 2] : made[i + 3]);
  }
}

}  // namespace FURLONG_GPU
}  // namespace furlong
