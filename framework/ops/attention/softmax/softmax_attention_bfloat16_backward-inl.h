// Backward of softmax attention with products of bfloat16 operands.
#if defined(FURLONG_OPS_SOFTMAX_ATTENTION_BFLOAT16_BACKWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FURLONG_OPS_SOFTMAX_ATTENTION_BFLOAT16_BACKWARD_INL_H_
#undef FURLONG_OPS_SOFTMAX_ATTENTION_BFLOAT16_BACKWARD_INL_H_
#else
#define FURLONG_OPS_SOFTMAX_ATTENTION_BFLOAT16_BACKWARD_INL_H_
#endif

#include "framework/ops/attention/softmax/softmax_attention_bfloat16_tiles-inl.h"

#ifdef FURLONG_SOFTMAX_BFLOAT16
HWY_BEFORE_NAMESPACE();
namespace furlong::ops::HWY_NAMESPACE {

/// Gradients from one segment of the queries of all heads that share a key-value head, as BackwardSegment:
///   dV = Pᵀ dO,  dS = P ∘ (dO Vᵀ - rowsum(dO ∘ O)),  dQ = scale dS K,  dK = scale dSᵀ Q.
class BFloat16Backward : public BFloat16Blocks {
 public:
  BFloat16Backward(const SoftmaxAttentionArguments& arguments, const SoftmaxAttentionGradients& gradients, float* sums)
      : BFloat16Blocks(arguments),
        g_(gradients),
        scores_wanted_(g_.d_query.wanted() || g_.d_key.wanted()),
        key_sums_(sums),
        value_sums_(sums ? sums + s_.n_key * ld_k_ : nullptr) {
    Pieces<float> pieces(a_.scratch);
    const auto take_pairs = [&](std::int64_t pairs) { return reinterpret_cast<BFloat16Pair*>(pieces.take(pairs)); };
    for (Block& block : blocks_) {
      block.query_t = take_pairs(width_k_ / 2 * query_block);
      block.d_output_t = take_pairs(width_v_ / 2 * query_block);
      block.d_query_t = pieces.take(width_k_ * query_block);
      block.log_sum_exp = pieces.take(query_block);
      block.row_dots = pieces.take(query_block);
    }
    query_ = take_pairs(query_pairs_ * ld_k_);
    d_output_ = take_pairs(query_pairs_ * ld_v_);
    weight_pairs_ = take_pairs(key_block * query_pairs_);
    d_score_pairs_ = take_pairs(key_block * query_pairs_);
    keys_ = take_pairs(key_block * width_k_ / 2);
    keys_t_ = take_pairs(width_k_ * key_pairs);
    values_ = take_pairs(key_block * width_v_ / 2);
    scores_ = pieces.take(key_block * part);
    d_weights_ = pieces.take(key_block * part);
    d_scores_t_ = take_pairs(key_pairs * part);
    rows_ = pieces.take(query_block * std::max(ld_k_, ld_v_));
    output_ = pieces.take(query_block * ld_v_);
  }

  void run(std::int64_t batch, std::int64_t kv_head, std::int64_t first_block, std::int64_t end_block) {
    if (g_.sums.defined()) std::fill_n(key_sums_, Sizes::sums_elements(s_), 0.0f);
    for (std::int64_t head = kv_head * s_.heads_per_kv(); head < (kv_head + 1) * s_.heads_per_kv(); ++head) {
      for_groups(a_, batch, first_block, end_block,
                 [&](const std::vector<SoftmaxAttentionBlock>& blocks) { run_group(batch, head, blocks); });
    }
  }

 private:
  struct Block {
    BFloat16Pair *query_t, *d_output_t;  // [width / 2, query_block]; the query has the scale's sign
    float* d_query_t;                    // [width_k, query_block], queries in the order of d_scores_t_
    float *log_sum_exp, *row_dots;       // [query_block]; to base 2
  };

