#include "trainers/model/objective.h"

#include "datasets/mixture.h"
#include "datasets/samplers/document_source.h"
#include "datasets/samplers/labeled_source.h"
#include "datasets/samplers/masking.h"
#include "datasets/samplers/mixture_source.h"
#include "datasets/samplers/sampler.h"
#include "datasets/samplers/segment_source.h"
#include "datasets/tasks/copy_task.h"
#include "datasets/tasks/recall_task.h"
#include "datasets/tokenized_dataset.h"
#include "framework/core/random.h"

namespace furlong {
namespace {

/// Of masks and generated samples, so that models trained with different seeds are measured on the same targets.
constexpr std::int64_t evaluation_seed = 1;

std::unique_ptr<BatchSource> windows(const Settings& settings, const TokenizedDataset& data, Split split,
                                     SamplerOptions::Order order, std::int64_t sequence_length) {
  SamplerOptions options;
  options.order = order;
  options.sequence_length = sequence_length;
  options.seed = static_cast<std::uint64_t>(settings.seed);
  options.ignore_tokens = settings.data.ignore_tokens;
  options.separate_documents = settings.data.packing == "documents";
  options.reverse_complement = settings.data.reverse_complement;
  return std::make_unique<Sampler>(data, split, options);
}

std::unique_ptr<RowSource> documents(const Settings& settings, const TokenizedDataset& data, Split split, bool shuffled,
                                     std::int64_t sequence_length) {
  DocumentOptions options;
  options.sequence_length = sequence_length;
  options.shuffled = shuffled;
  options.pad_to_longest = settings.data.padding == "longest";
  options.seed = static_cast<std::uint64_t>(settings.seed);
  options.next_tokens = settings.objective.name == Objective::next_token;
  if (options.next_tokens) options.ignore_tokens = settings.data.ignore_tokens;
  options.reverse_complement = settings.data.reverse_complement;
  return std::make_unique<DocumentSource>(data, split, options);
}

std::unique_ptr<BatchSource> masked(const Settings& settings, const Vocabulary& vocabulary,
                                    const TokenizedDataset& data, Split split, SamplerOptions::Order order,
                                    std::int64_t sequence_length, const char* stream) {
  SamplerOptions windows;
  windows.order = order;
  windows.sequence_length = sequence_length;
  windows.next_tokens = false;
  windows.seed = static_cast<std::uint64_t>(settings.seed);
  windows.separate_documents = settings.data.packing == "documents";
  windows.reverse_complement = settings.data.reverse_complement;
  MaskingOptions options;
  options.probability = settings.objective.mask_probability;
  options.mask_token_fraction = settings.objective.mask_token_fraction;
  options.random_token_fraction = settings.objective.random_token_fraction;
  options.seed = static_cast<std::uint64_t>(settings.seed);
  options.stream = stream;
  options.ignore_tokens = settings.data.ignore_tokens;
  if (settings.data.sampler == "documents") {
    const bool shuffled = order == SamplerOptions::Order::random;
    return std::make_unique<MaskedSource>(documents(settings, data, split, shuffled, sequence_length), vocabulary,
                                          options);
  }
  return std::make_unique<MaskedSource>(Sampler(data, split, windows), vocabulary, options);
}

std::unique_ptr<BatchSource> labeled(const Settings& settings, const Vocabulary& vocabulary,
                                     const TokenizedDataset& data, Split split, bool shuffled,
                                     std::int64_t sequence_length) {
  LabeledOptions options;
  options.sequence_length = sequence_length;
  options.shuffled = shuffled;
  options.pairs = settings.objective.name == Objective::pair_classification;
  options.pad_to_longest = settings.data.padding == "longest";
  options.seed = static_cast<std::uint64_t>(settings.seed);
  options.kind = settings.objective.label_kind();
  options.scales = vocabulary.label_scales();
  options.reverse_complement = settings.data.reverse_complement;
  if (settings.objective.pooling == ops::Pooling::first) options.first_token = vocabulary.class_id();
  return std::make_unique<LabeledSource>(data, split, options);
}

std::unique_ptr<BatchSource> generated(const Settings& settings, const Vocabulary& vocabulary, Split split,
                                       std::int64_t sequence_length) {
  const auto seed = static_cast<std::uint64_t>(settings.seed);
  if (settings.data.task == "associative_recall")
    return make_recall_task(
        vocabulary,
        {.sequence_length = sequence_length, .pairs = settings.data.task_pairs, .seed = seed, .split = split});
  CopyTaskOptions options;
  options.n_symbols = settings.data.task_symbols;
  options.sequence_length = sequence_length;
  options.min_copy_symbols = split == Split::train ? settings.data.task_min_symbols : 0;
  options.seed = seed;
  options.split = split;
  if (settings.objective.name == Objective::masked_tokens) options.hidden_as = *vocabulary.mask_id();
  return std::make_unique<CopyTask>(options);
}

std::unique_ptr<BatchSource> segments(const Settings& settings, const TokenizedDataset& data, Split split,
                                      std::int64_t sequence_length, std::int64_t rows, bool whole_documents) {
  return std::make_unique<SegmentSource>(data, split,
                                         SegmentOptions{.sequence_length = sequence_length,
                                                        .rows = rows,
                                                        .ignore_tokens = settings.data.ignore_tokens,
                                                        .whole_documents = whole_documents});
}

const TokenizedDataset& store_of(const Dataset& data) {
  const auto stores = data.stores();
  require(!stores.empty(), "{} is not a tokenized dataset", data.path());
  return *stores.front();
}

}  // namespace

std::unique_ptr<Dataset> open_data(const DataSettings& settings) {
  if (settings.task != "none") return std::make_unique<GeneratedDataset>(settings.task, settings.task_symbols);
  std::vector<TokenizedDataset> datasets;
  std::vector<double> weights;
  for (const DataSource& source : settings.mixture()) {
    std::error_code ignored;
    if (std::filesystem::status(source.dataset, ignored).type() == std::filesystem::file_type::not_found)
      throw UserError(
          "{}: does not exist{}; expected a tokenized dataset: furlong prepare writes them, and scripts/run.sh those "
          "of the configs in configs/",
          source.dataset.string(),
          source.dataset.is_relative()
              ? fmt::format(" in {}, where this command runs", std::filesystem::current_path(ignored).string())
              : "");
    datasets.push_back(TokenizedDataset::open(source.dataset.string()));
    weights.push_back(source.weight);
  }
  if (datasets.empty()) {
    throw UserError(
        "data.dataset is empty, as in the config of an imported model; expected a tokenized dataset written by furlong "
        "prepare: pass --data or set data.dataset");
  }
  if (!settings.sources.empty()) return std::make_unique<MixtureDataset>(std::move(datasets), weights);
  return std::make_unique<TokenizedDataset>(std::move(datasets.front()));
}

std::string missing_data(const DataSettings& settings) {
  std::error_code failure;
  if (settings.task != "none") return "";
  for (const DataSource& source : settings.mixture()) {
    if (!std::filesystem::exists(source.dataset, failure)) return source.dataset.string();
  }
  return "";
}

Vocabulary substitute_vocabulary(const Settings& settings, const std::string& missing) {
  if (settings.model.vocabulary_size == 0)
    throw UserError(
        "data.dataset: {} does not exist, and the vocabulary size is unknown; create it with furlong prepare, or add "
        "--set model.vocabulary_size=N",
        missing);
  const Vocabulary any = Vocabulary::copy(1);
  return settings.objective.learns_labels() ? any.with_labels({"one", "other"}) : any;
}

namespace {

/// As training_source(), for one dataset.
std::unique_ptr<BatchSource> source_of(const Settings& settings, const Vocabulary& vocabulary,
                                       const TokenizedDataset& data) {
  const bool in_order = settings.data.sampler == "sequential";
  const auto order = in_order ? SamplerOptions::Order::sequential : SamplerOptions::Order::random;
  switch (settings.objective.name) {
    case Objective::masked_tokens:
      return masked(settings, vocabulary, data, Split::train, order, settings.data.sequence_length, "masking");
    case Objective::next_token:
      break;
    default:
      return labeled(settings, vocabulary, data, Split::train, !in_order, settings.data.sequence_length);
  }
  if (settings.data.sampler == "stream") {
    const std::int64_t rows = settings.data.batch_size * settings.trainer.gradient_accumulation;
    return segments(settings, data, Split::train, settings.data.sequence_length, rows, false);
  }
  if (settings.data.sampler == "documents")
    return documents(settings, data, Split::train, true, settings.data.sequence_length);
  return windows(settings, data, Split::train, order, settings.data.sequence_length);
}

/// Every source has its own seed, because samples of equal index would otherwise share random numbers.
std::unique_ptr<BatchSource> mixture(const Settings& settings, const Vocabulary& vocabulary,
                                     const std::vector<const TokenizedDataset*>& stores) {
  const auto seed = [&](std::uint64_t number) {
    const auto words = philox({static_cast<std::uint64_t>(settings.seed), 0, random_stream("mixture")}, number);
    return std::uint64_t{words[1]} << 32 | words[0];
  };
  std::vector<std::unique_ptr<BatchSource>> sources;
  std::vector<double> weights;
  std::size_t number = 0;
  for (const DataSource& source : settings.data.mixture()) {
    const TokenizedDataset& store = *stores[number++];
    if (source.weight == 0) continue;  // perhaps the first one, for validation alone
    if (settings.objective.learns_labels() && !(store.vocabulary() == stores.front()->vocabulary()))
      throw UserError("data.sources: the labels of {} differ from those of {}; expected the same names in one order",
                      store.path(), stores.front()->path());
    Settings own = settings;
    own.seed = static_cast<std::int64_t>(seed(number));
    sources.push_back(source_of(own, vocabulary, store));
    weights.push_back(source.weight);
  }
  return std::make_unique<MixtureSource>(std::move(sources), weights, seed(0));
}

}  // namespace

std::unique_ptr<BatchSource> training_source(const Settings& settings, const Vocabulary& vocabulary,
                                             const Dataset& dataset) {
  if (auto own = dataset.own_samples()) return own;
  if (settings.data.task != "none") return generated(settings, vocabulary, Split::train, settings.data.sequence_length);
  if (!settings.data.sources.empty()) return mixture(settings, vocabulary, dataset.stores());
  return source_of(settings, vocabulary, store_of(dataset));
}

namespace {

/// Augmentation is for training alone.
Settings evaluation_settings(const Settings& of_training) {
  Settings settings = of_training;
  settings.data.reverse_complement = false;
  settings.seed = evaluation_seed;
  return settings;
}

}  // namespace

std::unique_ptr<BatchSource> evaluation_source(const Settings& of_training, const Vocabulary& vocabulary,
                                               const Dataset& dataset, Split split, std::int64_t sequence_length,
                                               std::int64_t batch_size, std::int64_t max_batches) {
  const Settings settings = evaluation_settings(of_training);
  if (settings.data.task != "none") return generated(settings, vocabulary, split, sequence_length);
  const TokenizedDataset& data = store_of(dataset);
  switch (settings.objective.name) {
    case Objective::masked_tokens:
      return masked(settings, vocabulary, data, split, SamplerOptions::Order::sequential, sequence_length,
                    "masking for evaluation");
    case Objective::next_token:
      break;
    default: {
      auto whole = labeled(settings, vocabulary, data, split, false, sequence_length);
      const auto rows = static_cast<std::uint64_t>(batch_size);
      const std::uint64_t batches = (whole->n_samples() + rows - 1) / rows;
      if (max_batches == 0 || batches <= static_cast<std::uint64_t>(max_batches)) return whole;
      return labeled(settings, vocabulary, data, split, true, sequence_length);
    }
  }
  // Stateful evaluation uses the same segments as training, but starts whole documents where possible.
  if (settings.data.sampler == "stream") return segments(settings, data, split, sequence_length, batch_size, true);
  if (settings.data.sampler == "documents") return documents(settings, data, split, false, sequence_length);
  return windows(settings, data, split, SamplerOptions::Order::sequential, sequence_length);
}

std::unique_ptr<BatchSource> validation_source(const Settings& of_training, const Vocabulary& vocabulary,
                                               const Dataset& dataset) {
  return evaluation_source(of_training, vocabulary, dataset, Split::validation, of_training.data.sequence_length,
                           of_training.data.batch_size, of_training.trainer.validation_batches);
}

std::vector<InputPart> input_parts(const Batch& batch, DeviceBatch& made) {
  const Shape shape{batch.batch, batch.n};
  const auto samples = static_cast<std::int64_t>(batch.labels.size());
  return {{&batch.inputs, shape, &made.inputs},
          {&batch.targets, shape, &made.targets},
          {&batch.labels, {samples}, &made.labels},
          {&batch.values,
           {samples, samples > 0 ? static_cast<std::int64_t>(batch.values.size()) / samples : 0},
           &made.values},
          {&batch.mask, shape, &made.mask.keys},
          {&batch.documents, shape, &made.mask.documents}};
}

DeviceBatch on_device(const Batch& batch, const Device& device) {
  DeviceBatch made;
  put_on_device(input_parts(batch, made), device);
  return made;
}

DeviceBatch largest_batch(const Settings& settings, std::int64_t n_labels, const Device& device) {
  const std::int64_t samples = settings.data.batch_size;
  const std::int64_t rows = settings.objective.name == Objective::pair_classification ? 2 * samples : samples;
  const auto empty = [&](const Shape& shape) { return Tensor::empty(shape, DType::int32, device); };
  const Shape shape{rows, settings.data.sequence_length};
  DeviceBatch made;
  made.inputs = empty(shape);
  const LabelKind kind = settings.objective.label_kind();
  if (settings.objective.learns_labels()) made.mask.keys = empty(shape);
  if (!settings.objective.learns_labels() || kind == LabelKind::tokens) {
    made.targets = empty(shape);
  } else {
    made.labels = empty({samples});
  }
  if (kind == LabelKind::numbers || kind == LabelKind::sets) made.values = empty({samples, n_labels});
  if (settings.data.sampler == "documents") made.mask.keys = empty(shape);
  if (settings.data.packing == "documents") made.mask.documents = empty(shape);
  return made;
}

layers::LabelTargets label_targets(const Settings& settings, const DeviceBatch& batch) {
  if (settings.objective.label_kind() == LabelKind::tokens) return {batch.targets, {}};
  return {batch.labels, batch.values};
}

ops::CrossEntropyResult loss_of(Model& model, layers::ForwardContext& context, const DeviceBatch& batch,
                                const ops::CrossEntropyOptions& options, layers::GenerationState* carried) {
  context.attention_mask = batch.mask;
  require_output_layer(model.settings, std::string("objective.name: ") + name_of(model.settings.objective.name));
  switch (model.settings.objective.name) {
    case Objective::masked_tokens:
      return model.encoder->masked_token_loss(context, batch.inputs, batch.targets, options);
    case Objective::next_token:
      break;
    default:
      return model.encoder->label_loss(context, batch.inputs, label_targets(model.settings, batch), options);
  }
  return model.decoder->loss(context, batch.inputs, batch.targets, options, carried);
}

}  // namespace furlong
