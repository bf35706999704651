// Products of the tiles of linear attention, in float32 (or float64) or with operands rounded to bfloat16. Per-target
// include guard; see framework/simd/simd-inl.h.
#if defined(FURLONG_LINEAR_ATTENTION_PRODUCTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FURLONG_LINEAR_ATTENTION_PRODUCTS_INL_H_
#undef FURLONG_LINEAR_ATTENTION_PRODUCTS_INL_H_
#else
#define FURLONG_LINEAR_ATTENTION_PRODUCTS_INL_H_
#endif

#include <cmath>
#include <type_traits>

#include "framework/ops/attention/linear/cpu/near_pairs.h"
#include "framework/ops/attention/linear/linear_attention_arguments.h"
#include "framework/simd/simd-inl.h"
#include "framework/simd/small_gemm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace furlong::ops::HWY_NAMESPACE {
using namespace furlong::simd::HWY_NAMESPACE;

/// e^x in float32 to 2^-18, for results that are rounded to bfloat16: half the operations of exp() if the instruction
/// set can scale by a power of two. Zero below -87.33654; infinity on overflow; NaN stays NaN.
template <class D, class V>
HWY_INLINE V exp_for_bfloat16(D d, V x) {
#if HWY_TARGET == HWY_AVX3
  const V log2_e = hn::Set(d, 1.44269504f), magic = hn::Set(d, 0x1.8p23f);
  const V k = hn::Sub(hn::MulAdd(x, log2_e, magic), magic);  // round(x / ln 2)
  const V r = hn::MulSub(x, log2_e, k);
  V p = hn::MulAdd(hn::Set(d, 0x1.3997d4p-7f), r, hn::Set(d, 0x1.ca1440p-5f));  // 2^r, |r| <= 1/2
  p = hn::MulAdd(p, r, hn::Set(d, 0x1.ec06dap-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 0x1.62e0dcp-1f));
  p = hn::MulAdd(p, r, hn::Set(d, 0x1.ffffe8p-1f));
  const __mmask16 normal = _mm512_cmp_ps_mask(x.raw, _mm512_set1_ps(-87.33654f), _CMP_NLT_UQ);
  return V{_mm512_maskz_scalef_ps(normal, p.raw, k.raw)};
#else
  return exp(d, x);
#endif
}

/// Products over pairs run in blocks of rows or of columns, limited to what each block can see: about half of a causal
/// chunk is invisible.
template <class T>
class TileProducts {
  using V = typename Lanes<T>::V;
  static constexpr typename Lanes<T>::D d{};

 public:
  explicit TileProducts(const LinearAttentionSizes& sizes) : s(sizes) {}

  const LinearAttentionSizes& s;

  /// Calls run(kernels) and returns true if products round their operands to bfloat16.
  template <class Run>
  HWY_INLINE bool in_bfloat16(const Run& run) const {
    if constexpr (std::is_same_v<T, float>) {
      if (s.bfloat16) run(*s.bfloat16);
      return s.bfloat16 != nullptr;
    }
    return false;
  }
  /// Rounds a weight to bfloat16 (by Dekker's splitting, 1971) if products do, so that numerator and denominator sum
  /// the same numbers. Weights of 2^110 and more, where the splitting overflows, stay as they are.
  HWY_INLINE V rounded(V x) const {
    if constexpr (std::is_same_v<T, float>) {
      if (s.bfloat16) {
        const V c = hn::Mul(x, hn::Set(d, 65537.0f));
        return hn::IfThenElse(hn::Lt(hn::Abs(x), hn::Set(d, 0x1p110f)), hn::Sub(c, hn::Sub(c, x)), x);
      }
    }
    return x;
  }
  HWY_INLINE T rounded(T x) const {
    in_bfloat16([&](const auto&) {
      const T c = x * 65537;
      if (std::abs(x) < static_cast<T>(0x1p110)) x = c - (c - x);
    });
    return x;
  }
  /// As rounded(), for a factor of a float32 sum.
  HWY_INLINE V rounded_with_sum(V x) const { return s.splits_sums() ? rounded(x) : x; }
  /// e^x, to the precision that products keep.
  HWY_INLINE V exponential(V x) const {
    if constexpr (std::is_same_v<T, float>) {
      if (s.bfloat16) return exp_for_bfloat16(d, x);
    }
    return exp(d, x);
  }

