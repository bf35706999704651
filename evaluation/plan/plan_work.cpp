#include "evaluation/plan/plan_work.h"

#include <algorithm>
#include <charconv>

#include "layers/blocks/block.h"

namespace furlong {
namespace {

struct Products {
  double forward = 0, backward = 0;
  void operator+=(const Products& other) {
    forward += other.forward;
    backward += other.backward;
  }
};

/// Operations of linear maps per token.
Products linear(const layers::ModelConfig& model, double inner, double outer) {
  const double rank = static_cast<double>(model.adapter.rank), product = 2 * inner * outer,
               adapter = 2 * rank * (inner + outer);
  return rank > 0 ? Products{product + adapter, product + 2 * adapter} : Products{product, 2 * product};
}

/// Operations of a map without an adapter.
Products plain_linear(const layers::ModelConfig& model, double inner, double outer) {
  const double product = 2 * inner * outer;
  return {product, model.adapter.rank > 0 ? product : 2 * product};
}

/// Operations of attention in one layer for n tokens: one sequence, or a segment of it.
Products attention(const layers::AttentionConfig& config, std::int64_t n, bool is_segment) {
  const layers::AttentionCost cost = layers::attention_cost(config, n);
  const double segment = is_segment ? cost.segment : 0;
  return {cost.forward + cost.maps + segment, cost.with_backward - cost.forward + 2 * cost.maps + segment};
}

/// Operations of a block's linear maps per token.
Products maps_of_block(const layers::ModelConfig& model) {
  const auto d = static_cast<double>(model.d_model), hidden = static_cast<double>(model.d_feedforward),
             heads = static_cast<double>(model.attention.n_heads * model.attention.d_head),
             keys = static_cast<double>(model.attention.n_kv_heads * model.attention.d_head);
  const bool gated = layers::is_gated(model.activation);
  Products sum = linear(model, d, heads + 2 * keys);
  sum += linear(model, heads, d);
  sum += linear(model, d, gated ? 2 * hidden : hidden);
  sum += linear(model, hidden, d);
  return sum;
}

PlanStage output_stage(const Settings& settings, double vocabulary, double n_classes, double samples, double tokens,
                       double share_of_logits) {
  const layers::ModelConfig& model = settings.model;
  const auto d = static_cast<double>(model.d_model);
  PlanStage stage{.name = "output"};
  if (settings.objective.learns_labels()) {
    const double predictions = settings.objective.label_kind() == LabelKind::tokens ? tokens : samples;
    stage.forward = predictions * 6 * d * n_classes;  // the head is also trained with adapters
    if (settings.objective.name == Objective::pair_classification) {
      stage.forward += samples * 8 * d * d;
      stage.backward += samples * 16 * d * d;
    }
    return stage;
  }
  const auto width = static_cast<double>(output_width(model));
  if (model.prediction_head == layers::PredictionHead::transform) {
    const Products transform = plain_linear(model, d, width);
    stage.forward += tokens * transform.forward;
    stage.backward += tokens * transform.backward;
  }
  const Products classes = plain_linear(model, width, vocabulary);
  stage.forward += share_of_logits * tokens * (classes.forward + classes.backward);
  return stage;
}

}  // namespace

std::int64_t output_width(const layers::ModelConfig& model) {
  const bool transforms = model.prediction_head == layers::PredictionHead::transform;
  return transforms && model.d_embedding > 0 ? model.d_embedding : model.d_model;
}

std::int64_t tokens_of_segment(const Settings& settings) {
  return settings.data.sequence_length / settings.parallel.context_parallel_size;
}

std::vector<PlanStage> plan_stages(const Settings& settings, std::int64_t vocabulary, std::int64_t n_classes,
                                   std::int64_t samples, double share_of_logits) {
  const layers::ModelConfig& model = settings.model;
  const bool pairs = settings.objective.name == Objective::pair_classification;
  const std::int64_t n = tokens_of_segment(settings);
  const double rows = static_cast<double>(pairs ? 2 * samples : samples), tokens = rows * static_cast<double>(n);
  std::vector<PlanStage> stages{{.name = "embedding"}};
  if (model.d_embedding > 0) {
    const Products map =
        plain_linear(model, static_cast<double>(model.d_embedding), static_cast<double>(model.d_model));
    stages[0].forward = tokens * map.forward;
    stages[0].backward = tokens * map.backward;
  }
  const Products maps = maps_of_block(model);
  const bool again = settings.trainer.activation_checkpointing == layers::ActivationCheckpointing::blocks;
  for (std::int64_t layer = 0; layer < model.n_layers; ++layer) {
    const Products attended =
        attention(layers::attention_of_layer(model, layer), n, settings.parallel.context_parallel_size > 1);
    stages.push_back({"blocks." + std::to_string(layer), tokens * maps.forward,
                      tokens * (maps.backward + (again ? maps.forward : 0)), rows * attended.forward,
                      rows * (attended.backward + (again ? attended.forward : 0))});
  }
  stages.push_back(output_stage(settings, static_cast<double>(vocabulary), static_cast<double>(n_classes),
                                static_cast<double>(samples), tokens, share_of_logits));
  return stages;
}

std::size_t plan_stage_of(const std::string& parameter, std::size_t n_stages) {
  constexpr std::string_view blocks = "blocks.";
  if (parameter.starts_with(blocks)) {
    std::size_t layer = 0;
    std::from_chars(parameter.data() + blocks.size(), parameter.data() + parameter.size(), layer);
    return std::min(layer + 1, n_stages - 1);
  }
  for (const char* output : {"final_norm.", "prediction.", "classifier.", "matching.", "output_bias"}) {
    if (parameter.starts_with(output)) return n_stages - 1;
  }
  if (parameter.starts_with("attention.")) return 1;  // shared between layers
  return 0;                                           // embeddings, also tied ones
}

}  // namespace furlong
