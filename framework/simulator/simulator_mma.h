#pragma once
// The matrices of a tensor-core product, for simulator_mma.cpp, which is compiled once for each instruction set.
#include <cstdint>

namespace furlong::simulator {

/// d[16, 8] += a[16, Depth] b[Depth, 8]
template <int Depth>
struct Matrices {
  alignas(64) float a[16][Depth], b[Depth][8];
};

/// Matrices as significand · 2^exponent.
template <int Depth>
struct Factors : Matrices<Depth> {
  alignas(64) std::int32_t a_exponent[16][Depth], b_exponent[Depth][8];
};

inline constexpr std::int32_t exponent_of_zero = -1000;

/// The rounding of a tensor core: products of `block` terms are added to the sum at once. Each addend is truncated to
/// `fraction_bits` below the largest exponent among them (of a product: the sum of its factors' exponents), and their
/// exact sum to float32 toward zero; from 2^128 on it is infinite.
struct Rounding {
  int block, fraction_bits;
};

}  // namespace furlong::simulator
