#include "evaluation/analyze/observed_model.h"

#include <algorithm>

#include "layers/attention/mechanism.h"

namespace furlong {
namespace {

/// Returns int32 [batch, n]: 1 for tokens, 0 for padding. Undefined if there is no padding.
Tensor padding_mask(const Batch& batch) {
  const std::vector<std::int32_t> real = real_tokens(batch);
  if (std::find(real.begin(), real.end(), 0) == real.end()) return {};
  return Tensor::from(real, {batch.batch, batch.n});
}

std::unique_ptr<Dataset> open_dataset(const Settings& settings, const std::filesystem::path& dataset) {
  if (settings.data.task != "none" && !dataset.empty())
    throw UserError("--data does not apply: the model was trained on {}; remove it", open_data(settings.data)->path());
  if (settings.data.task == "none" && dataset.empty() && settings.data.mixture().empty())
    throw UserError("the model was imported, its config names no dataset; add --data DATASET");
  DataSettings data = settings.data;
  if (!dataset.empty()) data.use(dataset);
  return open_data(data);
}

/// Returns the window that softmax and linear heads share; 0 if there are no such heads.
std::int64_t sliding_window(const layers::AttentionConfig& config) {
  for (const layers::MechanismInfo* mechanism : layers::mechanisms_of(config)) {
    if (mechanism->window == &layers::AttentionConfig::window) return config.window;
  }
  return 0;
}

}  // namespace

ObservedModel::ObservedModel(Model& model, const ObservedBatches& wanted)
    : model_(model), data_(open_dataset(model.settings, wanted.store)) {
  const Settings& settings = model_.settings;
  const Vocabulary vocabulary = model_vocabulary(settings, data_->vocabulary());
  if (!(vocabulary == model_.vocabulary))
    throw UserError("{}: the dataset's vocabulary ({}) differs from the model's ({}){}", data_->path(),
                    vocabulary.description(), model_.vocabulary.description(),
                    difference_hint(vocabulary, model_.vocabulary));
  length_ = wanted.sequence_length > 0 ? wanted.sequence_length : settings.data.sequence_length;
  if (settings.model.position == layers::Position::learned && length_ > settings.model.max_sequence_length)
    throw UserError("--sequence-length {}: the model has {} learned positions; expected at most as many", length_,
                    settings.model.max_sequence_length);
  if (settings.objective.pooling == ops::Pooling::first && length_ < 2)
    throw UserError(
        "--sequence-length {}: the <class> token of objective.pooling: class_token takes one position; expected at "
        "least 2",
        length_);
  const std::int64_t batches =
      wanted.tokens > 0 ? std::max<std::int64_t>(1, wanted.tokens / (wanted.batch_size * length_)) : wanted.batches;
  const auto source =
      evaluation_source(settings, model_.vocabulary, *data_, wanted.split, length_, wanted.batch_size, batches);
  for (std::int64_t i = 0; wanted.tokens > 0 ? tokens_ < wanted.tokens : i < wanted.batches; ++i) {
    const std::uint64_t first = static_cast<std::uint64_t>(i * wanted.batch_size);
    if (first >= source->n_samples()) break;
    const Batch batch = source->single_pass_batch(first, wanted.batch_size);
    tokens_ += batch.n_tokens;
    batches_.push_back(on_device(batch, Device{}));
    real_.push_back(padding_mask(batch));
  }
  if (batches_.empty()) throw UserError("{}: the split has no sequence; choose another with --split", data_->path());
}

void ObservedModel::run(std::size_t batches, const Observer& observe) {
  for (std::size_t i = 0; i < std::min(batches, batches_.size()); ++i) {
    Tape tape(Stream{});
    const Tape::NoGradient guard(tape);
    layers::ForwardContext context{tape};
    context.observe_attention = [&](const layers::ObservedAttention& observed) { observe(context, observed, i); };
    context.attention_mask = batches_[i].mask;
    model_.decoder ? model_.decoder->hidden(context, batches_[i].inputs)
                   : model_.encoder->hidden(context, batches_[i].inputs);
  }
}

AttentionSample observed_sample(const layers::ForwardContext& context, const layers::ObservedAttention& observed,
                                const layers::AttentionConfig& config, const Tensor& real) {
  AttentionSample sample;
  sample.query = as_float64(observed.query.value());
  sample.key = as_float64(observed.key.value());
  sample.value = as_float64(observed.value.value());
  sample.n_heads = config.n_heads;
  sample.n_kv_heads = config.n_kv_heads;
  sample.causal = config.causal;
  sample.window = sliding_window(config);
  sample.mask = context.attention_mask;
  sample.real_queries = real;
  return sample;
}

}  // namespace furlong
