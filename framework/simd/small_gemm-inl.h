// Products of small row-major matrices that are already in the first or second level of cache (tiles of attention), in
// one thread and without packing. SIMD kernels include it after simd-inl.h. Leading dimensions (lda, ldb, ldc) are row
// strides in elements. (+)= means: = , or += if `accumulate`.
//
// Each element of C is one chain of multiply-adds over k = 0, 1, ... (and then one addition to C if it accumulates).
// Its bits depend neither on M and N, nor on its place in C, nor on other rows of A or columns of B. If the row stride
// is a large power of two, rows compete for few cache sets, so pad strides such as 1024 by 16.
#if defined(FURLONG_CPU_SMALL_GEMM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FURLONG_CPU_SMALL_GEMM_INL_H_
#undef FURLONG_CPU_SMALL_GEMM_INL_H_
#else
#define FURLONG_CPU_SMALL_GEMM_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "framework/simd/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace furlong::simd::HWY_NAMESPACE {

namespace small_gemm {
// Accumulators, one row of B and a broadcast of A must fit in the registers: 32 of them, or 16 (AVX2 and earlier).
#if HWY_ARCH_X86 && HWY_TARGET > HWY_AVX3
constexpr bool many_registers = false;
#else
constexpr bool many_registers = true;
#endif
constexpr int widest = many_registers ? 4 : 3;  // vectors of columns in a block
/// Returns the number of rows of a block with `vectors` vectors of columns.
constexpr int rows_of(int vectors) {
  return many_registers ? (vectors == 4 ? 6 : 8) : (vectors == 1 ? 8 : vectors == 2 ? 6 : 4);
}

/// Loads the first n lanes without touching memory beyond them. Highway's masked load guarantees this only if the
/// instruction set has masked loads.
template <class T, class D, class M>
HWY_INLINE hn::Vec<D> load_part(D d, [[maybe_unused]] M mask, const T* source, [[maybe_unused]] std::int64_t n) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
  return hn::MaskedLoad(mask, d, source);
#else
  static_cast<void>(d);
  return Lanes<T>::load_first(source, n);
#endif
}
/// Stores the first n lanes, likewise.
template <class T, class D, class M>
HWY_INLINE void store_part(hn::Vec<D> value, D d, [[maybe_unused]] M mask, T* target, [[maybe_unused]] std::int64_t n) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
  hn::BlendedStore(value, mask, d, target);
#else
  static_cast<void>(d);
  Lanes<T>::store_first(value, target, n);
#endif
}

/// C[Rows, Vectors × lanes] (+)= A[Rows, depth] · B[depth, Vectors × lanes] with all of C in registers. A[i, k] is
/// a[i * lda + k], or a[k * lda + i] if TransposedA. If Partial, the last vector has only `last` columns.
template <class T, int Rows, int Vectors, bool TransposedA, bool Partial>
HWY_NOINLINE void block(std::int64_t depth, const T* HWY_RESTRICT a, std::int64_t lda, const T* HWY_RESTRICT b,
                        std::int64_t ldb, T* HWY_RESTRICT c, std::int64_t ldc, bool accumulate,
                        [[maybe_unused]] std::int64_t last) {
  const hn::ScalableTag<T> d;
  using V = hn::Vec<decltype(d)>;
  constexpr auto lanes = static_cast<std::int64_t>(hn::MaxLanes(decltype(d)()));
  [[maybe_unused]] const auto mask = hn::FirstN(d, static_cast<std::size_t>(Partial ? last : lanes));
  V sum[Rows][Vectors];
#pragma GCC unroll 8
  for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < Vectors; ++j) sum[i][j] = hn::Zero(d);
  }
  for (std::int64_t k = 0; k < depth; ++k) {
    V row[Vectors];
#pragma GCC unroll 4
    for (int j = 0; j < Vectors; ++j)
      row[j] = Partial && j == Vectors - 1 ? load_part(d, mask, b + j * lanes, last) : hn::LoadU(d, b + j * lanes);
#pragma GCC unroll 8
    for (int i = 0; i < Rows; ++i) {
      const V broadcast = hn::Set(d, TransposedA ? a[i] : a[i * lda + k]);
#pragma GCC unroll 4
      for (int j = 0; j < Vectors; ++j) sum[i][j] = hn::MulAdd(broadcast, row[j], sum[i][j]);
    }
    b += ldb;
    if constexpr (TransposedA) a += lda;
  }
