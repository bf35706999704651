// Tensor-core products with the register layouts of the PTX ISA (tensor_core.h) and the rounding of hardware, which
// truncates (Khattak and Mikaitis 2025, "Accurate models of NVIDIA tensor cores", arXiv:2512.07004: A100 and H100). The
// last lane to arrive computes the product once for the warp, with the columns of a row in a vector: element by
// element, half of the simulator's time would be spent here.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "framework/simulator/simulator_mma.cpp"
#include "framework/simd/targets.h"

#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <cmath>

#include "framework/simulator/simulator_mma.h"

HWY_BEFORE_NAMESPACE();
namespace furlong::simulator::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::CappedTag<float, 8>;
using Integers = hn::RebindToSigned<Floats>;
using Doubles = hn::CappedTag<double, 8>;

/// Separates numbers into significand · 2^exponent, with |significand| in [1, 2), or below 1 if the number is
/// subnormal.
HWY_INLINE void separate(hn::Vec<Floats> x, hn::Vec<Floats>& significand, hn::Vec<Integers>& exponent) {
  const Floats d;
  const Integers di;
  const auto bits = hn::BitCast(di, x);
  const auto biased = hn::And(hn::ShiftRight<23>(bits), hn::Set(di, 255));
  const auto normal = hn::BitCast(
      d, hn::Or(hn::And(bits, hn::Set(di, static_cast<std::int32_t>(0x807fffffu))), hn::Set(di, 0x3f800000)));
  const auto is_subnormal = hn::Eq(biased, hn::Zero(di));
  const auto is_zero = hn::Eq(hn::ShiftLeft<1>(bits), hn::Zero(di));
  significand = hn::IfThenElse(hn::RebindMask(d, is_subnormal), hn::Mul(x, hn::Set(d, 0x1p126f)), normal);
  exponent = hn::IfThenElse(is_subnormal, hn::Set(di, -126), hn::Sub(biased, hn::Set(di, 127)));
  exponent = hn::IfThenElse(is_zero, hn::Set(di, exponent_of_zero), exponent);
}

template <class Matrix>
HWY_INLINE void separate_all(const Matrix& x, Matrix& significand, std::int32_t* exponent) {
  const Floats d;
  for (std::size_t i = 0; i < sizeof(Matrix) / sizeof(float); i += hn::Lanes(d)) {
    hn::Vec<Floats> s;
    hn::Vec<Integers> e;
    separate(hn::Load(d, &x[0][0] + i), s, e);
    hn::Store(s, d, &significand[0][0] + i);
    hn::Store(e, Integers(), exponent + i);
  }
}

/// The exact sums of eight columns in units of 2^(largest - fraction_bits), each as two parts that fit 32 bits.
struct Totals {
  alignas(64) std::int32_t parts[2][8], largest[8];
};

/// The sums as float32, rounded toward zero, or infinite.
HWY_INLINE void round_totals(const Totals& totals, int fraction_bits, float (&sums)[8]) {
  const Doubles d;
  const hn::RebindToSigned<Doubles> di;
  const hn::Rebind<std::int32_t, Doubles> d32;
  const hn::Rebind<float, Doubles> df;
  for (std::size_t column = 0; column < 8; column += hn::Lanes(d)) {
    const auto sum = hn::Add(hn::PromoteTo(d, hn::Load(d32, totals.parts[0] + column)),
                             hn::PromoteTo(d, hn::Load(d32, totals.parts[1] + column)));
    // If all addends are 0, the exponent may be below those of double, and any factor gives 0.
    const auto unit =
        hn::Max(hn::Sub(hn::Load(d32, totals.largest + column), hn::Set(d32, fraction_bits)), hn::Set(d32, -1022));
    const auto scale = hn::BitCast(d, hn::ShiftLeft<52>(hn::PromoteTo(di, hn::Add(unit, hn::Set(d32, 1023)))));
    const auto exact = hn::Mul(sum, scale);
    const auto truncated = hn::BitCast(d, hn::And(hn::BitCast(di, exact), hn::Set(di, -(std::int64_t{1} << 29))));
    hn::Store(hn::DemoteTo(df, truncated), df, sums + column);
    const auto is_subnormal = hn::And(hn::Lt(hn::Abs(truncated), hn::Set(d, 0x1p-126)), hn::Ne(truncated, hn::Zero(d)));
    if (!hn::AllFalse(d, is_subnormal)) {  // has fewer bits than were kept
      HWY_ALIGN double lanes[8];
      hn::Store(truncated, d, lanes);
      for (std::size_t i = 0; i < hn::Lanes(d); ++i) {
        float& rounded = sums[column + i];
        if (std::abs(lanes[i]) < 0x1p-126 && std::abs(static_cast<double>(rounded)) > std::abs(lanes[i]))
          rounded = std::nextafter(rounded, 0.0f);
      }
    }
  }
}

