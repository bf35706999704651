#pragma once
// Exact softmax attention, in tiles (Rabe & Staats 2021, "Self-attention does not need O(n²) memory"; Dao et al. 2022,
// "FlashAttention"):
//   output_i = Σ_j p_ij v_j,  p_ij = exp(scale q_i·k_j) / Σ_j exp(scale q_i·k_j),  over the keys j that query i sees.
// Each query keeps the maximum of the scores that it has seen, so nothing overflows; the n × n weights exist one tile
// at a time, and backward makes them again from the log-sum-exp of each row. Extra memory is a few tiles a thread, and
// in backward n_key × (d_key + d_value) a task. Tiles that no query sees are passed over: a window costs n × window,
// packed documents Σ length².
#include "framework/autodiff/tape.h"
#include "framework/ops/attention/attention_mask.h"
#include "framework/ops/attention/attention_shape.h"

namespace furlong::ops {

struct SoftmaxAttentionOptions {
  std::int64_t n_heads = 1;
  std::int64_t n_kv_heads = 1;  ///< query head h reads key-value head h / (n_heads / n_kv_heads)
  bool causal = true;  ///< query i reads keys 0 .. first_query_position + i; the bits of its output depend on no others
  /// Position of query 0 among the keys: how many tokens came before, when key and value come out of a cache. Used when
  /// causal or with a window; 0 with documents.
  std::int64_t first_query_position = 0;
  double scale = 0;  ///< of the scores; 0 means d_key^(-1/2)
  /// The query at position p sees the keys j > p - window (j <= p) when causal, |p - j| < window when not; 0: all. When
  /// not causal, queries have to lie among the keys: as many of them as keys, or a first_query_position.
  std::int64_t window = 0;
};

/// query [batch, n, n_heads·d_key], key [batch, n_key, n_kv_heads·d_key], value [batch, n_key, n_kv_heads·d_value]:
/// views with contiguous rows (column ranges of one tensor) are welcome. Returns [batch, n, n_heads·d_value]. Throws
/// ContractError on shapes that do not fit. Results are the same, bit for bit, for any number of threads. Masked keys
/// may hold anything, NaN too. A document's output is bit for bit what it is alone, and so are its gradients where
/// batch × n_kv_heads is at least 8 (below, on the CPU, d_key and d_value differ by the order of a sum). On GPUs heads
/// are at most 256 wide (else UserError), bfloat16 runs on tensor cores, which take weights as bfloat16 too, and
/// float32 does not.
Variable softmax_attention(Tape& tape, const Variable& query, const Variable& key, const Variable& value,
                           const SoftmaxAttentionOptions& options, const AttentionMask& mask = {});

/// Forward alone, on the four-dimensional views of AttentionShape; `output` is written. `log_sum_exp`, where defined,
/// receives log Σ_j exp(scale q_i·k_j), -infinity for a query that sees nothing, as [batch, n_heads, n_query],
/// contiguous, in accumulate_dtype of the inputs. Head counts must agree with `options`. With a cache: key and value
/// narrowed to the tokens so far, first_query_position the number of tokens before the first query.
void softmax_attention_forward(const Stream& stream, const Tensor& query, const Tensor& key, const Tensor& value,
                               const Tensor& output, const Tensor& log_sum_exp, const SoftmaxAttentionOptions& options,
                               const AttentionMask& mask = {});

/// Gradients with respect to query, key and value, each overwritten, added to or skipped as its target says;
/// four-dimensional views. `output` and `log_sum_exp` are what forward gave under the same options and mask.
void softmax_attention_backward(const Stream& stream, const Tensor& query, const Tensor& key, const Tensor& value,
                                const Tensor& output, const Tensor& log_sum_exp, const Tensor& d_output,
                                const GradientTarget& d_query, const GradientTarget& d_key,
                                const GradientTarget& d_value, const SoftmaxAttentionOptions& options,
                                const AttentionMask& mask = {});

}  // namespace furlong::ops