#pragma GCC unroll 8
  for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < Vectors; ++j) {
      T* target = c + i * ldc + j * lanes;
      if (Partial && j == Vectors - 1) {
        if (accumulate) sum[i][j] = hn::Add(sum[i][j], load_part(d, mask, target, last));
        store_part(sum[i][j], d, mask, target, last);
      } else {
        if (accumulate) sum[i][j] = hn::Add(sum[i][j], hn::LoadU(d, target));
        hn::StoreU(sum[i][j], d, target);
      }
    }
  }
}

/// Computes all rows of one panel of columns: full blocks, then the remaining rows in blocks of 4, 2 and 1.
template <class T, int Vectors, bool TransposedA, bool Partial = false>
HWY_INLINE void panel(std::int64_t rows, std::int64_t depth, const T* a, std::int64_t lda, const T* b, std::int64_t ldb,
                      T* c, std::int64_t ldc, bool accumulate, std::int64_t last = 0) {
  constexpr int full = rows_of(Vectors);
  const std::int64_t step = TransposedA ? 1 : lda;  // from one row of the product to the next in A
  std::int64_t i = 0;
  for (; i + full <= rows; i += full)
    block<T, full, Vectors, TransposedA, Partial>(depth, a + i * step, lda, b, ldb, c + i * ldc, ldc, accumulate, last);
  if (full > 4 && i + 4 <= rows) {
    block<T, 4, Vectors, TransposedA, Partial>(depth, a + i * step, lda, b, ldb, c + i * ldc, ldc, accumulate, last);
    i += 4;
  }
  if (i + 2 <= rows) {
    block<T, 2, Vectors, TransposedA, Partial>(depth, a + i * step, lda, b, ldb, c + i * ldc, ldc, accumulate, last);
    i += 2;
  }
  if (i < rows)
    block<T, 1, Vectors, TransposedA, Partial>(depth, a + i * step, lda, b, ldb, c + i * ldc, ldc, accumulate, last);
}

/// C[rows, columns] (+)= A[rows, depth] · B[depth, columns], panel by panel. A is stored transposed if TransposedA.
template <class T, bool TransposedA>
void product(std::int64_t rows, std::int64_t columns, std::int64_t depth, const T* a, std::int64_t lda, const T* b,
             std::int64_t ldb, T* c, std::int64_t ldc, bool accumulate) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(hn::ScalableTag<T>()));
  std::int64_t vectors = columns / lanes;
  while (vectors > 0) {
    // A single remaining vector would load as much as it computes, so 5 is 3 + 2, and with few registers 4 is 2 + 2.
    const std::int64_t take = vectors == widest + 1 ? widest - 1 : std::min<std::int64_t>(vectors, widest);
    if (take == 4) {
      if constexpr (widest >= 4) panel<T, 4, TransposedA>(rows, depth, a, lda, b, ldb, c, ldc, accumulate);
    } else if (take == 3) {
      panel<T, 3, TransposedA>(rows, depth, a, lda, b, ldb, c, ldc, accumulate);
    } else if (take == 2) {
      panel<T, 2, TransposedA>(rows, depth, a, lda, b, ldb, c, ldc, accumulate);
    } else {
      panel<T, 1, TransposedA>(rows, depth, a, lda, b, ldb, c, ldc, accumulate);
    }
    b += take * lanes;
    c += take * lanes;
    vectors -= take;
  }
  if (columns % lanes != 0)
    panel<T, 1, TransposedA, true>(rows, depth, a, lda, b, ldb, c, ldc, accumulate, columns % lanes);
}

