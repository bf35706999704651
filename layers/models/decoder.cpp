#include "layers/models/decoder.h"

#include <algorithm>
#include <cmath>

#include "framework/ops/dense/embedding.h"
#include "framework/ops/elementwise/weighted_sum.h"
#include "framework/primitives/arithmetic.h"
#include "framework/primitives/gemm.h"
#include "layers/dropout.h"

namespace furlong::layers {
namespace {

ops::NormKind norm_kind(const std::string& name) {
  if (name == "layernorm") return ops::NormKind::layernorm;
  if (name == "rmsnorm") return ops::NormKind::rmsnorm;
  throw UserError("model.norm '{}' is unknown; expected layernorm or rmsnorm", name);
}

NormPlacement norm_placement(const std::string& name) {
  if (name == "before") return NormPlacement::before;
  if (name == "after") return NormPlacement::after;
  throw UserError("model.norm_placement '{}' is unknown; expected before or after", name);
}

BlockConfig block_config(const DecoderConfig& config) {
  BlockConfig block;
  block.self_attention.attention = config.attention;
  block.self_attention.d_model = config.d_model;
  block.self_attention.bias = config.bias;
  block.self_attention.short_convolution = config.short_convolution;
  block.self_attention.query_key_norm = config.query_key_norm;
  block.self_attention.norm_epsilon = config.norm_epsilon;
  block.self_attention.adapter = config.adapter;
  block.self_attention.initial_deviation = config.initializer_range;
  // Each layer adds two branches to the residual stream; scaled so that its variance does not grow with depth (Radford
  // et al. 2019, section 2.3).
  block.self_attention.output_deviation =
      config.initializer_range / std::sqrt(2.0 * static_cast<double>(config.n_layers));
  block.d_feedforward = config.d_feedforward;
  block.activation = config.activation;
  block.norm = norm_kind(config.norm);
  block.norm_epsilon = config.norm_epsilon;
  block.norm_placement = norm_placement(config.norm_placement);
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
  for (std::size_t layer = 0; layer < layers.size(); ++layer)
    layers[layer].visit("layers." + std::to_string(layer), visitor);
}

Decoder::Decoder(ParameterStore& store, const DecoderConfig& config) : config_(config), store_(store) {
  require(config.vocabulary_size > 0 && config.n_layers > 0 && config.d_model > 0 && config.d_feedforward > 0 &&
              config.max_sequence_length > 0,
          "decoder: a size is not resolved");
  if (config_.prediction_head == "none") config_.predicts_tokens = false;
  declare_embeddings();
  declare_blocks();
  declare_output();
}

void Decoder::declare_embeddings() {
  const auto normal = Initializer::normal(config_.initializer_range);
  const std::int64_t width = config_.d_embedding > 0 ? config_.d_embedding : config_.d_model;
  token_embedding_ = &store_.add("token_embedding.weight", {config_.vocabulary_size, width}, normal, true);
  if (config_.position == "learned") {
    position_embedding_ = &store_.add("position_embedding.weight", {config_.max_sequence_length, width}, normal, true);
  } else if (config_.position == "rotary") {
    if (config_.rotary_placement == "numerator") {
      require(config_.rotary_scaling.kind == ops::RotaryScalingKind::none,
              "decoder: rotary_scaling with positions in the numerator");
      config_.attention.rotate_numerator = true;
      config_.attention.rotary_base = config_.rotary_base;
    } else if (config_.rotary_placement == "before_features") {
      rotary_ =
          std::make_unique<ops::RotaryTable>(config_.attention.d_head, config_.rotary_base, config_.rotary_scaling);
    } else {
      throw UserError("model.rotary_placement '{}' is unknown; expected before_features or numerator",
                      config_.rotary_placement);
    }
  } else if (config_.position != "sinusoidal" && config_.position != "none") {
    throw UserError("model.position '{}' is unknown; expected none, learned, sinusoidal or rotary", config_.position);
  }
  if (config_.n_segments > 0)
    segment_embedding_ = &store_.add("segment_embedding.weight", {config_.n_segments, width}, normal, true);
  if (config_.embedding_norm) {
    embedding_norm_.emplace(store_, "embedding_norm", width, norm_kind(config_.norm), config_.norm_epsilon,
                            config_.bias);
  }
  if (config_.d_embedding > 0) {
    embedding_projection_.emplace(store_, "embedding_projection", width, config_.d_model, config_.bias,
                                  config_.initializer_range);
  }
}

void Decoder::declare_blocks() {
  BlockConfig block = block_config(config_);
  if (config_.shared_layers && !config_.attention.layer_mechanisms.empty())
    throw UserError(
        "model.attention.layers names mechanisms for layers that share one block (model.shared_layers); remove one of "
        "the two");
  for (std::int64_t layer = 0; layer < config_.n_layers; ++layer) {
    const std::string name = "blocks." + std::to_string(layer);
    if (layer > 0 && config_.shared_layers) {
      blocks_.push_back(std::make_unique<Block>(*blocks_.front(), name));
      continue;
    }
    block.self_attention.attention = attention_of_layer(config_.attention, layer, config_.n_layers);
    blocks_.push_back(std::make_unique<Block>(store_, name, block, rotary_.get()));
  }
}

void Decoder::declare_output() {
  const ops::NormKind norm = norm_kind(config_.norm);
  if (norm_placement(config_.norm_placement) == NormPlacement::before)
    final_norm_.emplace(store_, "final_norm", config_.d_model, norm, config_.norm_epsilon, config_.bias);
  if (!config_.predicts_tokens) return;
  const std::int64_t embedding = token_embedding_->shape()[1];
  std::int64_t width = config_.d_model;  // of what the output product is taken of
  if (config_.prediction_head == "transform") {
    width = embedding;
    prediction_activation_ = ops::activation_from_name(config_.activation);
    prediction_transform_.emplace(store_, "prediction.transform", config_.d_model, width, config_.bias,
                                  config_.initializer_range);
    prediction_norm_.emplace(store_, "prediction.norm", width, norm, config_.norm_epsilon, config_.bias);
  } else if (config_.prediction_head != "linear") {
    throw UserError("model.prediction_head '{}' is unknown; expected linear, transform or none",
                    config_.prediction_head);
  }
  const Shape shape{config_.vocabulary_size, width};
  if (!config_.tied_embeddings) {
    classifier_ = &store_.add("classifier.weight", shape, Initializer::normal(config_.initializer_range), true);
  } else if (width != embedding) {
    throw UserError(
        "model.d_embedding: {} with tied embeddings and hidden states of width {}; take prediction_head: transform, or "
        "do not tie them",
        embedding, width);
  }
  if (config_.output_bias)
    output_bias_ = &store_.add("output_bias", {config_.vocabulary_size}, Initializer::zeros(), false);
}

/// Keeps a table of a GPU that became too short, for a recorded step goes on reading it. Returns twice its length: with
/// that for the least of the next, all that are kept are no longer than the last.
std::int64_t Decoder::keep_replaced(const Tensor& table) {
  if (!table.defined() || !table.device().is_gpu()) return 0;
  replaced_.push_back(table);
  return 2 * table.extent(0);
}

Variable Decoder::position_table(ForwardContext& context, std::int64_t needed) {
  if (position_embedding_) return position_embedding_->variable();
  if (config_.position != "sinusoidal") return {};
  if (!sinusoidal_.defined() || sinusoidal_.extent(0) < needed) {
    const std::int64_t doubled = keep_replaced(sinusoidal_);
    sinusoidal_ = ops::sinusoidal_positions(context.stream(), std::max({needed, config_.max_sequence_length, doubled}),
                                            token_embedding_->shape()[1], store_.compute_dtype());
  }
  return Variable(sinusoidal_);
}

/// The segment embedding of each token; undefined where there is none.
Variable Decoder::segments_of(ForwardContext& context, const Tensor& tokens) {
  if (!segment_embedding_) {
    require(!context.segments.defined(), "segments for a model that has none");
    return {};
  }
  Tensor segments = context.segments;
  if (!segments.defined()) {
    const std::int64_t count = tokens.elements();
    if (!zero_segments_.defined() || zero_segments_.extent(0) < count)
      zero_segments_ =
          Tensor::zeros({std::max(count, keep_replaced(zero_segments_))}, DType::int32, context.stream().device);
    segments = zero_segments_.narrow(0, 0, count).reshape(tokens.shape());
  }
  require(segments.shape() == tokens.shape(), "segments {} for tokens {}", segments.shape().text(),
          tokens.shape().text());
  return ops::embedding(context.tape, segments, segment_embedding_->variable(), nullptr, 0);
}

Variable Decoder::embedded(ForwardContext& context, const Tensor& tokens, std::int64_t first_position) {
  const Tape::Scope scope(context.tape, "embedding");
  const std::int64_t first = context.exchange ? context.exchange->first_position() : first_position;
  const Variable table = token_embedding_->variable(), positions = position_table(context, first + tokens.extent(1));
  const Tensor own = positions.defined() ? context.own_positions() : Tensor{};
  Variable x = ops::embedding(context.tape, tokens, table, positions.defined() ? &positions : nullptr,
                              own.defined() ? 0 : first_position, own.defined() ? &own : nullptr);
  const Variable segments = segments_of(context, tokens);
  if (embedding_norm_) {
    x = embedding_norm_->forward(context, x, segments.defined() ? &segments : nullptr).normed;
  } else if (segments.defined()) {
    x = ops::weighted_sum(context.tape, x, segments);
  }
  x = dropout(context, x, config_.dropout, "embedding.dropout");
  return embedding_projection_ ? embedding_projection_->forward(context, x) : x;
}

ResidualStream Decoder::run_block(ForwardContext& context, std::size_t layer, const ResidualStream& in,
                                  GenerationState* carried) const {
  if (!carried) return blocks_[layer]->forward(context, in);
  return blocks_[layer]->forward(context, in, carried->position, &carried->layers[layer]);
}

ResidualStream Decoder::recompute_block(ForwardContext& context, std::size_t layer, const ResidualStream& in,
                                        GenerationState* carried) const {
  std::vector<Variable> inputs{in.sum};
  if (in.branch.defined()) inputs.push_back(in.branch);
  // The first run advances what is carried; backward has to run again from what it was before.
  std::shared_ptr<SelfAttentionState> before;
  if (carried && context.tape.recording())
    before = std::make_shared<SelfAttentionState>(carried->layers[layer].clone());
  const std::int64_t position = carried ? carried->position : 0;
  SelfAttentionState* now = carried ? &carried->layers[layer] : nullptr;
  std::vector<Variable> outputs = context.tape.recompute(
      blocks_[layer]->name().c_str(), inputs,
      [block = blocks_[layer].get(), copy = context, before, position, now](Tape& tape,
                                                                            const std::vector<Variable>& xs) mutable {
        SelfAttentionState* state = tape.recording() ? before.get() : now;
        const ResidualStream out = block->forward(copy, {xs[0], xs.size() > 1 ? xs[1] : Variable{}}, position, state);
        return out.branch.defined() ? std::vector<Variable>{out.sum, out.branch} : std::vector<Variable>{out.sum};
      });
  outputs.resize(2);
  return {outputs[0], outputs[1]};
}

Variable Decoder::hidden(ForwardContext& context, const Tensor& tokens, GenerationState* carried) {
  context.tape.set_remakes_values(config_.recompute_elementwise);
  ResidualStream stream{embedded(context, tokens, carried ? carried->position : 0), {}};
  for (std::size_t layer = 0; layer < blocks_.size(); ++layer) {
    stream = config_.recompute_blocks ? recompute_block(context, layer, stream, carried)
                                      : run_block(context, layer, stream, carried);
  }
  if (carried) carried->position += tokens.extent(1);
  return normed(context, stream);
}

/// What comes after the last block: the final norm, or with norms after the additions nothing more.
Variable Decoder::normed(ForwardContext& context, const ResidualStream& stream) const {
  if (!final_norm_) return stream.sum;
  const Tape::Scope scope(context.tape, "final_norm");
  return final_norm_->forward(context, stream.sum, &stream.branch).normed;
}

Variable Decoder::prediction_states(ForwardContext& context, const Variable& hidden) const {
  if (!prediction_transform_) return hidden;
  const Tape::Scope scope(context.tape, "prediction");
  return prediction_norm_
      ->forward(context, prediction_transform_->activated(context, hidden, prediction_activation_), nullptr)
      .normed;
}

ops::CrossEntropyResult Decoder::loss(ForwardContext& context, const Tensor& tokens, const Tensor& targets,
                                      const ops::CrossEntropyOptions& options, GenerationState* carried) {
  const Variable states = prediction_states(context, hidden(context, tokens, carried));
  const Tape::Scope scope(context.tape, "classifier");
  const Variable bias = output_bias_ ? output_bias_->variable() : Variable{};
  return ops::cross_entropy(context.tape, states, output_weight().variable(), output_bias_ ? &bias : nullptr, targets,
                            options);
}

Tensor Decoder::logits(const Stream& stream, const Tensor& hidden) const {
  Tape tape(stream);
  const Tape::NoGradient guard(tape);
  ForwardContext context{tape};
  const Tensor states = prediction_states(context, Variable(hidden)).value();
  const Tensor result =
      Tensor::empty({states.extent(0), config_.vocabulary_size}, accumulate_dtype(states.dtype()), stream.device);
  Tensor bias;
  if (output_bias_) {
    bias = Tensor::empty({config_.vocabulary_size}, result.dtype(), stream.device);
    ops::convert(stream, bias, output_bias_->variable().value());
  }
  ops::gemm(stream, states, false, output_weight().variable().value(), true, result, GradientMode::overwrite,
            {.bias = output_bias_ ? &bias : nullptr});
  return result;
}

Variable Decoder::attention_output(ForwardContext& context, std::size_t layer, const Variable& input,
                                   std::int64_t first_position) const {
  require(layer < blocks_.size(), "attention of layer {} of {}", layer, blocks_.size());
  context.tape.set_remakes_values(config_.recompute_elementwise);
  return blocks_[layer]->attention_output(context, input, first_position);
}

GenerationState Decoder::new_state(std::int64_t batch, std::int64_t max_tokens) const {
  GenerationState state;
  for (const auto& block : blocks_)
    state.layers.push_back(block->new_state(batch, max_tokens, store_.compute_dtype(), store_.device()));
  return state;
}

Variable Decoder::extend(ForwardContext& context, const Tensor& tokens, GenerationState& state) {
  ResidualStream stream{embedded(context, tokens, state.position), {}};
  for (std::size_t layer = 0; layer < blocks_.size(); ++layer)
    stream = blocks_[layer]->extend(context, stream, state.position, state.layers[layer]);
  state.position += tokens.extent(1);
  return normed(context, stream);
}

void Decoder::redraw(std::uint64_t seed, std::int64_t step, std::optional<std::size_t> only) {
  for (std::size_t layer = 0; layer < blocks_.size(); ++layer) {
    if (!only || *only == layer) blocks_[layer]->update_constants();
    blocks_[layer]->redraw(seed, step);
  }
}

}  // namespace furlong::layers
