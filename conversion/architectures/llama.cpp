// Llama (Touvron et al. 2023) in Hugging Face's format (LlamaModel, LlamaForCausalLM) and in llama.cpp's (GGUF).
#include <cmath>
#include <set>

#include "conversion/architecture.h"
#include "formats/gguf.h"
#include "framework/core/error.h"
#include "framework/core/printable.h"
#include "framework/ops/attention/positions/rotary_scaling.h"

namespace furlong {
namespace {

/// Returns 0.1 m ln(factor) + 1, or 1 if factor <= 1 (Peng et al. 2023, "YaRN", equation 22; m as in DeepSeek-V2).
double yarn_magnitude(double factor, double m) { return factor <= 1 ? 1 : 0.1 * m * std::log(factor) + 1; }

void read_yarn(const ForeignConfig& rope, layers::ModelConfig& model) {
  rope.only("truncate", true, "the ramp starts and ends at whole pairs");
  model.rotary_scaling.original_length = rope.size("original_max_position_embeddings", model.max_sequence_length);
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

/// Reads rope_parameters (transformers 5 and later), or rope_scaling and rope_theta.
void read_rotary(const ForeignConfig& config, layers::ModelConfig& model) {
  const ForeignConfig rope = config.section(config.has("rope_parameters") ? "rope_parameters" : "rope_scaling");
  model.rotary_base = rope.real("rope_theta", config.real("rope_theta", 10000));
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
  if (rope.has("factor") && model.rotary_scaling.factor == 1) return;  // nothing is scaled
  model.rotary_scaling.kind = value_named<ops::RotaryScalingKind>(kind, "rope_type");
  if (kind == "llama3") {
    model.rotary_scaling.original_length = rope.size("original_max_position_embeddings", model.max_sequence_length);
    model.rotary_scaling.low_frequency_factor = rope.real("low_freq_factor");
    model.rotary_scaling.high_frequency_factor = rope.real("high_freq_factor");
  }
  if (kind == "yarn") read_yarn(rope, model);
}

Settings settings_of(const ForeignConfig& config, const TensorNaming&) {
  config.only("attention_bias", false, "linear maps without biases");
  config.only("mlp_bias", false, "linear maps without biases");
  config.only("sliding_window", nullptr, "Llama's attention has no window");
  config.only("use_sliding_window", false, "Llama's attention has no window");
  config.only("is_decoder", true, "a decoder");
  Settings settings;
  settings.objective.name = Objective::next_token;
  layers::ModelConfig& model = settings.model;
  model.architecture = layers::Architecture::decoder;
  model.vocabulary_size = config.size("vocab_size", 32000);
  model.n_layers = config.size("num_hidden_layers", 32);
  model.d_model = config.size("hidden_size", 4096);
  model.attention.n_heads = config.size("num_attention_heads", 32);
  model.attention.n_kv_heads = config.size("num_key_value_heads", model.attention.n_heads);
  model.attention.d_head = config.size("head_dim", std::max<std::int64_t>(1, model.d_model / model.attention.n_heads));
  model.d_feedforward = config.size("intermediate_size", 11008);
  model.max_sequence_length = config.size("max_position_embeddings", 2048);
  model.activation = config.activation("hidden_act", "silu", true);
  model.norm = ops::NormKind::rmsnorm;
  model.norm_epsilon = config.real("rms_norm_eps", 1e-6);
  model.bias = false;
  model.position = layers::Position::rotary;
  model.tied_embeddings = config.boolean("tie_word_embeddings", false);
  read_rotary(config, model);
  return settings;
}

/// Names of tensors, without the model's and the layer's prefix.
struct Names {
  const char *embedding, *final_norm, *output, *layers, *attention_norm, *query, *key, *value, *projection,
      *feedforward_norm, *gate, *up, *down;
};
constexpr Names hugging_face{"embed_tokens.weight",     "norm.weight",
                             "lm_head.weight",          "layers.",
                             "input_layernorm.weight",  "self_attn.q_proj.weight",
                             "self_attn.k_proj.weight", "self_attn.v_proj.weight",
                             "self_attn.o_proj.weight", "post_attention_layernorm.weight",
                             "mlp.gate_proj.weight",    "mlp.up_proj.weight",
                             "mlp.down_proj.weight"};
constexpr Names llama_cpp{"token_embd.weight",  "output_norm.weight", "output.weight",   "blk.",
                          "attn_norm.weight",   "attn_q.weight",      "attn_k.weight",   "attn_v.weight",
                          "attn_output.weight", "ffn_norm.weight",    "ffn_gate.weight", "ffn_up.weight",
                          "ffn_down.weight"};

std::vector<Mapping> mappings_of(const layers::ModelConfig& model, const TensorNaming& naming) {
  const Names& names = naming.gguf ? llama_cpp : hugging_face;
  const std::int64_t d = model.d_model, inner = model.d_feedforward, V = model.vocabulary_size,
                     d_head = model.attention.d_head;
  const std::int64_t queries = model.attention.n_heads * d_head, keys = model.attention.n_kv_heads * d_head;
  std::vector<Mapping> table{{"token_embedding.weight", {{naming.prefix + names.embedding, {V, d}}}},
                             {"final_norm.gain", {{naming.prefix + names.final_norm, {d}}}}};
  for (std::int64_t layer = 0; layer < model.n_layers; ++layer) {
    const std::string ours = "blocks." + std::to_string(layer) + ".",
                      theirs = naming.prefix + names.layers + std::to_string(layer) + ".";
    const Layout rotary_layout = naming.gguf ? Layout::interleaved : Layout::plain;
    table.push_back({ours + "attention_norm.gain", {{theirs + names.attention_norm, {d}}}});
    table.push_back({ours + "attention.query_key_value.weight",
                     {{theirs + names.query, {queries, d}, rotary_layout, d_head},
                      {theirs + names.key, {keys, d}, rotary_layout, d_head},
                      {theirs + names.value, {keys, d}}}});
    table.push_back({ours + "attention.output.weight", {{theirs + names.projection, {d, queries}}}});
    table.push_back({ours + "feedforward_norm.gain", {{theirs + names.feedforward_norm, {d}}}});
    table.push_back(
        {ours + "feedforward.input.weight", {{theirs + names.gate, {inner, d}}, {theirs + names.up, {inner, d}}}});
    table.push_back({ours + "feedforward.output.weight", {{theirs + names.down, {d, inner}}}});
  }
  if (!model.tied_embeddings) table.push_back({"classifier.weight", {{names.output, {V, d}}}});
  return table;
}

std::vector<Duplicate> duplicates_of(const layers::ModelConfig& model, const TensorNaming& naming) {
  const Names& names = naming.gguf ? llama_cpp : hugging_face;
  if (!model.tied_embeddings) return {};
  return {{names.output, naming.prefix + names.embedding}};
}

/// Rotary frequencies, which the config determines.
bool is_carried(std::string_view name) { return name.ends_with("rotary_emb.inv_freq") || name == "rope_freqs.weight"; }

nlohmann::ordered_json config_of(const layers::ModelConfig& model) {
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
                                {"attention_bias", false},
                                {"mlp_bias", false},
                                {"tie_word_embeddings", model.tied_embeddings}};
  const ops::RotaryScaling& scaling = model.rotary_scaling;
  if (scaling.kind == ops::RotaryScalingKind::none) return config;
  nlohmann::ordered_json rope{{"rope_type", name_of(scaling.kind)}, {"factor", scaling.factor}};
  if (scaling.uses_original_length()) rope["original_max_position_embeddings"] = scaling.original_length;
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

/// Returns the decimal number that was written before rounding to float32: 1e-05, not 9.999999747378752e-06.
double as_written(double value) { return std::stod(fmt::format("{}", static_cast<float>(value))); }

/// Converts Llama 3's stored frequency divisors to rope_scaling. Only the published parameters of Llama 3.1 and 3.2 are
/// recognised.
nlohmann::ordered_json llama3_scaling(const GgufFile& file, const ForeignTensor& tensor, std::int64_t d_head,
                                      double base) {
  std::vector<float> divisors(static_cast<std::size_t>(tensor.shape.elements()));
  file.read(tensor.name, divisors);
  const std::vector<double> plain = ops::rotary_frequencies(d_head, base, {});
  for (const double factor : {8.0, 32.0}) {
    ops::RotaryScaling scaling;
    scaling.kind = ops::RotaryScalingKind::llama3;
    scaling.factor = factor;
    scaling.original_length = 8192;
    const std::vector<double> scaled = ops::rotary_frequencies(d_head, base, scaling);
    bool same = divisors.size() == scaled.size();
    for (std::size_t i = 0; same && i < scaled.size(); ++i)
      same = std::abs(static_cast<double>(divisors[i]) * scaled[i] / plain[i] - 1) < 1e-3;
    if (same) {
      return {{"rope_type", "llama3"},
              {"factor", factor},
              {"low_freq_factor", 1.0},
              {"high_freq_factor", 4.0},
              {"original_max_position_embeddings", 8192}};
    }
  }
  throw UserError(
      "{}: tensor {}: unknown RoPE frequency factors; expected those of Llama 3.1 or 3.2. Import the model's Hugging "
      "Face directory instead, whose config.json contains rope_scaling",
      file.path(), tensor.name);
}

constexpr std::string_view scaling_prefix = "llama.rope.scaling.";

/// Returns llama.cpp's divisor of positions and its key. Older files use another key; without either, or at 0, it is 1.
std::pair<std::string, double> scaling_factor(const GgufFile& file) {
  const std::string key = std::string(scaling_prefix) + "factor", old_key = "llama.rope.scale_linear";
  const std::string& used = file.has(key) || !file.has(old_key) ? key : old_key;
  const double factor = file.real(used, 0);
  return {used, factor == 0 ? 1 : as_written(factor)};
}

/// Throws UserError for keys of rotary scaling that change the computation and are not supported.
void refuse_other_scaling(const GgufFile& file) {
  static const std::set<std::string_view> read{"type",      "factor",         "original_context_length",
                                               "finetuned", "yarn_beta_fast", "yarn_beta_slow"};
  for (const auto& [key, value] : file.metadata()) {
    if (!key.starts_with(scaling_prefix)) continue;
    const std::string_view name = std::string_view(key).substr(scaling_prefix.size());
    const bool plain = (name == "attn_factor" && file.real(key) == 1) || (name == "alpha" && file.real(key) == 0);
    if (read.contains(name) || plain) continue;
    throw UserError(
        "{}: {}: this key of rotary scaling is not supported; import the model from its Hugging Face directory",
        file.path(), foreign::printable(key));
  }
}

/// Reads the scaling as llama.cpp does: a file with a factor and without a type is scaled linearly.
nlohmann::ordered_json rope_scaling_of(const GgufFile& file, std::int64_t d_head, double base) {
  refuse_other_scaling(file);
  const std::string type_key = std::string(scaling_prefix) + "type", kind = file.text(type_key, "linear");
  if (kind != "none" && kind != "linear" && kind != "yarn")
    throw UserError("{}: {}: found {}; expected none, linear or yarn", file.path(), type_key, foreign::printable(kind));
  const auto [key, factor] = scaling_factor(file);
  const bool scaled = kind != "none" && factor != 1;
  if (const ForeignTensor* divisors = file.find("rope_freqs.weight")) {
    if (scaled)
      throw UserError(
          "{}: {}: found {} together with the tensor rope_freqs.weight; expected one of the two, as Furlong does not "
          "support both together",
          file.path(), key, factor);
    return llama3_scaling(file, *divisors, d_head, base);
  }
  if (!scaled) return nullptr;
  nlohmann::ordered_json rope{{"rope_type", kind}, {"factor", factor}};
  if (kind == "linear") return rope;
  rope["original_max_position_embeddings"] =
      file.integer(std::string(scaling_prefix) + "original_context_length", file.integer("llama.context_length"));
  for (const char* beta : {"beta_fast", "beta_slow"}) {
    const std::string name = std::string(scaling_prefix) + "yarn_" + beta;
    if (file.has(name)) rope[beta] = as_written(file.real(name));
  }
  return rope;
}

}  // namespace

nlohmann::ordered_json config_of_gguf(const GgufFile& file) {
  const std::string architecture = file.text("general.architecture");
  if (architecture != "llama")
    throw UserError("{}: general.architecture: found {}; expected llama, the only one that Furlong imports from GGUF",
                    file.path(), foreign::printable(architecture));
  if (file.integer("llama.expert_count", 0) != 0)
    throw UserError("{}: llama.expert_count: found {}; expected 0, as mixtures of experts are not supported",
                    file.path(), file.integer("llama.expert_count"));
  const std::int64_t d = file.integer("llama.embedding_length"), heads = file.integer("llama.attention.head_count");
  if (heads < 1 || d < 1)
    throw UserError("{}: llama.attention.head_count {} and llama.embedding_length {}: expected both to be at least 1",
                    file.path(), heads, d);
  const std::int64_t d_head = file.integer("llama.attention.key_length", d / heads);
  for (const char* key : {"llama.rope.dimension_count", "llama.attention.value_length"}) {
    if (file.integer(key, d_head) != d_head)
      throw UserError("{}: {}: found {}; expected {}, the head width", file.path(), key, file.integer(key), d_head);
  }
  const ForeignTensor* embedding = file.find("token_embd.weight");
  if (!embedding || embedding->shape.rank() != 2)
    throw UserError("{}: the matrix token_embd.weight is missing; expected a rank-2 tensor", file.path());
  const double base = as_written(file.real("llama.rope.freq_base", 10000));
  nlohmann::ordered_json config{{"architectures", {"LlamaForCausalLM"}},
                                {"model_type", "llama"},
                                {"vocab_size", embedding->shape[0]},
                                {"num_hidden_layers", file.integer("llama.block_count")},
                                {"hidden_size", d},
                                {"num_attention_heads", heads},
                                {"num_key_value_heads", file.integer("llama.attention.head_count_kv", heads)},
                                {"head_dim", d_head},
                                {"intermediate_size", file.integer("llama.feed_forward_length")},
                                {"max_position_embeddings", file.integer("llama.context_length")},
                                {"hidden_act", "silu"},
                                {"rms_norm_eps", as_written(file.real("llama.attention.layer_norm_rms_epsilon"))},
                                {"rope_theta", base},
                                {"attention_bias", false},
                                {"mlp_bias", false},
                                {"tie_word_embeddings", file.find("output.weight") == nullptr},
                                {"torch_dtype", "float32"}};
  for (const auto& [key, name] : {std::pair{"bos_token_id", "tokenizer.ggml.bos_token_id"},
                                  {"eos_token_id", "tokenizer.ggml.eos_token_id"},
                                  {"pad_token_id", "tokenizer.ggml.padding_token_id"}}) {
    if (file.has(name)) config[key] = file.integer(name);
  }
  const nlohmann::ordered_json scaling = rope_scaling_of(file, d_head, base);
  if (!scaling.is_null()) config["rope_scaling"] = scaling;
  return config;
}

const Architecture& llama_architecture() {
  static const Architecture architecture{
      "llama",     "LlamaForCausalLM", nullptr,    {"model.", ""}, "embed_tokens.weight", "", settings_of,
      mappings_of, duplicates_of,      is_carried, config_of};
  return architecture;
}

}  // namespace furlong
