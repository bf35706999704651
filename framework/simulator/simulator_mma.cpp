// Tensor-core products with the register layouts of the PTX ISA (tensor_core.h) and the rounding of hardware, which
// truncates (Khattak and Mikaitis 2025, "Accurate models of NVIDIA tensor cores", arXiv:2512.07004: A100 and H100). The
// last lane to arrive computes the product once for the warp.
#include <algorithm>
#include <array>
#include <bit>

#include "framework/simulator/simulator.h"

namespace furlong::simulator {
namespace {

/// Both factors as matrices; Depth is the inner dimension of the product.
template <int Depth>
struct Operands {
  float a[16][Depth], b[Depth][8];
};

void load(const LaneData* lanes, Operands<16>& operands) {
  const auto low = [](std::uint32_t pair) { return std::bit_cast<float>(pair << 16); };
  const auto high = [](std::uint32_t pair) { return std::bit_cast<float>(pair & 0xffff0000u); };
  for (int lane = 0; lane < 32; ++lane) {
    const MmaData data = lanes[lane].as<MmaData>();
    const int g = lane / 4, t = lane % 4;
    for (int r = 0; r < 4; ++r) {
      float* place = &operands.a[g + 8 * (r % 2)][2 * t + 8 * (r / 2)];
      place[0] = low(data.a[r]);
      place[1] = high(data.a[r]);
    }
    for (int r = 0; r < 2; ++r) {
      operands.b[2 * t + 8 * r][g] = low(data.b[r]);
      operands.b[2 * t + 8 * r + 1][g] = high(data.b[r]);
    }
  }
}

void load(const LaneData* lanes, Operands<8>& operands) {
  const auto tf32 = [](std::uint32_t word) {
    return std::bit_cast<float>(word & 0xffffe000u);
  };  // the remaining registers are ignored
  for (int lane = 0; lane < 32; ++lane) {
    const MmaData data = lanes[lane].as<MmaData>();
    const int g = lane / 4, t = lane % 4;
    for (int r = 0; r < 4; ++r) operands.a[g + 8 * (r % 2)][t + 4 * (r / 2)] = tf32(data.a[r]);
    for (int r = 0; r < 2; ++r) operands.b[t + 4 * r][g] = tf32(data.b[r]);
  }
}

constexpr int no_exponent = -1000;  // of zero

/// A finite number as significand · 2^exponent, with |significand| in [1, 2), or below 1 if the number is subnormal.
struct Scaled {
  float significand;
  int exponent;
};
Scaled scaled(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const int biased = static_cast<int>(bits >> 23 & 255u);
  if (biased == 0) return {x * 0x1p126f, x == 0 ? no_exponent : -126};
  return {std::bit_cast<float>((bits & 0x807fffffu) | 0x3f800000u), biased - 127};
}
bool is_finite(float x) { return (std::bit_cast<std::uint32_t>(x) & 0x7f800000u) != 0x7f800000u; }

/// The rounding of a tensor core: products of `block` terms are added to the sum at once. Each addend is truncated to
/// `fraction_bits` below the largest exponent among them (of a product: the sum of its factors' exponents), and their
/// exact sum to the next float32 toward zero.
struct Rounding {
  int block, fraction_bits;
};

/// Adds Σ_k a[k] b[k] to `sums` for eight columns, all finite, for the terms [begin, begin + block).
template <int Depth>
void add_block(const Scaled (&a)[Depth], const Scaled (&b)[Depth][8], int begin, const Rounding& rounding,
               float (&sums)[8]) {
  const auto power = [&](int distance) {  // 2^(fraction_bits - distance) of an addend that far below the largest
    return std::bit_cast<float>((127 + rounding.fraction_bits - std::min(distance, 60)) << 23);
  };
  Scaled before[8];
  int largest[8];
  for (int column = 0; column < 8; ++column) {
    before[column] = scaled(sums[column]);
    largest[column] = before[column].exponent;
    for (int k = begin; k < begin + rounding.block; ++k)
      largest[column] = std::max(largest[column], a[k].exponent + b[k][column].exponent);
  }
  for (int column = 0; column < 8; ++column) {
    // Each addend is below 2^28.
    std::int64_t total =
        static_cast<std::int32_t>(before[column].significand * power(largest[column] - before[column].exponent));
    for (int k = begin; k < begin + rounding.block; ++k) {
      total += static_cast<std::int32_t>(a[k].significand * b[k][column].significand *
                                         power(largest[column] - a[k].exponent - b[k][column].exponent));
    }
    const auto magnitude = static_cast<std::uint64_t>(total < 0 ? -total : total);
    const int unit = largest[column] - rounding.fraction_bits;  // exponent of magnitude 1
    // Subnormal numbers have fewer bits.
    const int excess = std::max({static_cast<int>(std::bit_width(magnitude)) - 24, -149 - unit, 0});
    if (magnitude == 0 || excess >= 40) {
      sums[column] = 0;
      continue;
    }
    const auto kept = static_cast<double>(magnitude >> excess << excess);
    const auto scale = std::bit_cast<double>(static_cast<std::uint64_t>(1023 + unit) << 52);
    sums[column] = static_cast<float>((total < 0 ? -kept : kept) * scale);
  }
}

template <int Depth>
void multiply(LaneData* lanes) {
  Operands<Depth> operands;
  load(lanes, operands);
  float sums[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    const auto d = lanes[lane].as<std::array<float, 4>>();
    for (int r = 0; r < 4; ++r) sums[lane / 4 + 8 * (r / 2)][2 * (lane % 4) + r % 2] = d[r];
  }
  const bool sm_90 = options().tensor_cores == TensorCores::sm_90;
  const Rounding rounding = sm_90 ? Rounding{Depth, 25} : Rounding{Depth / 2, 24};
  Scaled b[Depth][8];
  bool finite_column[8] = {true, true, true, true, true, true, true, true};
  for (int k = 0; k < Depth; ++k) {
    for (int column = 0; column < 8; ++column) {
      b[k][column] = scaled(operands.b[k][column]);
      finite_column[column] = finite_column[column] && is_finite(operands.b[k][column]);
    }
  }
  for (int row = 0; row < 16; ++row) {
    Scaled a[Depth];
    bool finite_row = true;
    float plain[8] = {};  // for infinities and NaN
    for (int k = 0; k < Depth; ++k) {
      a[k] = scaled(operands.a[row][k]);
      finite_row = finite_row && is_finite(operands.a[row][k]);
      for (int column = 0; column < 8; ++column) plain[column] += operands.a[row][k] * operands.b[k][column];
    }
    float rounded[8];
    std::copy_n(sums[row], 8, rounded);
    for (int begin = 0; begin < Depth; begin += rounding.block) add_block(a, b, begin, rounding, rounded);
    for (int column = 0; column < 8; ++column) {
      const bool finite = finite_row && finite_column[column] && is_finite(sums[row][column]);
      sums[row][column] = finite ? rounded[column] : sums[row][column] + plain[column];
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    std::array<float, 4> d;
    for (int r = 0; r < 4; ++r) d[r] = sums[lane / 4 + 8 * (r / 2)][2 * (lane % 4) + r % 2];
    std::memcpy(lanes[lane].bytes, d.data(), sizeof(d));
  }
}

}  // namespace

void mma_bf16_16x8x16(LaneData* lanes) { multiply<16>(lanes); }
void mma_tf32_16x8x8(LaneData* lanes) { multiply<8>(lanes); }

}  // namespace furlong::simulator
