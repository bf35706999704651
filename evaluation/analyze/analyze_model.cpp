#include "evaluation/analyze/analyze_model.h"

#include <algorithm>

#include "evaluation/analyze/observed_model.h"
#include "evaluation/data_change.h"
#include "framework/core/shape.h"
#include "layers/attention/linear/linear_mechanism.h"
#include "layers/blocks/block.h"

namespace furlong {
namespace {

/// The model's own attention in one head.
struct OwnAttention {
  std::string name;
  bool is_softmax = false;
  bool has_weights = true;  ///< weights that are not negative and sum to 1
  std::int64_t m = 0;
  std::optional<AttentionCandidate> candidate;  ///< if its features are random and can be redrawn
};

AttentionCandidate candidate_of(const layers::AttentionConfig& config, ops::FeatureMap map) {
  AttentionCandidate candidate;
  candidate.map = map;
  candidate.map_options = config.map_options;
  candidate.centering = config.centering;
  candidate.saderf = config.scaling == layers::Scaling::saderf;
  candidate.kind = config.random_projection;
  return candidate;
}

OwnAttention own_attention(const layers::AttentionConfig& config, std::int64_t head) {
  OwnAttention own;
  own.name = config.head_mechanisms.empty() ? config.mechanism : config.head_mechanisms[at(head)];
  const layers::MechanismInfo& mechanism = layers::mechanism_info(own.name);
  const std::int64_t window = mechanism.window_in(config);
  const std::string of_window = window > 0 ? ", window " + std::to_string(window) : "";
  own.is_softmax = mechanism.is_softmax;
  if (!mechanism.has_features) {
    own.has_weights = mechanism.weighs_tokens;
    own.name += of_window;
    return own;
  }
  const AttentionCandidate candidate = candidate_of(config, ops::feature_map_info(config.feature_map).map);
  const bool sums = config.normalizer == ops::Normalizer::sum && !config.rotate_numerator;
  own.name += " " + candidate.name();
  if (config.normalizer != ops::Normalizer::sum) own.name += std::string(", normalizer ") + name_of(config.normalizer);
  own.m = layers::feature_sizes(config).features;
  if (config.rotate_numerator) own.name += ", positions in the numerator";
  own.has_weights = sums && !ops::can_be_negative(candidate.map, candidate.map_options);
  own.name += of_window;
  if (!mechanism.is_hybrid && candidate.is_random() && sums && ops::feature_map_info(candidate.map).estimates_softmax)
    own.candidate = candidate;
  return own;
}

/// Returns the total variation distances of the model's own weights on the first sequence of the batch.
TotalVariation own_variation(const layers::ForwardContext& context, const layers::ObservedAttention& observed,
                             const AttentionSample& sample, std::int64_t d_head) {
  layers::ForwardContext inner = context;
  inner.observe_attention = nullptr;
  inner.attention_mask = sample.first_sequence().mask;
  if (inner.positions.defined()) inner.positions = inner.positions.narrow(0, 0, 1);
  const auto first = [](const Variable& x) { return Variable(x.value().narrow(0, 0, 1)); };
  const Variable query = first(observed.query), key = first(observed.key);
  const auto attend = [&](const Tensor& value) {
    return observed.mechanism.forward(inner, query, key, Variable(value)).value();
  };
  return total_variation(sample, attend, observed.value.dtype(), d_head);
}

/// Samples of one layer, and the errors of its own attention.
struct Layer {
  std::string name;
  layers::AttentionConfig config;
  std::vector<OwnAttention> own;  ///< by head
  std::optional<AttentionData> data;
  std::vector<double> own_errors;
  std::optional<TotalVariation> variation;
};

Layer observe_layer(ObservedModel& model, const std::string& name, const layers::AttentionConfig& config) {
  Layer layer{name, config, {}, {}, {}, {}};
  for (std::int64_t head = 0; head < config.n_heads; ++head) layer.own.push_back(own_attention(config, head));
  const bool probe =
      std::any_of(layer.own.begin(), layer.own.end(), [](const OwnAttention& own) { return own.has_weights; });
  std::vector<AttentionSample> samples;
  std::vector<Tensor> outputs;
  model.run(model.batches(),
            [&](layers::ForwardContext& context, const layers::ObservedAttention& observed, std::size_t batch) {
              if (observed.layer != name) return;
              samples.push_back(observed_sample(context, observed, config, model.real(batch)));
              outputs.push_back(as_float64(observed.output.value()));
              if (probe && !layer.variation)
                layer.variation = own_variation(context, observed, samples.back(), config.d_head);
            });
  layer.data.emplace(std::move(samples), false);
  layer.own_errors = layer.data->relative_errors(outputs);
  return layer;
}

/// Analyzes a candidate on all heads of a layer.
void add_candidate(const Layer& layer, const AttentionCandidate& candidate, std::int64_t m,
                   const ModelAnalysisOptions& options, std::vector<HeadAnalysis>& heads) {
  constexpr std::int64_t width = 256;  // number of one-hot values per pass
  const AttentionData& data = *layer.data;
  const std::vector<double> errors = candidate_errors(data, candidate, m, options.draws, options.seed);
  ops::LinearAttentionConstants constants = data.constants(candidate);
  constants.random_projection = data.random_projection(candidate, m, options.seed, 0);
  const AttentionSample first = data.samples()[0].first_sequence();
  const auto attend = [&](const Tensor& value) {
    return candidate_output(first, candidate, constants, nullptr, value);
  };
  std::optional<TotalVariation> variation;
  if (!ops::can_be_negative(candidate.map, candidate.map_options))
    variation = total_variation(first, attend, DType::float64, std::min(width, first.n_key()));
  for (HeadAnalysis& head : heads) {
    HeadAttention one;
    one.name = candidate.name();
    one.m = m;
    one.error = errors[at(head.head)];
    if (variation) {
      one.total_variation_to_softmax = variation->to_softmax[at(head.head)];
      one.total_variation_to_uniform = variation->to_uniform[at(head.head)];
    }
    if (candidate.is_random()) one.random_projection = name_of(candidate.kind);
    const HeadAttention& previous = head.attentions.back();
    if (options.find_features && candidate.is_random()) {
      const bool same = !previous.own && previous.name == one.name &&
                        previous.random_projection == one.random_projection;  // with another m
      one.required = same ? previous.required : required_features(data.head(head.head), candidate, options.advice);
    }
    head.attentions.push_back(one);
  }
}

HeadAttention own_row(const Layer& layer, std::int64_t head, const ModelAnalysisOptions& options) {
  const OwnAttention& own = layer.own[at(head)];
  HeadAttention row;
  row.own = true;
  row.name = own.name;
  row.m = own.m;
  row.error = layer.own_errors[at(head)];
  if (own.m > 0 && ops::feature_map_info(layer.config.feature_map).needs_random_projection)
    row.random_projection = name_of(layer.config.random_projection);
  if (own.has_weights && layer.variation) {
    row.total_variation_to_softmax = layer.variation->to_softmax[at(head)];
    row.total_variation_to_uniform = layer.variation->to_uniform[at(head)];
  }
  if (options.find_features && own.candidate)
    row.required = required_features(layer.data->head(head), *own.candidate, options.advice);
  return row;
}

LayerAnalysis analyze_layer(const Layer& layer, const ModelAnalysisOptions& options) {
  const AttentionData& data = *layer.data;
  LayerAnalysis found{layer.name, data.d(), data.longest(), {}};
  const std::vector<RowNorms> queries = query_norms(data), keys = key_norms(data);
  const std::vector<double> uniform = data.uniform_errors();
  for (std::int64_t head = 0; head < data.n_heads(); ++head) {
    HeadAnalysis& one = found.heads.emplace_back();
    one.head = head;
    one.query_norm = queries[at(head)];
    one.key_norm = keys[at(head)];
    one.uniform_error = uniform[at(head)];
    one.attentions.push_back(own_row(layer, head, options));
  }
  std::vector<AttentionCandidate> candidates = options.candidates;
  const bool softmax =
      std::any_of(layer.own.begin(), layer.own.end(), [](const OwnAttention& own) { return own.is_softmax; });
  if (candidates.empty() && softmax) candidates.emplace_back();
  for (AttentionCandidate candidate : candidates) {
    if (!candidate.is_random()) {
      add_candidate(layer, candidate, candidate.features(0, data.d()), options, found.heads);
      continue;
    }
    for (const layers::RandomProjectionKind kind : options.kinds) {
      candidate.kind = kind;
      for (const std::int64_t m : options.features)
        add_candidate(layer, candidate, candidate.features(m, data.d()), options, found.heads);
    }
  }
  if (!options.advise) return found;
  const std::vector<Advice> advice = advise(data, options.advice);
  for (HeadAnalysis& head : found.heads) head.advice = advice[at(head.head)];
  return found;
}

/// Throws UserError if options of candidates have no effect: by default, only softmax is compared with a candidate.
void check_candidate_options(const ModelAnalysisOptions& options, const layers::ModelConfig& config) {
  if (!options.candidates.empty() || options.candidate_options.empty()) return;
  for (std::int64_t layer = 0; layer < config.n_layers; ++layer) {
    const layers::AttentionConfig of_layer = layers::attention_of_layer(config, layer);
    for (std::int64_t head = 0; head < of_layer.n_heads; ++head) {
      if (own_attention(of_layer, head).is_softmax) return;
    }
  }
  throw UserError(
      "{} has no effect: no attention of this model is softmax, and others are not compared by default; add "
      "--feature-maps NAME,...",
      options.candidate_options[0]);
}

}  // namespace

void analyze_model(const ModelAnalysisOptions& options, const std::function<void(const ModelAnalysis&)>& begin,
                   const std::function<void(const LayerAnalysis&)>& done) {
  ModelAnalysis analysis;
  analysis.checkpoint = checkpoint_of(options.run);
  const CheckpointReader checkpoint = CheckpointReader::open(analysis.checkpoint);
  Model loaded = load_model(checkpoint, Device{}, options.weights, [](const Parameter&) { return true; });
  ObservedModel model(loaded,
                      {options.store, options.split, options.sequence_length, options.batch_size, options.batches});
  const layers::ModelConfig& config = model.settings().model;
  check_candidate_options(options, config);
  for (const AttentionCandidate& candidate : options.candidates) {
    if (!candidate.is_random()) candidate.features(0, config.attention.d_head);
    for (const std::int64_t m : options.features) candidate.features(m, config.attention.d_head);  // fails early
  }
  analysis.step = checkpoint.integer("step");
  analysis.data = model.data().path();
  analysis.data_changed =
      has_changed_since_training(checkpoint, model.settings().data, options.store, model.data(), options.split);
  analysis.sequence_length = model.length();
  analysis.tokens = model.tokens();
  analysis.causal = model.causal();
  begin(analysis);
  std::vector<std::string> names;
  model.run(1, [&](layers::ForwardContext&, const layers::ObservedAttention& observed, std::size_t) {
    names.push_back(observed.layer);
  });
  // One pass per layer: only one layer's queries, keys and values are in memory.
  const std::int64_t n_layers = static_cast<std::int64_t>(names.size());
  for (std::int64_t i = 0; i < n_layers; ++i)
    done(analyze_layer(observe_layer(model, names[at(i)], layers::attention_of_layer(config, i)), options));
}

}  // namespace furlong