  void run_group(std::int64_t batch, std::int64_t head, const std::vector<SoftmaxAttentionBlock>& blocks) {
    const HeadRows<bfloat16> keys = head_rows<bfloat16>(a_.key, batch, head / s_.heads_per_kv()),
                             values = head_rows<bfloat16>(a_.value, batch, head / s_.heads_per_kv());
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      begin(batch, blocks[i]);
      load(batch, head, static_cast<std::int64_t>(i));
    }
    const simd::KeptRegisters kept(p_);
    BFloat16Tile tile;
    std::int64_t first = 0, end = 0;  // queries of the group that see any of the tile
    for_tiles(
        batch, blocks, 1,
        [&](std::int64_t, const BFloat16Tile& next) {
          tile = next;
          end = 0;
          load_tile(keys, values, tile);
        },
        [&](std::int64_t i, std::int64_t, const BFloat16Tile&, bool whole) {
          if (end == 0) first = i * query_block;
          end = i * query_block + whole_parts();
          add(i, whole);
        },
        [&] {
          if (end > 0) add_to_keys(tile, first, end);
        });
    if (!g_.d_query.wanted()) return;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      begin(batch, blocks[i]);
      store_d_query(batch, head, blocks_[i]);
    }
  }

  void load_tile(const HeadRows<bfloat16>& keys, const HeadRows<bfloat16>& values, const BFloat16Tile& tile) {
    auto* const rows = reinterpret_cast<bfloat16*>(keys_);
    copy_tile<false>(keys, tile, s_.d_key, width_k_, rows);
    if (g_.d_query.wanted()) transpose_tile(rows, width_k_, keys_t_);
    if (scores_wanted_) copy_tile<false>(values, tile, s_.d_value, width_v_, reinterpret_cast<bfloat16*>(values_));
  }

  /// Loads block i of the group.
  void load(std::int64_t batch, std::int64_t head, std::int64_t index) {
    Block& block = blocks_[static_cast<std::size_t>(index)];
    const std::int64_t first_pair = index * query_block / 2;
    const auto load_and_pack = [&](const HeadRows<bfloat16>& source, std::int64_t width, std::int64_t ld,
                                   std::int64_t wide, double sign, BFloat16Pair* transposed, BFloat16Pair* pairs) {
      load_rows(source, first_, n_, width, 1.0, rows_, ld);
      for (std::int64_t i = 0; i < query_block; ++i)
        std::fill(rows_ + i * ld + (i < n_ ? width : 0), rows_ + (i + 1) * ld, 0.0f);
      p_.pack_row_pairs(0, query_block, ld, rows_, ld, pairs, ld);
      if (sign < 0) std::transform(rows_, rows_ + query_block * ld, rows_, std::negate<>());
      std::fill_n(transposed, wide / 2 * query_block, BFloat16Pair{0});
      p_.pack_transposed(query_block, width, rows_, ld, transposed, query_block);
    };
    load_and_pack(head_rows<bfloat16>(a_.query, batch, head), s_.d_key, ld_k_, width_k_, sign_, block.query_t,
                  query_ + first_pair * ld_k_);
    load_and_pack(head_rows<bfloat16>(g_.d_output, batch, head), s_.d_value, ld_v_, width_v_, 1.0, block.d_output_t,
                  d_output_ + first_pair * ld_v_);
    load_rows(head_rows<bfloat16>(a_.output, batch, head), first_, n_, s_.d_value, 1.0, output_, ld_v_);
    if (g_.d_query.wanted()) std::fill_n(block.d_query_t, width_k_ * query_block, 0.0f);
    const float* log_sum_exp = a_.log_sum_exp.data<float>() + (batch * s_.n_heads + head) * s_.n_query + first_;
    for (std::int64_t i = 0; i < query_block; ++i) {
      // Queries beyond the end of a last block have weight 2^-inf = 0 for every key. A query without visible keys gets
      // zero weights from its tiles' masks.
      block.log_sum_exp[i] =
          i < n_ ? log_sum_exp[i] * static_cast<float>(log2_e) : std::numeric_limits<float>::infinity();
      block.row_dots[i] = i < n_ ? row_dot(rows_ + i * ld_v_, output_ + i * ld_v_) : 0.0f;
    }
  }

  /// The block's queries, rounded up to whole parts.
  std::int64_t whole_parts() const { return (n_ + part - 1) / part * part; }

  /// Computes the weights and gradients of scores of block i and the tile, and adds to the gradient of the queries.
  void add(std::int64_t i, bool whole) {
    const Block& block = blocks_[static_cast<std::size_t>(i)];
    for (std::int64_t first = 0; first < whole_parts(); first += part) {
      p_.multiply(key_block, part, width_k_, keys_, width_k_ / 2, block.query_t + first, query_block, scores_, part,
                  false);
      if (scores_wanted_) {
        p_.multiply(key_block, part, width_v_, values_, width_v_ / 2, block.d_output_t + first, query_block, d_weights_,
                    part, false);
      }
      const std::int64_t pair = (i * query_block + first) / 2;
      whole ? weigh<false>(block, first, pair) : weigh<true>(block, first, pair);
      if (g_.d_query.wanted()) {
        p_.multiply(width_k_, part, key_block, keys_t_, key_pairs, d_scores_t_, part, block.d_query_t + first,
                    query_block, true);
      }
    }
  }

  /// Adds the products of the tile's weights and gradients of scores with queries [first, end) of the group.
  void add_to_keys(const BFloat16Tile& tile, std::int64_t first, std::int64_t end) {
    const std::int64_t pair = first / 2;
    if (g_.d_value.wanted()) {
      p_.multiply(tile.n, ld_v_, end - first, weight_pairs_ + pair, query_pairs_, d_output_ + pair * ld_v_, ld_v_,
                  value_sums_ + tile.first * ld_v_, ld_v_, true);
    }
    if (g_.d_key.wanted()) {
      p_.multiply(tile.n, ld_k_, end - first, d_score_pairs_ + pair, query_pairs_, query_ + pair * ld_k_, ld_k_,
                  key_sums_ + tile.first * ld_k_, ld_k_, true);
    }
  }

  /// Turns the scores of queries [first, first + part) of the block into weights, and gradients of weights into
  /// gradients of scores, both rounded to bfloat16: rows of pairs of neighboring queries, from column `pair` on.
  /// d_scores_t_ receives the gradients in pairs of neighboring keys; column 4 l + c is query 8 l + c, and column 16 +
  /// 4 l + c is query 8 l + 4 + c, for l and c in 0 .. 3.
  template <bool masked>
  FURLONG_AVX512_BF16 void weigh(const Block& block, std::int64_t first, std::int64_t pair) {
    const __m512 scale = _mm512_set1_ps(exponent_scale_);
    const auto load_two = [](const float* row) FURLONG_AVX512_BF16 {
      return std::array{_mm512_loadu_ps(row), _mm512_loadu_ps(row + tile_lanes)};
    };
    const auto log_sum_exp = load_two(block.log_sum_exp + first), row_dots = load_two(block.row_dots + first);
    for (std::int64_t j = 0; j < key_block; j += 2) {
      __m512i d_score_rows[2];
#pragma GCC unroll 2
      for (std::int64_t odd = 0; odd < 2; ++odd) {
        const std::int64_t row = j + odd;
        __m512 weight[2], d_score[2];
#pragma GCC unroll 2
        for (std::int64_t half = 0; half < 2; ++half) {
          const std::int64_t at = row * part + half * tile_lanes;
          weight[half] = exp2_scaled(_mm512_fmsub_ps(_mm512_loadu_ps(scores_ + at), scale, log_sum_exp[half]));
          d_score[half] = _mm512_mul_ps(weight[half], _mm512_sub_ps(_mm512_loadu_ps(d_weights_ + at), row_dots[half]));
          if constexpr (masked) {
            const __mmask16 is_visible = visible(first + half * tile_lanes, row);
            weight[half] = _mm512_maskz_mov_ps(is_visible, weight[half]);
            d_score[half] = _mm512_maskz_mov_ps(is_visible, d_score[half]);
          }
        }
        _mm512_storeu_si512(weight_pairs_ + row * query_pairs_ + pair,
                            (__m512i)_mm512_cvtne2ps_pbh(weight[1], weight[0]));
        d_score_rows[odd] = (__m512i)_mm512_cvtne2ps_pbh(d_score[1], d_score[0]);
        _mm512_storeu_si512(d_score_pairs_ + row * query_pairs_ + pair, d_score_rows[odd]);
      }
      BFloat16Pair* const pairs = d_scores_t_ + j / 2 * part;
      _mm512_storeu_si512(pairs, _mm512_unpacklo_epi16(d_score_rows[0], d_score_rows[1]));
      _mm512_storeu_si512(pairs + tile_lanes, _mm512_unpackhi_epi16(d_score_rows[0], d_score_rows[1]));
    }
  }

  void store_d_query(std::int64_t batch, std::int64_t head, const Block& block) {
    transpose<float>(s_.d_key, query_block, block.d_query_t, query_block, rows_, ld_k_);
    for (std::int64_t i = 0; i < n_; i += 4) {
      const std::int64_t column = i / 32 * 32 + (i / 4 % 2 == 0 ? 0 : 16) + i % 32 / 8 * 4;
      store_rows<float>(g_.d_query.tensor, g_.d_query.accumulates(), batch, head, first_ + i,
                        std::min<std::int64_t>(4, n_ - i), a_.scale, rows_ + column * ld_k_, ld_k_);
    }
  }

  const SoftmaxAttentionGradients& g_;
  const bool scores_wanted_;
  float *const key_sums_, *const value_sums_;
  std::vector<Block> blocks_{static_cast<std::size_t>(a_.group)};
  const std::int64_t query_pairs_ = a_.group * query_block / 2;  // pairs of neighboring queries in a group
  BFloat16Pair *query_, *d_output_;                              // [query_pairs, ld]
  BFloat16Pair *weight_pairs_, *d_score_pairs_;                  // [key_block, query_pairs]
  BFloat16Pair *keys_, *values_;                                 // [key_block, width / 2]
  BFloat16Pair* keys_t_;                                         // [width_k, key_pairs]
  float *scores_, *d_weights_;                                   // [key_block, part]
  BFloat16Pair* d_scores_t_;                                     // [key_pairs, part]
  float *rows_, *output_;
};

}  // namespace furlong::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // FURLONG_SOFTMAX_BFLOAT16
#endif  // per-target include guard
