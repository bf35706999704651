#pragma once
#include <optional>

#include "layers/attention/linear/head_constants.h"
#include "layers/attention/mechanism.h"
#include "layers/attention/recurrent_state.h"

namespace furlong::layers {

/// Linear attention with the config's feature map; with `softmax_window`, the windowed hybrid. A layer has these
/// parameters and buffers, as far as the config needs them:
///  - buffer `name`.directions [n_projections, d_head]: ω, one random projection for all heads of the layer;
///  - buffers of HeadConstants;
///  - `name`.query_features.weight [n_heads, d_head, d_head] and `name`.key_features.weight
///    [n_kv_heads, d_head, d_head] (hedgehog), initialized to identities;
///  - `name`.output_norm.weight [n_heads · d_head] (normalizer none): the gain of each head's RMS norm, initialized to
///    1;
///  - `name`.gate [n_heads] (softmax_window): added to the scores inside the window, initialized to 0.
class LinearMechanism : public AttentionMechanism {
 public:
  /// Declares the parameters and buffers in `store`. Throws UserError for unknown names and for invalid combinations of
  /// settings.
  LinearMechanism(ParameterStore& store, const std::string& name, const AttentionConfig& config,
                  std::int64_t softmax_window = 0);

  // See AttentionMechanism.
  Variable forward(ForwardContext& context, const Variable& query, const Variable& key, const Variable& value,
                   AttentionState* carried = nullptr) const override;
  std::unique_ptr<AttentionState> new_state(std::int64_t batch, std::int64_t max_tokens, DType dtype,
                                            const Device& device) const override;
  Tensor extend(const Stream& stream, const Tensor& query, const Tensor& key, const Tensor& value,
                AttentionState& state, const Tensor& key_mask = {},
                ops::DenominatorReport* denominators = nullptr) const override;
  bool substitute(const AttentionTensors& tensors) override;
  void redraw(std::uint64_t seed, std::int64_t step) override;
  void update_constants() override { constants_.update(); }

 private:
  void choose_options(std::int64_t softmax_window);
  void declare_parameters(ParameterStore& store, const std::string& name);
  void check_recurrent() const;
  /// Returns false if the denominators cannot vanish: feature maps with positive features.
  bool counts_denominators() const;
  Variable mapped(Tape& tape, const Variable& x, const Parameter* weight, std::int64_t n_heads) const;
  Variable attend(Tape& tape, const ops::LinearAttentionInputs& inputs) const;

  AttentionConfig config_;
  std::string stream_name_;
  ops::LinearAttentionOptions options_;
  std::int64_t features_ = 0, n_projections_ = 0;
  HeadConstants constants_;
  Parameter* random_projection_ = nullptr;
  Parameter* query_features_ = nullptr;
  Parameter* key_features_ = nullptr;
  Parameter* output_norm_ = nullptr;
  Parameter* gate_ = nullptr;
  std::optional<AttentionTensors> substitutes_;
};

/// Returns the registry entry of linear attention.
MechanismInfo linear_mechanism();

/// Sizes of the features of each head.
struct FeatureSizes {
  std::int64_t random_projection = 0;  ///< rows of the random projection
  std::int64_t features = 0;
};
/// Returns the sizes for this config. Throws UserError if the feature map cannot have config.n_features features.
FeatureSizes feature_sizes(const AttentionConfig& config);
/// Returns the cost of linear attention over n tokens. `window` is a sliding window, 0 for none.
AttentionCost linear_cost(const AttentionConfig& config, std::int64_t n, std::int64_t window);

}  // namespace furlong::layers