 protected:
  /// Rows, or columns, of pairs in one product.
  std::int64_t pair_block() const {
    std::int64_t rows = 16;
    in_bfloat16([&](const auto& p) { rows = p.block_rows; });
    return rows;
  }
  /// As in_bfloat16, for products with float32 sums, whose parts are multiplied one after the other.
  template <class Run>
  HWY_INLINE bool in_parts(const Run& run) const {
    if constexpr (std::is_same_v<T, float>) {
      if (s.splits_sums()) run(*s.bfloat16);
      return s.splits_sums();
    }
    return false;
  }

  /// target[i, j] = a_i · b_j for visible pairs; other elements are undefined. Rows of a and b have `depth` elements
  /// and are ld apart; in from_columns() and from_rows() too, they may be `stored` by store_row(). b_transposed is
  /// scratch [depth, ld_n].
  void products(std::int64_t rows, const NearPairs& pairs, const T* a, const T* b, std::int64_t depth, std::int64_t ld,
                T* b_transposed, T* target, bool stored = false) {
    const simd::BFloat16Pair* left = stored ? packed_rows(a) : left_;
    const bool packed = in_bfloat16([&](const auto& p) {
      if (stored) {
        p.transpose_rows(pairs.columns, depth, packed_rows(b), ld / 2, right_, s.ld_n);
      } else {
        p.pack_rows(rows, depth, a, ld, left_, ld / 2);
        p.pack_transposed(pairs.columns, depth, b, ld, right_, s.ld_n);
      }
    });
    if (!packed) transpose<T>(pairs.columns, depth, b, ld, b_transposed, s.ld_n);
    const std::int64_t block_rows = pair_block();
    for (std::int64_t i = 0; i < rows; i += block_rows) {
      const std::int64_t n = std::min(block_rows, rows - i), from = pairs.row(i).first / block_rows * block_rows;
      const std::int64_t columns = pairs.row(i + n - 1).end - from;
      if (columns <= 0) continue;
      T* block = target + i * s.ld_n + from;
      if (in_bfloat16([&](const auto& p) {
            p.multiply(n, columns, depth, left + i * ld / 2, ld / 2, right_ + from, s.ld_n, block, s.ld_n, false);
          }))
        continue;
      small_gemm_nn<T>(n, columns, depth, a + i * ld, ld, b_transposed + from, s.ld_n, block, s.ld_n, false);
    }
  }
  /// target[i] = Σ_j matrix[i, j] b_j; matrix is zero for pairs that are not visible.
  void from_columns(std::int64_t rows, const NearPairs& pairs, const T* matrix, const T* b, std::int64_t width,
                    std::int64_t ld, T* target, bool stored = false) {
    in_bfloat16([&](const auto& p) {
      p.pack_rows(rows, pairs.columns, matrix, s.ld_n, left_, s.ld_n / 2);
      pack_right(p, pairs.columns, width, b, ld, stored);
    });
    const std::int64_t block_rows = pair_block();
    for (std::int64_t i = 0; i < rows; i += block_rows) {
      const std::int64_t n = std::min(block_rows, rows - i), from = pairs.row(i).first, pair = from / 2;
      const std::int64_t end = pairs.row(i + n - 1).end, columns = std::max<std::int64_t>(0, end - from);
      if (in_bfloat16([&](const auto& p) {
            p.multiply(n, width, columns > 0 ? end - 2 * pair : 0, left_ + i * s.ld_n / 2 + pair, s.ld_n / 2,
                       right_ + pair * ld, ld, target + i * ld, ld, false);
          }))
        continue;
      small_gemm_nn<T>(n, width, columns, matrix + i * s.ld_n + from, s.ld_n, b + from * ld, ld, target + i * ld, ld,
                       false);
    }
  }
  /// target[j] (+)= Σ_i matrix[i, j] a_i; matrix is zero for pairs that are not visible.
  void from_rows(std::int64_t rows, const NearPairs& pairs, const T* matrix, const T* a, std::int64_t width,
                 std::int64_t ld, T* target, bool accumulate, bool stored = false) {
    in_bfloat16([&](const auto& p) {
      p.pack_row_pairs(0, rows, pairs.columns, matrix, s.ld_n, left_, s.ld_n);
      pack_right(p, rows, width, a, ld, stored);
    });
    const std::int64_t block_rows = pair_block();
    for (std::int64_t j = 0; j < pairs.columns; j += block_rows) {
      const std::int64_t n = std::min(block_rows, pairs.columns - j);
      std::int64_t from = 0, end = rows;
      if (pairs.causal)
        from = j - pairs.offset;
      else if (pairs.window > 0)
        from = j - pairs.window + 1 - pairs.offset;
      if (pairs.window > 0) end = std::min(rows, j + n - 1 + pairs.window - pairs.offset);
      from = std::clamp<std::int64_t>(from, 0, rows);
      const std::int64_t pair = from / 2;
      if (in_bfloat16([&](const auto& p) {
            p.multiply_transposed(n, width, end > from ? end - 2 * pair : 0, left_ + pair * s.ld_n + j, s.ld_n,
                                  right_ + pair * ld, ld, target + j * ld, ld, accumulate);
          }))
        continue;
      small_gemm_tn<T>(n, width, std::max<std::int64_t>(0, end - from), matrix + from * s.ld_n + j, s.ld_n,
                       a + from * ld, ld, target + j * ld, ld, accumulate);
    }
  }

