#include "evaluation/analyze/observed_model.h"
#include "framework/core/shape.h"

#include <algorithm>

namespace furlong {
namespace {

/// int32 [batch, n]: 1 for tokens, 0 for padding: by the mask where there is one, otherwise, in rows whose next tokens
/// are predicted (padded on the right, where causal attention does not see it), up to the last target. Undefined where
/// there is no padding.
Tensor real_tokens(const Batch& batch, bool causal) {
  std::vector<std::int32_t> real = batch.mask;
  if (real.empty() && causal && !batch.targets.empty()) {
    real.assign(batch.targets.size(), 1);
    for (std::int64_t row = 0; row < batch.batch; ++row) {
      for (std::int64_t i = batch.n; i-- > 0 && batch.targets[at(row * batch.n + i)] == ignored_target;)
        real[at(row * batch.n + i)] = 0;
    }
  }
  if (std::find(real.begin(), real.end(), 0) == real.end()) return {};
  return Tensor::from(real, {batch.batch, batch.n});
}

std::unique_ptr<Dataset> open_store(const Settings& settings, const std::filesystem::path& store) {
  if (settings.data.task != "none" && !store.empty())
    throw UserError("--data: the model was trained on {} and has no use for a store", open_data(settings.data)->path());
  if (settings.data.task == "none" && store.empty() && settings.data.store.empty())
    throw UserError(
        "--data: the model was not trained here, so that its config names no token store; expected --data STORE");
  DataSettings data = settings.data;
  if (!store.empty()) data.store = store;
  return open_data(data);
}

}  // namespace

ObservedModel::ObservedModel(Model& model, const ObservedBatches& wanted)
    : model_(model), data_(open_store(model.settings, wanted.store)) {
  const Settings& settings = model_.settings;
  const Vocabulary vocabulary = model_vocabulary(settings, data_->vocabulary());
  if (!(vocabulary == model_.vocabulary))
    throw UserError("{}: its vocabulary ({}) is not the model's ({})", data_->path(), vocabulary.description(),
                    model_.vocabulary.description());
  length_ = wanted.sequence_length > 0 ? wanted.sequence_length : settings.data.sequence_length;
  if (settings.model.position == layers::Position::learned && length_ > settings.model.max_sequence_length)
    throw UserError("--sequence-length {}: longer than the model's {} learned positions", length_,
                    settings.model.max_sequence_length);
  if (settings.objective.pooling == ops::Pooling::first && length_ < 2)
    throw UserError(
        "--sequence-length {}: no room beside the <class> token of objective.pooling: class_token; expected at least 2",
        length_);
  const auto source = evaluation_source(settings, model_.vocabulary, *data_, wanted.split, length_, wanted.batch_size);
  for (std::int64_t i = 0; wanted.tokens > 0 ? tokens_ < wanted.tokens : i < wanted.batches; ++i) {
    const std::uint64_t first = static_cast<std::uint64_t>(i * wanted.batch_size);
    if (first >= source->n_samples()) break;
    const Batch batch = source->batch_of_one_pass(first, wanted.batch_size);
    tokens_ += batch.n_tokens;
    batches_.push_back(on_device(batch, Device{}));
    real_.push_back(real_tokens(batch, causal()));
  }
  if (batches_.empty()) throw UserError("{}: its split holds no sequence to analyze", data_->path());
}

void ObservedModel::run(std::size_t batches, const Observer& observe) {
  for (std::size_t i = 0; i < std::min(batches, batches_.size()); ++i) {
    Tape tape(Stream{});
    const Tape::NoGradient guard(tape);
    layers::ForwardContext context{tape};
    context.observe_attention = [&](const layers::ObservedAttention& seen) { observe(context, seen, i); };
    context.attention_mask = batches_[i].mask;
    model_.decoder ? model_.decoder->hidden(context, batches_[i].inputs)
                   : model_.encoder->hidden(context, batches_[i].inputs);
  }
}

AttentionSample observed_sample(const layers::ForwardContext& context, const layers::ObservedAttention& seen,
                                const layers::AttentionConfig& config, const Tensor& real) {
  AttentionSample sample;
  sample.query = as_float64(seen.query.value());
  sample.key = as_float64(seen.key.value());
  sample.value = as_float64(seen.value.value());
  sample.n_heads = config.n_heads;
  sample.n_kv_heads = config.n_kv_heads;
  sample.causal = config.causal;
  sample.mask = context.attention_mask;
  sample.real_queries = real;
  return sample;
}

}  // namespace furlong
