#pragma once
// Linear attention with any feature map φ (Katharopoulos et al. 2020, "Transformers are RNNs"; Choromanski et al. 2021,
// "Rethinking Attention with Performers"), without an epsilon in features or denominators:
//   output_i = Σ_j w_ij v_j / Σ_j w_ij,  w_ij = φ(q_i)·φ(k_j), over the keys that query i sees.
// Positive features are handled as logarithms: each query row subtracts its own maximum; the state keeps, per feature,
// a running maximum over the keys of earlier chunks; inside a chunk the pair's weight is put together from a small
// product and both rows' maxima; both parts meet under one maximum per query. So nothing overflows, the denominator is
// at least 1, and a later token cannot change an earlier output by a bit. Features that can be negative come with one
// logarithm a row, under a running maximum of those (docs/numerics.md). Features are computed tile by tile; neither
// direction stores an n × m tensor, and the state exists once per head. With rotary positions in the numerator (Su et
// al. 2021, RoFormer, equation 19) the values are weighed with R_i φ(q_i) · R_j φ(k_j) and the denominator stays Σ_j
// φ(q_i)·φ(k_j), which no turn can make negative: a row's weights then need not add up to 1.
#include <string>
#include <vector>

#include "framework/autodiff/tape.h"
#include "framework/ops/attention/attention_mask.h"
#include "framework/ops/attention/feature_maps/feature_map.h"

namespace furlong::ops {

/// What an output row is divided by.
enum class Normalizer : std::uint8_t {
  sum,  ///< Σ_j w_ij; where that is zero, or lost in rounding, output and gradient are zero
  rms   ///< `none` in configs: no sum, but the root mean square of the row itself, a norm of each head's output
};

/// How GPUs compute linear attention. For tests and measurements; results change only by rounding.
struct LinearAttentionGpuSettings {
  bool general_form = false;              ///< take the general form where the fused one could be taken
  std::int64_t segments = 0;              ///< of each head's sequence, at most; 0: as many as fill the device
  std::int64_t shared_bytes = 96 * 1024;  ///< of tiles that a block may keep in shared memory in the general form
};

struct LinearAttentionOptions {
  std::int64_t n_heads = 1;
  std::int64_t n_kv_heads = 1;  ///< query head h reads key-value head h / (n_heads / n_kv_heads)
  FeatureMap feature_map = FeatureMap::favor_positive;
  FeatureMapOptions map_options{};
  bool causal = true;
  std::int64_t chunk_size = 64;  ///< tokens a tile; changes speed, and results only by rounding
  /// Keys at least so far away (i - j >= window, or |i - j| >= window when not causal) are not seen; 0: all are. Costs
  /// n × window × m.
  std::int64_t window = 0;
  /// Keys with i - j < softmax_window, or |i - j| < softmax_window when not causal, carry exp(q·k/√d + gate_h) in the
  /// place of φ(q)·φ(k) (the windowed hybrid). Not with window.
  std::int64_t softmax_window = 0;
  Normalizer normalizer = Normalizer::sum;
  /// Turns the pair of features (f, f + ⌊m/2⌋) of a query and of a key by the token's position in its document times
  /// rotary_base^(-2f/m), in the numerator only; the last of an odd number of features is not turned. Not with
  /// softmax_window.
  bool rotate_numerator = false;
  double rotary_base = 10000;
  /// Where weights can be negative, a denominator smaller than this times Σ_j |φ(q_i)| |φ(k_j)| is rounding noise: its
  /// row is zero, and counted.
  double denominator_guard = 0x1p-20;
  LinearAttentionGpuSettings gpu{};
};

/// Constants of each head, without gradients; all optional but directions where the map needs them. float32 (float64
/// for float64 inputs).
struct LinearAttentionConstants {
  Tensor directions;    ///< ω [n_directions, d] for all heads, or [n_heads, n_directions, d]
  Tensor query_center;  ///< a [n_heads, d], taken from every query; exp(a·k/√d) goes into the key's weight: softmax is
                        ///< unchanged
  Tensor key_center;  ///< b [n_heads, d], taken from every key: softmax is unchanged
  Tensor
      scaling;  ///< Ψ [n_heads, d]: q Ψ and k / Ψ, after centring: q·k is unchanged (SADERF, Likhosherstov et al. 2023)
  Tensor oprf_a;  ///< A [n_heads], at most 0
};

/// What a causal head has seen: enough to go on with later tokens as if in one sequence. float32 (float64 in tests)
/// whatever the storage type.
struct LinearAttentionState {
  Tensor sum;  ///< [batch, n_heads, features, d_value]: Σ_j φ(k_j) v_jᵀ exp(-maximum), of turned φ(k_j) with
               ///< rotate_numerator
  Tensor normalizer;  ///< [batch, n_heads, features]: the same sum over 1
  Tensor maximum;     ///< [batch, n_heads, features]: the running maximum of the logarithms (of rows' logarithms in the
                      ///< form `values`); with rotate_numerator the larger of each pair's
  Tensor magnitude;   ///< [batch, n_heads]: Σ_j |φ(k_j)| exp(-maximum), in the form `values`
  /// The last tokens' keys and values, where a window needs them: [batch, window tokens, n_kv_heads·d]; and how many
  /// there are.
  Tensor recent_key, recent_value;
  std::int64_t tokens = 0;
  std::int64_t bytes() const;
};

/// How the segments of one sequence, each on another process, learn of each other. What they say has the size of a
/// state, whatever their lengths. Calls come in the same order on all of them, forward's before backward's.
///
/// Where documents are packed, what lies on the other side of a border is left out. Causal, a segment sums up its last
/// document's keys, and becomes what segments before it hold of its first document; with queries the other way round.
/// Not causal, states are [2 · batch, ...]: of each row's first document in the segment, and then of its last one, once
/// more where there is no other. Each becomes what other segments hold of that document; of a row with one document the
/// second is not read.
class SegmentExchange {
 public:
  virtual ~SegmentExchange() = default;
  /// `state` sums up this segment's keys. It becomes what the segments before it sum up to together (causal), or all
  /// the others.
  virtual void exchange_keys(const Stream& stream, LinearAttentionState& state, bool causal) = 0;
  /// `state` sums up this segment's queries and their gradients: Σ_i φ(q_i) g_iᵀ / N_i, and so on. It becomes what the
  /// segments behind it sum up to (causal), or all the others.
  virtual void exchange_queries(const Stream& stream, LinearAttentionState& state, bool causal) = 0;
  /// Packed documents: how many tokens of each row's first document lie in segments before this one; empty: nothing is
  /// packed.
  virtual std::vector<std::int64_t> open_document_tokens() const = 0;
  /// Where this segment's first token stands in the sequence, and how many tokens this has in all.
  virtual std::int64_t first_position() const = 0;
  virtual std::int64_t sequence_length() const = 0;
};

/// A state of the same shape that has seen nothing.
LinearAttentionState empty_like(const Stream& stream, const LinearAttentionState& state);
/// Adds what `other` has seen to `state`, on the CPU: sums under the larger of both maxima. Of equal shapes; neither
/// has recent keys.
void join(LinearAttentionState& state, const LinearAttentionState& other);

/// Denominators of one forward or of several, for maps that can be negative or vanish.
struct DenominatorReport {
  std::int64_t rows = 0;     ///< query rows of all heads
  std::int64_t guarded = 0;  ///< of these: zeroed by the guard, or without anything seen
  /// Least |denominator| / Σ_j |φ(q_i)| |φ(k_j)|; 1 for positive maps, but with rotate_numerator the least denominator
  /// beside a bound on the largest term of its numerator: float32 keeps about 1e-7 over that number.
  double least = 1;
  /// Counts that lie on a GPU, [..., 2] each as `guarded` and `least`: nothing waits for the device until gather() is
  /// called, which is to be done before those two are read.
  std::vector<Tensor> pending;

