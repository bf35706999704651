#pragma once
// Linear attention with any feature map φ (Katharopoulos et al. 2020, "Transformers are RNNs"; Choromanski et al. 2021,
// "Rethinking Attention with Performers"), without an epsilon in features or denominators:
//   output_i = Σ_j w_ij v_j / Σ_j w_ij,  w_ij = φ(q_i)·φ(k_j), over the keys j visible to query i.
//
// Numerics (docs/internals/numerics.md). Positive features are handled as logarithms. Each query row subtracts its own
// maximum. The state stores, per feature, a running maximum over the keys of earlier chunks. Inside a chunk a pair's
// weight is computed from a small product and both rows' maxima. Both parts are combined under one maximum per query.
// So nothing overflows, the denominator is at least 1, and a later token does not change a bit of an earlier output.
// Features that can be negative have one logarithm per row, and the state stores a running maximum of those.
//
// Memory. Features are computed tile by tile, or on GPUs in spans of limited size. Neither forward nor backward stores
// an n × m tensor; the state is stored once per head.
//
// Rotary positions in the numerator (Su et al. 2021, RoFormer, equation 19): values are weighted by
// R_i φ(q_i) · R_j φ(k_j), and the denominator stays Σ_j φ(q_i)·φ(k_j), which no rotation can make negative. A row's
// weights then need not sum to 1.
#include <string>
#include <vector>

#include "framework/autodiff/tape.h"
#include "framework/ops/attention/attention_mask.h"
#include "framework/ops/attention/feature_maps/feature_map.h"

namespace furlong::ops {

/// What each output row is divided by.
enum class Normalizer : std::uint8_t {
  sum,  ///< Σ_j w_ij; if it is zero or lost in rounding, output and gradient are zero
  rms   ///< `none` in configs: the root mean square of the row itself instead of a sum, a norm of each head's output
};

/// How GPUs compute linear attention, for tests and benchmarks. The settings change results only by rounding.
struct LinearAttentionGpuSettings {
  bool composed_kernels = false;  ///< uses the composed kernels even if the fused kernels support the call
  /// Number of segments of each head's sequence. Fused kernels: at most, 0: as many as fill the device. Composed
  /// kernels: at least; they compute one after another.
  std::int64_t segments = 0;
  /// Limit of the composed kernels' scratch, in bytes. A segment has at least one chunk.
  std::int64_t scratch_bytes = std::int64_t{1} << 29;
};

struct LinearAttentionOptions {
  std::int64_t n_heads = 1;
  std::int64_t n_kv_heads = 1;  ///< query head h reads key-value head h / (n_heads / n_kv_heads)
  FeatureMap feature_map = FeatureMap::favor_positive;
  FeatureMapOptions map_options{};
  bool causal = true;
  std::int64_t chunk_size = 64;  ///< tokens per tile; changes speed, and results only by rounding
  /// Sliding window: query i attends to keys with i - j < window (causal) or |i - j| < window (not causal). 0: all
  /// keys. Costs n × window × m.
  std::int64_t window = 0;
  /// Windowed hybrid: keys with i - j < softmax_window (causal) or |i - j| < softmax_window (not causal) have the
  /// weight exp(q·k/√d + gate_h) instead of φ(q)·φ(k). Cannot be combined with `window`.
  std::int64_t softmax_window = 0;
  Normalizer normalizer = Normalizer::sum;
  /// Rotates the feature pair (f, f + ⌊m/2⌋) of queries and keys, in the numerator only. The angle is the token's
  /// position in its document times rotary_base^(-2f/m). The last of an odd number of features is not rotated. Cannot
  /// be combined with `softmax_window`.
  bool rotate_numerator = false;
  double rotary_base = 10000;
  /// For maps whose weights can be negative: a denominator smaller than this times Σ_j |φ(q_i)| |φ(k_j)| is rounding
  /// noise. Its row is set to zero and counted as guarded.
  double denominator_guard = 0x1p-20;
  LinearAttentionGpuSettings gpu{};
};

/// Constants of each head, without gradients. All are optional, except `random_projection` if the map needs
/// one. float32 (float64 for float64 inputs).
struct LinearAttentionConstants {
  /// Random projection ω: [n_projections, d] for all heads, or [n_heads, n_projections, d].
  Tensor random_projection;
  /// a [n_heads, d], subtracted from every query. The key's weight gets the factor exp(a·k/√d), which keeps softmax
  /// unchanged.
  Tensor query_center;
  /// b [n_heads, d], subtracted from every key, which keeps softmax unchanged.
  Tensor key_center;
  /// Ψ [n_heads, d]: q Ψ and k / Ψ after centering, which keeps q·k unchanged (SADERF, Likhosherstov et al. 2023).
  Tensor scaling;
  Tensor oprf_a;  ///< A [n_heads], at most 0
};

/// Recurrent state of causal heads: later tokens can continue from it as if they followed in one sequence. float32
/// (float64 in tests), whatever the storage type.
struct LinearAttentionState {
  /// [batch, n_heads, features, d_value]: Σ_j φ(k_j) v_jᵀ exp(-maximum), of rotated φ(k_j) with rotate_numerator.
  Tensor sum;
  /// [batch, n_heads, features]: Σ_j φ(k_j) exp(-maximum).
  Tensor normalizer;
  /// [batch, n_heads, features]: running maximum of the features' logarithms (GPUs: up to 8 log 2 below it), or of the
  /// rows' logarithms in the form `values`. With rotate_numerator both features of a pair store the larger maximum.
  Tensor maximum;
  /// [batch, n_heads]: Σ_j |φ(k_j)| exp(-maximum), in the form `values`.
  Tensor magnitude;
  /// Keys and values of the last tokens, if a window needs them: [batch, window tokens, n_kv_heads·d].
  Tensor recent_key, recent_value;
  std::int64_t tokens = 0;  ///< number of tokens in the state
  std::int64_t bytes() const;
};

/// Exchanges states between the segments of one sequence, each on another rank (context parallelism). A message has the
/// size of a state, whatever the segment length. All ranks make the same calls in the same order, forward's before
/// backward's.
///
/// Packed documents: a state covers only the document that crosses the segment border. Causal: exchange_keys() gets the
/// keys of the segment's last document, and returns those that earlier segments hold of its first document.
/// exchange_queries() works in the opposite direction. Not causal: states are [2 · batch, ...]: for each row the
/// segment's first document, then its last document (the same one again if the row has only one). Each becomes the sum
/// that other segments hold of that document. For a row with one document the second part is not read.
class SegmentExchange {
 public:
  virtual ~SegmentExchange() = default;
  /// `state` holds the sums over this segment's keys. Replaces it with the sums over all earlier segments (causal), or
  /// over all other segments.
  virtual void exchange_keys(const Stream& stream, LinearAttentionState& state, bool causal) = 0;
  /// `state` holds the sums over this segment's queries and their gradients: Σ_i φ(q_i) g_iᵀ / N_i, and so on. Replaces
  /// it with the sums over all later segments (causal), or over all other segments.
  virtual void exchange_queries(const Stream& stream, LinearAttentionState& state, bool causal) = 0;
  /// Packed documents: returns, for each row, how many tokens of its first document are in earlier segments. Empty:
  /// documents are not packed.
  virtual std::vector<std::int64_t> open_document_tokens() const = 0;
  /// Returns the position of this segment's first token in the sequence.
  virtual std::int64_t first_position() const = 0;
  /// Returns the number of tokens of the whole sequence.
  virtual std::int64_t sequence_length() const = 0;
};

/// Returns an empty state of the same shape.
LinearAttentionState empty_like(const Stream& stream, const LinearAttentionState& state);
/// Adds the sums of `other` to `state`, on the CPU, under the larger of both maxima. Both have the same shape and no
/// recent keys.
void join(LinearAttentionState& state, const LinearAttentionState& other);

/// Statistics of the denominators of one or more forward calls, for maps that can be negative or vanish.
struct DenominatorReport {
  std::int64_t rows = 0;     ///< query rows of all heads
  std::int64_t guarded = 0;  ///< rows that the guard set to zero, or that have no visible key
  /// Minimum of |denominator| / Σ_j |φ(q_i)| |φ(k_j)|; 1 for positive maps. With rotate_numerator: minimum of the
  /// denominator divided by a bound on the largest term of its numerator; float32 has a relative error of about 1e-7
  /// divided by this number.
  double least = 1;
  /// Counts that are still on a GPU, [..., 2] each, in the order `guarded`, `least`. Call gather() before reading those
  /// two members; until then nothing waits for the device.
  std::vector<Tensor> pending;

