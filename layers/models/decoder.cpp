#include "layers/models/decoder.h"

#include <algorithm>
#include <cmath>

#include "framework/ops/embedding.h"
#include "framework/ops/gemm.h"
#include "layers/dropout.h"

namespace furlong::layers {
namespace {

ops::NormKind norm_kind(const std::string& name) {
  if (name == "layernorm") return ops::NormKind::layernorm;
  if (name == "rmsnorm") return ops::NormKind::rmsnorm;
  throw UserError("model.norm '{}' is unknown; expected layernorm or rmsnorm", name);
}

BlockConfig block_config(const DecoderConfig& config) {
  BlockConfig block;
  block.self_attention.attention = config.attention;
  block.self_attention.d_model = config.d_model;
  block.self_attention.bias = config.bias;
  block.self_attention.short_convolution = config.short_convolution;
  block.self_attention.initial_deviation = config.initializer_range;
  // Each layer adds two branches to the residual stream; scaled so that its variance does not grow with depth (Radford et al. 2019,
  // section 2.3).
  block.self_attention.output_deviation = config.initializer_range / std::sqrt(2.0 * static_cast<double>(config.n_layers));
  block.d_feedforward = config.d_feedforward;
  block.activation = config.activation;
  block.norm = norm_kind(config.norm);
  block.norm_epsilon = config.norm_epsilon;
  block.dropout = config.dropout;
  return block;
}

}  // namespace

std::int64_t GenerationState::bytes() const {
  std::int64_t total = 0;
  for (const SelfAttentionState& layer : layers) total += layer.bytes();
  return total;
}

void GenerationState::visit(const StateVisitor& visitor) {
  for (std::size_t layer = 0; layer < layers.size(); ++layer) layers[layer].visit("layers." + std::to_string(layer), visitor);
}

Decoder::Decoder(ParameterStore& store, const DecoderConfig& config) : config_(config), store_(store) {
  require(
      config.vocabulary_size > 0 && config.n_layers > 0 && config.d_model > 0 && config.d_feedforward > 0 && config.max_sequence_length > 0,
      "decoder: a size is not resolved");
  const auto normal = Initializer::normal(config.initializer_range);
  token_embedding_ = &store.add("token_embedding.weight", {config.vocabulary_size, config.d_model}, normal, true);
  if (config.position == "learned") {
    position_embedding_ = &store.add("position_embedding.weight", {config.max_sequence_length, config.d_model}, normal, true);
  } else if (config.position == "rotary") {
    if (config.rotary_placement == "numerator") {
      config_.attention.rotate_numerator = true;
      config_.attention.rotary_base = config.rotary_base;
    } else if (config.rotary_placement == "before_features") {
      rotary_ = std::make_unique<ops::RotaryTable>(config.attention.d_head, config.rotary_base);
    } else {
      throw UserError("model.rotary_placement '{}' is unknown; expected before_features or numerator", config.rotary_placement);
    }
  } else if (config.position != "sinusoidal" && config.position != "none") {
    throw UserError("model.position '{}' is unknown; expected none, learned, sinusoidal or rotary", config.position);
  }
  BlockConfig block = block_config(config_);
  for (std::int64_t layer = 0; layer < config.n_layers; ++layer) {
    block.self_attention.attention = attention_of_layer(config_.attention, layer, config.n_layers);
    blocks_.push_back(std::make_unique<Block>(store, "blocks." + std::to_string(layer), block, rotary_.get()));
  }
  final_norm_ = std::make_unique<Norm>(store, "final_norm", config.d_model, block.norm, config.norm_epsilon, config.bias);
  if (!config.tied_embeddings) classifier_ = &store.add("classifier.weight", {config.vocabulary_size, config.d_model}, normal, true);
}

Variable Decoder::embedded(ForwardContext& context, const Tensor& tokens, std::int64_t first_position) {
  const Tape::Scope scope(context.tape, "embedding");
  Variable positions;
  if (position_embedding_) {
    positions = position_embedding_->variable();
  } else if (config_.position == "sinusoidal") {
    const std::int64_t needed = first_position + tokens.extent(1);
    if (!sinusoidal_.defined() || sinusoidal_.extent(0) < needed) {
      sinusoidal_ = ops::sinusoidal_positions(context.stream(), std::max(needed, config_.max_sequence_length), config_.d_model,
                                              store_.compute_dtype());
    }
    positions = Variable(sinusoidal_);
  }
  const Variable table = token_embedding_->variable();
  const Tensor own = positions.defined() ? context.own_positions() : Tensor{};
  const Variable x = ops::embedding(context.tape, tokens, table, positions.defined() ? &positions : nullptr,
                                    own.defined() ? 0 : first_position, own.defined() ? &own : nullptr);
  return dropout(context, x, config_.dropout, "embedding.dropout");
}

ResidualStream Decoder::run_block(ForwardContext& context, std::size_t layer, const ResidualStream& in, GenerationState* carried) const {
  if (!carried) return blocks_[layer]->forward(context, in);
  return blocks_[layer]->forward(context, in, carried->position, &carried->layers[layer]);
}

ResidualStream Decoder::recompute_block(ForwardContext& context, std::size_t layer, const ResidualStream& in,
                                        GenerationState* carried) const {
  std::vector<Variable> inputs{in.sum};
  if (in.branch.defined()) inputs.push_back(in.branch);
  // The first run advances what is carried; backward has to run again from what it was before.
  std::shared_ptr<SelfAttentionState> before;
  if (carried && context.tape.recording()) before = std::make_shared<SelfAttentionState>(carried->layers[layer].clone());
  const std::int64_t position = carried ? carried->position : 0;
  SelfAttentionState* now = carried ? &carried->layers[layer] : nullptr;
  const std::vector<Variable> outputs = context.tape.recompute(
      blocks_[layer]->name().c_str(), inputs,
      [block = blocks_[layer].get(), copy = context, before, position, now](Tape& tape, const std::vector<Variable>& xs) mutable {
        SelfAttentionState* state = tape.recording() ? before.get() : now;
        const ResidualStream out = block->forward(copy, {xs[0], xs.size() > 1 ? xs[1] : Variable{}}, position, state);
        return std::vector<Variable>{out.sum, out.branch};
      });
  return {outputs[0], outputs[1]};
}

Variable Decoder::hidden(ForwardContext& context, const Tensor& tokens, GenerationState* carried) {
  context.tape.set_remakes_values(config_.recompute_elementwise);
  ResidualStream stream{embedded(context, tokens, carried ? carried->position : 0), {}};
  for (std::size_t layer = 0; layer < blocks_.size(); ++layer) {
    stream = config_.recompute_blocks ? recompute_block(context, layer, stream, carried) : run_block(context, layer, stream, carried);
  }
  if (carried) carried->position += tokens.extent(1);
  const Tape::Scope scope(context.tape, "final_norm");
  return final_norm_->forward(context, stream.sum, &stream.branch).normed;
}

ops::CrossEntropyResult Decoder::loss(ForwardContext& context, const Tensor& tokens, const Tensor& targets,
                                      const ops::CrossEntropyOptions& options, GenerationState* carried) {
  const Variable states = hidden(context, tokens, carried);
  const Tape::Scope scope(context.tape, "classifier");
  return ops::cross_entropy(context.tape, states, classifier().variable(), nullptr, targets, options);
}

Tensor Decoder::logits(const Stream& stream, const Tensor& hidden) const {
  const Tensor result = Tensor::empty({hidden.extent(0), config_.vocabulary_size}, accumulate_dtype(hidden.dtype()), stream.device);
  ops::gemm(stream, hidden, false, classifier().variable().value(), true, result, GradientMode::overwrite);
  return result;
}

GenerationState Decoder::new_state(std::int64_t batch, std::int64_t max_tokens) const {
  GenerationState state;
  for (const auto& block : blocks_) state.layers.push_back(block->new_state(batch, max_tokens, store_.compute_dtype(), store_.device()));
  return state;
}

Variable Decoder::extend(ForwardContext& context, const Tensor& tokens, GenerationState& state) {
  ResidualStream stream{embedded(context, tokens, state.position), {}};
  for (std::size_t layer = 0; layer < blocks_.size(); ++layer)
    stream = blocks_[layer]->extend(context, stream, state.position, state.layers[layer]);
  state.position += tokens.extent(1);
  return final_norm_->forward(context, stream.sum, &stream.branch).normed;
}

void Decoder::redraw(std::uint64_t seed, std::int64_t step) {
  for (const auto& block : blocks_) block->redraw(seed, step);
}

ops::DenominatorReport Decoder::take_denominator_report() {
  ops::DenominatorReport total;
  for (const auto& block : blocks_) total += block->take_denominator_report();
  return total;
}

}  // namespace furlong::layers
