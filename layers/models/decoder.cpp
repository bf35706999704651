#include "layers/models/decoder.h"

#include <algorithm>

#include "framework/ops/dense/embedding.h"
#include "framework/ops/elementwise/token_dropout.h"
#include "framework/ops/elementwise/weighted_sum.h"
#include "framework/primitives/arithmetic.h"
#include "framework/primitives/gemm.h"
#include "layers/dropout.h"

namespace furlong::layers {

std::int64_t GenerationState::bytes() const {
  std::int64_t total = 0;
  for (const SelfAttentionState& layer : layers) total += layer.bytes();
  return total;
}

std::int64_t GenerationState::bytes_read() const {
  std::int64_t total = 0;
  for (const SelfAttentionState& layer : layers) total += layer.bytes_read();
  return total;
}

GenerationState GenerationState::repeated(const Stream& stream, std::int64_t batch) const {
  GenerationState copy{position, {}};
  for (const SelfAttentionState& layer : layers) copy.layers.push_back(layer.repeated(stream, batch));
  return copy;
}

void GenerationState::visit(const StateVisitor& visitor) {
  for (std::size_t layer = 0; layer < layers.size(); ++layer)
    layers[layer].visit("layers." + std::to_string(layer), visitor);
}

Decoder::Decoder(ParameterStore& store, const ModelConfig& config, ActivationCheckpointing checkpointing)
    : config_(config), checkpointing_(checkpointing), store_(store) {
  require(config.vocabulary_size > 0 && config.n_layers > 0 && config.d_model > 0 && config.d_feedforward > 0 &&
              config.max_sequence_length > 0,
          "decoder: a size is not resolved");
  declare_embeddings();
  declare_blocks();
  declare_output();
}

void Decoder::declare_embeddings() {
  const auto normal = Initializer::normal(config_.initializer_range);
  const std::int64_t width = config_.embedding_width();
  // Sinusoids have amplitude 1, so tokens need a comparable one. With tied embeddings it would be that of the logits.
  const bool are_output_weights = config_.tied_embeddings && config_.prediction_head != PredictionHead::none;
  const bool beside_sinusoids = config_.position == Position::sinusoidal && !are_output_weights;
  token_embedding_ = &store_.add("token_embedding.weight", {config_.vocabulary_size, width},
                                 beside_sinusoids ? Initializer::normal(1) : normal, true);
  if (config_.position == Position::learned)
    position_embedding_ = &store_.add("position_embedding.weight", {config_.max_sequence_length, width}, normal, true);
  if (config_.n_segments > 0)
    segment_embedding_ = &store_.add("segment_embedding.weight", {config_.n_segments, width}, normal, true);
  if (config_.embedding_norm) embedding_norm_.emplace(store_, "embedding_norm", width, config_);
  if (config_.d_embedding > 0) {
    embedding_projection_.emplace(store_, "embedding_projection", width, config_.d_model, config_.bias,
                                  config_.initializer_range);
  }
}

void Decoder::declare_blocks() {
  require(!config_.shared_layers || config_.attention.layer_mechanisms.empty(),
          "decoder: layer_mechanisms with layers that share one block");
  if (config_.rotates(RotaryPlacement::before_features))
    rotary_ = std::make_unique<ops::RotaryTable>(config_.attention.d_head, config_.rotary_base, config_.rotary_scaling);
  for (std::int64_t layer = 0; layer < config_.n_layers; ++layer) {
    blocks_.push_back(layer > 0 && config_.shared_layers
                          ? std::make_unique<Block>(*blocks_.front(), layer)
                          : std::make_unique<Block>(store_, config_, layer, rotary_.get()));
  }
}

void Decoder::declare_output() {
  if (config_.norm_placement == NormPlacement::pre) final_norm_.emplace(store_, "final_norm", config_.d_model, config_);
  if (config_.prediction_head == PredictionHead::none) return;
  std::int64_t width = config_.d_model;  // of the input of the output projection
  if (config_.prediction_head == PredictionHead::transform) {
    require(!is_gated(config_.activation), "decoder: a gated activation before the output projection");
    width = config_.embedding_width();
    prediction_transform_.emplace(store_, "prediction.transform", config_.d_model, width, config_.bias,
                                  config_.initializer_range);
    prediction_norm_.emplace(store_, "prediction.norm", width, config_);
  }
  if (!config_.tied_embeddings) {
    classifier_ = &store_.add("classifier.weight", {config_.vocabulary_size, width},
                              Initializer::normal(config_.initializer_range), true);
  }
  require(width == output_weight().shape()[1], "decoder: tied embeddings of width {} for states of width {}",
          output_weight().shape()[1], width);
  if (config_.output_bias)
    output_bias_ = &store_.add("output_bias", {config_.vocabulary_size}, Initializer::zeros(), false);
}

/// Returns the minimum length of the table that replaces one that became too short: twice its length, so that
/// generation does not make a table for each token. Keeps a table on a GPU, because a captured step still reads it; all
/// kept tables together are no longer than the last one.
std::int64_t Decoder::keep_replaced(const Tensor& table) {
  if (!table.defined()) return 0;
  if (table.device().is_gpu()) replaced_.push_back(table);
  return 2 * table.extent(0);
}

Variable Decoder::position_table(ForwardContext& context, std::int64_t needed) {
  if (position_embedding_) return position_embedding_->variable();
  if (config_.position != Position::sinusoidal) return {};
  if (!sinusoidal_.defined() || sinusoidal_.extent(0) < needed) {
    // Not max_sequence_length, which a file can set to any number.
    sinusoidal_ = ops::sinusoidal_positions(context.stream(), std::max(needed, keep_replaced(sinusoidal_)),
                                            token_embedding_->shape()[1], store_.compute_dtype());
  }
  return Variable(sinusoidal_);
}

/// Returns the segment embedding of each token; undefined for a model without segments.
Variable Decoder::segments_of(ForwardContext& context, const Tensor& tokens) {
  if (!segment_embedding_) {
    require(!context.segments.defined(), "segments for a model without segment embedding");
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
  if (config_.token_dropout) {
    require(!positions.defined() && !context.exchange && !context.attention_mask.documents.defined(),
            "token dropout with a position table, or with a part of a sequence or several sequences in a row");
    x = ops::token_dropout(context.tape, x, tokens, context.attention_mask.keys,
                           static_cast<std::int32_t>(config_.mask_token));
  }
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
  // The first run advances the carried state; backward recomputes from the state before it.
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
  context.tape.set_recomputes_values(checkpointing_ != ActivationCheckpointing::none);
  // Positions in packed documents are computed once for all layers. The caller's next batch has others.
  const Tensor given_positions = context.positions;
  if (config_.position != Position::none) context.positions = context.own_positions();
  ResidualStream stream{embedded(context, tokens, carried ? carried->position : 0), {}};
  const std::size_t count = blocks_of(context);
  for (std::size_t layer = 0; layer < count; ++layer) {
    stream = checkpointing_ == ActivationCheckpointing::blocks ? recompute_block(context, layer, stream, carried)
                                                               : run_block(context, layer, stream, carried);
  }
  context.positions = given_positions;
  if (carried) carried->position += tokens.extent(1);
  return count < blocks_.size() ? unnormed(context, stream) : normed(context, stream);
}

std::size_t Decoder::blocks_of(const ForwardContext& context) const {
  const auto count = static_cast<std::int64_t>(blocks_.size());
  const std::int64_t wanted = context.blocks_to_run.value_or(count);
  require(wanted >= 0 && wanted <= count, "decoder: {} of {} blocks", wanted, count);
  return static_cast<std::size_t>(wanted);
}

/// The residual stream as one tensor.
Variable Decoder::unnormed(ForwardContext& context, const ResidualStream& stream) {
  return stream.branch.defined() ? ops::weighted_sum(context.tape, stream.sum, stream.branch) : stream.sum;
}

/// Applies what follows the last block: the final norm with pre-norm, nothing with post-norm.
Variable Decoder::normed(ForwardContext& context, const ResidualStream& stream) const {
  if (!final_norm_) return stream.sum;
  const Tape::Scope scope(context.tape, "final_norm");
  return final_norm_->forward(context, stream.sum, &stream.branch).normed;
}

Variable Decoder::prediction_states(ForwardContext& context, const Variable& hidden) const {
  if (!prediction_transform_) return hidden;
  const Tape::Scope scope(context.tape, "prediction");
  return prediction_norm_
      ->forward(context, prediction_transform_->activated(context, hidden, kind_of(config_.activation)), nullptr)
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
  context.tape.set_recomputes_values(checkpointing_ != ActivationCheckpointing::none);
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
  const std::size_t count = blocks_of(context);
  for (std::size_t layer = 0; layer < count; ++layer)
    stream = blocks_[layer]->extend(context, stream, state.position, state.layers[layer]);
  state.position += tokens.extent(1);
  return count < blocks_.size() ? unnormed(context, stream) : normed(context, stream);
}

void Decoder::redraw(std::uint64_t seed, std::int64_t step, std::optional<std::size_t> only) {
  for (std::size_t layer = 0; layer < blocks_.size(); ++layer) {
    if (!only || *only == layer) blocks_[layer]->update_constants();
    blocks_[layer]->redraw(seed, step);
  }
}

}  // namespace furlong::layers
