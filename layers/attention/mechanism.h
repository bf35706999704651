#pragma once
// What a layer can do with query, key and value. A mechanism is one file in this folder plus its op, registered by name in mechanism.cpp.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "framework/autodiff/parameter_store.h"
#include "layers/context.h"

namespace furlong::layers {

struct AttentionConfig {
  std::string mechanism = "softmax";
  std::string feature_map = "favor_positive";  ///< linear only
  std::int64_t n_features = 0;                 ///< linear with random features: m; 0 = 2 d_head
  std::string directions = "orthogonal";
  std::int64_t redraw_every = 0;  ///< optimizer steps; 0 = never
  std::int64_t chunk_size = 64;
  std::int64_t n_heads = 1, n_kv_heads = 1, d_head = 0;
  bool causal = true;
};

/// What generation keeps of one layer's past: a recurrent state, or keys and values.
class AttentionState {
 public:
  virtual ~AttentionState() = default;
  /// Bytes held: constant for recurrent states, growing with the tokens for a cache.
  virtual std::int64_t bytes() const = 0;
};

class AttentionMechanism {
 public:
  virtual ~AttentionMechanism() = default;
  /// query [batch, n, n_heads·d_head], key and value [batch, n, n_kv_heads·d_head] -> [batch, n, n_heads·d_head].
  virtual Variable forward(ForwardContext& context, const Variable& query, const Variable& key, const Variable& value) const = 0;
  /// A past of no tokens, for sequences of at most `max_tokens`.
  virtual std::unique_ptr<AttentionState> new_state(std::int64_t batch, std::int64_t max_tokens, DType dtype,
                                                    const Device& device) const = 0;
  /// The same as forward for tokens that follow those in `state`, which is advanced. Nothing is recorded.
  virtual Tensor extend(const Stream& stream, const Tensor& query, const Tensor& key, const Tensor& value, AttentionState& state) const = 0;
  /// Before optimizer step `step` (0: the model's first): draws again what is due. Keyed by (seed, step, layer): the same on every rank and
  /// after a resume.
  virtual void redraw(std::uint64_t /*seed*/, std::int64_t /*step*/) {}
};

using MechanismFactory =
    std::function<std::unique_ptr<AttentionMechanism>(ParameterStore&, const std::string& name, const AttentionConfig&)>;
struct MechanismInfo {
  const char* name;
  MechanismFactory make;
};
/// Every mechanism that a config can name.
const std::vector<MechanismInfo>& attention_mechanisms();
/// Throws UserError naming the known ones.
std::unique_ptr<AttentionMechanism> make_attention(ParameterStore& store, const std::string& name, const AttentionConfig& config);

}  // namespace furlong::layers
