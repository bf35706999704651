#include "layers/attention/linear/linear_mechanism.h"

#include "framework/ops/attention/compat/compat_attention.h"
#include "framework/ops/dense/head_linear.h"
#include "framework/ops/elementwise/column_gain.h"
#include "layers/attention/linear/directions.h"

namespace furlong::layers {
namespace {

class RecurrentState : public RecurrentAttentionState {
 public:
  explicit RecurrentState(ops::LinearAttentionState state) : state(std::move(state)) {}
  std::int64_t bytes() const override { return state.bytes(); }

  std::unique_ptr<AttentionState> clone() const override {
    auto copy = std::make_unique<RecurrentState>(state);
    for (Tensor* tensor : copy->tensors()) {
      if (tensor->defined()) *tensor = tensor->clone();
    }
    return copy;
  }

  void visit(const std::string& prefix, const StateVisitor& visitor) override {
    constexpr const char* names[] = {"sum", "normalizer", "maximum", "magnitude", "recent_key", "recent_value"};
    const auto parts = tensors();
    for (std::size_t i = 0; i < parts.size(); ++i) {
      if (parts[i]->defined()) visitor(prefix + "." + names[i], *parts[i]);
    }
    // 62 bits of the count in two numbers: tensors have no 64-bit integers.
    constexpr std::int64_t low_bits = 0x7fffffff;
    Tensor tokens = Tensor::from(std::vector<std::int32_t>{static_cast<std::int32_t>(state.tokens & low_bits),
                                                           static_cast<std::int32_t>(state.tokens >> 31)},
                                 {2});
    visitor(prefix + ".tokens", tokens);
    const std::vector<std::int32_t> parts_of_count = tokens.to_vector<std::int32_t>();
    state.tokens = static_cast<std::int64_t>(parts_of_count[1]) << 31 | parts_of_count[0];
  }

  ops::LinearAttentionState state;

