#include "conversion/architectures/llama_like.h"

#include <algorithm>
#include <cmath>

#include "framework/core/printable.h"
#include "framework/ops/attention/positions/rotary_scaling.h"

namespace furlong {
namespace {

/// Returns 0.1 m ln(factor) + 1, or 1 if factor <= 1 (Peng et al. 2023, "YaRN", equation 22; m as in DeepSeek-V2).
double yarn_magnitude(double factor, double m) { return factor <= 1 ? 1 : 0.1 * m * std::log(factor) + 1; }

/// Returns the training length before the extension. As in transformers 5, the key outside of the section comes first.
std::int64_t original_length(const ForeignConfig& config, const ForeignConfig& rope, std::int64_t fallback) {
  constexpr const char* key = "original_max_position_embeddings";
  return config.size(key, rope.size(key, fallback));
}

void read_yarn(const ForeignConfig& rope, layers::ModelConfig& model) {
  rope.only("truncate", true, "the ramp starts and ends at whole pairs");
  if (!rope.has("factor")) {
    model.rotary_scaling.factor =
        static_cast<double>(model.max_sequence_length) / static_cast<double>(model.rotary_scaling.original_length);
  }
  model.rotary_scaling.beta_fast = rope.real("beta_fast", 32);
  model.rotary_scaling.beta_slow = rope.real("beta_slow", 1);
  const double m = rope.real("mscale", 0), all = rope.real("mscale_all_dim", 0);
  if (rope.has("attention_factor")) {
    model.rotary_scaling.attention_factor = rope.real("attention_factor");
  } else if (m != 0 && all != 0) {
    model.rotary_scaling.attention_factor =
        yarn_magnitude(model.rotary_scaling.factor, m) / yarn_magnitude(model.rotary_scaling.factor, all);
  }
}

/// Reads rope_scaling and rope_theta, or rope_parameters (transformers 5 and later). Every version of transformers
/// ignores rope_parameters if rope_scaling is not empty.
void read_rotary(const ForeignConfig& config, layers::ModelConfig& model) {
  const ForeignConfig scaling = config.section("rope_scaling"), parameters = config.section("rope_parameters");
  const bool ignores_parameters = !scaling.json().empty();
  const ForeignConfig& rope = ignores_parameters ? scaling : parameters;
  model.rotary_base = rope.real("rope_theta", config.real("rope_theta", 10000));
  if (ignores_parameters && parameters.real("rope_theta", model.rotary_base) != model.rotary_base)
    parameters.fail("rope_theta", fmt::format("found {}, but with rope_scaling transformers ignores it and takes {}; "
                                              "remove rope_parameters or rope_scaling",
                                              parameters.real("rope_theta"), model.rotary_base));
  config.only("partial_rotary_factor", 1.0, "whole heads are rotated");
  rope.only("partial_rotary_factor", 1.0, "whole heads are rotated");
  const std::string kind = rope.text("rope_type", rope.text("type", "default"));
  if (kind == "default") return;
  if (kind != "linear" && kind != "llama3" && kind != "yarn") {
    rope.fail(
        rope.has("rope_type") ? "rope_type" : "type",
        fmt::format(
            "found {}; expected default, linear, llama3 or yarn{}", foreign::printable(kind),
            kind == "dynamic" ? ": dynamic rotates a token differently in a longer text, which prevents caching" : ""));
  }
  if (rope.has("factor") || kind != "yarn") model.rotary_scaling.factor = rope.real("factor");
  const bool scales_scores = kind == "yarn" && rope.real("attention_factor", 1) != 1;
  if (rope.has("factor") && model.rotary_scaling.factor == 1 && !scales_scores) return;  // nothing is scaled
  model.rotary_scaling.kind = value_named<ops::RotaryScalingKind>(kind, "rope_type");
  if (kind != "linear") model.rotary_scaling.original_length = original_length(config, rope, model.max_sequence_length);
  if (kind == "llama3") {
    model.rotary_scaling.low_frequency_factor = rope.real("low_freq_factor");
    model.rotary_scaling.high_frequency_factor = rope.real("high_freq_factor");
  }
  if (kind == "yarn") read_yarn(rope, model);
}

/// Names of tensors, without the model's and the layer's prefix.
struct Names {
  const char *embedding, *final_norm, *output, *layers, *attention_norm;
  const char *query, *key, *value;  // each with .weight, some with .bias
  const char *query_norm, *key_norm, *projection, *feedforward_norm, *gate, *up, *down;
};
constexpr Names hugging_face{"embed_tokens.weight",     "norm.weight",
                             "lm_head.weight",          "layers.",
                             "input_layernorm.weight",  "self_attn.q_proj",
                             "self_attn.k_proj",        "self_attn.v_proj",
                             "self_attn.q_norm.weight", "self_attn.k_norm.weight",
                             "self_attn.o_proj.weight", "post_attention_layernorm.weight",
                             "mlp.gate_proj.weight",    "mlp.up_proj.weight",
                             "mlp.down_proj.weight"};
constexpr Names llama_cpp{"token_embd.weight",
                          "output_norm.weight",
                          "output.weight",
                          "blk.",
                          "attn_norm.weight",
                          "attn_q",
                          "attn_k",
                          "attn_v",
                          "attn_q_norm.weight",
                          "attn_k_norm.weight",
                          "attn_output.weight",
                          "ffn_norm.weight",
                          "ffn_gate.weight",
                          "ffn_up.weight",
                          "ffn_down.weight"};

std::vector<Duplicate> llama_duplicates(const layers::ModelConfig& model, const TensorNaming& naming) {
  const Names& names = naming.gguf ? llama_cpp : hugging_face;
  if (!model.tied_embeddings) return {};
  return {{names.output, naming.prefix + names.embedding}};
}

/// Rotary frequencies, which the config determines.
bool is_carried_by_llama(std::string_view name) {
  return name.ends_with("rotary_emb.inv_freq") || name == "rope_freqs.weight";
}

}  // namespace

Settings llama_settings(const ForeignConfig& config, const LlamaDefaults& defaults) {
  config.only("is_decoder", true, "a decoder");
  config.only("is_causal", true, "a token attends to itself and to those before it");
  Settings settings;
  settings.objective.name = Objective::next_token;
  layers::ModelConfig& model = settings.model;
  model.architecture = layers::Architecture::decoder;
  model.vocabulary_size = config.size("vocab_size", defaults.vocabulary_size);
  model.n_layers = config.size("num_hidden_layers", 32);
  model.d_model = config.size("hidden_size", 4096);
  layers::AttentionConfig& attention = model.attention;
  attention.n_heads = config.size("num_attention_heads", 32);
  // null means num_attention_heads, whatever the family's default is.
  const bool is_null = config.json().contains("num_key_value_heads");
  attention.n_kv_heads =
      config.size("num_key_value_heads",
                  is_null || defaults.n_key_value_heads == 0 ? attention.n_heads : defaults.n_key_value_heads);
  attention.d_head = config.size(
      "head_dim", defaults.d_head > 0 ? defaults.d_head : std::max<std::int64_t>(1, model.d_model / attention.n_heads));
  model.d_feedforward = config.size("intermediate_size", defaults.d_feedforward);
  model.max_sequence_length = config.size("max_position_embeddings", defaults.max_sequence_length);
  model.activation = config.activation("hidden_act", "silu", true);
  model.norm = ops::NormKind::rmsnorm;
  model.norm_epsilon = config.real("rms_norm_eps", 1e-6);
  model.bias = false;
  model.position = layers::Position::rotary;
  model.tied_embeddings = config.boolean("tie_word_embeddings", false);
  read_rotary(config, model);
  return settings;
}

void read_qwen_window(const ForeignConfig& config, layers::ModelConfig& model) {
  constexpr const char *windowed = "sliding_attention", *full = "full_attention";
  std::int64_t with_window = 0;
  if (config.has("layer_types")) {
    const auto& types = config.json().at("layer_types");
    if (!types.is_array() || types.size() != static_cast<std::size_t>(model.n_layers))
      config.fail("layer_types", fmt::format("expected a list of {} layers", model.n_layers));
    for (const auto& type : types) {
      if (type != windowed && type != full)
        config.fail("layer_types",
                    fmt::format("found {}; expected {} or {}", foreign::printable(type.dump()), full, windowed));
      with_window += type == windowed;
    }
  } else if (config.boolean("use_sliding_window", false)) {
    // max_window_layers is the first layer with a window; 0 is allowed.
    const bool all = config.has("max_window_layers") && config.json().at("max_window_layers") == 0;
    const std::int64_t first = all ? 0 : config.size("max_window_layers", 28);
    with_window = std::max<std::int64_t>(0, model.n_layers - first);
  }
  const bool is_null = config.json().contains("sliding_window") && !config.has("sliding_window");
  if (with_window == 0 || is_null || !config.boolean("use_sliding_window", false)) return;
  if (with_window < model.n_layers)
    config.fail(config.has("layer_types") ? "layer_types" : "max_window_layers",
                fmt::format("{} of {} layers have a sliding window; expected all or none, because "
                            "model.attention.window applies to every layer",
                            with_window, model.n_layers));
  model.attention.window = config.size("sliding_window", 4096);
}

std::vector<Mapping> llama_mappings(const layers::ModelConfig& model, const TensorNaming& naming, Layout pairs) {
  const Names& names = naming.gguf ? llama_cpp : hugging_face;
  const std::int64_t d = model.d_model, inner = model.d_feedforward, V = model.vocabulary_size,
                     d_head = model.attention.d_head;
  const std::int64_t queries = model.attention.n_heads * d_head, keys = model.attention.n_kv_heads * d_head;
  std::vector<Mapping> table{{"token_embedding.weight", {{naming.prefix + names.embedding, {V, d}}}},
                             {"final_norm.gain", {{naming.prefix + names.final_norm, {d}}}}};
  const Layout rotary_layout = naming.gguf ? pairs : Layout::plain;
  const std::string weight = ".weight";
  for (std::int64_t layer = 0; layer < model.n_layers; ++layer) {
    const std::string ours = "blocks." + std::to_string(layer) + ".",
                      theirs = naming.prefix + names.layers + std::to_string(layer) + ".";
    table.push_back({ours + "attention_norm.gain", {{theirs + names.attention_norm, {d}}}});
    table.push_back({ours + "attention.query_key_value.weight",
                     {{theirs + names.query + weight, {queries, d}, rotary_layout, d_head},
                      {theirs + names.key + weight, {keys, d}, rotary_layout, d_head},
                      {theirs + names.value + weight, {keys, d}}}});
    if (model.has_query_key_value_bias())
      table.push_back({ours + "attention.query_key_value.bias",
                       {{theirs + names.query + ".bias", {queries}, rotary_layout, d_head},
                        {theirs + names.key + ".bias", {keys}, rotary_layout, d_head},
                        {theirs + names.value + ".bias", {keys}}}});
    if (model.query_key_norm != layers::QueryKeyNorm::none) {
      table.push_back({ours + "attention.query_norm.gain", {{theirs + names.query_norm, {d_head}}}});
      table.push_back({ours + "attention.key_norm.gain", {{theirs + names.key_norm, {d_head}}}});
    }
    table.push_back({ours + "attention.output.weight", {{theirs + names.projection, {d, queries}}}});
    table.push_back({ours + "feedforward_norm.gain", {{theirs + names.feedforward_norm, {d}}}});
    table.push_back(
        {ours + "feedforward.input.weight", {{theirs + names.gate, {inner, d}}, {theirs + names.up, {inner, d}}}});
    table.push_back({ours + "feedforward.output.weight", {{theirs + names.down, {d, inner}}}});
  }
  if (!model.tied_embeddings) table.push_back({"classifier.weight", {{names.output, {V, d}}}});
  return table;
}

nlohmann::ordered_json llama_config(const layers::ModelConfig& model) {
  nlohmann::ordered_json config{{"vocab_size", model.vocabulary_size},
                                {"num_hidden_layers", model.n_layers},
                                {"hidden_size", model.d_model},
                                {"num_attention_heads", model.attention.n_heads},
                                {"num_key_value_heads", model.attention.n_kv_heads},
                                {"head_dim", model.attention.d_head},
                                {"intermediate_size", model.d_feedforward},
                                {"max_position_embeddings", model.max_sequence_length},
                                {"hidden_act", foreign_activation(model.activation)},
                                {"rms_norm_eps", model.norm_epsilon},
                                {"initializer_range", model.initializer_range},
                                {"rope_theta", model.rotary_base},
                                {"tie_word_embeddings", model.tied_embeddings}};
  const ops::RotaryScaling& scaling = model.rotary_scaling;
  if (scaling.kind == ops::RotaryScalingKind::none) return config;
  nlohmann::ordered_json rope{{"rope_type", name_of(scaling.kind)}, {"factor", scaling.factor}};
  // Where it equals max_position_embeddings, some versions of transformers 4 would replace yarn's factor by their
  // ratio.
  const bool is_default =
      scaling.kind == ops::RotaryScalingKind::yarn && scaling.original_length == model.max_sequence_length;
  if (scaling.uses_original_length() && !is_default) rope["original_max_position_embeddings"] = scaling.original_length;
  if (scaling.kind == ops::RotaryScalingKind::llama3) {
    rope["low_freq_factor"] = scaling.low_frequency_factor;
    rope["high_freq_factor"] = scaling.high_frequency_factor;
  }
  if (scaling.kind == ops::RotaryScalingKind::yarn) {
    rope["beta_fast"] = scaling.beta_fast;
    rope["beta_slow"] = scaling.beta_slow;
    if (scaling.attention_factor != 0) rope["attention_factor"] = scaling.attention_factor;
  }
  config["rope_scaling"] = rope;
  return config;
}

Architecture llama_family(const char* model_type, const char* class_name, decltype(Architecture::settings) settings,
                          decltype(Architecture::mappings) mappings, decltype(Architecture::config) config) {
  return {model_type,       class_name,          nullptr, {"model.", ""}, "embed_tokens.weight", "", settings, mappings,
          llama_duplicates, is_carried_by_llama, config};
}

}  // namespace furlong
