#pragma once
// Counter-based random numbers: each is a function of (seed, step, stream, index), never of the order of calls. Results
// are therefore the same on any number of threads or ranks, and when activations are recomputed.
#include <array>
#include <cmath>
#include <cstdint>
#include <string_view>

namespace furlong {

/// Identifies one sequence of random numbers.
struct RandomKey {
  std::uint64_t seed = 0;
  std::uint32_t step = 0;    ///< optimizer step; 0 for initial values
  std::uint32_t stream = 0;  ///< purpose of the numbers: random_stream("blocks.0.dropout")
};

/// Returns the number of a stream from its name (32-bit FNV-1a).
constexpr std::uint32_t random_stream(std::string_view name) {
  std::uint32_t hash = 2166136261u;
  for (char letter : name) hash = (hash ^ static_cast<unsigned char>(letter)) * 16777619u;
  return hash;
}

/// Philox4x32-10 (Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3; SC 2011). Returns four independent 32-bit
/// words for each block index.
constexpr std::array<std::uint32_t, 4> philox(const RandomKey& key, std::uint64_t block) {
  std::array<std::uint32_t, 4> counter{static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32),
                                       key.stream, key.step};
  std::uint32_t key0 = static_cast<std::uint32_t>(key.seed), key1 = static_cast<std::uint32_t>(key.seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = std::uint64_t{0xD2511F53u} * counter[0];
    const std::uint64_t product1 = std::uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<std::uint32_t>(product1 >> 32) ^ counter[1] ^ key0, static_cast<std::uint32_t>(product1),
               static_cast<std::uint32_t>(product0 >> 32) ^ counter[3] ^ key1, static_cast<std::uint32_t>(product0)};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return counter;
}

/// Returns word number `index` of the sequence.
constexpr std::uint32_t random_word(const RandomKey& key, std::uint64_t index) {
  return philox(key, index / 4)[index % 4];
}

/// Returns a uniform number in [0, 1) with 24 bits.
constexpr float random_uniform(const RandomKey& key, std::uint64_t index) {
  return static_cast<float>(random_word(key, index) >> 8) * 0x1p-24f;
}

/// Returns a standard normal number in double precision: Box-Muller on one block of words per index.
inline double random_normal(const RandomKey& key, std::uint64_t index) {
  const auto words = philox(key, index);
  const double radius_uniform =
      (static_cast<double>((std::uint64_t{words[0]} << 20) ^ (words[1] >> 12)) + 0.5) * 0x1p-52;  // in (0, 1)
  const double angle_uniform = static_cast<double>((std::uint64_t{words[2]} << 20) ^ (words[3] >> 12)) * 0x1p-52;
  return std::sqrt(-2 * std::log(radius_uniform)) * std::cos(6.283185307179586476925 * angle_uniform);
}

}  // namespace furlong
