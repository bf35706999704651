#include "conversion/export_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "conversion/performer_directory.h"
#include "conversion/transformers_model.h"
#include "evaluation/sequences/hidden_states.h"
#include "layers/attention/mechanism.h"

namespace furlong {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* attention_reason =
    "classes of transformers have softmax attention, and model.attention is not softmax over all visible tokens";

/// Returns why no family has a class for the model, whatever its keys under `model`; empty if one may have.
std::string common_reason(const Settings& settings) {
  if (layers::first_mechanism(settings.model.attention, &layers::MechanismInfo::is_softmax, false))
    return attention_reason;
  if (!settings.objective.learns_labels()) return {};
  if (settings.objective.label_kind() == LabelKind::tokens)
    return "furlong export writes heads for labels with code only";
  if (settings.objective.name == Objective::pair_classification)
    return "transformers has no class for pairs of separate texts";
  return "classifiers of transformers have a dense layer before the output layer, and Furlong's label head has none";
}

/// Keys of config.json that have other names too, in versions of transformers or by aliases, so those of the original
/// may contradict the exported ones.
constexpr const char* replaced_keys[] = {
    "rope_parameters", "rope_scaling", "rope_theta", "original_max_position_embeddings", "layer_types",
    // of GPT-2
    "num_hidden_layers", "num_attention_heads", "hidden_size", "max_position_embeddings"};

/// Returns whether transformers cannot run the family without pad_token_id.
bool needs_padding(const Architecture& architecture) { return std::string_view(architecture.model_type) == "esm"; }

/// Returns the settings that determine the computation. Keys that matter only in training, or have no effect here, are
/// at their defaults.
layers::ModelConfig computation_settings(const Settings& settings, std::int64_t vocabulary_size) {
  const layers::ModelConfig defaults;
  layers::ModelConfig model = settings.model;
  model.vocabulary_size = vocabulary_size;
  model.dtype = defaults.dtype;
  model.dropout = defaults.dropout;
  model.initializer_range = defaults.initializer_range;
  model.adapter = {};
  model.weights.clear();
  const layers::AttentionConfig& attention = settings.model.attention;
  const bool exact = !layers::first_mechanism(attention, &layers::MechanismInfo::is_softmax, false);
  if (exact) {
    model.attention = attention.plain();
    model.attention.window = attention.window;
  }
  return model;
}

/// Describes the model keys that differ, with both values.
std::vector<std::string> differences_between(const layers::ModelConfig& wanted, const layers::ModelConfig& found) {
  Settings a, b;
  a.model = wanted;
  b.model = found;
  std::vector<std::string> all;
  const config::Table first = settings_table(a), second = settings_table(b);
  for (const config::Key& key : first.keys()) {
    const config::Value other = second.find(key.path())->get();
    if (key.get() == other) continue;
    all.push_back(key.section() == "model.attention"
                      ? attention_reason
                      : fmt::format("{} is {}, and in that family it would be {}", key.path(),
                                    config::to_text(key.get()), config::to_text(other)));
  }
  return all;
}

class Planner {
 public:
  Planner(const Model& model, const std::optional<Origin>& origin) : model_(model), origin_(origin) {
    wanted_ = computation_settings(model.settings, model.store->find("token_embedding.weight").shape()[0]);
  }

  ExportPlan plan() const {
    if (origin_) {
      ExportPlan plan = plan_as(*find_architecture(origin_->model_type), origin_naming());
      if (plan.for_hugging_face) return plan;
      plan.reason = fmt::format("{}: {}", origin_->model_type, plan.reason);
      plan.config = performer_config(model_, origin_);
      return plan;
    }
    ExportPlan plan;
    plan.reason = common_reason(model_.settings);
    if (plan.reason.empty()) plan = plan_as_closest();
    if (plan.for_hugging_face) return plan;
    plan.config = performer_config(model_, origin_);
    return plan;
  }

