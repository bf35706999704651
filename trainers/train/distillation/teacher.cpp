#include "trainers/train/distillation/teacher.h"

#include <algorithm>
#include <cmath>

#include "framework/core/clock.h"
#include "framework/ops/loss/distillation.h"
#include "framework/ops/loss/relative_error.h"
#include "framework/primitives/arithmetic.h"
#include "trainers/model/weights.h"
#include "trainers/train/optimizer/optimizer.h"

namespace furlong {
namespace {

Variable hidden_states(Model& model, layers::ForwardContext& context, const Tensor& tokens) {
  return model.decoder ? model.decoder->hidden(context, tokens) : model.encoder->hidden(context, tokens);
}

Variable states_for_prediction(Model& model, layers::ForwardContext& context, const Tensor& tokens) {
  const Variable hidden = hidden_states(model, context, tokens);
  return model.decoder ? model.decoder->prediction_states(context, hidden)
                       : model.encoder->prediction_states(context, hidden);
}

Variable attention_output(Model& model, layers::ForwardContext& context, std::size_t layer, const Variable& input) {
  return model.decoder ? model.decoder->attention_output(context, layer, input)
                       : model.encoder->attention_output(context, layer, input);
}

Variable output_weight(const Model& model) {
  return (model.decoder ? model.decoder->output_weight() : model.encoder->output_weight()).variable();
}

std::optional<Variable> output_bias(const Model& model) {
  const Parameter* bias = model.decoder ? model.decoder->output_bias() : model.encoder->output_bias();
  return bias ? std::optional(bias->variable()) : std::nullopt;
}

/// The teacher's settings from its checkpoint, adapted to this student.
Settings teacher_settings(const CheckpointReader& checkpoint, const Settings& student) {
  Settings settings =
      from_checkpoint_text(checkpoint.text("config"), checkpoint.path().string() + " (config)").settings;
  settings.model.dtype = student.model.dtype;
  settings.model.dropout = 0;
  settings.trainer.activation_checkpointing = layers::ActivationCheckpointing::none;
  settings.tf32 = student.tf32;
  if (settings.model.position == layers::Position::learned)
    settings.model.max_sequence_length =
        std::max(settings.model.max_sequence_length, student.model.max_sequence_length);
  return settings;
}

void check_fit(const Settings& teacher, const Settings& student, const std::string& path) {
  const auto differ = [&](const char* key, const std::string& theirs, const std::string& ours, const char* why) {
    if (theirs != ours)
      throw UserError(
          "teacher.checkpoint: {}: {} is {} in the teacher and {} in the student; {} needs equal values, because {}",
          path, key, theirs, ours, student.teacher.loss, why);
  };
  const layers::ModelConfig &theirs = teacher.model, &ours = student.model;
  differ("model.architecture", name_of(theirs.architecture), name_of(ours.architecture),
         "a token attends to the same tokens in both models");
  if (student.teacher.is_attention_transfer()) {
    differ("model.n_layers", std::to_string(theirs.n_layers), std::to_string(ours.n_layers),
           "each layer's attention is compared with the teacher's");
    differ("model.d_model", std::to_string(theirs.d_model), std::to_string(ours.d_model),
           "attention outputs are compared");
  } else if (teacher.objective.learns_labels()) {
    throw UserError("teacher.checkpoint: {}: its objective {} predicts no tokens; expected a model trained with {}",
                    path, name_of(teacher.objective.name), name_of(student.objective.name));
  } else {
    require_output_layer(teacher, "teacher.checkpoint: " + path);
  }
}

/// Returns whether both models have softmax attention with the same window in a layer.
bool are_both_softmax(const layers::AttentionConfig& one, const layers::AttentionConfig& other, std::size_t layer) {
  const auto is_softmax = [layer](const layers::AttentionConfig& attention) {
    const std::vector<std::string> names = layers::head_mechanisms_of(attention, layer);
    return std::all_of(names.begin(), names.end(),
                       [](const std::string& name) { return layers::mechanism_info(name).is_softmax; });
  };
  return is_softmax(one) && is_softmax(other) && one.window == other.window;
}

/// Returns the teacher's vocabulary. If its labels are the data's numbers, it has the data's units, so that its losses
/// compare with the student's.
Vocabulary teacher_vocabulary(const CheckpointReader& checkpoint, const Vocabulary& data) {
  Vocabulary theirs = Vocabulary::from_json(checkpoint.text("vocabulary"), checkpoint.path().string());
  if (theirs.label_scales().empty() || data.label_scales().empty() || theirs.labels() != data.labels()) return theirs;
  return theirs.with_labels(data.labels(), data.label_scales());
}

Model load_teacher(const CheckpointReader& checkpoint, const Settings& student, const Vocabulary& data,
                   const Device& device, std::optional<DType> compute) {
  const std::string path = checkpoint.path().string();
  const Settings settings = teacher_settings(checkpoint, student);
  check_fit(settings, student, path);
  const auto all = [](const Parameter&) { return true; };
  Model model = make_empty_model(settings, teacher_vocabulary(checkpoint, data), device, compute, all);
  if (device.is_shape_only()) return model;
  const WeightsReport report = initialize_from(checkpoint, model);
  if (!report.missing.empty())
    throw UserError("teacher.checkpoint: {}: missing tensor {}, which the model of its config needs", path,
                    report.missing[0]);
  return model;
}

std::int64_t count_compared(const std::vector<std::int32_t>& compared) {
  return std::count_if(compared.begin(), compared.end(), [](std::int32_t value) { return value != ignored_target; });
}

double value_of(const Variable& scalar) {
  return scalar.dtype() == DType::float64 ? scalar.value().to_vector<double>()[0]
                                          : static_cast<double>(scalar.value().to_vector<float>()[0]);
}

}  // namespace

std::vector<std::size_t> attention_transfer_layers(const Settings& teacher, const Settings& student) {
  std::vector<std::size_t> layers;
  for (std::size_t layer = 0; layer < static_cast<std::size_t>(student.model.n_layers); ++layer)
    if (!are_both_softmax(student.model.attention, teacher.model.attention, layer)) layers.push_back(layer);
  return layers;
}

Teacher::Teacher(const Settings& student, const Vocabulary& data, const Device& device, std::optional<DType> compute)
    : settings_(student.teacher),
      steps_(student.trainer.max_steps),
      model_(load_teacher(CheckpointReader::open(checkpoint_of(student.teacher.checkpoint)), student, data, device,
                          compute)) {
  const Vocabulary ours = model_vocabulary(student, data).with_labels({});
  if (!(model_.vocabulary.with_labels({}) == ours))
    throw UserError(
        "teacher.checkpoint: {}: its vocabulary ({}, {} tokens) differs from the data's ({}, {} tokens); prepare the "
        "data with the teacher's vocabulary",
        student.teacher.checkpoint.string(), model_.vocabulary.description(), model_.vocabulary.size(),
        ours.description(), ours.size());
  if (settings_.is_attention_transfer()) {
    layers_ = attention_transfer_layers(model_.settings, student);
    if (layers_.empty())
      throw UserError(
          "teacher.loss: attention_transfer has no layer to train: every layer has softmax attention, like the "
          "teacher; choose another model.attention.mechanism");
    if (settings_.layers == "layer_wise" && steps_ < static_cast<std::int64_t>(layers_.size()))
      throw UserError(
          "teacher.layers: layer_wise needs at least one step for each of {} layers, but trainer.max_steps is {}; "
          "raise it",
          layers_.size(), steps_);
  }
  // The output layers must have equal sizes: a model.vocabulary_size above the vocabulary's size is part of the model.
  const std::int64_t theirs = vocabulary_size(model_.settings, model_.vocabulary),
                     here = vocabulary_size(student, data);
  if (settings_.loss == "distillation" && theirs != here)
    throw UserError(
        "teacher.checkpoint: {}: model.vocabulary_size is {} in the teacher and {} in the student; expected equal "
        "values",
        student.teacher.checkpoint.string(), theirs, here);
  const auto scalar = [&](double value) {
    const DType dtype = model_.store->master_dtype();
    const Tensor host = dtype == DType::float64 ? Tensor::from(std::vector<double>{value}, {1})
                                                : Tensor::from(std::vector<float>{static_cast<float>(value)}, {1});
    return host.to(device).reshape({});
  };
  teachers_weight_ = scalar(settings_.distillation_weight);
  own_weight_ = scalar(1 - settings_.distillation_weight);
  n_compared_ = Tensor::zeros({1}, DType::float64, device);
}

std::unique_ptr<Teacher> make_teacher(const Settings& student, const Vocabulary& data, const Device& device,
                                      std::optional<DType> compute) {
  return student.teacher.has_loss() ? std::make_unique<Teacher>(student, data, device, compute) : nullptr;
}

bool Teacher::in_attention(const Parameter& parameter, std::size_t layer) {
  // "attention.": parameters that layers share.
  return parameter.name().starts_with("attention.") ||
         parameter.name().starts_with(fmt::format("blocks.{}.attention.", layer));
}

Frozen Teacher::frozen() const {
  if (!settings_.is_attention_transfer()) return {};
  return [layers = layers_](const Parameter& parameter) {
    return std::none_of(layers.begin(), layers.end(),
                        [&](std::size_t layer) { return in_attention(parameter, layer); });
  };
}

std::optional<LayerInterval> Teacher::layer_interval(std::int64_t step) const {
  if (!settings_.is_attention_transfer() || settings_.layers != "layer_wise") return std::nullopt;
  const auto count = static_cast<std::int64_t>(layers_.size());
  const std::int64_t interval = std::min(count - 1, step * count / steps_);
  // The first step with step * count / steps_ == i.
  const auto begin = [&](std::int64_t i) { return (i * steps_ + count - 1) / count; };
  return LayerInterval{layers_[static_cast<std::size_t>(interval)], begin(interval),
                       begin(interval + 1) - begin(interval)};
}

void Teacher::begin_step(std::int64_t step, const std::vector<std::vector<std::int32_t>>& compared,
                         Optimizer& optimizer) {
  if (const std::optional<LayerInterval> interval = this->layer_interval(step)) {
    optimizer.restrict_to(
        [layer = interval->layer](const Parameter& parameter) { return in_attention(parameter, layer); });
  }
  if (settings_.is_attention_transfer()) return;
  compared_in_step_ = 0;
  for (const std::vector<std::int32_t>& batch : compared) compared_in_step_ += count_compared(batch);
  n_compared_.copy_from(
      Tensor::from(std::vector<double>{static_cast<double>(std::max<std::int64_t>(compared_in_step_, 1))}, {1}));
}

void Teacher::accumulate_loss(Model& student, layers::ForwardContext& context, const DeviceBatch& batch,
                              const DistillationStep& distillation) {
  context.attention_mask = batch.mask;
  if (!settings_.is_attention_transfer()) {
    distil(student, context, batch, distillation);
    return;
  }
  const std::optional<LayerInterval> interval = this->layer_interval(distillation.step);
  const double weight = distillation.share / (interval ? 1.0 : static_cast<double>(layers_.size()));
  const auto learn = [&](std::size_t, const Variable& error) {
    ops::add(context.stream(), distillation.loss, error.value(), GradientMode::accumulate, weight);
    context.tape.backward(error, weight);  // frees this layer's activations before the next layer
  };
  const Tensor& rows = distillation.compared.defined() ? distillation.compared : batch.mask.keys;
  transfer(student, context, batch, interval ? std::optional(interval->layer) : std::nullopt,
           rows.defined() ? &rows : nullptr, learn);
}

void Teacher::transfer(Model& student, layers::ForwardContext& context, const DeviceBatch& batch,
                       std::optional<std::size_t> only, const Tensor* rows, const EachLayer& each) {
  const auto chosen = [&](std::size_t layer) {
    return only ? layer == *only : std::find(layers_.begin(), layers_.end(), layer) != layers_.end();
  };
  const auto compare = [&](std::size_t layer, const Tensor& input, const Tensor& reference) {
    each(layer, ops::relative_error(context.tape, attention_output(student, context, layer, Variable(input)), reference,
                                    rows));
  };
  // A forward pass without a tape; `see` receives the inputs and outputs of the chosen attentions.
  const auto observe = [&](Model& model,
                           const std::function<void(std::size_t, const layers::ObservedAttention&)>& see) {
    Tape tape(context.stream());
    const Tape::NoGradient guard(tape);
    layers::ForwardContext watched{tape};
    watched.attention_mask = batch.mask;
    if (&model == &student) watched.denominators = context.denominators;
    std::size_t layer = 0;
    watched.observe_attention = [&](const layers::ObservedAttention& observed) {
      if (chosen(layer)) see(layer, observed);
      ++layer;
    };
    hidden_states(model, watched, batch.inputs);
  };
  if (settings_.input == "teacher") {
    observe(model_, [&](std::size_t layer, const layers::ObservedAttention& observed) {
      compare(layer, observed.input.value(), observed.projected.value());
    });
    return;
  }
  std::vector<Tensor> outputs(static_cast<std::size_t>(model_.settings.model.n_layers));
  observe(model_, [&](std::size_t layer, const layers::ObservedAttention& observed) {
    outputs[layer] = observed.projected.value();
  });
  observe(student, [&](std::size_t layer, const layers::ObservedAttention& observed) {
    compare(layer, observed.input.value(), std::exchange(outputs[layer], {}));
  });
}

Variable Teacher::prediction_states(const Stream& stream, const DeviceBatch& batch) {
  Tape tape(stream);
  const Tape::NoGradient guard(tape);
  layers::ForwardContext context{tape};
  context.attention_mask = batch.mask;
  return states_for_prediction(model_, context, batch.inputs);
}

void Teacher::distil(Model& student, layers::ForwardContext& context, const DeviceBatch& batch,
                     const DistillationStep& distillation) {
  const Variable theirs = prediction_states(context.stream(), batch);
  const Variable states = states_for_prediction(student, context, batch.inputs);
  const Variable weight = output_weight(student), teachers = output_weight(model_);
  const std::optional<Variable> bias = output_bias(student), teachers_bias = output_bias(model_);
  ops::DistillationOptions options;
  options.temperature = settings_.temperature;
  options.device_normalizer = n_compared_;
  const Variable divergence =
      ops::distillation(context.tape, states, weight, bias ? &*bias : nullptr, theirs.value(), teachers.value(),
                        teachers_bias ? &teachers_bias->value() : nullptr, distillation.compared, options);
  ops::add(context.stream(), distillation.loss, divergence.value(), GradientMode::accumulate,
           settings_.distillation_weight);
  if (settings_.distillation_weight == 1) {
    context.tape.backward(divergence);
    return;
  }
  ops::CrossEntropyOptions own_options;
  own_options.device_normalizer = distillation.n_targets;
  const auto own =
      ops::cross_entropy(context.tape, states, weight, bias ? &*bias : nullptr, batch.targets, own_options);
  ops::add(context.stream(), distillation.loss, own.loss.value(), GradientMode::accumulate,
           1 - settings_.distillation_weight);
  context.tape.backward({divergence, own.loss}, {teachers_weight_, own_weight_});
}

Evaluation Teacher::evaluate(Model& student, const Dataset& data, Split split, std::int64_t sequence_length,
                             std::int64_t batch_size, std::int64_t max_batches) {
  return settings_.is_attention_transfer()
             ? evaluate_transfer(student, data, split, sequence_length, batch_size, max_batches)
             : evaluate_distillation(student, data, split, sequence_length, batch_size, max_batches);
}

Evaluation Teacher::evaluate_transfer(Model& student, const Dataset& data, Split split, std::int64_t sequence_length,
                                      std::int64_t batch_size, std::int64_t max_batches) {
  const Device& device = student.store->device();
  const auto source =
      evaluation_source(student.settings, student.vocabulary, data, split, sequence_length, batch_size, max_batches);
  Tape tape(student.stream);
  const Tape::NoGradient guard(tape);
  layers::ForwardContext context{tape};
  Evaluation result;
  std::vector<double> errors(static_cast<std::size_t>(student.settings.model.n_layers), 0.0);
  const auto start = Clock::now();
  std::int64_t batches = 0;
  for (std::uint64_t first = 0; first < source->n_samples() && (max_batches == 0 || batches < max_batches);
       first += static_cast<std::uint64_t>(batch_size), ++batches) {
    const Batch batch = source->single_pass_batch(first, batch_size);
    const DeviceBatch input = on_device(batch, device);
    context.attention_mask = input.mask;
    std::vector<std::int32_t> real = real_tokens(batch);
    const Tensor rows = Tensor::from(real, {batch.batch, batch.n}, device);
    transfer(student, context, input, std::nullopt, &rows,
             [&](std::size_t layer, const Variable& error) { errors[layer] += value_of(error); });
    result.tokens += batch.n_tokens;
    result.targets += batch.n_targets;
  }
  result.seconds = seconds_since(start);
  require(batches > 0, "{}: the {} split has no batch", data.path(), name_of(split));
  for (const std::size_t layer : layers_)
    result.layer_errors.emplace_back(layer, errors[layer] / static_cast<double>(batches));
  for (const auto& [layer, error] : result.layer_errors) result.loss += error / static_cast<double>(layers_.size());
  result.accuracy = std::nan("");
  return result;
}

Evaluation Teacher::evaluate_distillation(Model& student, const Dataset& data, Split split,
                                          std::int64_t sequence_length, std::int64_t batch_size,
                                          std::int64_t max_batches) {
  double divergence = 0;
  std::int64_t compared = 0;
  ops::DistillationOptions options;
  options.temperature = settings_.temperature;
  options.normalizer = 1.0;
  const auto measure = [&](layers::ForwardContext& context, const Batch& batch, const DeviceBatch& input,
                           const ops::CrossEntropyOptions& loss_options) {
    context.attention_mask = input.mask;
    const Variable theirs = prediction_states(context.stream(), input);
    const Variable states = states_for_prediction(student, context, input.inputs);
    const Variable weight = output_weight(student);
    const std::optional<Variable> bias = output_bias(student), teachers_bias = output_bias(model_);
    const std::vector<std::int32_t> where = compared_tokens(student.settings, batch);
    const Variable found =
        ops::distillation(context.tape, states, weight, bias ? &*bias : nullptr, theirs.value(),
                          output_weight(model_).value(), teachers_bias ? &teachers_bias->value() : nullptr,
                          Tensor::from(where, input.inputs.shape(), context.stream().device), options);
    divergence += value_of(found);
    compared += count_compared(where);
    return ops::cross_entropy(context.tape, states, weight, bias ? &*bias : nullptr, input.targets, loss_options);
  };
  Evaluation result = furlong::evaluate(student, data, split, sequence_length, batch_size, max_batches, measure);
  result.divergence = divergence / static_cast<double>(std::max<std::int64_t>(compared, 1));
  return result;
}

std::vector<std::int32_t> compared_tokens(const Settings& settings, const Batch& batch) {
  if (settings.teacher.is_attention_transfer()) return real_tokens(batch);
  if (settings.teacher.positions == "targets") return batch.targets;
  std::vector<std::int32_t> compared = real_tokens(batch);
  for (std::int32_t& value : compared) value = value != 0 ? 0 : ignored_target;
  return compared;
}

}  // namespace furlong
