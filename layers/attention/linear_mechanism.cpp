#include "layers/attention/linear_mechanism.h"

#include "framework/ops/linear_attention.h"
#include "layers/attention/directions.h"

namespace furlong::layers {
namespace {

class RecurrentState : public AttentionState {
 public:
  explicit RecurrentState(ops::LinearAttentionState state) : state(std::move(state)) {}
  std::int64_t bytes() const override { return state.sum.bytes() + state.normalizer.bytes() + state.maximum.bytes(); }
  ops::LinearAttentionState state;
};

class LinearMechanism : public AttentionMechanism {
 public:
  LinearMechanism(ParameterStore& store, const std::string& name, const AttentionConfig& config)
      : config_(config), stream_name_(name + ".directions") {
    options_.n_heads = config.n_heads;
    options_.n_kv_heads = config.n_kv_heads;
    options_.causal = config.causal;
    options_.chunk_size = config.chunk_size;
    const ops::FeatureMapInfo& info = ops::feature_map_info(config.feature_map);
    options_.feature_map = info.map;
    features_ = config.d_head;
    if (info.needs_directions) {
      features_ = config.n_features > 0 ? config.n_features : 2 * config.d_head;
      directions_ = &store.add_buffer(stream_name_, {features_, config.d_head});
    }
  }

  Variable forward(ForwardContext& context, const Variable& query, const Variable& key, const Variable& value) const override {
    return ops::linear_attention(context.tape, query, key, value, directions(), options_);
  }

  std::unique_ptr<AttentionState> new_state(std::int64_t batch, std::int64_t /*max_tokens*/, DType dtype,
                                            const Device& device) const override {
    return std::make_unique<RecurrentState>(
        ops::LinearAttentionState::empty(batch, config_.n_heads, features_, config_.d_head, accumulate_dtype(dtype), device));
  }

  Tensor extend(const Stream& stream, const Tensor& query, const Tensor& key, const Tensor& value, AttentionState& state) const override {
    return ops::linear_attention_continue(stream, query, key, value, directions(), options_, dynamic_cast<RecurrentState&>(state).state);
  }

  void redraw(std::uint64_t seed, std::int64_t step) override {
    if (!directions_ || directions_->master().device().is_shape_only()) return;
    if (step != 0 && (config_.redraw_every == 0 || step % config_.redraw_every != 0)) return;
    const RandomKey key{seed, static_cast<std::uint32_t>(step), random_stream(stream_name_)};
    const std::vector<float> drawn = draw_directions(directions_kind(config_.directions), features_, config_.d_head, key);
    const Tensor& target = directions_->master();
    if (target.dtype() == DType::float64) {
      target.copy_from(Tensor::from(std::vector<double>(drawn.begin(), drawn.end()), target.shape(), target.device()));
    } else {
      target.copy_from(Tensor::from(drawn, target.shape(), target.device()));
    }
  }

 private:
  Tensor directions() const { return directions_ ? directions_->master() : Tensor{}; }

  AttentionConfig config_;
  std::string stream_name_;
  ops::LinearAttentionOptions options_;
  std::int64_t features_ = 0;
  Parameter* directions_ = nullptr;
};

}  // namespace

std::unique_ptr<AttentionMechanism> make_linear_mechanism(ParameterStore& store, const std::string& name, const AttentionConfig& config) {
  return std::make_unique<LinearMechanism>(store, name, config);
}

}  // namespace furlong::layers