  /// Adds the pending counts, waiting for the device if there are any.
  DenominatorReport& gather();
  /// Adds another report. Gathers the pending counts of both.
  DenominatorReport& operator+=(const DenominatorReport& other);
};

/// query [batch, n, n_heads·d], key [batch, n_key, n_kv_heads·d], value [batch, n_key, n_kv_heads·d_value]: views with
/// contiguous rows (column ranges of one tensor) are valid. Causal attention and both windows need n = n_key.
struct LinearAttentionInputs {
  Variable query, key, value;
  Variable gate;  ///< [n_heads], with softmax_window only; undefined: zero
  LinearAttentionConstants constants;
  AttentionMask mask;
  /// If not null (causal, no document mask): the tokens follow those in the state, which is advanced. No gradient flows
  /// through the earlier tokens.
  LinearAttentionState* state = nullptr;
  /// If not null (CPU only, no window, no state): the tokens are one segment of a sequence, and gradients flow to the
  /// other segments. Must outlive the tape's backward.
  SegmentExchange* segments = nullptr;
  DenominatorReport* report = nullptr;  ///< if not null, statistics are added to it; on GPUs its counts stay pending
};
/// Computes linear attention. Returns [batch, n, n_heads·d_value]. Throws ContractError if shapes or options do not
/// match.
Variable linear_attention(Tape& tape, const LinearAttentionInputs& inputs, const LinearAttentionOptions& options);

/// Returns a state of no tokens for `batch` sequences: sum [batch, options.n_heads, features, d_value], and the others
/// as LinearAttentionState says, in the accumulation dtype of `storage`. `features` is the number of features of a
/// head, d_value the width of its values.
LinearAttentionState empty_linear_attention_state(const LinearAttentionOptions& options, std::int64_t batch,
                                                  std::int64_t features, std::int64_t d_value, DType storage,
                                                  const Device& device);

}  // namespace furlong::ops
