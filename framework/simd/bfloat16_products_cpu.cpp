// bfloat16 products by the dot products of AVX-512 bf16 (vdpbf16ps): 16 sums of two products for each instruction.
// Highway 1.0 has no target with them, so this file uses intrinsics. Subnormal operands and results are zero.
#include "framework/simd/bfloat16_products.h"

#if defined(__x86_64__) && defined(__GNUC__)

#if !defined(__clang__)  // GCC's own header initializes ignored operands with themselves (GCC bug 105593)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "framework/simd/transpose_words.h"

#define FURLONG_AVX512_BF16 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")))

namespace furlong::simd {
namespace {

constexpr std::int64_t lanes = 16;

FURLONG_AVX512_BF16 inline __mmask16 first_lanes(std::int64_t n) {
  return static_cast<__mmask16>(n >= lanes ? 0xffff : (1u << n) - 1);
}
/// Loads up to 16 floats; zero for n <= 0.
FURLONG_AVX512_BF16 inline __m512 load(const float* source, std::int64_t n) {
  return n <= 0 ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(first_lanes(n), source);
}
FURLONG_AVX512_BF16 inline __m512i rounded(__m512 low, __m512 high) { return (__m512i)_mm512_cvtne2ps_pbh(high, low); }
/// x without the digits that bfloat16 lacks. Rounding would need more operations, and could overflow.
FURLONG_AVX512_BF16 inline __m512 truncated(__m512 x) {
  return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(-0x10000)));
}
/// What truncated() loses of both vectors, rounded.
FURLONG_AVX512_BF16 inline __m512i remainder(__m512 low, __m512 high) {
  return rounded(_mm512_sub_ps(low, truncated(low)), _mm512_sub_ps(high, truncated(high)));
}
FURLONG_AVX512_BF16 inline __m512i broadcast(const BFloat16Pair* pair) {
  int bits;
  std::memcpy(&bits, pair, sizeof bits);
  return _mm512_set1_epi32(bits);
}

/// c [Rows, 16 · Vectors] (+)= A · B with all of c in registers; the last vector has the columns of `last`. `depth`
/// counts pairs.
template <int Rows, int Vectors, bool TransposedA>
FURLONG_AVX512_BF16 __attribute__((noinline)) void block(std::int64_t depth, const BFloat16Pair* a, std::int64_t lda,
                                                         const BFloat16Pair* b, std::int64_t ldb, float* c,
                                                         std::int64_t ldc, bool accumulate, __mmask16 last) {
  __m512 sum[Rows][Vectors];
#pragma GCC unroll 8
  for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < Vectors; ++j) sum[i][j] = _mm512_setzero_ps();
  }
  for (std::int64_t k = 0; k < depth; ++k) {
    __m512i row[Vectors];
#pragma GCC unroll 4
    for (int j = 0; j < Vectors; ++j)
      row[j] = j == Vectors - 1 ? _mm512_maskz_loadu_epi32(last, b + j * lanes) : _mm512_loadu_si512(b + j * lanes);
#pragma GCC unroll 8
    for (int i = 0; i < Rows; ++i) {
      const __m512i left = broadcast(TransposedA ? a + i : a + i * lda + k);
#pragma GCC unroll 4
      for (int j = 0; j < Vectors; ++j) sum[i][j] = _mm512_dpbf16_ps(sum[i][j], (__m512bh)left, (__m512bh)row[j]);
    }
    b += ldb;
    if (TransposedA) a += lda;
  }
#pragma GCC unroll 8
  for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < Vectors; ++j) {
      float* target = c + i * ldc + j * lanes;
      const __mmask16 columns = j == Vectors - 1 ? last : static_cast<__mmask16>(0xffff);
      if (accumulate) sum[i][j] = _mm512_add_ps(sum[i][j], _mm512_maskz_loadu_ps(columns, target));
      _mm512_mask_storeu_ps(target, columns, sum[i][j]);
    }
  }
}

/// All rows of one panel of columns: full blocks, then the remaining rows in blocks of 4, 2 and 1.
template <int Vectors, bool TransposedA>
void panel(std::int64_t rows, std::int64_t depth, const BFloat16Pair* a, std::int64_t lda, const BFloat16Pair* b,
           std::int64_t ldb, float* c, std::int64_t ldc, bool accumulate, __mmask16 last) {
  constexpr int full = Vectors == 4 ? 6 : 8;
  const std::int64_t step = TransposedA ? 1 : lda;  // from one row of the product to the next in A
  std::int64_t i = 0;
  for (; i + full <= rows; i += full)
    block<full, Vectors, TransposedA>(depth, a + i * step, lda, b, ldb, c + i * ldc, ldc, accumulate, last);
  if (i + 4 <= rows) {
    block<4, Vectors, TransposedA>(depth, a + i * step, lda, b, ldb, c + i * ldc, ldc, accumulate, last);
    i += 4;
  }
  if (i + 2 <= rows) {
    block<2, Vectors, TransposedA>(depth, a + i * step, lda, b, ldb, c + i * ldc, ldc, accumulate, last);
    i += 2;
  }
  if (i < rows) block<1, Vectors, TransposedA>(depth, a + i * step, lda, b, ldb, c + i * ldc, ldc, accumulate, last);
}

