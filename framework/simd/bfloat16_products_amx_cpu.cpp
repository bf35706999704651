// bfloat16 products by the matrix tiles of AMX (tdpbf16ps): 16 × 16 sums of 32 products for each instruction. Operands
// are packed by the kernels for AVX-512 bf16, which every CPU with AMX has. Subnormal operands and results are zero.
#include "framework/simd/bfloat16_products.h"

#if defined(__x86_64__) && defined(__GNUC__) && defined(__linux__)

#if !defined(__clang__)  // GCC's own header initializes ignored operands with themselves (GCC bug 105593)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "framework/simd/transpose_words.h"

#define FURLONG_AMX __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,amx-tile,amx-bf16")))

namespace furlong::simd {
namespace {

constexpr std::int64_t side = 16;   // rows of a tile, pairs in a row, and columns of a tile of sums
constexpr std::int64_t depths = 8;  // left tiles prepared at once: 256 elements along the inner dimension

/// GCC does not see that instructions on tiles read and write memory. Call between stores and tile loads, in either
/// order, and between a tile store and loads.
inline void order_memory() { asm volatile("" : : : "memory"); }

/// All tiles have 16 rows of 64 bytes.
FURLONG_AMX void configure_tiles() {
  struct alignas(64) {
    std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
    std::uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  } const configuration;
  asm volatile("" : : "m"(configuration) : "memory");
  _tile_loadconfig(&configuration);
}
FURLONG_AMX void release_tiles() { _tile_release(); }

thread_local bool tiles_kept = false;

void keep_tiles(bool kept) {
  if (kept != tiles_kept) kept ? configure_tiles() : release_tiles();
  tiles_kept = kept;
}

/// oneDNN has its own configuration, so each product sets this one, and releases the tiles, so that other threads need
/// not save them.
class TileConfiguration {
 public:
  TileConfiguration() : kept_(tiles_kept) {
    if (!kept_) configure_tiles();
  }
  ~TileConfiguration() {
    if (!kept_) release_tiles();
  }
  TileConfiguration(const TileConfiguration&) = delete;
  TileConfiguration& operator=(const TileConfiguration&) = delete;

 private:
  const bool kept_;
};

/// Where a tile's rows are: `ld` pairs apart.
struct TileRows {
  const BFloat16Pair* data;
  std::int64_t ld;
  std::size_t stride() const { return static_cast<std::size_t>(ld) * sizeof(BFloat16Pair); }
};

/// Copies [rows, columns] of a matrix of 32-bit words to a tile, and fills the tile with zeros.
FURLONG_AMX void copy_part(std::int64_t rows, std::int64_t columns, const BFloat16Pair* source, std::int64_t ld,
                           BFloat16Pair* tile) {
  const auto mask = static_cast<__mmask16>((1u << columns) - 1);
  for (std::int64_t i = 0; i < side; ++i)
    _mm512_store_si512(tile + i * side,
                       i < rows ? _mm512_maskz_loadu_epi32(mask, source + i * ld) : _mm512_setzero_si512());
}

/// One block of 16 rows of A: its tiles along the inner dimension.
class LeftTiles {
 public:
  template <bool TransposedA>
  FURLONG_AMX void prepare(std::int64_t rows, std::int64_t depth, const BFloat16Pair* a, std::int64_t lda) {
    for (std::int64_t t = 0, k = 0; k < depth; ++t, k += side) {
      const std::int64_t pairs = std::min(side, depth - k);
      BFloat16Pair* buffer = buffers_ + t * side * side;
      if constexpr (TransposedA) {
        __m512i words[side];
        const auto mask = static_cast<__mmask16>((1u << rows) - 1);
#pragma GCC unroll 16
        for (std::int64_t i = 0; i < side; ++i)
          words[i] = i < pairs ? _mm512_maskz_loadu_epi32(mask, a + (k + i) * lda) : _mm512_setzero_si512();
        transpose_words(words);
#pragma GCC unroll 16
        for (std::int64_t i = 0; i < side; ++i) _mm512_store_si512(buffer + i * side, words[i]);
        tiles_[t] = {buffer, side};
      } else if (rows < side || pairs < side) {
        copy_part(rows, pairs, a + k, lda, buffer);
        tiles_[t] = {buffer, side};
      } else {
        tiles_[t] = {a + k, lda};
      }
    }
    order_memory();
  }
  const TileRows& operator[](std::int64_t t) const { return tiles_[t]; }

