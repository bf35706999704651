#include "layers/attention/linear/linear_mechanism.h"

#include <algorithm>

#include "framework/core/tensor_values.h"
#include "framework/ops/dense/head_linear.h"
#include "framework/ops/elementwise/column_gain.h"
#include "layers/attention/linear/random_projection.h"
#include "layers/attention/softmax/softmax_mechanism.h"

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

  std::unique_ptr<AttentionState> repeated(const Stream& stream, std::int64_t batch) const override {
    auto copy = std::make_unique<RecurrentState>(state);
    for (Tensor* tensor : copy->tensors()) *tensor = repeated_row(stream, *tensor, batch);
    return copy;
  }

  void visit(const std::string& prefix, const StateVisitor& visitor) override {
    constexpr const char* names[] = {"sum", "normalizer", "maximum", "magnitude", "recent_key", "recent_value"};
    const auto parts = tensors();
    for (std::size_t i = 0; i < parts.size(); ++i) {
      if (parts[i]->defined()) visitor(prefix + "." + names[i], *parts[i]);
    }
    // Stores 62 bits of the count in two numbers, because tensors have no 64-bit integers.
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

}  // namespace

LinearMechanism::LinearMechanism(ParameterStore& store, const std::string& name, const AttentionConfig& config,
                                 std::int64_t softmax_window)
    : config_(config), stream_name_(name + ".directions"), constants_(store, name, config) {
  choose_options(softmax_window);
  declare_parameters(store, name);
  if (config.drops_softmax_window) options_.softmax_window = 0;
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
  options_.normalizer = config_.normalizer;
  options_.denominator_guard = config_.denominator_guard;
  options_.rotate_numerator = config_.rotate_numerator;
  options_.rotary_base = config_.rotary_base;
  const FeatureSizes sizes = feature_sizes(config_);
  n_projections_ = sizes.random_projection;
  features_ = sizes.features;
}