template <bool TransposedA>
void multiply(std::int64_t M, std::int64_t N, std::int64_t K, const BFloat16Pair* a, std::int64_t lda,
              const BFloat16Pair* b, std::int64_t ldb, float* c, std::int64_t ldc, bool accumulate) {
  const std::int64_t depth = pairs_of(K);
  for (std::int64_t j = 0; j < N;) {
    std::int64_t vectors = std::min<std::int64_t>(4, (N - j + lanes - 1) / lanes);
    if (N - j > 4 * lanes && N - j <= 5 * lanes) vectors = 3;  // a single remaining vector loads as much as it computes
    const auto last = static_cast<__mmask16>(0xffffu >> std::max<std::int64_t>(0, vectors * lanes - (N - j)));
    if (vectors == 4) panel<4, TransposedA>(M, depth, a, lda, b + j, ldb, c + j, ldc, accumulate, last);
    if (vectors == 3) panel<3, TransposedA>(M, depth, a, lda, b + j, ldb, c + j, ldc, accumulate, last);
    if (vectors == 2) panel<2, TransposedA>(M, depth, a, lda, b + j, ldb, c + j, ldc, accumulate, last);
    if (vectors == 1) panel<1, TransposedA>(M, depth, a, lda, b + j, ldb, c + j, ldc, accumulate, last);
    j += vectors * lanes;
  }
}

void multiply_parts(std::int64_t M, std::int64_t N, std::int64_t K, const BFloat16Pair* a, std::int64_t lda,
                    const BFloat16Pair* high, const BFloat16Pair* low, std::int64_t ldb, float* c, std::int64_t ldc,
                    bool accumulate) {
  multiply<false>(M, N, K, a, lda, high, ldb, c, ldc, accumulate);
  multiply<false>(M, N, K, a, lda, low, ldb, c, ldc, true);
}

FURLONG_AVX512_BF16 void pack_rows(std::int64_t rows, std::int64_t columns, const float* source, std::int64_t ld,
                                   BFloat16Pair* target, std::int64_t ld_target) {
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < columns; j += 2 * lanes) {
      const float* at = source + i * ld + j;
      const __m512i pairs = rounded(load(at, columns - j), load(at + lanes, columns - j - lanes));
      _mm512_mask_storeu_epi32(target + i * ld_target + j / 2, first_lanes(pairs_of(columns - j)), pairs);
    }
  }
}

template <bool Split>
FURLONG_AVX512_BF16 void pack_rows_in_pairs(std::int64_t first, std::int64_t end, std::int64_t columns,
                                            const float* source, std::int64_t ld, BFloat16Pair* target,
                                            [[maybe_unused]] BFloat16Pair* low, std::int64_t ld_target) {
  const __m512i interleave = _mm512_load_si512(interleaved_halves);
  for (std::int64_t pair = first / 2; 2 * pair < end; ++pair) {
    const bool even = 2 * pair >= first, odd = 2 * pair + 1 < end;
    const float* row = source + 2 * pair * ld;
    for (std::int64_t j = 0; j < columns; j += lanes) {
      const std::int64_t n = columns - j;
      const __m512 upper = load(row + j, even ? n : 0), lower = load(row + ld + j, odd ? n : 0);
      const std::int64_t at = pair * ld_target + j;
      if constexpr (Split) {
        const __m512i first_half = _mm512_srli_epi32(_mm512_castps_si512(upper), 16);
        _mm512_mask_storeu_epi32(target + at, first_lanes(n),
                                 _mm512_or_si512(first_half, _mm512_castps_si512(truncated(lower))));
        _mm512_mask_storeu_epi32(low + at, first_lanes(n),
                                 _mm512_permutexvar_epi16(interleave, remainder(upper, lower)));
      } else {
        _mm512_mask_storeu_epi32(target + at, first_lanes(n),
                                 _mm512_permutexvar_epi16(interleave, rounded(upper, lower)));
      }
    }
  }
}
void pack_row_pairs(std::int64_t first, std::int64_t end, std::int64_t columns, const float* source, std::int64_t ld,
                    BFloat16Pair* target, std::int64_t ld_target) {
  pack_rows_in_pairs<false>(first, end, columns, source, ld, target, nullptr, ld_target);
}
void split_row_pairs(std::int64_t rows, std::int64_t columns, const float* source, std::int64_t ld, BFloat16Pair* high,
                     BFloat16Pair* low, std::int64_t ld_target) {
  pack_rows_in_pairs<true>(0, rows, columns, source, ld, high, low, ld_target);
}