/// Adds Σ_k a[row, k] b[k, :] to `sums` for the terms [begin, begin + block). Infinities and NaN count as numbers from
/// 2^128 on.
template <int Depth>
HWY_INLINE void add_block(const Factors<Depth>& factors, int row, int begin, const Rounding& rounding,
                          float (&sums)[8]) {
  const Floats d;
  const Integers di;
  // 2^(fraction_bits - distance), for an addend that far below the largest
  const auto power = [&](auto distance) HWY_ATTR {
    const auto exponent = hn::Sub(hn::Set(di, 127 + rounding.fraction_bits), hn::Min(distance, hn::Set(di, 60)));
    return hn::BitCast(d, hn::ShiftLeft<23>(exponent));
  };
  Totals totals;
  for (std::size_t column = 0; column < 8; column += hn::Lanes(d)) {
    const auto exponent_of = [&](int k) HWY_ATTR {
      return hn::Add(hn::Set(di, factors.a_exponent[row][k]), hn::Load(di, &factors.b_exponent[k][column]));
    };
    hn::Vec<Floats> before;
    hn::Vec<Integers> exponent_before;
    separate(hn::Load(d, sums + column), before, exponent_before);
    auto largest = exponent_before;
    for (int k = begin; k < begin + rounding.block; ++k) largest = hn::Max(largest, exponent_of(k));
    // Each product is below 2^27, `moved` below 2^26, and a part has at most eight products.
    const auto sum_of = [&](int first, int count) HWY_ATTR {
      auto sum = hn::Zero(di);
      for (int k = first; k < first + count; ++k) {
        const auto product = hn::Mul(hn::Set(d, factors.a[row][k]), hn::Load(d, &factors.b[k][column]));
        sum = hn::Add(sum, hn::ConvertTo(di, hn::Mul(product, power(hn::Sub(largest, exponent_of(k))))));
      }
      return sum;
    };
    const auto moved = hn::ConvertTo(di, hn::Mul(before, power(hn::Sub(largest, exponent_before))));
    const int half = rounding.block / 2;
    hn::Store(hn::Add(moved, sum_of(begin, half)), di, totals.parts[0] + column);
    hn::Store(sum_of(begin + half, half), di, totals.parts[1] + column);
    hn::Store(largest, di, totals.largest + column);
  }
  round_totals(totals, rounding.fraction_bits, sums);
}

template <int Depth>
HWY_INLINE void multiply(const Matrices<Depth>& matrices, const Rounding& rounding, float (&sums)[16][8]) {
  Factors<Depth> factors;
  separate_all(matrices.a, factors.a, &factors.a_exponent[0][0]);
  separate_all(matrices.b, factors.b, &factors.b_exponent[0][0]);
  for (int row = 0; row < 16; ++row) {
    for (int begin = 0; begin < Depth; begin += rounding.block) add_block(factors, row, begin, rounding, sums[row]);
  }
}

void Multiply16(const Matrices<16>& matrices, const Rounding& rounding, float (&sums)[16][8]) {
  multiply(matrices, rounding, sums);
}
void Multiply8(const Matrices<8>& matrices, const Rounding& rounding, float (&sums)[16][8]) {
  multiply(matrices, rounding, sums);
}

}  // namespace furlong::simulator::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "framework/simulator/simulator.h"

