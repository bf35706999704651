// Forward of softmax attention with products of bfloat16 operands.
#if defined(FURLONG_OPS_SOFTMAX_ATTENTION_BFLOAT16_FORWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FURLONG_OPS_SOFTMAX_ATTENTION_BFLOAT16_FORWARD_INL_H_
#undef FURLONG_OPS_SOFTMAX_ATTENTION_BFLOAT16_FORWARD_INL_H_
#else
#define FURLONG_OPS_SOFTMAX_ATTENTION_BFLOAT16_FORWARD_INL_H_
#endif

#include "framework/ops/attention/softmax/softmax_attention_bfloat16_tiles-inl.h"

#ifdef FURLONG_SOFTMAX_BFLOAT16
HWY_BEFORE_NAMESPACE();
namespace furlong::ops::HWY_NAMESPACE {

/// A group of blocks of queries of one head, over all keys visible to them.
class BFloat16Forward : public BFloat16Blocks {
 public:
  explicit BFloat16Forward(const SoftmaxAttentionArguments& arguments) : BFloat16Blocks(arguments) {
    Pieces<float> pieces(a_.scratch);
    for (Block& block : blocks_) {
      block.query_t = reinterpret_cast<BFloat16Pair*>(pieces.take(width_k_ / 2 * query_block));
      block.output_t = pieces.take(width_v_ * query_block);
      block.reference = pieces.take(query_block);
      block.sum = pieces.take(query_block);
      block.exact_sum = pieces.take(query_block);
    }
    for (Tile& tile : tiles_) {
      tile.keys = reinterpret_cast<bfloat16*>(pieces.take(key_pairs * width_k_));
      tile.values_t = reinterpret_cast<BFloat16Pair*>(pieces.take(width_v_ * key_pairs));
    }
    values_ = reinterpret_cast<bfloat16*>(pieces.take(key_pairs * width_v_));
    scores_ = pieces.take(key_block * part);
    rows_ = pieces.take(query_block * std::max(ld_k_, ld_v_));
  }

  void run(std::int64_t batch, std::int64_t head, const std::vector<SoftmaxAttentionBlock>& blocks) {
    const HeadRows<bfloat16> keys = head_rows<bfloat16>(a_.key, batch, head / s_.heads_per_kv()),
                             values = head_rows<bfloat16>(a_.value, batch, head / s_.heads_per_kv());
    for (std::size_t i = 0; i < blocks.size(); ++i) load(batch, head, blocks[i], blocks_[i]);
    const simd::KeptRegisters kept(p_);
    for_tiles(
        batch, blocks, std::ssize(tiles_),
        [&](std::int64_t slot, const BFloat16Tile& rows) {
          Tile& tile = tiles_[static_cast<std::size_t>(slot)];
          copy_tile<false>(keys, rows, s_.d_key, width_k_, tile.keys);
          tile.finite = copy_tile<true>(values, rows, s_.d_value, width_v_, values_);
          transpose_tile(values_, width_v_, tile.values_t);
        },
        [&](std::int64_t i, std::int64_t slot, const BFloat16Tile& rows, bool whole) {
          const Tile& tile = tiles_[static_cast<std::size_t>(slot)];
          Block& block = blocks_[static_cast<std::size_t>(i)];
          block.any = true;
          for (std::int64_t first = 0; first < columns_; first += part) {
            const std::int64_t end = std::min(first + part, columns_);
            add(block, tile, first, end, whole);
            if (!tile.finite) add_values_not_finite(block, values, rows, first, end, whole);
          }
        },
        [] {});
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      begin(batch, blocks[i]);
      finish(batch, head, blocks_[i]);
    }
  }

 private:
  /// What the keys so far have added to a block of queries. Weights are 2^(scale · score - reference). The reference is
  /// a maximum of earlier scores: a new maximum replaces it only if it is larger by `slack`, so that weights are at
  /// most 2^slack, and few tiles change it.
  struct Block {
    BFloat16Pair* query_t = nullptr;                                   // [width_k / 2, query_block]
    float* output_t = nullptr;                                         // [width_v, query_block]
    float *reference = nullptr, *sum = nullptr, *exact_sum = nullptr;  // [query_block]; exact: of unrounded weights
    bool any = false;
  };
  static constexpr float slack = 8;

  struct Tile {
    bfloat16* keys = nullptr;          // [key_block, width_k]
    BFloat16Pair* values_t = nullptr;  // [width_v, key_pairs]; elements that are not finite are zeros
    bool finite = true;                // there are none
  };