FURLONG_AVX512_BF16 void pair_rows(std::int64_t rows, std::int64_t columns, const BFloat16Pair* source, std::int64_t ld,
                                   BFloat16Pair* target, std::int64_t ld_target) {
  const __m512i halves = _mm512_set1_epi32(0xffff);
  // `even` and `odd` hold every other column of both rows.
  const __m512i first = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0),
                second = _mm512_set_epi32(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8);
  for (std::int64_t i = 0; i < rows; i += 2) {
    const BFloat16Pair* const row = source + i * ld;
    for (std::int64_t j = 0; j < columns; j += 2 * lanes) {
      const std::int64_t n = columns - j;
      const __mmask16 pairs = first_lanes(pairs_of(n)), below = i + 1 < rows ? pairs : __mmask16{0};
      const __m512i upper = _mm512_maskz_loadu_epi32(pairs, row + j / 2),
                    lower = _mm512_maskz_loadu_epi32(below, row + ld + j / 2);
      const __m512i even = _mm512_or_si512(_mm512_and_si512(upper, halves), _mm512_slli_epi32(lower, 16)),
                    odd = _mm512_or_si512(_mm512_srli_epi32(upper, 16), _mm512_andnot_si512(halves, lower));
      BFloat16Pair* const at = target + i / 2 * ld_target + j;
      _mm512_mask_storeu_epi32(at, first_lanes(n), _mm512_permutex2var_epi32(even, first, odd));
      if (n > lanes)
        _mm512_mask_storeu_epi32(at + lanes, first_lanes(n - lanes), _mm512_permutex2var_epi32(even, second, odd));
    }
  }
}

FURLONG_AVX512_BF16 void transpose_rows(std::int64_t rows, std::int64_t columns, const BFloat16Pair* source,
                                        std::int64_t ld, BFloat16Pair* target, std::int64_t ld_target) {
  for (std::int64_t i = 0; i < rows; i += lanes) {
    for (std::int64_t p = 0; p < pairs_of(columns); p += lanes) {
      const std::int64_t pairs = std::min(lanes, pairs_of(columns) - p);
      __m512i block[lanes];
#pragma GCC unroll 16
      for (std::int64_t r = 0; r < lanes; ++r)
        block[r] = i + r < rows ? _mm512_maskz_loadu_epi32(first_lanes(pairs), source + (i + r) * ld + p)
                                : _mm512_setzero_si512();
      transpose_words(block);
      for (std::int64_t q = 0; q < pairs; ++q) _mm512_storeu_si512(target + (p + q) * ld_target + i, block[q]);
    }
  }
}

template <bool Split>
FURLONG_AVX512_BF16 void pack_columns_in_pairs(std::int64_t rows, std::int64_t columns, const float* source,
                                               std::int64_t ld, BFloat16Pair* target,
                                               [[maybe_unused]] BFloat16Pair* low, std::int64_t ld_target) {
  for (std::int64_t i = 0; i < rows; i += lanes) {
    for (std::int64_t j = 0; j < columns; j += 2 * lanes) {
      __m512i block[lanes];
      [[maybe_unused]] __m512i rest[lanes];
#pragma GCC unroll 16
      for (std::int64_t r = 0; r < lanes; ++r) {
        const float* at = source + (i + r) * ld + j;
        const std::int64_t n = i + r < rows ? columns - j : 0;
        const __m512 left = load(at, n), right = load(at + lanes, n - lanes);
        block[r] = Split ? rounded(truncated(left), truncated(right)) : rounded(left, right);
        if constexpr (Split) rest[r] = remainder(left, right);
      }
      const std::int64_t pairs = std::min(lanes, pairs_of(columns - j));
      transpose_words(block);
      for (std::int64_t p = 0; p < pairs; ++p) _mm512_storeu_si512(target + (j / 2 + p) * ld_target + i, block[p]);
      if constexpr (Split) {
        transpose_words(rest);
        for (std::int64_t p = 0; p < pairs; ++p) _mm512_storeu_si512(low + (j / 2 + p) * ld_target + i, rest[p]);
      }
    }
  }
}
void pack_transposed(std::int64_t rows, std::int64_t columns, const float* source, std::int64_t ld,
                     BFloat16Pair* target, std::int64_t ld_target) {
  pack_columns_in_pairs<false>(rows, columns, source, ld, target, nullptr, ld_target);
}
void split_transposed(std::int64_t rows, std::int64_t columns, const float* source, std::int64_t ld, BFloat16Pair* high,
                      BFloat16Pair* low, std::int64_t ld_target) {
  pack_columns_in_pairs<true>(rows, columns, source, ld, high, low, ld_target);
}

}  // namespace

const BFloat16Products* avx512_bfloat16_products() {
  static constexpr BFloat16Products products{16,
                                             false,
                                             pack_rows,
                                             pack_row_pairs,
                                             pack_transposed,
                                             pair_rows,
                                             transpose_rows,
                                             split_row_pairs,
                                             split_transposed,
                                             multiply<false>,
                                             multiply_parts,
                                             multiply<true>,
                                             [](bool) {}};
  return &products;
}

}  // namespace furlong::simd

#else

namespace furlong::simd {
const BFloat16Products* avx512_bfloat16_products() { return nullptr; }
}  // namespace furlong::simd

#endif