 private:
  /// Returns the plan for the first family that fits. If none does, gives the reason of the one with the fewest
  /// differing keys.
  ExportPlan plan_as_closest() const {
    ExportPlan closest;
    std::optional<std::size_t> least;
    for (const Architecture& architecture : architectures()) {
      std::size_t differences = 0;
      const ExportPlan plan = plan_as(architecture, default_naming(architecture), &differences);
      if (plan.for_hugging_face) return plan;
      if (least && differences >= *least) continue;
      least = differences;
      closest.reason = fmt::format("{}, the closest class of transformers: {}", architecture.model_type, plan.reason);
    }
    return closest;
  }

  bool has_head() const { return model_.settings.model.prediction_head != layers::PredictionHead::none; }

  /// Returns the family's usual naming scheme.
  TensorNaming default_naming(const Architecture& architecture) const {
    TensorNaming naming{architecture.prefixes[0]};
    naming.head = has_head() || !architecture.headless_class_name;
    return naming;
  }

  /// Returns the original naming scheme, unless the model gained or lost its head.
  TensorNaming origin_naming() const {
    if (origin_->format == "gguf" || origin_->naming.head != has_head())
      return default_naming(*find_architecture(origin_->model_type));
    return origin_->naming;
  }

  /// Writes the settings as the family's config and reads them back. A difference means that the family cannot express
  /// the model. `differences`: the number of keys that differ; if the family cannot be tried, above that of all keys.
  ExportPlan plan_as(const Architecture& architecture, const TensorNaming& naming,
                     std::size_t* differences = nullptr) const {
    ExportPlan plan{&architecture, naming, false, {}, architecture.config(wanted_), {}, {}};
    const std::string type = architecture.model_type;
    plan.reason = common_reason(model_.settings);
    if (!plan.reason.empty()) return plan;
    if (plan.config.contains("type_vocab_size") && wanted_.architecture == layers::Architecture::decoder)
      plan.reason = "model.architecture is decoder, and in that family it would be encoder";
    else if (plan.config.contains("type_vocab_size") && wanted_.n_segments == 0)
      plan.reason = "the model has no token types (model.n_segments is 0)";
    if (differences) *differences = std::numeric_limits<std::size_t>::max();
    if (!plan.reason.empty()) return plan;
    try {
      const Settings back = complete_settings(architecture.settings(ForeignConfig(plan.config, type), naming), type);
      const std::vector<std::string> all =
          differences_between(wanted_, computation_settings(back, back.model.vocabulary_size));
      if (differences) *differences = all.size();
      if (!all.empty()) plan.reason = all.front();
      if (plan.reason.empty() && !origin_) plan.reason = unmet_requirement(architecture);
    } catch (const UserError& error) {
      plan.reason = error.what();
    }
    plan.for_hugging_face = plan.reason.empty();
    if (plan.for_hugging_face) merge_origin(plan);
    if (!plan.for_hugging_face || !plan.verbatim.empty()) return plan;
    plan.reason = setting_that_transformers_4_ignores(architecture);
    plan.for_hugging_face = plan.reason.empty();
    return plan;
  }

  /// Returns why transformers rejects the family's config, although it describes the model; empty if it does not.
  std::string unmet_requirement(const Architecture& architecture) const {
    const bool divides = wanted_.d_model % wanted_.attention.n_heads == 0;
    if (std::string_view(architecture.model_type) == "llama" && !divides)
      return "model.d_model is not a multiple of model.n_heads";
    if (!needs_padding(architecture)) return {};
    const auto padding = padding_token();
    // transformers 4 indexes a table of positions with it, which rotary positions leave unused.
    if (!padding || *padding >= wanted_.max_sequence_length)
      return "the vocabulary has no padding token with an id below model.max_sequence_length";
    return {};
  }

