#include "conversion/fold_scaling.h"

#include <algorithm>
#include <cmath>

#include "conversion/approximation.h"
#include "conversion/attention_request.h"
#include "conversion/read_parameters.h"
#include "framework/core/shape.h"
#include "layers/attention/mechanism.h"

namespace furlong {
namespace {

void check_foldable(const Settings& settings) {
  const layers::ModelConfig& model = settings.model;
  const auto refuse = [](const std::string& what) {
    throw UserError(
        "--fold-scaling: {}; remove it, or set model.attention.scaling: saderf, which scales inside the feature map",
        what);
  };
  if (model.query_key_norm != layers::QueryKeyNorm::none)
    refuse(std::string("model.query_key_norm: ") + name_of(model.query_key_norm) +
           " normalizes queries and keys after the weights");
  if (model.adapter.rank > 0) refuse("the weights of queries and keys have adapters");
  const bool features = layers::uses(model.attention, &layers::MechanismInfo::has_features);
  if (features && !ops::feature_map_info(model.attention.feature_map).estimates_softmax)
    refuse("it would change the meaning of the feature map " + model.attention.feature_map);
}

/// Mean squares of queries and keys of one block, by key head.
struct BlockMoments {
  std::vector<layers::HeadMoments> key_heads;
};

void add_to(std::vector<double>& sum, const std::vector<double>& values, double weight) {
  sum.resize(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) sum[i] += weight * values[i];
}

/// Replaces both values of a rotary pair by their mean.
void average_pairs(std::vector<double>& squares) {
  const std::size_t half = squares.size() / 2;
  for (std::size_t i = 0; i < half; ++i) squares[i] = squares[i + half] = (squares[i] + squares[i + half]) / 2;
}

std::vector<float> first_logits(ObservedModel& observed, Model& model) {
  constexpr std::int64_t most_tokens = 256;
  const DeviceBatch& batch = observed.batch(0);
  Tape tape(Stream{});
  const Tape::NoGradient guard(tape);
  layers::ForwardContext context{tape};
  const std::int64_t n = std::min(most_tokens, batch.inputs.extent(1));
  const auto first = [&](const Tensor& tensor) {
    return tensor.defined() ? tensor.narrow(0, 0, 1).narrow(1, 0, n).clone() : Tensor{};
  };
  context.attention_mask = {first(batch.mask.keys), first(batch.mask.documents)};
  const Tensor tokens = first(batch.inputs);
  const Tensor hidden =
      (model.encoder ? model.encoder->hidden(context, tokens) : model.decoder->hidden(context, tokens)).value();
  if (!has_output_layer(model.settings)) return hidden.to_vector<float>();
  const Tensor rows = hidden.reshape({n, hidden.extent(2)});
  return (model.encoder ? model.encoder->logits(Stream{}, rows) : model.decoder->logits(Stream{}, rows))
      .to_vector<float>();
}

void scale_rows(Model& model, const std::string& block, std::int64_t first_row, const std::vector<double>& factors) {
  const Parameter& weight = model.store->find(block + ".attention.query_key_value.weight");
  const std::span<float> values = values_of(weight);
  const std::size_t width = at(weight.shape()[1]);
  for (std::size_t i = 0; i < factors.size(); ++i) {
    for (float& value : values.subspan((at(first_row) + i) * width, width))
      value = static_cast<float>(static_cast<double>(value) * factors[i]);
  }
  if (!model.settings.model.has_query_key_value_bias()) return;
  const std::span<float> bias = values_of(model.store->find(block + ".attention.query_key_value.bias"));
  for (std::size_t i = 0; i < factors.size(); ++i)
    bias[at(first_row) + i] = static_cast<float>(static_cast<double>(bias[at(first_row) + i]) * factors[i]);
}

/// Returns the mean norms of queries and keys, averaged over heads.
std::pair<double, double> mean_norms(const AttentionData& data) {
  double query = 0, key = 0;
  for (const RowNorms& norm : query_norms(data)) query += norm.mean;
  for (const RowNorms& norm : key_norms(data)) key += norm.mean;
  const auto heads = static_cast<double>(data.n_heads());
  return {query / heads, key / heads};
}

}  // namespace

FoldReport fold_scaling(ObservedModel& observed, Model& model) {
  check_foldable(model.settings);
  const layers::AttentionConfig config = layers::attention_config(model.settings.model);
  const std::int64_t group = config.n_heads / config.n_kv_heads, n_layers = model.settings.model.n_layers;
  const bool shared = model.settings.model.shared_layers;
  std::vector<BlockMoments> blocks(at(shared ? 1 : n_layers),
                                   {std::vector<layers::HeadMoments>(at(config.n_kv_heads))});
  const std::vector<bool> all(at(n_layers), true);
  FoldReport report;
  const auto add_norms = [&](const AttentionData& data, double& query, double& key) {
    const auto [q, k] = mean_norms(data);
    query += q / static_cast<double>(n_layers);
    key += k / static_cast<double>(n_layers);
  };
  sample_layers(observed, all, nullptr, [&](LayerSample&& sample) {
    add_norms(sample.data, report.query_norm, report.key_norm);
    BlockMoments& block = blocks[at(shared ? 0 : sample.layer)];
    for (std::int64_t head = 0; head < config.n_heads; ++head) {
      layers::HeadMoments& moments = block.key_heads[at(head / group)];
      add_to(moments.query_square, sample.data.moments(head).query_square, 1.0 / static_cast<double>(group));
      if (head % group == 0) add_to(moments.key_square, sample.data.moments(head).key_square, 1);
    }
  });
  const std::vector<float> before = first_logits(observed, model);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const std::string name = "blocks." + std::to_string(i);
    for (std::int64_t key_head = 0; key_head < config.n_kv_heads; ++key_head) {
      layers::HeadMoments& moments = blocks[i].key_heads[at(key_head)];
      if (model.settings.model.position == layers::Position::rotary) {
        average_pairs(moments.query_square);
        average_pairs(moments.key_square);
      }
      moments.query_mean.resize(moments.query_square.size());  // not used without centering
      moments.key_mean.resize(moments.key_square.size());
      const std::vector<double> scaling = layers::saderf_scaling(moments, false);
      std::vector<double> inverse;
      for (const double value : scaling) {
        inverse.push_back(1 / value);
        report.largest_scaling = std::max(report.largest_scaling, value);
        report.least_scaling = std::min(report.least_scaling, value);
      }
      for (std::int64_t head = key_head * group; head < (key_head + 1) * group; ++head)
        scale_rows(model, name, head * config.d_head, scaling);
      scale_rows(model, name, (config.n_heads + key_head) * config.d_head, inverse);
    }
  }
  model.store->refresh_compute_values(Stream{});
  const std::vector<float> after = first_logits(observed, model);
  for (std::size_t i = 0; i < before.size(); ++i) {
    report.largest_logit = std::max(report.largest_logit, std::abs(static_cast<double>(before[i])));
    report.largest_logit_change =
        std::max(report.largest_logit_change, std::abs(static_cast<double>(after[i]) - static_cast<double>(before[i])));
  }
  const bool exact = !layers::first_mechanism(config, &layers::MechanismInfo::is_softmax, false);
  // The bound covers float32 rounding through the layers. With other mechanisms the estimates themselves change.
  require(!exact || report.largest_logit_change <= 1e-3 * std::max(1.0, report.largest_logit),
          "fold_scaling: logits of softmax attention changed by {} of {}", report.largest_logit_change,
          report.largest_logit);
  sample_layers(observed, all, nullptr,
                [&](LayerSample&& sample) { add_norms(sample.data, report.query_norm_after, report.key_norm_after); });
  return report;
}

}  // namespace furlong
