#pragma once
// What a layer can do with query, key and value. A mechanism is a folder beside this file: its layer, its cost and what
// it is capable of. mechanism.cpp lists them; settings and tools ask that list, and know no mechanism by name.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "framework/autodiff/parameter_store.h"
#include "framework/ops/attention/linear/linear_attention.h"
#include "layers/attention/attention_config.h"
#include "layers/context.h"

namespace furlong::layers {

/// What generation keeps of one layer's past: a recurrent state, or keys and values.
class AttentionState {
 public:
  virtual ~AttentionState() = default;
  /// Bytes held: constant for recurrent states, growing with the tokens for a cache (up to its window, where it has
  /// one).
  virtual std::int64_t bytes() const = 0;
};

/// Tensors in the place of a mechanism's own parameters and constants: `furlong attend` reads them from a file.
/// Undefined ones are neutral.
struct AttentionTensors {
  Variable gate;                              ///< hybrids: [n_heads]
  Variable key_projection, value_projection;  ///< along the sequence: ops::sequence_projection_weight_shape
  ops::LinearAttentionConstants constants;
};

class AttentionMechanism {
 public:
  virtual ~AttentionMechanism() = default;
  /// query [batch, n, n_heads·d_head], key and value [batch, n, n_kv_heads·d_head] -> [batch, n, n_heads·d_head], under
  /// context.attention_mask. With `carried` the tokens follow those in it, through which no gradient flows, and it is
  /// advanced; a mechanism whose state grows with length throws UserError.
  virtual Variable forward(ForwardContext& context, const Variable& query, const Variable& key, const Variable& value,
                           AttentionState* carried = nullptr) const = 0;
  /// A past of no tokens, for sequences of at most `max_tokens`.
  virtual std::unique_ptr<AttentionState> new_state(std::int64_t batch, std::int64_t max_tokens, DType dtype,
                                                    const Device& device) const = 0;
  /// The same as forward for tokens that follow those in `state`, which is advanced. Nothing is recorded. `key_mask`
  /// int32 [batch, n], 0 for keys that nobody sees; defined for all tokens of a sequence or for none.
  virtual Tensor extend(const Stream& stream, const Tensor& query, const Tensor& key, const Tensor& value,
                        AttentionState& state, const Tensor& key_mask = {},
                        ops::DenominatorReport* denominators = nullptr) const = 0;
  /// Computes with `tensors` from now on; the store may then stay without memory. False: it takes none of them.
  virtual bool substitute(const AttentionTensors& /*tensors*/) { return false; }
  /// Before optimizer step `step` (0: the model's first): draws again what is due. Keyed by (seed, step, layer): the
  /// same on every rank and after a resume.
  virtual void redraw(std::uint64_t /*seed*/, std::int64_t /*step*/) {}
  /// Constants from what training has seen so far, for mechanisms that have any (HeadConstants); after each step that
  /// has run this one in training, and after no other.
  virtual void update_constants() {}
};

/// Floating point operations, a multiply-add counted as two, of one sequence through all heads: products alone, without
/// exponentials and divisions.
struct AttentionCost {
  double forward = 0, with_backward = 0;  ///< with_backward has what backward computes again
  double maps = 0;                        ///< forward of learned maps of queries and keys; backward is twice that
  /// Of mechanisms that exchange segments: what each segment adds to forward, and again to backward.
  double segment = 0;
};

/// What a past is to generation and to carried state.
enum class Past : std::uint8_t {
  none,     ///< all tokens at once
  growing,  ///< keys and values
  constant  ///< a recurrent state
};

/// A mechanism as the registry has it.
struct MechanismInfo {
  const char* name;
  const char* summary;  ///< for help texts and the reference of settings
  std::unique_ptr<AttentionMechanism> (*make)(ParameterStore&, const std::string& name, const AttentionConfig&);
  AttentionCost (*cost)(const AttentionConfig&, std::int64_t n);

  bool is_softmax = false;          ///< exact softmax over all keys that its window lets through
  bool has_features = false;        ///< of config.feature_map
  bool is_hybrid = false;           ///< exact weights inside its window, which it needs, under a learned gate
  bool projects_sequence = false;   ///< keys and values, to config.projected_length rows
  bool chooses_normalizer = false;  ///< config.normalizer
  bool rotates_numerator = false;   ///< config.rotate_numerator
  bool exchanges_segments = false;  ///< of one sequence between processes, without a window

  bool can_be_causal = true;
  bool separates_documents = true;
  bool weighs_tokens = true;  ///< an output is a weighted sum of single tokens' values
  Past past = Past::none;
  const char* limits = "";  ///< why it can not be causal, separate documents or have a past

  std::int64_t AttentionConfig::*window = nullptr;  ///< the key of its window, where it has one
  std::int64_t AttentionConfig::*size = nullptr;    ///< what N is in --attention NAME:N, where it takes one

  std::int64_t window_in(const AttentionConfig& config) const { return window ? config.*window : 0; }
};

/// Every mechanism that a config can name.
const std::vector<MechanismInfo>& attention_mechanisms();
/// Null for an unknown name.
const MechanismInfo* find_mechanism(const std::string& name);
/// Throws UserError naming the known ones.
const MechanismInfo& mechanism_info(const std::string& name);
/// "linear, windowed": those for which `wanted` holds.
std::vector<std::string> mechanisms_where(const std::function<bool(const MechanismInfo&)>& wanted);

/// The mechanisms that an entry of config.layer_mechanisms names: one, or one for each head, separated by spaces.
std::vector<std::string> mechanisms_in(const std::string& entry);
/// Of the heads of one layer, or one for all of them.
std::vector<std::string> head_mechanisms_of(const AttentionConfig& config, std::size_t layer);
/// Those of all layers and heads, each once. Throws UserError for an unknown name.
std::vector<const MechanismInfo*> mechanisms_of(const AttentionConfig& config);
/// The first of them that has, or with `has` false lacks, a capability; null: there is none.
const MechanismInfo* first_mechanism(const AttentionConfig& config, bool MechanismInfo::*capability, bool has = true);
inline bool uses(const AttentionConfig& config, bool MechanismInfo::*capability) {
  return first_mechanism(config, capability) != nullptr;
}

/// Throws UserError for a name that is unknown.
std::unique_ptr<AttentionMechanism> make_attention(ParameterStore& store, const std::string& name,
                                                   const AttentionConfig& config);

}  // namespace furlong::layers