  /// Returns why the family's class computes something else in versions of transformers 4, which ignore a key without a
  /// message; empty if it does not.
  std::string setting_that_transformers_4_ignores(const Architecture& architecture) const {
    const std::string_view family = architecture.model_type;
    const ops::RotaryScaling& scaling = wanted_.rotary_scaling;
    if (wanted_.position != layers::Position::rotary) return {};
    if (family == "esm" && wanted_.rotary_base != 10000)
      return fmt::format("model.rotary_base is {}, and transformers 4 always takes 10000 for ESM", wanted_.rotary_base);
    if (family == "mistral" && scaling.kind != ops::RotaryScalingKind::none)
      return "some versions of transformers 4 ignore model.rotary_scaling for Mistral";
    if (scaling.kind == ops::RotaryScalingKind::yarn && scaling.original_length > 0 &&
        scaling.original_length != wanted_.max_sequence_length)
      return "some versions of transformers 4 take model.max_sequence_length as the original length of yarn";
    return {};
  }

  /// Returns a token that no input has: the tokenizer's own padding, an embedding beyond the vocabulary, or the token
  /// that represents a document, if documents have none.
  std::optional<std::int32_t> padding_token() const {
    const Vocabulary& vocabulary = model_.vocabulary;
    if (vocabulary.tokenizer() && vocabulary.tokenizer()->special().padding)
      return vocabulary.tokenizer()->special().padding;
    if (vocabulary.size() < wanted_.vocabulary_size) return vocabulary.size();
    const std::optional<std::int32_t> id = vocabulary.class_id();
    const SequenceFrame frame = frame_of(model_);
    for (const auto* part : {&frame.front, &frame.back})
      if (id && std::find(part->begin(), part->end(), *id) != part->end()) return std::nullopt;
    return id;
  }

  /// Adds the special tokens. A token that the vocabulary lacks is null: the family's default may be another token.
  void add_special_tokens(const Architecture& architecture, Json& config) const {
    const Json special = special_token_ids(model_.vocabulary);
    for (const auto& [key, id] : special.items())
      if (!config.contains(key)) config[key] = id;
    if (needs_padding(architecture)) config["pad_token_id"] = padding_token().value();
  }

  /// Keeps the keys of the original config that do not describe the model. Without one, adds the special tokens.
  void merge_origin(ExportPlan& plan) const {
    const Architecture& architecture = *plan.architecture;
    Json config{{"architectures", {plan.naming.head ? architecture.class_name : architecture.headless_class_name}},
                {"model_type", architecture.model_type}};
    config.update(plan.config);
    if (!origin_) {
      add_special_tokens(architecture, config);
      plan.config = config;
      return;
    }
    const Json original = Json::parse(origin_->config);
    TensorNaming naming = plan.naming;
    naming.head = origin_->naming.head;
    const Settings before =
        complete_settings(architecture.settings(ForeignConfig(original, "config.json"), naming), "config.json");
    if (before.model.rotary_base != wanted_.rotary_base) plan.outdated.emplace_back("rotary_embeddings.inv_freq");
    if (before.model.max_sequence_length != wanted_.max_sequence_length)
      plan.outdated.insert(plan.outdated.end(), {"position_embeddings.weight", "position_ids"});
    const bool same = computation_settings(before, before.model.vocabulary_size) == wanted_;
    // The model's own code is not exported.
    if (same && !original.contains("auto_map") && origin_->format != "gguf") {
      plan.verbatim = origin_->config;
      plan.config = original;
    } else {
      Json kept = original;
      kept.erase("auto_map");
      for (const char* key : replaced_keys) kept.erase(key);
      plan.config.update(kept);
      plan.config.update(config);
    }
  }

  const Model& model_;
  const std::optional<Origin>& origin_;
  layers::ModelConfig wanted_;
};

}  // namespace

ExportPlan export_plan(const Model& model, const std::optional<Origin>& origin) {
  return Planner(model, origin).plan();
}

}  // namespace furlong
