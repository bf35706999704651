#pragma once
// The interface of attention mechanisms, and their registry. Each mechanism is a folder next to this file with its
// layer, its cost and its capabilities. mechanism.cpp lists them. Settings and tools query the registry and know no
// mechanism by name.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "framework/autodiff/parameter_store.h"
#include "framework/ops/attention/linear/linear_attention.h"
#include "layers/attention/attention_config.h"
#include "layers/context.h"

namespace furlong::layers {

/// The past of one layer in generation: a recurrent state, or cached keys and values.
class AttentionState {
 public:
  virtual ~AttentionState() = default;
  /// Returns the bytes held. Constant for a recurrent state; grows with the tokens for a cache, up to its window if it
  /// has one.
  virtual std::int64_t bytes() const = 0;
  /// Returns how many of them the last token's attention has read.
  virtual std::int64_t bytes_read() const { return bytes(); }
  /// Returns the state of `batch` sequences that all have the past of this state's only sequence.
  virtual std::unique_ptr<AttentionState> repeated(const Stream& stream, std::int64_t batch) const = 0;
};

/// Returns [batch, ...] copies of `row` [1, ...]; undefined for an undefined tensor.
Tensor repeated_row(const Stream& stream, const Tensor& row, std::int64_t batch);

/// Tensors used instead of a mechanism's own parameters and constants (`furlong attend` reads them from a file). An
/// undefined tensor has no effect, like a gate of 0 or a scaling of 1.
struct AttentionTensors {
  Variable gate;                              ///< hybrids: [n_heads]
  Variable key_projection, value_projection;  ///< along the sequence: ops::sequence_projection_weight_shape
  ops::LinearAttentionConstants constants;
};

/// The attention of one layer, between its projections. Objects refer to parameters in the store that they were
/// declared in, which must outlive them.
class AttentionMechanism {
 public:
  virtual ~AttentionMechanism() = default;
  /// Computes attention under context.attention_mask. query is [batch, n, n_heads·d_head], key and value are
  /// [batch, n, n_kv_heads·d_head]; returns [batch, n, n_heads·d_head]. With `carried`, the tokens follow those in that
  /// state, and the state is advanced; no gradient flows into it. Throws UserError if `carried` is given and the
  /// mechanism's state grows with length.
  virtual Variable forward(ForwardContext& context, const Variable& query, const Variable& key, const Variable& value,
                           AttentionState* carried = nullptr) const = 0;
  /// Returns an empty state for `batch` sequences of at most `max_tokens` tokens. Throws UserError if the mechanism
  /// cannot generate (Past::none).
  virtual std::unique_ptr<AttentionState> new_state(std::int64_t batch, std::int64_t max_tokens, DType dtype,
                                                    const Device& device) const = 0;
  /// Computes the same as forward for tokens that follow those in `state`, and advances the state. Records no
  /// gradients. `denominators` (null: not counted) counts guarded denominators. `key_mask` is int32 [batch, n], 0 for
  /// masked keys; give it for all tokens of a sequence or for none.
  virtual Tensor extend(const Stream& stream, const Tensor& query, const Tensor& key, const Tensor& value,
                        AttentionState& state, const Tensor& key_mask = {},
                        ops::DenominatorReport* denominators = nullptr) const = 0;
  /// Uses `tensors`, which share their memory, from now on; the store may then stay unallocated. Returns false if the
  /// mechanism takes no tensors.
  virtual bool substitute(const AttentionTensors& /*tensors*/) { return false; }
  /// Draws a new random projection if one is due before optimizer step `step` (step 0: the first one). The draw is
  /// keyed by (seed, step, layer): it is the same on every rank and after a resume.
  virtual void redraw(std::uint64_t /*seed*/, std::int64_t /*step*/) {}
  /// Updates constants from the statistics of training (HeadConstants), if the mechanism has any. Call it only after a
  /// step that ran this layer in training.
  virtual void update_constants() {}
};

/// Floating point operations of one sequence through all heads. A multiply-add counts as two; exponentials and
/// divisions are not counted.
struct AttentionCost {
  double forward = 0, with_backward = 0;  ///< with_backward includes what backward recomputes
  double maps = 0;  ///< forward of learned maps of queries and keys; their backward takes twice as much
  /// What each segment adds to forward, and again to backward, for mechanisms that exchange segments.
  double segment = 0;
};

/// The kind of past that a mechanism keeps for generation and stateful training.
enum class Past : std::uint8_t {
  none,     ///< needs all tokens at once
  growing,  ///< cached keys and values
  constant  ///< a recurrent state
};

/// A mechanism's entry in the registry.
struct MechanismInfo {
  const char* name;
  const char* summary;  ///< for help texts and the settings reference
  std::unique_ptr<AttentionMechanism> (*make)(ParameterStore&, const std::string& name, const AttentionConfig&);
  AttentionCost (*cost)(const AttentionConfig&, std::int64_t n);