#if HWY_TARGET != HWY_SCALAR
/// Transposes four rows of four floats, or two of two doubles, in 128-bit registers.
template <class T>
HWY_INLINE void transpose_block(const T* HWY_RESTRICT source, std::int64_t ld_source, T* HWY_RESTRICT target,
                                std::int64_t ld_target) {
  if constexpr (sizeof(T) == 8) {
    const hn::FixedTag<T, 2> d;
    const auto a = hn::LoadU(d, source), b = hn::LoadU(d, source + ld_source);
    hn::StoreU(hn::InterleaveLower(d, a, b), d, target);
    hn::StoreU(hn::InterleaveUpper(d, a, b), d, target + ld_target);
  } else {
    const hn::FixedTag<T, 4> d;
    const hn::FixedTag<double, 2> pairs;
    const auto a = hn::LoadU(d, source), b = hn::LoadU(d, source + ld_source), e = hn::LoadU(d, source + 2 * ld_source),
               f = hn::LoadU(d, source + 3 * ld_source);
    const auto ab_low = hn::BitCast(pairs, hn::InterleaveLower(d, a, b)),
               ab_high = hn::BitCast(pairs, hn::InterleaveUpper(d, a, b));
    const auto ef_low = hn::BitCast(pairs, hn::InterleaveLower(d, e, f)),
               ef_high = hn::BitCast(pairs, hn::InterleaveUpper(d, e, f));
    hn::StoreU(hn::BitCast(d, hn::InterleaveLower(pairs, ab_low, ef_low)), d, target);
    hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(pairs, ab_low, ef_low)), d, target + ld_target);
    hn::StoreU(hn::BitCast(d, hn::InterleaveLower(pairs, ab_high, ef_high)), d, target + 2 * ld_target);
    hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(pairs, ab_high, ef_high)), d, target + 3 * ld_target);
  }
}
#endif
}  // namespace small_gemm

/// C[M, N] (+)= A[M, K] · B[K, N]. No operand may overlap C. T is float or double.
template <class T>
HWY_INLINE void small_gemm_nn(std::int64_t M, std::int64_t N, std::int64_t K, const T* A, std::int64_t lda, const T* B,
                              std::int64_t ldb, T* C, std::int64_t ldc, bool accumulate) {
  small_gemm::product<T, false>(M, N, K, A, lda, B, ldb, C, ldc, accumulate);
}

/// C[M, N] (+)= A[K, M]ᵀ · B[K, N]. Otherwise as small_gemm_nn.
template <class T>
HWY_INLINE void small_gemm_tn(std::int64_t M, std::int64_t N, std::int64_t K, const T* A, std::int64_t lda, const T* B,
                              std::int64_t ldb, T* C, std::int64_t ldc, bool accumulate) {
  small_gemm::product<T, true>(M, N, K, A, lda, B, ldb, C, ldc, accumulate);
}

/// Overwrites target [columns, rows] with the transpose of source [rows, columns].
template <class T>
void transpose(std::int64_t rows, std::int64_t columns, const T* source, std::int64_t ld_source, T* target,
               std::int64_t ld_target) {
  // Columns at a time: this many rows of the target fit one cache set, whatever their stride.
  constexpr std::int64_t strip = 16;
  for (std::int64_t first = 0; first < columns; first += strip) {
    const std::int64_t end = std::min(first + strip, columns);
    std::int64_t i = 0;
#if HWY_TARGET != HWY_SCALAR  // the scalar target has no vectors of several lanes
    constexpr std::int64_t block = 16 / sizeof(T);
    for (; i + block <= rows; i += block) {
      std::int64_t j = first;
      for (; j + block <= end; j += block)
        small_gemm::transpose_block(source + i * ld_source + j, ld_source, target + j * ld_target + i, ld_target);
      for (; j < end; ++j) {
        for (std::int64_t k = i; k < i + block; ++k) target[j * ld_target + k] = source[k * ld_source + j];
      }
    }
#endif
    for (; i < rows; ++i) {
      for (std::int64_t j = first; j < end; ++j) target[j * ld_target + i] = source[i * ld_source + j];
    }
  }
}

}  // namespace furlong::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // per-target include guard