  void load(std::int64_t batch, std::int64_t head, const SoftmaxAttentionBlock& rows, Block& block) {
    begin(batch, rows);
    load_rows(head_rows<bfloat16>(a_.query, batch, head), first_, n_, s_.d_key, sign_, rows_, ld_k_);
    for (std::int64_t pair = simd::pairs_of(s_.d_key); pair < width_k_ / 2; ++pair)
      std::fill_n(block.query_t + pair * query_block, query_block, BFloat16Pair{0});
    p_.pack_transposed(n_, s_.d_key, rows_, ld_k_, block.query_t, query_block);
    std::fill_n(block.output_t, width_v_ * query_block, 0.0f);
    // Finite, so that the difference of two is not NaN.
    std::fill_n(block.reference, query_block, std::numeric_limits<float>::lowest());
    std::fill_n(block.sum, query_block, 0.0f);
    std::fill_n(block.exact_sum, query_block, 0.0f);
    block.any = false;
  }

  /// Adds the products of a tile and queries [first, end) of a block.
  void add(Block& block, const Tile& tile, std::int64_t first, std::int64_t end, bool whole) {
    p_.multiply(key_block, end - first, width_k_, reinterpret_cast<const BFloat16Pair*>(tile.keys), width_k_ / 2,
                block.query_t + first, query_block, scores_, part, false);
    if (!whole) hide(first, end);
    for (std::int64_t strip = first; strip < end; strip += tile_lanes) {
      float* const column = scores_ + (strip - first);
      a_.log_sum_exp.defined() ? weigh<true>(block, strip, column) : weigh<false>(block, strip, column);
    }
    p_.multiply(width_v_, end - first, key_block, tile.values_t, key_pairs,
                reinterpret_cast<const BFloat16Pair*>(scores_), part, block.output_t + first, query_block, true);
  }

  /// Sets scores of keys that are not visible to -infinity.
  void hide(std::int64_t first, std::int64_t end) {
    const __m512 unseen = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
    for (std::int64_t j = 0; j < key_block; ++j) {
      for (std::int64_t strip = first; strip < end; strip += tile_lanes) {
        if (!all_visible(strip, j))
          _mm512_mask_storeu_ps(scores_ + j * part + strip - first, static_cast<__mmask16>(~visible(strip, j)), unseen);
      }
    }
  }

  /// Replaces a strip's scores, in a column of scores_, by weights rounded to bfloat16 in pairs of neighboring keys
  /// [key_pairs, part], which start where the scores do. Rescales the sums so far where the reference changes.
  template <bool with_exact_sum>
  FURLONG_AVX512_BF16 void weigh(Block& block, std::int64_t strip, float* column) {
    const __m512 scale = _mm512_set1_ps(exponent_scale_), reference = find_reference(block, strip, column);
    const __m512bh ones = (__m512bh)_mm512_set1_epi16(0x3f80);
    __m512 sum = _mm512_loadu_ps(block.sum + strip), exact_even = _mm512_setzero_ps(), exact_odd = exact_even;
#pragma GCC unroll 4
    for (std::int64_t pair = 0; pair < key_pairs; ++pair) {
      const float* const row = column + 2 * pair * part;
      const __m512 even = exp2_scaled(_mm512_fmsub_ps(_mm512_loadu_ps(row), scale, reference)),
                   odd = exp2_scaled(_mm512_fmsub_ps(_mm512_loadu_ps(row + part), scale, reference));
      const __m512i pairs = rounded_pairs(even, odd);
      sum = _mm512_dpbf16_ps(sum, (__m512bh)pairs, ones);
      if constexpr (with_exact_sum) {
        exact_even = _mm512_add_ps(exact_even, even);
        exact_odd = _mm512_add_ps(exact_odd, odd);
      }
      _mm512_storeu_si512(column + pair * part, pairs);
    }
    _mm512_storeu_ps(block.sum + strip, sum);
    if constexpr (with_exact_sum) {
      float* const exact = block.exact_sum + strip;
      _mm512_storeu_ps(exact, _mm512_add_ps(_mm512_loadu_ps(exact), _mm512_add_ps(exact_even, exact_odd)));
    }
  }

