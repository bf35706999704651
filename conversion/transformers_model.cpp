#include "conversion/transformers_model.h"

#include <map>
#include <set>
#include <string_view>

#include "framework/core/version.h"
#include "layers/attention/linear/linear_mechanism.h"
#include "layers/attention/linformer/linformer_mechanism.h"
#include "layers/attention/mechanism.h"

namespace furlong {
namespace {

using Json = nlohmann::ordered_json;

/// The mechanisms of each layer, those of its heads between spaces.
std::vector<std::string> attention_layers(const layers::ModelConfig& model) {
  std::vector<std::string> all = model.attention.layer_mechanisms;
  if (!all.empty()) return all;
  std::string entry;
  for (const std::string& name : layers::head_mechanisms_of(model.attention, 0))
    entry += (entry.empty() ? "" : " ") + name;
  return std::vector<std::string>(static_cast<std::size_t>(model.n_layers), entry);
}

void add_positions(Json& config, const layers::ModelConfig& model) {
  config["position"] = name_of(model.position);
  if (model.position != layers::Position::rotary) return;
  config["rotary_placement"] = name_of(model.rotary_placement);
  config["rotary_base"] = model.rotary_base;
  if (!model.rotates(layers::RotaryPlacement::before_features)) return;
  config["rotary_frequencies"] =
      ops::rotary_frequencies(model.attention.d_head, model.rotary_base, model.rotary_scaling);
  config["rotary_attention_factor"] = ops::rotary_attention_factor(model.rotary_scaling);
}

void add_attention(Json& config, const layers::ModelConfig& model) {
  const layers::AttentionConfig attention = layers::attention_config(model);
  config["attention_layers"] = attention_layers(model);
  config["window"] = attention.window;
  if (layers::first_mechanism(attention, &layers::MechanismInfo::has_features)) {
    config["softmax_window"] = attention.softmax_window;
    const ops::FeatureMapInfo& map = ops::feature_map_info(attention.feature_map);
    config["feature_map"] = map.name;
    config["signed_features"] = map.can_cancel;
    config["needs_oprf_a"] = map.needs_oprf_a;
    config["learns_inputs"] = map.learns_inputs;
    config["random_features"] = layers::feature_sizes(attention).random_projection;
    config["order"] = attention.map_options.order;
    config["kernel_epsilon"] = attention.map_options.kernel_epsilon;
    config["normalizer"] = name_of(attention.normalizer);
    config["denominator_guard"] = attention.denominator_guard;
    config["centering"] = attention.centering;
    config["scaling"] = name_of(attention.scaling);
    config["chunk_size"] = attention.chunk_size;
  }
  if (layers::first_mechanism(attention, &layers::MechanismInfo::projects_sequence)) {
    config["projected_length"] = layers::resolved_projected_length(attention);
    config["projection"] = name_of(attention.projection);
    config["sharing"] = name_of(attention.sharing);
  }
}

void add_head(Json& config, const Model& model) {
  const Settings& settings = model.settings;
  config["tie_word_embeddings"] = has_output_layer(settings) && settings.model.tied_embeddings;
  if (!settings.objective.learns_labels()) {
    config["prediction_head"] = name_of(settings.model.prediction_head);
    config["output_bias"] = settings.model.output_bias;
    return;
  }
  if (settings.objective.name == Objective::regression ||
      settings.objective.name == Objective::multi_label_classification)
    config["problem_type"] = name_of(settings.objective.name);
  for (const LabelScale& of : model.vocabulary.label_scales()) config["label_scales"].push_back({of.mean, of.scale});
  config["pooling"] = name_of(settings.objective.pooling);
  config["pair_classification"] = settings.objective.name == Objective::pair_classification;
  Json::object_t names, ids;  // operator[] would search all labels before the new one
  for (std::size_t i = 0; i < model.vocabulary.labels().size(); ++i) {
    const std::string& label = model.vocabulary.labels()[i];
    names.emplace_back(std::to_string(i), label);
    ids.emplace_back(label, i);
  }
  config["id2label"] = std::move(names);
  config["label2id"] = std::move(ids);
}

/// The class with this model's head, and the classes of transformers that load it.
std::pair<const char*, std::vector<const char*>> head_class(const Settings& settings) {
  if (settings.objective.name == Objective::token_classification)
    return {"FurlongForTokenClassification", {"AutoModelForTokenClassification"}};
  if (settings.objective.learns_labels())
    return {"FurlongForSequenceClassification", {"AutoModelForSequenceClassification"}};
  if (!has_output_layer(settings)) return {"FurlongModel", {}};
  if (settings.model.architecture == layers::Architecture::encoder)
    return {"FurlongForMaskedLM", {"AutoModelForMaskedLM"}};
  return {"FurlongForCausalLM", {"AutoModelForCausalLM"}};
}

}  // namespace

const std::vector<std::pair<std::string, std::string>>& transformers_sources() {
  static const std::vector<std::pair<std::string, std::string>> sources{
#include "transformers_sources.inc"
  };
  return sources;
}

Json special_token_ids(const Vocabulary& vocabulary) {
  SpecialTokens special;
  if (const auto& tokenizer = vocabulary.tokenizer()) special = tokenizer->special();
  const auto json = [](std::optional<std::int32_t> id) { return id ? Json(*id) : Json(); };
  return {{"eos_token_id", json(vocabulary.document_id())},
          {"bos_token_id", json(special.beginning)},
          {"pad_token_id", json(special.padding)}};
}

Json transformers_config(const Model& model) {
  const layers::ModelConfig& settings = model.settings.model;
  const auto [class_name, loaders] = head_class(model.settings);
  Json auto_map{{"AutoConfig", "configuration_furlong.FurlongConfig"}, {"AutoModel", "modeling_furlong.FurlongModel"}};
  for (const char* loader : loaders) auto_map[loader] = std::string("modeling_furlong.") + class_name;
  // An encoder of another objective, or without a head, can be given a classifier.
  if (settings.architecture == layers::Architecture::encoder) {
    auto_map["AutoModelForSequenceClassification"] = "modeling_furlong.FurlongForSequenceClassification";
    auto_map["AutoModelForTokenClassification"] = "modeling_furlong.FurlongForTokenClassification";
  }
  Json config{{"model_type", transformers_model_type}, {"architectures", {class_name}}, {"auto_map", auto_map}};
  config["vocab_size"] = model.store->find("token_embedding.weight").shape()[0];
  config["hidden_size"] = settings.d_model;
  config["intermediate_size"] = settings.d_feedforward;
  config["num_hidden_layers"] = settings.n_layers;
  config["num_attention_heads"] = settings.attention.n_heads;
  config["num_key_value_heads"] = settings.attention.n_kv_heads;
  config["head_dim"] = settings.attention.d_head;
  config["embedding_size"] = settings.d_embedding;
  config["type_vocab_size"] = settings.n_segments;
  config["max_position_embeddings"] = settings.max_sequence_length;
  config["causal"] = settings.architecture == layers::Architecture::decoder;
  config["hidden_act"] = name_of(settings.activation);
  config["norm"] = name_of(settings.norm);
  config["norm_epsilon"] = settings.norm_epsilon;
  config["norm_placement"] = name_of(settings.norm_placement);
  config["embedding_norm"] = settings.embedding_norm;
  config["query_key_norm"] = settings.query_key_norm != layers::QueryKeyNorm::none;
  config["use_bias"] = settings.bias;
  config["query_key_value_bias"] = settings.has_query_key_value_bias();
  config["token_dropout"] = settings.token_dropout;
  if (settings.token_dropout) config["mask_token_id"] = settings.mask_token;
  config["shared_layers"] = settings.shared_layers;
  config["short_convolution"] = settings.short_convolution;
  config["dropout"] = settings.dropout;
  config["initializer_range"] = settings.initializer_range;
  add_positions(config, settings);
  add_attention(config, settings);
  add_head(config, model);
  const Json special = special_token_ids(model.vocabulary);  // named, because items() refers to it
  for (const auto& [key, id] : special.items())
    if (!id.is_null()) config[key] = id;
  return config;
}

std::string transformers_card(const Model& model, const std::string& source, const std::string& tokenizer_obstacle) {
  const layers::ModelConfig& settings = model.settings.model;
  const std::vector<const char*> loaders = head_class(model.settings).second;
  const std::string loader = loaders.empty() ? "AutoModel" : loaders.front();
  const std::map<std::string, const char*> tasks{{"AutoModel", "feature-extraction"},
                                                 {"AutoModelForCausalLM", "text-generation"},
                                                 {"AutoModelForMaskedLM", "fill-mask"},
                                                 {"AutoModelForSequenceClassification", "text-classification"},
                                                 {"AutoModelForTokenClassification", "token-classification"}};
  std::set<std::string> mechanisms;
  for (const layers::MechanismInfo* info : mechanisms_of(settings.attention)) mechanisms.insert(info->name);
  std::string attention = fmt::format("{}", fmt::join(mechanisms, ", "));
  if (mechanisms.size() == 1 && layers::mechanism_info(attention).has_features)
    attention += fmt::format(" ({})", settings.attention.feature_map);
  std::int64_t parameters = 0;
  for (const Parameter& parameter : model.store->parameters())
    if (!model.store->is_buffer(parameter)) parameters += parameter.shape().elements();
  const double millions = static_cast<double>(parameters) * 1e-6;
  std::string history = source.empty() ? "" : fmt::format(" Initialized from {}.", source);
  const DataSettings& data = model.settings.data;
  if (data.task != "none" || !data.mixture().empty())  // not only imported or converted
    history += fmt::format(" Trained with sequences of {} tokens.", data.sequence_length);
  const bool has_tokenizer = tokenizer_obstacle.empty();
  const std::string warning =
      has_tokenizer ? ""
                    : fmt::format(
                          "\n**Warning:** AutoTokenizer does not give the ids of this model's tokenizer: {}. "
                          "`furlong tokenize` gives them.\n",
                          tokenizer_obstacle);
  return fmt::format(
      R"(---
library_name: transformers
pipeline_tag: {}
tags:
- furlong
- custom_code
---

A transformer {} of {} million parameters: {} layer{}, hidden size {}, attention {}.{}
{} Its version was {}, commit {}. The directory includes the model's PyTorch code:

```python
from transformers import {}{}

folder = "."  # this directory, or its name on a hub
model = {}.from_pretrained(folder, trust_remote_code=True)
{}```
{})",
      tasks.at(loader), name_of(settings.architecture), fmt::format("{:.{}f}", millions, millions < 10 ? 2 : 0),
      settings.n_layers, settings.n_layers == 1 ? "" : "s", settings.d_model, attention, history,
      transformers_card_mark, version(), commit(), loader, has_tokenizer ? ", AutoTokenizer" : "", loader,
      has_tokenizer ? "tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)\n" : "", warning);
}

