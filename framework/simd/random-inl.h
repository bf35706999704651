// The random words of framework/core/random.h in vectors: each lane computes one Philox block of four 32-bit words.
// Included once for each instruction set (see framework/simd/simd-inl.h).
#if defined(FURLONG_CPU_RANDOM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FURLONG_CPU_RANDOM_INL_H_
#undef FURLONG_CPU_RANDOM_INL_H_
#else
#define FURLONG_CPU_RANDOM_INL_H_
#endif

#include "framework/core/random.h"
#include "framework/simd/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace furlong::simd::HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR
HWY_INLINE std::int64_t random_lanes() { return 1; }
HWY_INLINE void random_words(const RandomKey& key, std::uint64_t first_block, std::uint32_t* words) {
  const auto block = philox(key, first_block);
  for (std::size_t i = 0; i < 4; ++i) words[i] = block[i];
}
#else
/// Sets `high` and `low` to the upper and lower 32 bits of the 64-bit product of each lane of `value` with `factor`.
template <class V>
HWY_INLINE void multiply_wide(V value, V factor, V& high, V& low) {
  const hn::DFromV<V> d32;
  const hn::Repartition<std::uint64_t, decltype(d32)> d64;
  const auto even = hn::MulEven(value, factor);
  const auto odd = hn::MulEven(hn::BitCast(d32, hn::ShiftRight<32>(hn::BitCast(d64, value))), factor);
  high = hn::OddEven(hn::BitCast(d32, odd), hn::BitCast(d32, hn::ShiftRight<32>(even)));
  low = hn::OddEven(hn::BitCast(d32, hn::ShiftLeft<32>(odd)), hn::BitCast(d32, even));
}

/// Returns the number of blocks that random_words() generates at once.
HWY_INLINE std::int64_t random_lanes() {
  return static_cast<std::int64_t>(hn::Lanes(hn::ScalableTag<std::uint32_t>()));
}

/// Overwrites words [4 random_lanes()]: words[4 b + w] is word w of philox(key, first_block + b).
HWY_INLINE void random_words(const RandomKey& key, std::uint64_t first_block, std::uint32_t* words) {
  const hn::ScalableTag<std::uint32_t> d;
  const auto start = hn::Set(d, static_cast<std::uint32_t>(first_block));
  auto counter0 = hn::Add(start, hn::Iota(d, 0u));
  const auto carry = hn::VecFromMask(d, hn::Lt(counter0, start));  // -1 if the lower half passed 2^32
  auto counter1 = hn::Sub(hn::Set(d, static_cast<std::uint32_t>(first_block >> 32)), carry);
  auto counter2 = hn::Set(d, key.stream), counter3 = hn::Set(d, key.step);
  const auto factor0 = hn::Set(d, 0xD2511F53u), factor1 = hn::Set(d, 0xCD9E8D57u);
  std::uint32_t key0 = static_cast<std::uint32_t>(key.seed), key1 = static_cast<std::uint32_t>(key.seed >> 32);
  for (int round = 0; round < 10; ++round) {
    auto high0 = counter0, low0 = counter0, high1 = counter0, low1 = counter0;
    multiply_wide(counter0, factor0, high0, low0);
    multiply_wide(counter2, factor1, high1, low1);
    counter0 = hn::Xor(hn::Xor(high1, counter1), hn::Set(d, key0));
    counter1 = low1;
    counter2 = hn::Xor(hn::Xor(high0, counter3), hn::Set(d, key1));
    counter3 = low0;
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  hn::StoreInterleaved4(counter0, counter1, counter2, counter3, d, words);
}
#endif

}  // namespace furlong::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // per-target include guard