  /// Returns the strip's reference for this tile's scores, and rescales the sums so far if it is a new one.
  FURLONG_AVX512_BF16 HWY_INLINE __m512 find_reference(Block& block, std::int64_t strip, const float* column) {
    __m512 most[4];
#pragma GCC unroll 4
    for (std::int64_t i = 0; i < 4; ++i) most[i] = _mm512_loadu_ps(column + i * part);
#pragma GCC unroll 4
    for (std::int64_t j = 4; j < key_block; j += 4) {
#pragma GCC unroll 4
      for (std::int64_t i = 0; i < 4; ++i) most[i] = _mm512_max_ps(most[i], _mm512_loadu_ps(column + (j + i) * part));
    }
    const __m512 maximum =
        _mm512_mul_ps(_mm512_max_ps(_mm512_max_ps(most[0], most[1]), _mm512_max_ps(most[2], most[3])),
                      _mm512_set1_ps(exponent_scale_));
    const __m512 before = _mm512_loadu_ps(block.reference + strip);
    const __mmask16 higher = _mm512_cmp_ps_mask(maximum, _mm512_add_ps(before, _mm512_set1_ps(slack)), _CMP_GT_OQ);
    if (higher == 0) return before;
    const __m512 reference = _mm512_mask_mov_ps(before, higher, maximum);
    rescale(block, strip, _mm512_sub_ps(before, reference));
    _mm512_storeu_ps(block.reference + strip, reference);
    return reference;
  }

  /// Multiplies the strip's sums by 2^exponent, which is exactly 1 for lanes with exponent 0.
  HWY_NOINLINE void rescale(Block& block, std::int64_t strip, __m512 exponent) {
    const hn::Vec<D> shrink = exp2(d_, hn::Vec<D>{exponent});
    const auto multiply = [&](float* row) { hn::StoreU(hn::Mul(hn::LoadU(d_, row), shrink), d_, row); };
    multiply(block.sum + strip);
    multiply(block.exact_sum + strip);
    for (std::int64_t f = 0; f < s_.d_value; ++f) multiply(block.output_t + f * query_block + strip);
  }

  /// Adds the products with values that are not finite, which values_t lacks, for those of the queries
  /// [first, end) to which they are visible.
  void add_values_not_finite(Block& block, const HeadRows<bfloat16>& values, const BFloat16Tile& tile,
                             std::int64_t first, std::int64_t end, bool whole) {
    const auto* const weights = reinterpret_cast<const std::uint16_t*>(scores_);
    for (std::int64_t j = 0; j < tile.n; ++j) {
      if (tile.keep && tile.keep[j] == 0) continue;
      for (std::int64_t f = 0; f < s_.d_value; ++f) {
        const auto value = static_cast<float>(values.data[(tile.first + j) * values.stride + f]);
        if (std::isfinite(value)) continue;
        for (std::int64_t i = first; i < std::min(end, n_); ++i) {
          if (!whole && (visible(i / tile_lanes * tile_lanes, j) >> (i % tile_lanes) & 1) == 0) continue;
          bfloat16 weight;
          std::memcpy(&weight.bits, weights + (j / 2 * part + i - first) * 2 + j % 2, sizeof weight.bits);
          block.output_t[f * query_block + i] += static_cast<float>(weight) * value;
        }
      }
    }
  }

  void finish(std::int64_t batch, std::int64_t head, Block& block) {
    for (std::int64_t i = 0; i < n_; ++i) {
      if (block.sum[i] != 0 || (block.any && !sees_nothing(i))) continue;
      block.sum[i] = block.exact_sum[i] = 1;  // divides an output of zero; its logarithm is 0
      block.reference[i] = -std::numeric_limits<float>::infinity();
    }
    for (std::int64_t strip = 0; strip < columns_; strip += lanes_) {
      const auto inverse = hn::Div(hn::Set(d_, 1.0f), hn::LoadU(d_, block.sum + strip));
      for (std::int64_t f = 0; f < s_.d_value; ++f) {
        float* const row = block.output_t + f * query_block + strip;
        // Adding zero makes a zero positive: its sign could come from a value that is not visible.
        hn::StoreU(hn::Add(hn::Mul(hn::LoadU(d_, row), inverse), hn::Zero(d_)), d_, row);
      }
      hn::StoreU(hn::MulAdd(hn::LoadU(d_, block.reference + strip), hn::Set(d_, static_cast<float>(ln_2)),
                            hn::Log(d_, hn::LoadU(d_, block.exact_sum + strip))),
                 d_, block.exact_sum + strip);
    }
    transpose<float>(s_.d_value, n_, block.output_t, query_block, rows_, ld_v_);
    store_rows<float>(a_.output, false, batch, head, first_, n_, 1.0, rows_, ld_v_);
    if (a_.log_sum_exp.defined())
      std::copy_n(block.exact_sum, n_,
                  a_.log_sum_exp.data<float>() + (batch * s_.n_heads + head) * s_.n_query + first_);
  }

  std::vector<Block> blocks_{static_cast<std::size_t>(a_.group)};
  std::vector<Tile> tiles_{Sizes::bfloat16_forward_tiles};
  bfloat16* values_;  // [key_block, width_v]
  float* scores_;     // [key_block, part]
  float* rows_;
};

}  // namespace furlong::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // FURLONG_SOFTMAX_BFLOAT16
#endif  // per-target include guard