std::string transformers_name(const std::string& parameter, const Model& model) {
  if (parameter == "output_bias") return "lm_head.bias";
  if (parameter.starts_with("prediction.") || parameter.starts_with("matching.")) return parameter;
  if (parameter.starts_with("classifier."))
    return model.settings.objective.learns_labels() ? parameter : "lm_head.weight";
  std::string name = std::string(base_model_prefix) + parameter;
  constexpr std::string_view part = ".attention.", weight = ".weight";
  const std::size_t at = name.find(part);
  const std::string own = name.substr(at == std::string::npos ? name.size() : at + part.size());
  const bool of_layer = own.starts_with("query_key_value.") || own.starts_with("output.") ||
                        own.starts_with("short_convolution.") || own.starts_with("query_norm.") ||
                        own.starts_with("key_norm.");
  if (own.empty() || of_layer) return name;
  // What is a mechanism's own are its parameters, and no modules.
  if (name.ends_with(weight)) name.resize(name.size() - weight.size());
  if (parameter.starts_with("attention.")) return name;  // Linformer's projection of all layers
  const std::string every_head = fmt::format("heads_0_{}.", model.settings.model.attention.n_heads - 1);
  if (own.starts_with(every_head)) return name.replace(at + part.size(), every_head.size(), "mechanism.");
  return own.starts_with("heads_") ? name : name.insert(at + part.size(), "mechanism.");
}

}  // namespace furlong