void LinearMechanism::declare_parameters(ParameterStore& store, const std::string& name) {
  const std::int64_t d = config_.d_head;
  if (n_projections_ > 0) random_projection_ = &store.add_buffer(stream_name_, {n_projections_, d});
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

/// Adds the layer's own parameters, constants and options to `inputs` and runs the op.
Variable LinearMechanism::attend(Tape& tape, const ops::LinearAttentionInputs& inputs) const {
  ops::LinearAttentionInputs all = inputs;
  if (substitutes_) {
    all.gate = substitutes_->gate;
    all.constants = substitutes_->constants;
    return ops::linear_attention(tape, all, options_);
  }
  all.query = mapped(tape, inputs.query, query_features_, config_.n_heads);
  all.key = mapped(tape, inputs.key, key_features_, config_.n_kv_heads);
  if (options_.softmax_window > 0) all.gate = gate_->variable();
  if (random_projection_) all.constants.random_projection = random_projection_->master();
  constants_.put_into(all.constants);
  const Variable output = ops::linear_attention(tape, all, options_);
  return output_norm_ ? ops::column_gain(tape, output, output_norm_->variable()) : output;
}

Variable LinearMechanism::forward(ForwardContext& context, const Variable& query, const Variable& key,
                                  const Variable& value, AttentionState* carried) const {
  if (carried) check_recurrent();
  ops::LinearAttentionInputs inputs;
  inputs.query = query;
  inputs.key = key;
  inputs.value = value;
  inputs.mask = context.attention_mask;
  if (carried) inputs.state = &dynamic_cast<RecurrentState&>(*carried).state;
  inputs.segments = context.exchange;
  // In a segment that backward recomputes, only the second run is counted.
  if (counts_denominators() && !context.tape.will_rerun()) inputs.report = context.denominators;
  constants_.observe(context, query.value(), key.value());
  return attend(context.tape, inputs);
}

bool LinearMechanism::substitute(const AttentionTensors& tensors) {
  substitutes_ = tensors;
  return true;
}

bool LinearMechanism::counts_denominators() const {
  if (substitutes_) return true;
  const bool positive =
      ops::feature_map_info(options_.feature_map).form == ops::FeatureForm::logarithms && !options_.rotate_numerator;
  return !positive && options_.normalizer == ops::Normalizer::sum;
}

void LinearMechanism::check_recurrent() const {
  if (!config_.causal)
    throw UserError(
        "a bidirectional model has no recurrent form, because each token attends to later ones; use a decoder for "
        "generation and stateful training");
}

std::unique_ptr<AttentionState> LinearMechanism::new_state(std::int64_t batch, std::int64_t /*max_tokens*/, DType dtype,
                                                           const Device& device) const {
  check_recurrent();
  return std::make_unique<RecurrentState>(
      ops::empty_linear_attention_state(options_, batch, features_, config_.value_width(), dtype, device));
}

Tensor LinearMechanism::extend(const Stream& stream, const Tensor& query, const Tensor& key, const Tensor& value,
                               AttentionState& state, const Tensor& key_mask,
                               ops::DenominatorReport* denominators) const {
  check_recurrent();
  Tape tape(stream);
  const Tape::NoGradient guard(tape);
  ops::LinearAttentionInputs inputs;
  inputs.query = Variable(query);
  inputs.key = Variable(key);
  inputs.value = Variable(value);
  inputs.mask.keys = key_mask;
  inputs.state = &dynamic_cast<RecurrentState&>(state).state;
  if (counts_denominators()) inputs.report = denominators;
  return attend(tape, inputs).value();
}

void LinearMechanism::redraw(std::uint64_t seed, std::int64_t step) {
  if (!random_projection_ || random_projection_->master().device().is_shape_only()) return;
  if (step != 0 && (config_.redraw_every == 0 || step % config_.redraw_every != 0)) return;
  const RandomKey key{seed, static_cast<std::uint32_t>(step), random_stream(stream_name_)};
  const std::vector<float> drawn =
      draw_random_projection(config_.random_projection, n_projections_, config_.d_head, key);
  set_values(random_projection_->master(), {drawn.begin(), drawn.end()});
}

namespace {

std::unique_ptr<AttentionMechanism> make_linear(ParameterStore& store, const std::string& name,
                                                const AttentionConfig& config) {
  return std::make_unique<LinearMechanism>(store, name, config);
}

AttentionCost cost_of_linear(const AttentionConfig& config, std::int64_t n) {
  return linear_cost(config, n, config.window);
}

/// Returns the pairs computed for a causal chunk: blocks of 16 queries, each over the keys up to the block's last
/// query.
double pairs_in_blocks(double chunk) {
  double count = 0;
  for (double row = 0; row < chunk; row += 16) count += std::min(16.0, chunk - row) * std::min(row + 16, chunk);
  return count;
}

}  // namespace

FeatureSizes feature_sizes(const AttentionConfig& config) {
  const ops::FeatureMapInfo& info = ops::feature_map_info(config.feature_map);
  FeatureSizes sizes;
  if (info.needs_random_projection)
    sizes.random_projection =
        ops::projection_count(info.map, config.n_features > 0 ? config.n_features : 2 * config.d_head);
  sizes.features = ops::feature_count(info.map, config.map_options, config.d_head, sizes.random_projection);
  return sizes;
}

/// Cost formulas. p is the number of pairs that attend to each other, D the number of rows of the random projection, c
/// the chunk size, and b = n(c+16)/2 the pairs of all causal chunks in blocks of 16 queries (for c a multiple of 16;
/// the code is exact for all c). Values are as wide as keys.
///   bidirectional: forward 4nDd + 4nmd, backward 12nDd + 10nmd
///   causal:        forward 4nDd + 4nmd + 2b(m+d), backward 14nDd + 10nmd + 2b(3m+2d)
///   with a window: forward 4nDd + p·2(m+d), backward 8nDd + p·2(3m+2d)
/// A segment computes the features of its keys once more (in backward those of its queries), and their sum, which goes
/// to the other ranks: 2nDd + 2nmd.
AttentionCost linear_cost(const AttentionConfig& config, std::int64_t n_tokens, std::int64_t window) {
  const FeatureSizes sizes = feature_sizes(config);
  const double n = static_cast<double>(n_tokens), d = static_cast<double>(config.d_head),
               heads = static_cast<double>(config.n_heads),
               random_projection = static_cast<double>(sizes.random_projection),
               m = static_cast<double>(sizes.features), c = static_cast<double>(std::min(config.chunk_size, n_tokens));
  AttentionCost cost;
  if (ops::feature_map_info(config.feature_map).learns_inputs)
    cost.maps = 2 * n * d * d * (heads + static_cast<double>(config.n_kv_heads));
  cost.segment = heads * 2 * n * d * (random_projection + m);
  if (window > 0) {
    const double seen = attended_pairs(config.causal, n_tokens, window), pairs = seen * 2 * (m + d);
    cost.forward = heads * (4 * n * random_projection * d + pairs);
    cost.with_backward = heads * (12 * n * random_projection * d + pairs + seen * 2 * (3 * m + 2 * d));
    return cost;
  }
  // Both sweeps recompute the features of queries and keys. Gradients go back through the random projection once for
  // each, and in causal models once more for queries: their gradient comes from the state in one sweep and from the
  // pairs in the other.
  const double in_blocks = config.causal ? n / c * pairs_in_blocks(c) : 0, pairs = in_blocks * 2 * (m + d);
  const double forward = 4 * n * random_projection * d + 4 * n * m * d,
               backward = (config.causal ? 14 : 12) * n * random_projection * d + 10 * n * m * d;
  cost.forward = heads * (forward + pairs);
  cost.with_backward = heads * (forward + backward + pairs + in_blocks * 2 * (3 * m + 2 * d));
  return cost;
}

MechanismInfo linear_mechanism() {
  MechanismInfo info{linear_attention, "through a feature map of queries and keys", make_linear, cost_of_linear};
  info.has_features = true;
  info.chooses_normalizer = true;
  info.rotates_numerator = true;
  info.exchanges_segments = true;
  info.past = Past::constant;
  info.window = &AttentionConfig::window;
  return info;
}

}  // namespace furlong::layers