  /// out [width] = Σ_j weights_j b_j over the visible keys of row i alone, with the bits of from_columns().
  void row_product(std::int64_t i, const NearPairs& pairs, const T* weights, const T* b, std::int64_t width,
                   std::int64_t ld, T* out) {
    const NearPairs::Row row = pairs.row(i);
    const std::int64_t pair = pairs.row(i / pair_block() * pair_block()).first / 2;  // where the block's sums begin
    if (in_bfloat16([&](const auto& p) {
          p.pack_rows(1, pairs.columns, weights, s.ld_n, left_, s.ld_n / 2);
          std::fill(right_ + pair * ld, right_ + row.first / 2 * ld, simd::BFloat16Pair{0});
          p.pack_row_pairs(row.first, row.end, width, b, ld, right_, ld);
          p.multiply(1, width, row.end > row.first ? row.end - 2 * pair : 0, left_ + pair, s.ld_n / 2,
                     right_ + pair * ld, ld, out, ld, false);
        }))
      return;
    small_gemm_nn<T>(1, width, row.end - row.first, weights + row.first, s.ld_n, b + row.first * ld, ld, out, ld,
                     false);
  }
  /// sum [M, N] (+)= a[rows, M]ᵀ · b[rows, N]. a or b null: its rows are already packed, by round_pairs().
  void add_product(std::int64_t M, std::int64_t N, std::int64_t rows, const T* a, std::int64_t lda, const T* b,
                   std::int64_t ldb, T* target, std::int64_t ld, bool accumulate) {
    if (!in_bfloat16([&](const auto& p) {
          if (a) p.pack_row_pairs(0, rows, M, a, lda, left_, lda);
          if (b) p.pack_row_pairs(0, rows, N, b, ldb, right_, ldb);
          p.multiply_transposed(M, N, rows, left_, lda, right_, ldb, target, ld, accumulate);
        }))
      small_gemm_tn<T>(M, N, rows, a, lda, b, ldb, target, ld, accumulate);
  }

  /// target [rows, N] (+)= a [rows, K] · sum [K, N]; rows of a and sum are ld_a and ld apart. If `a_is_packed`, a holds
  /// what round_row() stored.
  void times_sum(std::int64_t rows, std::int64_t N, std::int64_t K, const T* a, std::int64_t ld_a, const T* sum,
                 std::int64_t ld, T* target, std::int64_t ld_target, bool accumulate, bool a_is_packed = false) {
    if (!in_parts([&](const auto& p) {
          const auto* left = a_is_packed ? reinterpret_cast<const simd::BFloat16Pair*>(a) : left_;
          if (!a_is_packed) p.pack_rows(rows, K, a, ld_a, left_, ld_a / 2);
          p.split_row_pairs(K, N, sum, ld, high_, low_, ld);
          p.multiply_parts(rows, N, K, left, ld_a / 2, high_, low_, ld, target, ld_target, accumulate);
        }))
      small_gemm_nn<T>(rows, N, K, a, ld_a, sum, ld, target, ld_target, accumulate);
  }
  /// target [rows, N] = a [rows, K] · sum [N, K]ᵀ. `transposed` is scratch [K, ld_target].
  void times_transposed_sum(std::int64_t rows, std::int64_t N, std::int64_t K, const T* a, std::int64_t ld_a,
                            const T* sum, std::int64_t ld, T* transposed, T* target, std::int64_t ld_target) {
    if (in_parts([&](const auto& p) {
          p.pack_rows(rows, K, a, ld_a, left_, ld_a / 2);
          p.split_transposed(N, K, sum, ld, high_, low_, ld_target);
          p.multiply_parts(rows, N, K, left_, ld_a / 2, high_, low_, ld_target, target, ld_target, false);
        }))
      return;
    transpose<T>(N, K, sum, ld, transposed, ld_target);
    small_gemm_nn<T>(rows, N, K, a, ld_a, transposed, ld_target, target, ld_target, false);
  }