 private:
  std::vector<Tensor*> tensors() {
    return {&state.sum, &state.normalizer, &state.maximum, &state.magnitude, &state.recent_key, &state.recent_value};
  }
};

ops::Normalizer normalizer_of(const AttentionConfig& config) {
  if (config.normalizer == "sum") return ops::Normalizer::sum;
  if (config.normalizer == "none") return ops::Normalizer::rms;
  throw UserError("model.attention.normalizer '{}' is unknown; expected sum or none", config.normalizer);
}

/// The libraries' attention is theirs alone: what they do not have is refused.
void check_compat(const AttentionConfig& config, ops::FeatureMap map, std::int64_t softmax_window) {
  ops::check_compat(ops::compat_library(config.compat), map);
  const char* other = nullptr;
  if (softmax_window > 0) other = "mechanism windowed";
  if (config.window > 0) other = "window";
  if (config.normalizer != "sum") other = "normalizer none";
  if (config.centering) other = "centering";
  if (config.scaling != "none") other = "scaling";
  if (config.rotate_numerator) other = "rotary_placement numerator";
  if (other) throw UserError("model.attention.compat: {} has no {}; remove one of the two", config.compat, other);
}

}  // namespace

LinearMechanism::LinearMechanism(ParameterStore& store, const std::string& name, const AttentionConfig& config,
                                 std::int64_t softmax_window)
    : config_(config), stream_name_(name + ".directions"), constants_(store, name, config) {
  choose_options(softmax_window);
  declare_parameters(store, name);
}

void LinearMechanism::choose_options(std::int64_t softmax_window) {
  const ops::FeatureMapInfo& info = ops::feature_map_info(config_.feature_map);
  options_.n_heads = config_.n_heads;
  options_.n_kv_heads = config_.n_kv_heads;
  options_.feature_map = info.map;
  options_.map_options = config_.map_options;
  options_.causal = config_.causal;
  options_.chunk_size = config_.chunk_size;
  options_.window = softmax_window > 0 ? 0 : config_.window;
  options_.softmax_window = softmax_window;
  options_.normalizer = normalizer_of(config_);
  options_.denominator_guard = config_.denominator_guard;
  options_.rotate_numerator = config_.rotate_numerator;
  options_.rotary_base = config_.rotary_base;
  if (info.needs_directions)
    n_directions_ = ops::direction_count(info.map, config_.n_features > 0 ? config_.n_features : 2 * config_.d_head);
  features_ = ops::feature_count(info.map, config_.map_options, config_.d_head, n_directions_);
  if (config_.compat != "none") check_compat(config_, info.map, softmax_window);
}

void LinearMechanism::declare_parameters(ParameterStore& store, const std::string& name) {
  const std::int64_t d = config_.d_head;
  if (n_directions_ > 0) {
    directions_kind(config_.directions);  // an unknown name is refused here, not at the first draw
    directions_ = &store.add_buffer(stream_name_, {n_directions_, d});
  }
  if (ops::feature_map_info(options_.feature_map).learns_inputs) {
    query_features_ =
        &store.add(name + ".query_features.weight", {config_.n_heads, d, d}, Initializer::identity(), false);
    key_features_ =
        &store.add(name + ".key_features.weight", {config_.n_kv_heads, d, d}, Initializer::identity(), false);
  }
  if (options_.normalizer == ops::Normalizer::rms)
    output_norm_ = &store.add(name + ".output_norm.weight", {config_.n_heads * d}, Initializer::ones(), false);
  if (options_.softmax_window > 0) gate_ = &store.add(name + ".gate", {config_.n_heads}, Initializer::zeros(), false);
}

Variable LinearMechanism::mapped(Tape& tape, const Variable& x, const Parameter* weight, std::int64_t n_heads) const {
  return weight ? ops::head_linear(tape, x, weight->variable(), n_heads) : x;
}

/// `inputs` but for what the layer itself knows.
Variable LinearMechanism::attend(Tape& tape, const ops::LinearAttentionInputs& inputs) const {
  ops::LinearAttentionInputs all = inputs;
  all.query = mapped(tape, inputs.query, query_features_, config_.n_heads);
  all.key = mapped(tape, inputs.key, key_features_, config_.n_kv_heads);
  if (gate_) all.gate = gate_->variable();
  if (directions_) all.constants.directions = directions_->master();
  constants_.put_into(all.constants);
  const Variable output = ops::linear_attention(tape, all, options_);
  return output_norm_ ? ops::column_gain(tape, output, output_norm_->variable()) : output;
}

Variable LinearMechanism::attend_as_library(ForwardContext& context, const Variable& query, const Variable& key,
                                            const Variable& value) const {
  ops::CompatAttentionOptions options;
  options.n_heads = config_.n_heads;
  options.n_kv_heads = config_.n_kv_heads;
  options.library = ops::compat_library(config_.compat);
  options.feature_map = options_.feature_map;
  options.causal = config_.causal;
  options.kernel_epsilon = config_.compat_kernel_epsilon;
  options.stabilize = config_.compat_stabilize;
  return ops::compat_attention(context.tape, query, key, value, directions_ ? directions_->master() : Tensor{},
                               context.attention_mask, options);
}

Variable LinearMechanism::forward(ForwardContext& context, const Variable& query, const Variable& key,
                                  const Variable& value, AttentionState* carried) const {
  if (carried) check_recurrent();
  if (config_.compat != "none") {
    require(!context.exchange, "segments of a sequence with model.attention.compat: {}", config_.compat);
    return attend_as_library(context, query, key, value);
  }
  ops::LinearAttentionInputs inputs;
  inputs.query = query;
  inputs.key = key;
  inputs.value = value;
  inputs.mask = context.attention_mask;
  if (carried) inputs.state = &dynamic_cast<RecurrentState&>(*carried).state;
  inputs.segments = context.exchange;
  if (!context.tape.runs_again()) inputs.report = report();  // backward will run the same again, and count it
  constants_.observe(context, query.value(), key.value());
  return attend(context.tape, inputs);
}

ops::DenominatorReport* LinearMechanism::report() const {
  const bool positive =
      ops::feature_map_info(options_.feature_map).form == ops::FeatureForm::logarithms && !options_.rotate_numerator;
  return positive || options_.normalizer == ops::Normalizer::rms ? nullptr : &report_;
}

void LinearMechanism::check_recurrent() const {
  if (config_.compat != "none") {
    throw UserError(
        "model.attention.compat: {} has no recurrent form: its stabilisers are maxima over all keys of a sequence, "
        "later ones included; there is no generation and no carried state with it; remove compat",
        config_.compat);
  }
  if (!config_.causal)
    throw UserError(
        "a bidirectional model has no recurrent form: each token sees later ones; generation and carried state need a "
        "decoder");
}

std::unique_ptr<AttentionState> LinearMechanism::new_state(std::int64_t batch, std::int64_t /*max_tokens*/, DType dtype,
                                                           const Device& device) const {
  check_recurrent();
  return std::make_unique<RecurrentState>(
      ops::empty_linear_attention_state(options_, batch, features_, config_.d_head, config_.d_head, dtype, device));
}

Tensor LinearMechanism::extend(const Stream& stream, const Tensor& query, const Tensor& key, const Tensor& value,
                               AttentionState& state) const {
  check_recurrent();
  Tape tape(stream);
  const Tape::NoGradient guard(tape);
  ops::LinearAttentionInputs inputs;
  inputs.query = Variable(query);
  inputs.key = Variable(key);
  inputs.value = Variable(value);
  inputs.state = &dynamic_cast<RecurrentState&>(state).state;
  inputs.report = report();
  // A token leaves its counts on the device, and nobody may ask for them while a text is generated.
  constexpr std::size_t most_pending = 64;
  if (inputs.report && inputs.report->pending.size() >= most_pending) inputs.report->gather();
  return attend(tape, inputs).value();
}

void LinearMechanism::redraw(std::uint64_t seed, std::int64_t step) {
  if (!directions_ || directions_->master().device().is_shape_only()) return;
  if (step != 0 && (config_.redraw_every == 0 || step % config_.redraw_every != 0)) return;
  const RandomKey key{seed, static_cast<std::uint32_t>(step), random_stream(stream_name_)};
  const std::vector<float> drawn =
      draw_directions(directions_kind(config_.directions), n_directions_, config_.d_head, key);
  const Tensor& target = directions_->master();
  if (target.dtype() == DType::float64) {
    target.copy_from(Tensor::from(std::vector<double>(drawn.begin(), drawn.end()), target.shape(), target.device()));
  } else {
    target.copy_from(Tensor::from(drawn, target.shape(), target.device()));
  }
}

std::unique_ptr<AttentionMechanism> make_linear_mechanism(ParameterStore& store, const std::string& name,
                                                          const AttentionConfig& config) {
  return std::make_unique<LinearMechanism>(store, name, config);
}

}  // namespace furlong::layers
