#pragma once
// Products of small matrices whose operands are rounded to bfloat16 and whose sums are float32, for tiles of attention.
//
// Operands are packed into pairs of elements that are neighbors along the inner dimension: 32 bits, as the dot product
// of AVX-512 bf16 and the tiles of AMX read them. A left operand A [M, K] is packed by rows, [M, K/2] pairs, or by
// pairs of rows of Aᵀ, [K/2, M]; a right operand B [K, N] is packed by pairs of rows, [K/2, N]. An odd K is padded with
// a zero.
#include <cstdint>

namespace furlong::simd {

struct BFloat16Pair {
  std::uint32_t bits;  // the first element in the lower half
};
/// The order in which the halves of two rows are pairs: element i of the first row, then of the second.
alignas(64) inline constexpr std::uint16_t interleaved_halves[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                                     21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                                     11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
constexpr std::int64_t pairs_of(std::int64_t elements) { return (elements + 1) / 2; }

/// Kernels of one instruction set. Rows are `ld` elements (of their own type) apart. Sizes are in elements, not pairs.
struct BFloat16Products {
  /// Rows of A in products of a triangle's blocks; also the multiple of K that needs no padding.
  std::int64_t block_rows;
  /// Whether two products with the parts of a float32 matrix are faster than one product in float32.
  bool splits_float32;
  /// target [rows, pairs_of(columns)]: pairs of neighboring columns of source [rows, columns].
  void (*pack_rows)(std::int64_t rows, std::int64_t columns, const float* source, std::int64_t ld, BFloat16Pair* target,
                    std::int64_t ld_target);
  /// target [pairs_of(end), columns]: pairs of neighboring rows of source. Writes the pairs that contain rows
  /// [first, end); other rows in these pairs are zero.
  void (*pack_row_pairs)(std::int64_t first, std::int64_t end, std::int64_t columns, const float* source,
                         std::int64_t ld, BFloat16Pair* target, std::int64_t ld_target);
  /// target [pairs_of(columns), rows]: pairs of neighboring rows of sourceᵀ, from source [rows, columns]. Also writes
  /// zeros up to the next multiple of 16 rows, which must fit ld_target.
  void (*pack_transposed)(std::int64_t rows, std::int64_t columns, const float* source, std::int64_t ld,
                          BFloat16Pair* target, std::int64_t ld_target);
  /// As pack_row_pairs of all rows, and as pack_transposed, from rows that are packed as by pack_rows.
  void (*pair_rows)(std::int64_t rows, std::int64_t columns, const BFloat16Pair* source, std::int64_t ld,
                    BFloat16Pair* target, std::int64_t ld_target);
  void (*transpose_rows)(std::int64_t rows, std::int64_t columns, const BFloat16Pair* source, std::int64_t ld,
                         BFloat16Pair* target, std::int64_t ld_target);
  /// As pack_row_pairs of all rows, and as pack_transposed, but in two parts: high + low is the source to 2^-16,
  /// but NaN for an infinite element.
  void (*split_row_pairs)(std::int64_t rows, std::int64_t columns, const float* source, std::int64_t ld,
                          BFloat16Pair* high, BFloat16Pair* low, std::int64_t ld_target);
  void (*split_transposed)(std::int64_t rows, std::int64_t columns, const float* source, std::int64_t ld,
                           BFloat16Pair* high, BFloat16Pair* low, std::int64_t ld_target);
  /// c [M, N] (+)= A · B with A [M, K] packed by rows. The order of an element's sum over k depends on the instruction
  /// set alone: its bits depend neither on M and N, nor on its place in c, nor on other rows of A or columns of B, nor
  /// on zeros at the end of K.
  void (*multiply)(std::int64_t M, std::int64_t N, std::int64_t K, const BFloat16Pair* a, std::int64_t lda,
                   const BFloat16Pair* b, std::int64_t ldb, float* c, std::int64_t ldc, bool accumulate);
  /// c [M, N] (+)= A · (high + low), the parts of B.
  void (*multiply_parts)(std::int64_t M, std::int64_t N, std::int64_t K, const BFloat16Pair* a, std::int64_t lda,
                         const BFloat16Pair* high, const BFloat16Pair* low, std::int64_t ldb, float* c,
                         std::int64_t ldc, bool accumulate);
  /// As multiply, with A packed by pairs of rows of Aᵀ.
  void (*multiply_transposed)(std::int64_t M, std::int64_t N, std::int64_t K, const BFloat16Pair* a, std::int64_t lda,
                              const BFloat16Pair* b, std::int64_t ldb, float* c, std::int64_t ldc, bool accumulate);
  /// Between keep(true) and keep(false), products on the calling thread leave their registers set up for the next one,
  /// which saves about 50 ns for each product with AMX. No other code that uses tiles may run in between.
  void (*keep)(bool kept);
};

/// Calls keep() for its lifetime.
class KeptRegisters {
 public:
  explicit KeptRegisters(const BFloat16Products& products) : products_(products) { products_.keep(true); }
  ~KeptRegisters() { products_.keep(false); }
  KeptRegisters(const KeptRegisters&) = delete;
  KeptRegisters& operator=(const KeptRegisters&) = delete;

 private:
  const BFloat16Products& products_;
};

/// The kernels for AVX-512 bf16, or null in a build for another processor. The caller checks that the CPU has it.
const BFloat16Products* avx512_bfloat16_products();
/// The kernels for AMX, or null if the system does not grant its tiles. The caller checks that the CPU has it.
const BFloat16Products* amx_bfloat16_products();

}  // namespace furlong::simd
