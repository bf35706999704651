// Softmax attention in bfloat16 with products of bfloat16 operands (framework/simd/bfloat16_products.h): what forward
// and backward share. Compiled for AVX-512 alone; needs a CPU with AVX-512 bf16.
//
// As in float32, tiles are transposed: rows are keys or dimensions of a head, lanes are queries. A tile of keys is
// copied and packed once for a group of several blocks of queries. Tiles lie on a grid that starts at the first
// token of the document, and a tile that a query does not see changes no bit of its sums, so results do not depend on
// the groups.
#if defined(FURLONG_OPS_SOFTMAX_ATTENTION_BFLOAT16_TILES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FURLONG_OPS_SOFTMAX_ATTENTION_BFLOAT16_TILES_INL_H_
#undef FURLONG_OPS_SOFTMAX_ATTENTION_BFLOAT16_TILES_INL_H_
#else
#define FURLONG_OPS_SOFTMAX_ATTENTION_BFLOAT16_TILES_INL_H_
#endif

#include "framework/ops/attention/softmax/softmax_attention_tiles-inl.h"

#undef FURLONG_SOFTMAX_BFLOAT16
#if HWY_TARGET == HWY_AVX3 && defined(__x86_64__) && defined(__GNUC__)
#define FURLONG_SOFTMAX_BFLOAT16 1

#if !defined(__clang__)  // GCC's own header initializes ignored operands with themselves (GCC bug 105593)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>

#include <vector>

#include "framework/simd/transpose_words.h"

#undef FURLONG_AVX512_BF16
#define FURLONG_AVX512_BF16 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")))

HWY_BEFORE_NAMESPACE();
namespace furlong::ops::HWY_NAMESPACE {
using simd::BFloat16Pair;

constexpr std::int64_t tile_lanes = 16;            // queries in a vector
constexpr std::int64_t part = 32;                  // queries whose scores are computed at once, for the L1 cache
constexpr std::int64_t key_pairs = key_block / 2;  // pairs of neighboring keys in a tile

/// 2^x to 2^-22 of itself. NaN stays NaN; 2^-infinity is 0.
FURLONG_AVX512_BF16 inline __m512 exp2_scaled(__m512 x) {
  const __m512 r = _mm512_reduce_ps(x, 1);  // x - floor(x)
  __m512 p = _mm512_set1_ps(0x1.ec320ap-10f);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0x1.26900cp-7f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0x1.c95446p-5f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0x1.ebd5a8p-3f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0x1.62e4f6p-1f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0x1.fffffep-1f));
  return _mm512_scalef_ps(p, x);  // times 2^floor(x)
}

/// Pairs of elements of two vectors, rounded to bfloat16, ties away from zero: two thirds of the time of the
/// instruction that rounds ties to even, and of the one that then interleaves the halves. NaN stays NaN, if its lower
/// half is zero, as is that of each NaN from a bfloat16 number or an operation on numbers.
FURLONG_AVX512_BF16 inline __m512i rounded_pairs(__m512 even, __m512 odd) {
  const __m512i half = _mm512_set1_epi32(0x8000), upper = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  const __m512i low = _mm512_srli_epi32(_mm512_add_epi32(_mm512_castps_si512(even), half), 16);
  const __m512i high = _mm512_add_epi32(_mm512_castps_si512(odd), half);
  return _mm512_ternarylogic_epi32(low, high, upper, 0xf8);  // low | (high & upper)
}

/// Keys [first, first + n) of a sequence, n <= key_block.
struct BFloat16Tile {
  std::int64_t first = 0, n = 0;
  const std::int32_t* keep = nullptr;  // null: all of them
};

/// Overwrites target [key_block, width], row stride `width`, a multiple of 32, with the tile's rows of a head of
/// `columns` elements. Rows that are masked or beyond the tile and columns beyond the head are zeros, and so are
/// elements that are not finite, if `clean`. Returns whether all elements were finite.
template <bool clean>
FURLONG_AVX512_BF16 bool copy_tile(const HeadRows<bfloat16>& rows, const BFloat16Tile& tile, std::int64_t columns,
                                   std::int64_t width, bfloat16* target) {
  const __m512i exponent = _mm512_set1_epi16(0x7f80);
  __mmask32 found = 0;
  for (std::int64_t j = 0; j < key_block; ++j) {
    const bool visible = j < tile.n && (!tile.keep || tile.keep[j] != 0);
    const bfloat16* row = rows.data + (tile.first + j) * rows.stride;
    for (std::int64_t f = 0; f < width; f += 32) {
      const std::int64_t n = visible ? std::clamp<std::int64_t>(columns - f, 0, 32) : 0;
      __m512i x = _mm512_setzero_si512();
      if (n > 0) x = _mm512_maskz_loadu_epi16(static_cast<__mmask32>(0xffffffffu >> (32 - n)), row + f);
      if constexpr (clean) {
        const __mmask32 wild = _mm512_cmpeq_epi16_mask(_mm512_and_si512(x, exponent), exponent);
        x = _mm512_maskz_mov_epi16(~wild, x);
        found |= wild;
      }
      _mm512_storeu_si512(target + j * width + f, x);
    }
  }
  return found == 0;
}

