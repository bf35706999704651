#pragma once
// Exact softmax attention, in tiles (Rabe & Staats 2021, "Self-attention does not need O(n²) memory"; Dao et al. 2022,
// "FlashAttention"):
//   output_i = Σ_j p_ij v_j,  p_ij = exp(scale q_i·k_j) / Σ_j exp(scale q_i·k_j),  over the keys j visible to query i.
// Each query stores the running maximum of its scores, so nothing overflows. The n × n weights exist one tile at a
// time; backward recomputes them from the log-sum-exp of each row. Extra memory is a few tiles per thread, and in
// backward n_key × (d_key + d_value) per task. Tiles without visible pairs are skipped: a window costs n × window,
// packed documents Σ length².
#include "framework/autodiff/tape.h"
#include "framework/ops/attention/attention_mask.h"
#include "framework/ops/attention/attention_shape.h"

namespace furlong::ops {

struct SoftmaxAttentionOptions {
  std::int64_t n_heads = 1;
  std::int64_t n_kv_heads = 1;  ///< query head h reads key-value head h / (n_heads / n_kv_heads)
  bool causal = true;  ///< query i reads keys 0 .. first_query_position + i; other keys change no bit of its output
  /// Position of query 0 among the keys: the number of earlier tokens if key and value come from a cache. Used if
  /// causal or with a window; must be 0 with a document mask.
  std::int64_t first_query_position = 0;
  double scale = 0;  ///< factor of the scores; 0: d_key^(-1/2)
  /// Sliding window: the query at position p attends to keys p - window < j <= p (causal) or |p - j| < window (not
  /// causal). 0: all keys. If not causal, a window needs n_query = n_key or a positive first_query_position.
  std::int64_t window = 0;
};

/// query [batch, n, n_heads·d_key], key [batch, n_key, n_kv_heads·d_key], value [batch, n_key, n_kv_heads·d_value]:
/// views with contiguous rows (column ranges of one tensor) are valid. Returns [batch, n, n_heads·d_value]. Throws
/// ContractError if shapes do not match.
///
/// Results are bitwise equal for any number of threads. Masked keys may hold any value, including NaN. A document's
/// output is bitwise equal to that of the document alone. So are its gradients if batch × n_kv_heads is at least 8;
/// below 8, on the CPU, d_key and d_value differ by the order of a sum.
///
/// On GPUs heads are at most 256 wide; wider heads throw UserError. bfloat16 uses tensor cores and rounds the weights
/// to bfloat16; float32 does not use tensor cores.
Variable softmax_attention(Tape& tape, const Variable& query, const Variable& key, const Variable& value,
                           const SoftmaxAttentionOptions& options, const AttentionMask& mask = {});

/// Forward only, on the four-dimensional views of AttentionShape. Writes `output`. `log_sum_exp`, if defined, receives
/// log Σ_j exp(scale q_i·k_j), or -infinity for a query without visible keys: [batch, n_heads, n_query], contiguous,
/// accumulate_dtype of the inputs. Head counts must match `options`. With a cache, narrow key and value to the tokens
/// so far and set first_query_position to the number of tokens before the first query.
void softmax_attention_forward(const Stream& stream, const Tensor& query, const Tensor& key, const Tensor& value,
                               const Tensor& output, const Tensor& log_sum_exp, const SoftmaxAttentionOptions& options,
                               const AttentionMask& mask = {});

/// Gradients with respect to query, key and value, on four-dimensional views. Each target's mode says whether it is
/// overwritten, added to or skipped. `output` and `log_sum_exp` are the results of forward with the same options and
/// mask.
void softmax_attention_backward(const Stream& stream, const Tensor& query, const Tensor& key, const Tensor& value,
                                const Tensor& output, const Tensor& log_sum_exp, const Tensor& d_output,
                                const GradientTarget& d_query, const GradientTarget& d_key,
                                const GradientTarget& d_value, const SoftmaxAttentionOptions& options,
                                const AttentionMask& mask = {});

}  // namespace furlong::ops
