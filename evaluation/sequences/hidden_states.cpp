#include "evaluation/sequences/hidden_states.h"

#include <algorithm>

#include "framework/core/shape.h"
#include "framework/ops/dense/embedding.h"
#include "framework/ops/loss/cross_entropy.h"
#include "framework/primitives/arithmetic.h"
#include "layers/attention/mechanism.h"

namespace furlong {

std::vector<double> doubles_of(const Tensor& tensor) {
  if (tensor.dtype() == DType::float64) return tensor.to_vector<double>();
  Tensor wide = tensor;
  if (tensor.dtype() != DType::float32) {
    wide = Tensor::empty(tensor.shape(), DType::float32, tensor.device());
    ops::convert(Stream{tensor.device()}, wide, tensor);
  }
  const std::vector<float> values = wide.to_vector<float>();
  return {values.begin(), values.end()};
}

namespace {

/// Whether the model is another program's, and has not been trained since: its settings have the size of its embedding,
/// and no data. The same is true of exported models; their vocabularies say how sequences end.
bool is_imported(const Settings& settings) {
  return settings.model.vocabulary_size > 0 && settings.data.task == "none" && settings.data.mixture().empty();
}

}  // namespace

SequenceFrame frame_of(const Model& model) {
  const Vocabulary& vocabulary = model.vocabulary;
  SequenceFrame frame{vocabulary.frame_front(), vocabulary.frame_back()};  // of a tokenizer; otherwise empty
  if (!model.encoder) return frame;
  const ObjectiveSettings& objective = model.settings.objective;
  const auto first = vocabulary.class_id(), last = vocabulary.document_id();
  const bool reads_class = objective.learns_labels() && objective.pooling == ops::Pooling::first;
  if (reads_class && first && (frame.front.empty() || frame.front.front() != *first))
    frame.front.insert(frame.front.begin(), *first);
  const bool ends_document = !vocabulary.tokenizer() || vocabulary.ends_documents() || !is_imported(model.settings);
  if (ends_document && last && (frame.back.empty() || frame.back.back() != *last)) frame.back.push_back(*last);
  return frame;
}

std::int64_t longest_sequence(const Model& model) {
  const layers::ModelConfig& config = model.settings.model;
  const bool limited =
      config.position == layers::Position::learned || uses(config.attention, &layers::MechanismInfo::projects_sequence);
  return limited ? config.max_sequence_length : 0;
}

bool has_constant_state(const Model& model) {
  if (!model.decoder) return false;
  const auto mechanisms = mechanisms_of(model.settings.model.attention);
  return std::all_of(mechanisms.begin(), mechanisms.end(),
                     [](const layers::MechanismInfo* info) { return info->past == layers::Past::constant; });
}

ForwardPass::ForwardPass(Model& model, std::optional<std::int64_t> blocks)
    : model_(model), tape_(model.stream), guard_(tape_), context_{tape_} {
  context_.blocks_to_run = blocks;
}

Tensor ForwardPass::padded(const std::vector<std::span<const std::int32_t>>& rows) {
  std::size_t n = 0;
  for (const auto& row : rows) n = std::max(n, row.size());
  std::vector<std::int32_t> tokens(rows.size() * n), mask(rows.size() * n);
  for (std::size_t row = 0; row < rows.size(); ++row) {
    std::copy(rows[row].begin(), rows[row].end(), tokens.begin() + static_cast<std::ptrdiff_t>(row * n));
    std::fill_n(mask.begin() + static_cast<std::ptrdiff_t>(row * n), rows[row].size(), 1);
  }
  const Device device = model_.store->device();
  const Shape shape{std::ssize(rows), static_cast<std::int64_t>(n)};
  // In decoders, tokens do not attend to the padding, which follows them.
  if (model_.encoder) context_.attention_mask.keys = Tensor::from(mask, shape, device);
  return Tensor::from(tokens, shape, device);
}

Tensor ForwardPass::hidden(const std::vector<std::span<const std::int32_t>>& rows) {
  const Tensor input = padded(rows);
  return (model_.decoder ? model_.decoder->hidden(context_, input) : model_.encoder->hidden(context_, input)).value();
}

std::vector<double> ForwardPass::label_logits(const std::vector<std::span<const std::int32_t>>& rows) {
  const Tensor input = padded(rows);
  return doubles_of(model_.encoder->label_logits(context_, input));
}

Tensor ForwardPass::extend(std::span<const std::int32_t> tokens, layers::GenerationState& state) {
  const std::vector<std::int32_t> copy(tokens.begin(), tokens.end());
  return model_.decoder->extend(context_, Tensor::from(copy, {1, std::ssize(copy)}, model_.store->device()), state)
      .value();
}

Tensor ForwardPass::gather(const Tensor& hidden, const std::vector<std::int32_t>& indices) {
  const std::int64_t d = hidden.extent(hidden.shape().rank() - 1), count = std::ssize(indices);
  const Tensor places = Tensor::from(indices, {1, count}, hidden.device());
  return ops::embedding(tape_, places, Variable(hidden.reshape({hidden.elements() / d, d})), nullptr, 0)
      .value()
      .reshape({count, d});
}

std::vector<double> ForwardPass::log_probabilities(const Tensor& states, const std::vector<std::int32_t>& targets) {
  const auto predict = [&](const auto& network) {
    const Variable bias = network.output_bias() ? network.output_bias()->variable() : Variable{};
    return ops::cross_entropy(tape_, network.prediction_states(context_, Variable(states)),
                              network.output_weight().variable(), network.output_bias() ? &bias : nullptr,
                              Tensor::from(targets, {std::ssize(targets)}, states.device()), {.keep_row_losses = true});
  };
  std::vector<double> values =
      doubles_of((model_.decoder ? predict(*model_.decoder) : predict(*model_.encoder)).row_losses);
  for (double& value : values) value = -value;
  return values;
}

}  // namespace furlong
