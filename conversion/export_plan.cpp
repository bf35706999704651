#include "conversion/export_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "conversion/performer_directory.h"
#include "layers/attention/mechanism.h"

namespace furlong {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* attention_reason = "model.attention is not softmax over all visible tokens";

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

/// Describes the first model key that differs, with both values; empty if none differs.
std::string first_difference(const layers::ModelConfig& wanted, const layers::ModelConfig& found) {
  Settings a, b;
  a.model = wanted;
  b.model = found;
  const config::Table first = settings_table(a), second = settings_table(b);
  for (const config::Key& key : first.keys()) {
    const config::Value other = second.find(key.path())->get();
    if (key.get() != other && key.section() == "model.attention") return attention_reason;
    if (key.get() != other)
      return fmt::format("{} is {}, and in that family it would be {}", key.path(), config::to_text(key.get()),
                         config::to_text(other));
  }
  return {};
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
    std::vector<std::pair<std::string, std::string>> reasons;  // with the families they apply to
    for (const Architecture& architecture : architectures()) {
      ExportPlan plan = plan_as(architecture, default_naming(architecture));
      if (plan.for_hugging_face) return plan;
      const auto same =
          std::find_if(reasons.begin(), reasons.end(), [&](const auto& known) { return known.first == plan.reason; });
      if (same == reasons.end())
        reasons.emplace_back(plan.reason, architecture.model_type);
      else
        same->second += std::string(", ") + architecture.model_type;
    }
    ExportPlan plan;
    for (const auto& [reason, families] : reasons)
      plan.reason += fmt::format("{}{}: {}", plan.reason.empty() ? "" : "; ", families, reason);
    plan.config = performer_config(model_, origin_);
    return plan;
  }

 private:
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
  /// the model.
  ExportPlan plan_as(const Architecture& architecture, const TensorNaming& naming) const {
    ExportPlan plan{&architecture, naming, false, {}, architecture.config(wanted_), {}};
    const std::string type = architecture.model_type;
    if (model_.settings.objective.learns_labels())
      plan.reason = "no head for labels";
    else if (layers::first_mechanism(wanted_.attention, &layers::MechanismInfo::is_softmax, false))
      plan.reason = attention_reason;
    else if (plan.config.contains("type_vocab_size") && wanted_.architecture == layers::Architecture::decoder)
      plan.reason = "model.architecture is decoder, and in that family it would be encoder";
    else if (plan.config.contains("type_vocab_size") && wanted_.n_segments == 0)
      plan.reason = "the model has no token types (model.n_segments is 0)";
    if (!plan.reason.empty()) return plan;
    try {
      const Settings back = complete_settings(architecture.settings(ForeignConfig(plan.config, type), naming), type);
      plan.reason = first_difference(wanted_, computation_settings(back, back.model.vocabulary_size));
    } catch (const UserError& error) {
      plan.reason = error.what();
    }
    plan.for_hugging_face = plan.reason.empty();
    if (plan.for_hugging_face) merge_origin(plan);
    return plan;
  }

  /// Keeps the keys of the original config that do not describe the model.
  void merge_origin(ExportPlan& plan) const {
    const Architecture& architecture = *plan.architecture;
    Json config{{"architectures", {plan.naming.head ? architecture.class_name : architecture.headless_class_name}},
                {"model_type", architecture.model_type}};
    config.update(plan.config);
    if (!origin_) {
      plan.config = config;
      return;
    }
    const Json original = Json::parse(origin_->config);
    TensorNaming naming = plan.naming;
    naming.head = origin_->naming.head;
    const Settings before =
        complete_settings(architecture.settings(ForeignConfig(original, "config.json"), naming), "config.json");
    if (computation_settings(before, before.model.vocabulary_size) == wanted_) {
      plan.verbatim = origin_->config;
      plan.config = original;
    } else {
      plan.config.update(original);
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