/// Overwrites target [width, key_pairs] with pairs of neighboring keys from source [key_block, width], a multiple of
/// 32.
FURLONG_AVX512_BF16 inline void transpose_tile(const bfloat16* source, std::int64_t width, BFloat16Pair* target) {
  for (std::int64_t f = 0; f < width; f += 32) {
    for (std::int64_t pair = 0; pair < key_pairs; pair += tile_lanes) {
      // Column 4 l + c of low, l and c in 0 .. 3, is dimension f + 8 l + c; that of high is f + 8 l + 4 + c.
      __m512i low[tile_lanes], high[tile_lanes];
#pragma GCC unroll 16
      for (std::int64_t i = 0; i < tile_lanes; ++i) {
        const bfloat16* row = source + 2 * (pair + i) * width + f;
        const __m512i even = _mm512_loadu_si512(row), odd = _mm512_loadu_si512(row + width);
        low[i] = _mm512_unpacklo_epi16(even, odd);
        high[i] = _mm512_unpackhi_epi16(even, odd);
      }
      simd::transpose_words(low);
      simd::transpose_words(high);
#pragma GCC unroll 16
      for (std::int64_t i = 0; i < tile_lanes; ++i) {
        BFloat16Pair* row = target + (f + i / 4 * 8 + i % 4) * key_pairs + pair;
        _mm512_storeu_si512(row, low[i]);
        _mm512_storeu_si512(row + 4 * key_pairs, high[i]);
      }
    }
  }
}

/// Groups of blocks of queries that use a tile of keys one after another.
class BFloat16Blocks : protected QueryBlock<bfloat16> {
 public:
  /// Calls body(blocks), up to `arguments.group` consecutive blocks of one document, for the query blocks [first, end).
  template <class Body>
  static void for_groups(const SoftmaxAttentionArguments& arguments, std::int64_t batch, std::int64_t first,
                         std::int64_t end, const Body& body) {
    std::vector<SoftmaxAttentionBlock> blocks;
    const auto flush = [&] {
      if (!blocks.empty()) body(blocks);
      blocks.clear();
    };
    for (std::int64_t index = first; index < end; ++index) {
      for_query_blocks(arguments, batch, index, [&](const SoftmaxAttentionBlock& block) {
        if (std::ssize(blocks) == arguments.group || (!blocks.empty() && blocks.back().first_key != block.first_key))
          flush();
        blocks.push_back(block);
      });
    }
    flush();
  }

 protected:
  explicit BFloat16Blocks(const SoftmaxAttentionArguments& arguments)
      : QueryBlock<bfloat16>(arguments),
        p_(*arguments.bfloat16),
        width_k_(Sizes::padded_pairs(s_.d_key)),
        width_v_(Sizes::padded_pairs(s_.d_value)),
        sign_(a_.scale < 0 ? -1.0 : 1.0),
        exponent_scale_(static_cast<float>(std::abs(a_.scale) * log2_e)) {}

  /// For up to `chunk` tiles of keys at a time: calls load(slot, tile) for each, slot < chunk, then
  /// step(i, slot, tile, whole) for each block i and each tile that the block sees any of, then end(). `whole`: every
  /// query of the block sees all keys of a full tile; otherwise find_visibility() has been called.
  template <class Load, class Step, class End>
  void for_tiles(std::int64_t batch, const std::vector<SoftmaxAttentionBlock>& blocks, std::int64_t chunk,
                 const Load& load, const Step& step, const End& end_chunk) {
    std::int64_t first = std::numeric_limits<std::int64_t>::max(), end = 0;
    for (const SoftmaxAttentionBlock& block : blocks) {
      begin(batch, block);
      if (first_visible_ >= end_visible_) continue;
      first = std::min(first, first_visible_);
      end = std::max(end, end_visible_);
    }
    if (first >= end) return;
    const std::int64_t grid = blocks.front().first_key;
    first = grid + (first - grid) / key_block * key_block;
    while (first < end) {
      tiles_.clear();
      for (; first < end && std::ssize(tiles_) < chunk; first += key_block) {
        BFloat16Tile tile{first, std::min(key_block, end - first), nullptr};
        if (kept_) {
          const std::int64_t kept = std::count_if(kept_ + first, kept_ + first + tile.n, [](auto k) { return k != 0; });
          if (kept == 0) continue;
          if (kept < tile.n) tile.keep = kept_ + first;
        }
        load(std::ssize(tiles_), tile);
        tiles_.push_back(tile);
      }
      if (tiles_.empty()) return;
      for (std::size_t i = 0; i < blocks.size(); ++i) {
        begin(batch, blocks[i]);
        for (std::size_t slot = 0; slot < tiles_.size(); ++slot) {
          const BFloat16Tile& tile = tiles_[slot];
          if (end_visible_ <= tile.first || tile.first + tile.n <= first_visible_) continue;
          const bool whole = tile.n == key_block && !tile.keep && tile.first >= position_ + n_ - 1 - a_.behind &&
                             tile.first + tile.n <= position_ + a_.ahead + 1;
          if (!whole) find_visibility(tile.first, tile.n, tile.keep);
          step(static_cast<std::int64_t>(i), static_cast<std::int64_t>(slot), tile, whole);
        }
      }
      end_chunk();
    }
  }

  /// The lanes of the strip whose queries attend to key j of the tile.
  __mmask16 visible(std::int64_t strip, std::int64_t j) const {
    const auto below = [&](std::int64_t row) {
      return (1u << static_cast<unsigned>(std::clamp<std::int64_t>(row - strip, 0, tile_lanes))) - 1u;
    };
    return static_cast<__mmask16>(below(end_visible_row_[static_cast<std::size_t>(j)]) &
                                  ~below(first_visible_row_[static_cast<std::size_t>(j)]));
  }

  const simd::BFloat16Products& p_;
  const std::int64_t width_k_, width_v_;  // of heads, padded to whole tiles of pairs
  const double sign_;                     // of the scale: a factor of the query in scores
  const float exponent_scale_;            // of scores: weights are powers of two

 private:
  std::vector<BFloat16Tile> tiles_;
};

}  // namespace furlong::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // AVX-512
#endif  // per-target include guard
