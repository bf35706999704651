#include "layers/models/decoder.h"

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

Decoder::Decoder(ParameterStore& store, const DecoderConfig& config) : config_(config), store_(store) {
  require(
      config.vocabulary_size > 0 && config.n_layers > 0 && config.d_model > 0 && config.d_feedforward > 0 && config.max_sequence_length > 0,
      "decoder: a size is not resolved");
  const auto normal = Initializer::normal(config.initializer_range);
  token_embedding_ = &store.add("token_embedding.weight", {config.vocabulary_size, config.d_model}, normal, true);
  if (config.position == "learned") {
    position_embedding_ = &store.add("position_embedding.weight", {config.max_sequence_length, config.d_model}, normal, true);
  } else if (config.position == "rotary") {
    rotary_ = std::make_unique<ops::RotaryTable>(config.attention.d_head, config.rotary_base);
  } else if (config.position != "sinusoidal" && config.position != "none") {
    throw UserError("model.position '{}' is unknown; expected none, learned, sinusoidal or rotary", config.position);
  }
  const BlockConfig block = block_config(config);
  for (std::int64_t layer = 0; layer < config.n_layers; ++layer) {
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
  const Variable x = ops::embedding(context.tape, tokens, table, positions.defined() ? &positions : nullptr, first_position);
  return dropout(context, x, config_.dropout, "embedding.dropout");
}

Variable Decoder::hidden(ForwardContext& context, const Tensor& tokens) {
  ResidualStream stream{embedded(context, tokens, 0), {}};
  for (const auto& block : blocks_) {
    if (!config_.recompute_blocks) {
      stream = block->forward(context, stream);
      continue;
    }
    std::vector<Variable> inputs{stream.sum};
    if (stream.branch.defined()) inputs.push_back(stream.branch);
    const std::vector<Variable> outputs = context.tape.recompute(
        block->name().c_str(), inputs, [block = block.get(), copy = context](Tape&, const std::vector<Variable>& in) mutable {
          const ResidualStream out = block->forward(copy, {in[0], in.size() > 1 ? in[1] : Variable{}});
          return std::vector<Variable>{out.sum, out.branch};
        });
    stream = {outputs[0], outputs[1]};
  }
  const Tape::Scope scope(context.tape, "final_norm");
  return final_norm_->forward(context, stream.sum, &stream.branch).normed;
}

ops::CrossEntropyResult Decoder::loss(ForwardContext& context, const Tensor& tokens, const Tensor& targets,
                                      const ops::CrossEntropyOptions& options) {
  const Variable states = hidden(context, tokens);
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

}  // namespace furlong::layers
