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
      block.query = take_pairs(query_block / 2 * ld_k_);
      block.d_output_t = take_pairs(width_v_ / 2 * query_block);
      block.d_output = take_pairs(query_block / 2 * ld_v_);
      block.d_query_t = pieces.take(width_k_ * query_block);
      block.log_sum_exp = pieces.take(query_block);
      block.row_dots = pieces.take(query_block);
    }
    keys_ = take_pairs(key_block * width_k_ / 2);
    keys_t_ = take_pairs(width_k_ * key_pairs);
    values_ = take_pairs(key_block * width_v_ / 2);
    weights_ = pieces.take(key_block * query_block);
    d_scores_ = pieces.take(key_block * query_block);
    d_score_pairs_ = take_pairs(key_pairs * query_block);
    rows_ = pieces.take(query_block * std::max(ld_k_, ld_v_));
    output_ = pieces.take(query_block * ld_v_);
  }

  void run(std::int64_t batch, std::int64_t kv_head, std::int64_t first_block, std::int64_t end_block) {
    if (g_.sums.defined()) std::fill_n(key_sums_, Sizes::sums_elements(s_), 0.0f);
    for (std::int64_t head = kv_head * s_.heads_per_kv(); head < (kv_head + 1) * s_.heads_per_kv(); ++head) {
      for_groups(a_, batch, first_block, end_block, std::ssize(blocks_),
                 [&](const std::vector<SoftmaxAttentionBlock>& blocks) { run_group(batch, head, blocks); });
    }
  }

 private:
  struct Block {
    BFloat16Pair *query_t, *d_output_t;  // [width / 2, query_block]; the query has the scale's sign
    BFloat16Pair *query, *d_output;      // [query_block / 2, width]: pairs of neighboring queries
    float* d_query_t;                    // [width_k, query_block], queries in the order of d_score_pairs_
    float *log_sum_exp, *row_dots;       // [query_block]; to base 2
  };

  void run_group(std::int64_t batch, std::int64_t head, const std::vector<SoftmaxAttentionBlock>& blocks) {
    const HeadRows<bfloat16> keys = head_rows<bfloat16>(a_.key, batch, head / s_.heads_per_kv()),
                             values = head_rows<bfloat16>(a_.value, batch, head / s_.heads_per_kv());
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      begin(batch, blocks[i]);
      load(batch, head, blocks_[i]);
    }
    for_tiles(
        batch, blocks,
        [&](const BFloat16Tile& tile) {
          auto* const rows = reinterpret_cast<bfloat16*>(keys_);
          copy_tile<false>(keys, tile, s_.d_key, width_k_, rows);
          if (g_.d_query.wanted()) transpose_tile(rows, width_k_, keys_t_);
          if (scores_wanted_)
            copy_tile<false>(values, tile, s_.d_value, width_v_, reinterpret_cast<bfloat16*>(values_));
        },
        [&](std::int64_t i, const BFloat16Tile& tile, bool whole) {
          add(blocks_[static_cast<std::size_t>(i)], tile, whole);
        });
    if (!g_.d_query.wanted()) return;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      begin(batch, blocks[i]);
      store_d_query(batch, head, blocks_[i]);
    }
  }

  void load(std::int64_t batch, std::int64_t head, Block& block) {
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
                  block.query);
    load_and_pack(head_rows<bfloat16>(g_.d_output, batch, head), s_.d_value, ld_v_, width_v_, 1.0, block.d_output_t,
                  block.d_output);
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

  void add(Block& block, const BFloat16Tile& tile, bool whole) {
    const std::int64_t columns = (n_ + 2 * tile_lanes - 1) / (2 * tile_lanes) * (2 * tile_lanes);
    p_.multiply(key_block, columns, width_k_, keys_, width_k_ / 2, block.query_t, query_block, weights_, query_block,
                false);
    if (scores_wanted_) {
      p_.multiply(key_block, columns, width_v_, values_, width_v_ / 2, block.d_output_t, query_block, d_scores_,
                  query_block, false);
    }
    whole ? weigh<false>(block, columns) : weigh<true>(block, columns);
    const auto pairs = [](const float* start) { return reinterpret_cast<const BFloat16Pair*>(start); };
    if (g_.d_value.wanted()) {
      p_.multiply(tile.n, ld_v_, columns, pairs(weights_), query_block, block.d_output, ld_v_,
                  value_sums_ + tile.first * ld_v_, ld_v_, true);
    }
    if (g_.d_key.wanted()) {
      p_.multiply(tile.n, ld_k_, columns, pairs(d_scores_), query_block, block.query, ld_k_,
                  key_sums_ + tile.first * ld_k_, ld_k_, true);
    }
    if (g_.d_query.wanted()) {
      p_.multiply(width_k_, columns, key_block, keys_t_, key_pairs, d_score_pairs_, query_block, block.d_query_t,
                  query_block, true);
    }
  }

  /// Replaces scores by weights and gradients of weights by gradients of scores, both rounded to bfloat16: rows of
  /// pairs of neighboring queries, which start where the rows of floats do. d_score_pairs_ receives the gradients in
  /// pairs of neighboring keys; of each 32 queries, column 4 l + c is query 8 l + c and column 16 + 4 l + c is query
  /// 8 l + 4 + c, for l and c in 0 .. 3.
  template <bool masked>
  FURLONG_AVX512_BF16 void weigh(const Block& block, std::int64_t columns) {
    const __m512 scale = _mm512_set1_ps(exponent_scale_);
    for (std::int64_t strip = 0; strip < columns; strip += 2 * tile_lanes) {
      const __m512 log_sum_exp[2] = {_mm512_loadu_ps(block.log_sum_exp + strip),
                                     _mm512_loadu_ps(block.log_sum_exp + strip + tile_lanes)};
      const __m512 row_dots[2] = {_mm512_loadu_ps(block.row_dots + strip),
                                  _mm512_loadu_ps(block.row_dots + strip + tile_lanes)};
      for (std::int64_t pair = 0; pair < key_pairs; ++pair) {
        __m512i d_score_rows[2];
#pragma GCC unroll 2
        for (std::int64_t odd = 0; odd < 2; ++odd) {
          const std::int64_t j = 2 * pair + odd;
          float* const weight_row = weights_ + j * query_block;
          float* const d_score_row = d_scores_ + j * query_block;
          __m512 weight[2], d_score[2];
#pragma GCC unroll 2
          for (std::int64_t half = 0; half < 2; ++half) {
            const std::int64_t at = strip + half * tile_lanes;
            weight[half] = exp2_scaled(_mm512_fmsub_ps(_mm512_loadu_ps(weight_row + at), scale, log_sum_exp[half]));
            d_score[half] =
                _mm512_mul_ps(weight[half], _mm512_sub_ps(_mm512_loadu_ps(d_score_row + at), row_dots[half]));
            if constexpr (masked) {
              const __mmask16 is_visible = visible(at, j);
              weight[half] = _mm512_maskz_mov_ps(is_visible, weight[half]);
              d_score[half] = _mm512_maskz_mov_ps(is_visible, d_score[half]);
            }
          }
          _mm512_storeu_si512(weight_row + strip / 2, (__m512i)_mm512_cvtne2ps_pbh(weight[1], weight[0]));
          d_score_rows[odd] = (__m512i)_mm512_cvtne2ps_pbh(d_score[1], d_score[0]);
          _mm512_storeu_si512(d_score_row + strip / 2, d_score_rows[odd]);
        }
        BFloat16Pair* const pairs = d_score_pairs_ + pair * query_block + strip;
        _mm512_storeu_si512(pairs, _mm512_unpacklo_epi16(d_score_rows[0], d_score_rows[1]));
        _mm512_storeu_si512(pairs + tile_lanes, _mm512_unpackhi_epi16(d_score_rows[0], d_score_rows[1]));
      }
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
  std::vector<Block> blocks_{static_cast<std::size_t>(Sizes::bfloat16_backward_blocks(s_))};
  BFloat16Pair *keys_, *values_;  // [key_block, width / 2]
  BFloat16Pair* keys_t_;          // [width_k, key_pairs]
  float *weights_, *d_scores_;    // [key_block, query_block], then pairs [key_block, query_block / 2] in the same rows
  BFloat16Pair* d_score_pairs_;   // [key_pairs, query_block]
  float *rows_, *output_;
};

}  // namespace furlong::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // FURLONG_SOFTMAX_BFLOAT16
#endif  // per-target include guard