 private:
  alignas(64) BFloat16Pair buffers_[depths * side * side];
  TileRows tiles_[depths];
};

/// The parts of B from one of its elements on.
template <int Parts>
struct RightParts {
  const BFloat16Pair* data[Parts];
  RightParts from(std::int64_t offset) const {
    RightParts parts = *this;
    for (const BFloat16Pair*& part : parts.data) part += offset;
    return parts;
  }
};

/// c [16 · Rows, 16 · Columns] (+)= A · B for whole tiles: two tiles of A and two of B serve four products. Sums are in
/// tiles 0 to 3, operands in 4 to 7. B has one or two parts.
template <int Rows, int Columns, int Parts>
FURLONG_AMX void block(std::int64_t depth, const LeftTiles* left, const RightParts<Parts>& b, std::int64_t ldb,
                       float* c, std::int64_t ldc, bool accumulate) {
  const auto stride = static_cast<std::size_t>(ldc) * sizeof(float);
  const auto stride_b = static_cast<std::size_t>(ldb) * sizeof(BFloat16Pair);
  float* const below = c + side * ldc;
  if (accumulate) {
    _tile_loadd(0, c, stride);
    if constexpr (Columns > 1) _tile_loadd(1, c + side, stride);
    if constexpr (Rows > 1) _tile_loadd(2, below, stride);
    if constexpr (Rows > 1 && Columns > 1) _tile_loadd(3, below + side, stride);
  } else {
    _tile_zero(0);
    if constexpr (Columns > 1) _tile_zero(1);
    if constexpr (Rows > 1) _tile_zero(2);
    if constexpr (Rows > 1 && Columns > 1) _tile_zero(3);
  }
  for (std::int64_t t = 0, k = 0; k < depth; ++t, k += side) {
    _tile_loadd(4, left[0][t].data, left[0][t].stride());
    if constexpr (Rows > 1) _tile_loadd(5, left[1][t].data, left[1][t].stride());
#pragma GCC unroll 2
    for (int part = 0; part < Parts; ++part) {
      const BFloat16Pair* right = b.data[part] + k * ldb;
      _tile_loadd(6, right, stride_b);
      _tile_dpbf16ps(0, 4, 6);
      if constexpr (Columns > 1) {
        _tile_loadd(7, right + side, stride_b);
        _tile_dpbf16ps(1, 4, 7);
      }
      if constexpr (Rows > 1) _tile_dpbf16ps(2, 5, 6);
      if constexpr (Rows > 1 && Columns > 1) _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, c, stride);
  if constexpr (Columns > 1) _tile_stored(1, c + side, stride);
  if constexpr (Rows > 1) _tile_stored(2, below, stride);
  if constexpr (Rows > 1 && Columns > 1) _tile_stored(3, below + side, stride);
}

/// c [rows, columns] (+)= A · B for at most one tile of sums, by way of buffers.
template <int Parts>
FURLONG_AMX void edge(std::int64_t rows, std::int64_t columns, std::int64_t depth, const LeftTiles& left,
                      const RightParts<Parts>& b, std::int64_t ldb, float* c, std::int64_t ldc, bool accumulate) {
  alignas(64) float sums[side * side];
  alignas(64) BFloat16Pair right[side * side];
  const auto mask = static_cast<__mmask16>((1u << columns) - 1);
  for (std::int64_t i = 0; i < rows; ++i)
    _mm512_store_ps(sums + i * side, accumulate ? _mm512_maskz_loadu_ps(mask, c + i * ldc) : _mm512_setzero_ps());
  order_memory();
  _tile_loadd(0, sums, side * sizeof(float));
  for (std::int64_t t = 0, k = 0; k < depth; ++t, k += side) {
    _tile_loadd(4, left[t].data, left[t].stride());
    for (const BFloat16Pair* part : b.data) {
      order_memory();
      copy_part(std::min(side, depth - k), columns, part + k * ldb, ldb, right);
      order_memory();
      _tile_loadd(6, right, side * sizeof(BFloat16Pair));
      _tile_dpbf16ps(0, 4, 6);
    }
  }
  _tile_stored(0, sums, side * sizeof(float));
  order_memory();
  for (std::int64_t i = 0; i < rows; ++i) _mm512_mask_storeu_ps(c + i * ldc, mask, _mm512_load_ps(sums + i * side));
}

/// Up to 64 rows of c. The columns of B that two tiles cover stay in the first-level cache for all rows.
template <int Parts>
FURLONG_AMX void band(std::int64_t M, std::int64_t N, std::int64_t depth, const LeftTiles* left,
                      const RightParts<Parts>& b, std::int64_t ldb, float* c, std::int64_t ldc, bool accumulate) {
  // Tiles with all their rows and columns, and an inner dimension of whole tiles, are read in place.
  const std::int64_t whole = depth % side == 0 ? M / side : 0;
  for (std::int64_t j = 0; j < N; j += 2 * side) {
    const std::int64_t full = std::min<std::int64_t>(2, (N - j) / side);  // tiles with all their columns
    std::int64_t tile = 0;
    for (; full > 0 && tile < whole; tile += 2) {
      float* const target = c + tile * side * ldc + j;
      const auto run = [&](auto product_of)
                           FURLONG_AMX { product_of(depth, left + tile, b.from(j), ldb, target, ldc, accumulate); };
      const bool pair = tile + 2 <= whole;
      if (full == 2) pair ? run(block<2, 2, Parts>) : run(block<1, 2, Parts>);
      if (full == 1) pair ? run(block<2, 1, Parts>) : run(block<1, 1, Parts>);
    }
    // The remaining rows, and the columns of a last tile.
    for (std::int64_t row = 0; row < (M + side - 1) / side; ++row) {
      for (std::int64_t column = row < whole ? full : 0; column < 2 && j + column * side < N; ++column) {
        const std::int64_t at = j + column * side;
        edge(std::min(side, M - row * side), std::min(side, N - at), depth, left[row], b.from(at), ldb,
             c + row * side * ldc + at, ldc, accumulate);
      }
    }
  }
}

template <bool TransposedA, int Parts>
FURLONG_AMX void product(std::int64_t M, std::int64_t N, std::int64_t K, const BFloat16Pair* a, std::int64_t lda,
                         const RightParts<Parts>& b, std::int64_t ldb, float* c, std::int64_t ldc, bool accumulate) {
  if (M <= 0 || N <= 0) return;
  constexpr std::int64_t tiles = 4;  // rows of a band, in tiles
  const TileConfiguration configuration;
  LeftTiles left[tiles];
  const std::int64_t all = pairs_of(K);
  std::int64_t k = 0;
  do {
    const std::int64_t depth = std::min(depths * side, all - k);
    for (std::int64_t i = 0; i < M; i += tiles * side) {
      const std::int64_t rows = std::min(tiles * side, M - i);
      for (std::int64_t tile = 0; tile * side < rows; ++tile) {
        const std::int64_t row = i + tile * side;
        left[tile].prepare<TransposedA>(std::min(side, M - row), depth,
                                        TransposedA ? a + k * lda + row : a + row * lda + k, lda);
      }
      band(rows, N, depth, left, b.from(k * ldb), ldb, c + i * ldc, ldc, accumulate);
    }
    accumulate = true;
    k += depth;
  } while (k < all);
}

template <bool TransposedA>
void multiply(std::int64_t M, std::int64_t N, std::int64_t K, const BFloat16Pair* a, std::int64_t lda,
              const BFloat16Pair* b, std::int64_t ldb, float* c, std::int64_t ldc, bool accumulate) {
  product<TransposedA, 1>(M, N, K, a, lda, {{b}}, ldb, c, ldc, accumulate);
}
void multiply_parts(std::int64_t M, std::int64_t N, std::int64_t K, const BFloat16Pair* a, std::int64_t lda,
                    const BFloat16Pair* high, const BFloat16Pair* low, std::int64_t ldb, float* c, std::int64_t ldc,
                    bool accumulate) {
  product<false, 2>(M, N, K, a, lda, {{high, low}}, ldb, c, ldc, accumulate);
}

/// Linux lets a process use tile registers only after it has asked.
bool may_use_tiles() {
  constexpr long request = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, request, tile_data) == 0;
}

}  // namespace

const BFloat16Products* amx_bfloat16_products() {
  static const BFloat16Products* const products = []() -> const BFloat16Products* {
    if (!may_use_tiles()) return nullptr;
    static BFloat16Products kernels = *avx512_bfloat16_products();
    kernels.block_rows = 2 * side;
    kernels.splits_float32 = true;
    kernels.multiply = multiply<false>;
    kernels.multiply_parts = multiply_parts;
    kernels.multiply_transposed = multiply<true>;
    kernels.keep = keep_tiles;
    return &kernels;
  }();
  return products;
}

}  // namespace furlong::simd

#else

namespace furlong::simd {
const BFloat16Products* amx_bfloat16_products() { return nullptr; }
}  // namespace furlong::simd

#endif