  /// Adds up what is pending, waiting for the device where there is any.
  DenominatorReport& gather();
  /// Of gathered reports; `other` may have counts pending, which are gathered.
  DenominatorReport& operator+=(const DenominatorReport& other);
};

/// query [batch, n, n_heads·d], key [batch, n_key, n_kv_heads·d], value [batch, n_key, n_kv_heads·d_value]: views with
/// contiguous rows (column ranges of one tensor) are welcome. Returns [batch, n, n_heads·d_value]. `gate` [n_heads]
/// (undefined: zero) goes with softmax_window. Throws ContractError on shapes that do not fit; causal and both windows
/// need n = n_key. `state`, where given (causal, no documents): the tokens follow those in it, through which no
/// gradient flows; it is advanced. `segments`, where given (no window, no state; on the CPU): the tokens are one
/// segment of a sequence; gradients flow to the others. It outlives the tape's backward.
struct LinearAttentionInputs {
  Variable query, key, value;
  Variable gate;
  LinearAttentionConstants constants;
  AttentionMask mask;
  LinearAttentionState* state = nullptr;
  SegmentExchange* segments = nullptr;
  DenominatorReport* report = nullptr;  ///< where given, added to; on GPUs its counts stay pending
};
Variable linear_attention(Tape& tape, const LinearAttentionInputs& inputs, const LinearAttentionOptions& options);

/// A state that has seen nothing, for heads of width d and values of width d_value.
LinearAttentionState empty_linear_attention_state(const LinearAttentionOptions& options, std::int64_t batch,
                                                  std::int64_t features, std::int64_t d, std::int64_t d_value,
                                                  DType storage, const Device& device);

}  // namespace furlong::ops