  bool is_softmax = false;          ///< exact softmax over all keys inside its window
  bool has_features = false;        ///< uses config.feature_map
  bool is_hybrid = false;           ///< exact weights inside a mandatory window, with a learned gate
  bool projects_sequence = false;   ///< projects keys and values to config.projected_length rows
  bool chooses_normalizer = false;  ///< uses config.normalizer
  bool rotates_numerator = false;   ///< uses config.rotate_numerator
  bool exchanges_segments = false;  ///< supports context parallelism, without a window

  bool can_be_causal = true;
  bool separates_documents = true;
  bool weighs_tokens = true;  ///< an output is a weighted sum of single tokens' values
  Past past = Past::none;
  const char* limits = "";  ///< why it cannot be causal, separate documents or have a past

  std::int64_t AttentionConfig::*window = nullptr;  ///< the member that holds its window; null without a window
  std::int64_t AttentionConfig::*size = nullptr;  ///< the member set by N in --attention NAME:N; null if it takes none

  /// Returns the config's window for this mechanism; 0 if it has none.
  std::int64_t window_in(const AttentionConfig& config) const { return window ? config.*window : 0; }
};

/// Returns every mechanism that a config can name.
const std::vector<MechanismInfo>& attention_mechanisms();
/// Returns a mechanism by name, or null if the name is unknown.
const MechanismInfo* find_mechanism(const std::string& name);
/// Returns a mechanism by name. Throws UserError listing the known names if it is unknown.
const MechanismInfo& mechanism_info(const std::string& name);
/// Returns the cost of one sequence of n tokens through all heads, which may have different mechanisms
/// (config.head_mechanisms).
AttentionCost attention_cost(const AttentionConfig& config, std::int64_t n);
/// Returns the names of the mechanisms for which `wanted` returns true.
std::vector<std::string> mechanisms_where(const std::function<bool(const MechanismInfo&)>& wanted);

/// An attention that the literature knows by a name that is neither a mechanism nor a feature map here.
struct AttentionName {
  const char* name;
  const char* mechanism;
  const char* feature_map;
};
/// Returns the attention with this name, in any letter case, or null.
const AttentionName* find_attention_name(const std::string& name);
/// Returns "did you mean mechanism: linear with feature_map: favor_positive?" for such a name, otherwise "".
std::string attention_name_hint(const std::string& name);

/// Splits an entry of config.layer_mechanisms: one mechanism, or one for each head, separated by spaces.
std::vector<std::string> mechanisms_in(const std::string& entry);
/// Returns the mechanisms of one layer: one for each head, or a single one for all heads.
std::vector<std::string> head_mechanisms_of(const AttentionConfig& config, std::size_t layer);
/// Returns the mechanisms of all layers and heads, without duplicates. Throws UserError for an unknown name.
std::vector<const MechanismInfo*> mechanisms_of(const AttentionConfig& config);
/// Returns the config's mechanisms and feature map for people: "softmax, linear (favor_positive)".
std::string attention_text(const AttentionConfig& config);
/// Returns the first mechanism of the config that has a capability, or lacks it if `has` is false; null if none does.
const MechanismInfo* first_mechanism(const AttentionConfig& config, bool MechanismInfo::*capability, bool has = true);
/// Returns whether a mechanism of the config has a capability.
inline bool uses(const AttentionConfig& config, bool MechanismInfo::*capability) {
  return first_mechanism(config, capability) != nullptr;
}

/// Creates the mechanism that the config names and declares its parameters. Throws UserError for an unknown name.
std::unique_ptr<AttentionMechanism> make_attention(ParameterStore& store, const std::string& name,
                                                   const AttentionConfig& config);

}  // namespace furlong::layers