  static const simd::BFloat16Pair* packed_rows(const T* rows) {
    return reinterpret_cast<const simd::BFloat16Pair*>(rows);
  }
  void pack_right(const simd::BFloat16Products& p, std::int64_t rows, std::int64_t width, const T* source,
                  std::int64_t ld, bool stored) {
    stored ? p.pair_rows(rows, width, packed_rows(source), ld / 2, right_, ld)
           : p.pack_row_pairs(0, rows, width, source, ld, right_, ld);
  }
  /// Stores n numbers of row i of a matrix, from column f on, in the form that products read with the fewest steps:
  /// rounded and packed, if they round.
  HWY_INLINE void store_row(V values, T* matrix, std::int64_t i, std::int64_t ld, std::int64_t f,
                            std::int64_t n) const {
    s.bfloat16 ? round_row(values, n, reinterpret_cast<std::uint16_t*>(matrix) + i * ld + f)
               : store_n(values, matrix + i * ld + f, n);
  }
  /// Loads what store_row() stored.
  HWY_INLINE V load_row(const T* matrix, std::int64_t i, std::int64_t ld, std::int64_t f, std::int64_t n) const {
    if constexpr (std::is_same_v<T, float>) {
      if (s.bfloat16) {
        const hn::RebindToUnsigned<typename Lanes<T>::D> words;
        const hn::Rebind<std::uint16_t, typename Lanes<T>::D> halves;
        const auto half = hn::LoadU(halves, reinterpret_cast<const std::uint16_t*>(matrix) + i * ld + f);
        return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(words, half)));
      }
    }
    return load_n(matrix + i * ld + f, n);
  }

  // The next two round their arguments, as products do, and store them. They are called only if products round, on CPUs
  // with AVX-512 bf16: its instructions take half of the operations, but no target of Highway 1.0 has them. Highway's
  // AVX3 is the target of these CPUs; the general code is for others, which compile it.

  /// Rounds n numbers and stores them to a row of a left operand that is packed by rows: `target` is the place of the
  /// first of them. Clears the rest of their vector.
  HWY_INLINE void round_row(V& values, std::int64_t n, std::uint16_t* target) const {
    if constexpr (std::is_same_v<T, float>) {
      if (n < Lanes<T>::count()) values = hn::IfThenElseZero(hn::FirstN(d, static_cast<std::size_t>(n)), values);
      const hn::RebindToUnsigned<typename Lanes<T>::D> words;
      const hn::Rebind<std::uint16_t, typename Lanes<T>::D> halves;
#if HWY_TARGET == HWY_AVX3
      decltype(hn::Zero(halves)) bits;
      asm volatile("vcvtneps2bf16 %1, %0" : "=v"(bits.raw) : "v"(values.raw));
#else
      const auto bits = hn::TruncateTo(halves, hn::ShiftRight<16>(hn::BitCast(words, rounded(values))));
#endif
      hn::StoreU(bits, halves, target);
      values = hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(words, bits)));
    }
  }
  /// Rounds whole vectors of two neighboring rows and stores them to an operand that is packed by pairs of rows.
  HWY_INLINE void round_pairs(V& even, V& odd, simd::BFloat16Pair* target) const {
    if constexpr (std::is_same_v<T, float>) {
      const hn::RebindToUnsigned<typename Lanes<T>::D> words;
      const auto upper = hn::Set(words, 0xffff0000u);
#if HWY_TARGET == HWY_AVX3
      decltype(hn::Zero(words)) pairs;
      asm volatile("vcvtne2ps2bf16 %2, %1, %0" : "=v"(pairs.raw) : "v"(odd.raw), "v"(even.raw));
      pairs.raw = _mm512_permutexvar_epi16(_mm512_load_si512(simd::interleaved_halves), pairs.raw);
#else
      const auto pairs = hn::Or(hn::ShiftRight<16>(hn::BitCast(words, rounded(even))),
                                hn::And(hn::BitCast(words, rounded(odd)), upper));
#endif
      hn::StoreU(pairs, words, reinterpret_cast<std::uint32_t*>(target));
      even = hn::BitCast(d, hn::ShiftLeft<16>(pairs));
      odd = hn::BitCast(d, hn::And(pairs, upper));
    }
  }

  simd::BFloat16Pair *left_ = nullptr, *right_ = nullptr;  // packed operands
  simd::BFloat16Pair *high_ = nullptr, *low_ = nullptr;    // both parts of a packed sum
};

}  // namespace furlong::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