namespace furlong::simulator {
namespace {

HWY_EXPORT(Multiply16);
HWY_EXPORT(Multiply8);

void load(const LaneData* lanes, Matrices<16>& matrices) {
  const auto low = [](std::uint32_t pair) { return std::bit_cast<float>(pair << 16); };
  const auto high = [](std::uint32_t pair) { return std::bit_cast<float>(pair & 0xffff0000u); };
  for (int lane = 0; lane < 32; ++lane) {
    const MmaData data = lanes[lane].as<MmaData>();
    const int g = lane / 4, t = lane % 4;
    for (int r = 0; r < 4; ++r) {
      float* place = &matrices.a[g + 8 * (r % 2)][2 * t + 8 * (r / 2)];
      place[0] = low(data.a[r]);
      place[1] = high(data.a[r]);
    }
    for (int r = 0; r < 2; ++r) {
      matrices.b[2 * t + 8 * r][g] = low(data.b[r]);
      matrices.b[2 * t + 8 * r + 1][g] = high(data.b[r]);
    }
  }
}

void load(const LaneData* lanes, Matrices<8>& matrices) {
  const auto tf32 = [](std::uint32_t word) {
    return std::bit_cast<float>(word & 0xffffe000u);
  };  // the remaining registers are ignored
  for (int lane = 0; lane < 32; ++lane) {
    const MmaData data = lanes[lane].as<MmaData>();
    const int g = lane / 4, t = lane % 4;
    for (int r = 0; r < 4; ++r) matrices.a[g + 8 * (r % 2)][t + 4 * (r / 2)] = tf32(data.a[r]);
    for (int r = 0; r < 2; ++r) matrices.b[t + 4 * r][g] = tf32(data.b[r]);
  }
}

bool is_finite(float x) { return (std::bit_cast<std::uint32_t>(x) & 0x7f800000u) != 0x7f800000u; }
template <class Matrix>
bool all_finite(const Matrix& x) {
  return std::all_of(&x[0][0], &x[0][0] + sizeof(x) / sizeof(float), is_finite);
}

/// Replaces elements of which a factor or the addend `before` is not finite by the plain sum, which is not finite, too.
template <int Depth>
void add_non_finite(const Matrices<Depth>& matrices, const float (&before)[16][8], float (&sums)[16][8]) {
  for (int row = 0; row < 16; ++row) {
    for (int column = 0; column < 8; ++column) {
      bool finite = is_finite(before[row][column]);
      float plain = 0;
      for (int k = 0; k < Depth; ++k) {
        finite = finite && is_finite(matrices.a[row][k]) && is_finite(matrices.b[k][column]);
        plain += matrices.a[row][k] * matrices.b[k][column];
      }
      if (!finite) sums[row][column] = before[row][column] + plain;
    }
  }
}

template <int Depth>
void add_product(LaneData* lanes) {
  Matrices<Depth> matrices;
  load(lanes, matrices);
  alignas(64) float sums[16][8], before[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    const auto d = lanes[lane].as<std::array<float, 4>>();
    for (int r = 0; r < 4; ++r) before[lane / 4 + 8 * (r / 2)][2 * (lane % 4) + r % 2] = d[r];
  }
  std::memcpy(sums, before, sizeof(sums));
  const bool sm_90 = options().tensor_cores == TensorCores::sm_90;
  const Rounding rounding = sm_90 ? Rounding{Depth, 25} : Rounding{Depth / 2, 24};
  if constexpr (Depth == 16) {
    HWY_DYNAMIC_DISPATCH(Multiply16)(matrices, rounding, sums);
  } else {
    HWY_DYNAMIC_DISPATCH(Multiply8)(matrices, rounding, sums);
  }
  if (!all_finite(matrices.a) || !all_finite(matrices.b) || !all_finite(before)) add_non_finite(matrices, before, sums);
  for (int lane = 0; lane < 32; ++lane) {
    std::array<float, 4> d;
    for (int r = 0; r < 4; ++r) d[r] = sums[lane / 4 + 8 * (r / 2)][2 * (lane % 4) + r % 2];
    std::memcpy(lanes[lane].bytes, d.data(), sizeof(d));
  }
}

}  // namespace

void mma_bf16_16x8x16(LaneData* lanes) { add_product<16>(lanes); }
void mma_tf32_16x8x8(LaneData* lanes) { add_product<8>(lanes); }

}  // namespace furlong::simulator
#endif
