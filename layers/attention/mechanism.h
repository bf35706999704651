#pragma once
// What a layer can do with query, key and value. A mechanism is one file in this folder plus its op, registered by name
// in mechanism.cpp.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "framework/autodiff/parameter_store.h"
#include "framework/ops/attention/linear/linear_attention.h"
#include "layers/context.h"

namespace furlong::layers {

struct AttentionConfig {
  std::string mechanism = "softmax";
  std::int64_t window = 0;                     ///< softmax and linear: keys farther away are not seen, 0 = all are
  std::int64_t softmax_window = 0;             ///< windowed: how many of the nearest keys have exact weights
  std::string feature_map = "favor_positive";  ///< linear and windowed
  std::int64_t n_features = 0;                 ///< with random features: m; 0 = 2 d_head
  ops::FeatureMapOptions map_options{};
  std::string normalizer = "sum";  ///< sum, none
  bool centering = false;
  std::string scaling = "none";  ///< none, saderf
  double denominator_guard = 0x1p-20;
  std::string directions = "orthogonal";
  std::int64_t redraw_every = 0;  ///< optimizer steps; 0 = never
  std::int64_t chunk_size = 64;
  std::string compat = "none";        ///< none, performer_pytorch, fast_transformers
  double compat_kernel_epsilon = -1;  ///< performer_pytorch: added to features; negative: the library's own
  bool compat_stabilize = false;      ///< fast_transformers with favor_hyperbolic: as ops::CompatAttentionOptions
  std::int64_t projected_length = 0;  ///< linformer: r
  std::string projection = "linear";  ///< linformer: linear, mean, convolution
  std::string sharing = "key_value";  ///< linformer: none, heads, key_value, layers
  std::int64_t max_sequence_length = 0;
  std::vector<std::string> layer_mechanisms;  ///< empty, or the mechanism of each layer
  std::vector<std::string> head_mechanisms;   ///< empty, or the mechanism of each head
  std::int64_t n_heads = 1, n_kv_heads = 1, d_head = 0;
  bool causal = true;
  bool rotate_numerator =
      false;                   ///< linear: rotary positions in the numerator's features (ops::LinearAttentionOptions)
  double rotary_base = 10000;  ///< with rotate_numerator
};

/// What generation keeps of one layer's past: a recurrent state, or keys and values.
class AttentionState {
 public:
  virtual ~AttentionState() = default;
  /// Bytes held: constant for recurrent states, growing with the tokens for a cache (up to its window, where it has
  /// one).
  virtual std::int64_t bytes() const = 0;
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
  /// The same as forward for tokens that follow those in `state`, which is advanced. Nothing is recorded.
  virtual Tensor extend(const Stream& stream, const Tensor& query, const Tensor& key, const Tensor& value,
                        AttentionState& state) const = 0;
  /// Before optimizer step `step` (0: the model's first): draws again what is due. Keyed by (seed, step, layer): the
  /// same on every rank and after a resume.
  virtual void redraw(std::uint64_t /*seed*/, std::int64_t /*step*/) {}
  /// Constants from what training has seen so far, for mechanisms that have any (HeadConstants); after each step that
  /// has run this one in training, and after no other.
  virtual void update_constants() {}
  /// Denominators since the last call, for mechanisms that guard them (signed feature maps); forgets them.
  virtual ops::DenominatorReport take_denominator_report() { return {}; }
};

using MechanismFactory = std::function<std::unique_ptr<AttentionMechanism>(ParameterStore&, const std::string& name,
                                                                           const AttentionConfig&)>;
struct MechanismInfo {
  const char* name;
  MechanismFactory make;
};
/// Every mechanism that a config can name.
const std::vector<MechanismInfo>& attention_mechanisms();
/// Throws UserError naming the known ones.
std::unique_ptr<AttentionMechanism> make_attention(ParameterStore& store, const std::string& name,
                                                   const AttentionConfig& config);

}  // namespace furlong::layers
