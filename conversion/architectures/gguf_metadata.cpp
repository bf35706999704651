// Metadata of GGUF files (llama.cpp) of Llama, Mistral, Qwen2 and Qwen3.
#include <algorithm>
#include <cmath>
#include <set>

#include "conversion/architecture.h"
#include "formats/gguf.h"
#include "framework/core/error.h"
#include "framework/core/printable.h"
#include "framework/ops/attention/positions/rotary_scaling.h"

namespace furlong {
namespace {

/// Returns the decimal number that was written before rounding to float32: 1e-05, not 9.999999747378752e-06.
double as_written(double value) { return std::stod(fmt::format("{}", static_cast<float>(value))); }

/// Converts Llama 3's stored frequency divisors to rope_scaling. Only the published parameters of Llama 3.1 and 3.2 are
/// recognized.
nlohmann::ordered_json llama3_scaling(const GgufFile& file, const ForeignTensor& tensor, std::int64_t d_head,
                                      double base) {
  if (d_head % 2 != 0 || tensor.shape.elements() != d_head / 2)
    throw UserError("{}: tensor {} has {} elements; expected {}, half the head width", file.path(), tensor.name,
                    tensor.shape.elements(), d_head / 2);
  std::vector<float> divisors(static_cast<std::size_t>(tensor.shape.elements()));
  file.read(tensor.name, divisors);
  const std::vector<double> plain = ops::rotary_frequencies(d_head, base, {});
  for (const double factor : {8.0, 32.0}) {
    ops::RotaryScaling scaling;
    scaling.kind = ops::RotaryScalingKind::llama3;
    scaling.factor = factor;
    scaling.original_length = 8192;
    const std::vector<double> scaled = ops::rotary_frequencies(d_head, base, scaling);
    bool same = true;
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

/// Returns the key of a model's own metadata: "qwen2.block_count".
std::string key_of(const GgufFile& file, const char* name) { return file.text("general.architecture") + "." + name; }

/// Returns llama.cpp's divisor of positions and its key. Older files use another key; without either, or at 0, it is 1.
std::pair<std::string, double> scaling_factor(const GgufFile& file) {
  const std::string key = key_of(file, "rope.scaling.factor"), old_key = key_of(file, "rope.scale_linear");
  const std::string& used = file.has(key) || !file.has(old_key) ? key : old_key;
  const double factor = file.real(used, 0);
  return {used, factor == 0 ? 1 : as_written(factor)};
}

/// Throws UserError for keys of rotary scaling that change the computation and are not supported.
void refuse_other_scaling(const GgufFile& file) {
  static const std::set<std::string_view> read{"type",      "factor",         "original_context_length",
                                               "finetuned", "yarn_beta_fast", "yarn_beta_slow"};
  const std::string prefix = key_of(file, "rope.scaling.");
  for (const auto& [key, value] : file.metadata()) {
    if (!key.starts_with(prefix)) continue;
    const std::string_view name = std::string_view(key).substr(prefix.size());
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
  const std::string type_key = key_of(file, "rope.scaling.type"), kind = file.text(type_key, "linear");
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
      file.integer(key_of(file, "rope.scaling.original_context_length"), file.integer(key_of(file, "context_length")));
  for (const char* beta : {"beta_fast", "beta_slow"}) {
    const std::string name = key_of(file, "rope.scaling.yarn_") + beta;
    if (file.has(name)) rope[beta] = as_written(file.real(name));
  }
  return rope;
}

/// GGUF's general.architecture, and the class of the same family in Hugging Face's config.json.
constexpr std::pair<const char*, const char*> families[] = {
    {"llama", "LlamaForCausalLM"}, {"qwen2", "Qwen2ForCausalLM"}, {"qwen3", "Qwen3ForCausalLM"}};

/// Throws UserError for keys that change the computation and are not supported.
void refuse_unsupported(const GgufFile& file) {
  const std::string experts = key_of(file, "expert_count"), window = key_of(file, "attention.sliding_window");
  if (file.integer(experts, 0) != 0)
    throw UserError("{}: {}: found {}; expected 0, as mixtures of experts are not supported", file.path(), experts,
                    file.integer(experts));
  if (file.integer(window, 0) != 0)
    throw UserError(
        "{}: {}: found {}; expected 0, as GGUF files do not state which layers have a window. Import the model from "
        "its Hugging Face directory",
        file.path(), window, file.integer(window));
}

/// Returns the width of a head. Throws UserError if values have another width, or if only a part of a head is rotated.
std::int64_t head_width(const GgufFile& file) {
  const std::string width_key = key_of(file, "embedding_length"), heads_key = key_of(file, "attention.head_count");
  const std::int64_t d = file.integer(width_key), heads = file.integer(heads_key);
  if (heads < 1 || d < 1)
    throw UserError("{}: {} {} and {} {}: expected both to be at least 1", file.path(), heads_key, heads, width_key, d);
  const std::string key_length = key_of(file, "attention.key_length");
  const std::int64_t d_head = file.integer(key_length, d / heads);
  if (d_head < 1) throw UserError("{}: {}: found {}; expected at least 1", file.path(), key_length, d_head);
  for (const char* name : {"rope.dimension_count", "attention.value_length"}) {
    const std::string key = key_of(file, name);
    if (file.integer(key, d_head) != d_head)
      throw UserError("{}: {}: found {}; expected {}, the head width", file.path(), key, file.integer(key), d_head);
  }
  return d_head;
}

}  // namespace

nlohmann::ordered_json config_of_gguf(const GgufFile& file) {
  const std::string type = file.text("general.architecture");
  const auto* family =
      std::find_if(std::begin(families), std::end(families), [&](const auto& one) { return type == one.first; });
  if (family == std::end(families))
    throw UserError("{}: general.architecture: found {}; expected llama, qwen2 or qwen3", file.path(),
                    foreign::printable(type));
  refuse_unsupported(file);
  const std::int64_t d_head = head_width(file), heads = file.integer(key_of(file, "attention.head_count"));
  const ForeignTensor* embedding = file.find("token_embd.weight");
  if (!embedding || embedding->shape.rank() != 2)
    throw UserError("{}: the matrix token_embd.weight is missing; expected a rank-2 tensor", file.path());
  const double base = as_written(file.real(key_of(file, "rope.freq_base"), 10000));
  nlohmann::ordered_json config{
      {"architectures", {family->second}},
      {"model_type", type},
      {"vocab_size", embedding->shape[0]},
      {"num_hidden_layers", file.integer(key_of(file, "block_count"))},
      {"hidden_size", file.integer(key_of(file, "embedding_length"))},
      {"num_attention_heads", heads},
      {"num_key_value_heads", file.integer(key_of(file, "attention.head_count_kv"), heads)},
      {"head_dim", d_head},
      {"intermediate_size", file.integer(key_of(file, "feed_forward_length"))},
      {"max_position_embeddings", file.integer(key_of(file, "context_length"))},
      {"hidden_act", "silu"},
      {"rms_norm_eps", as_written(file.real(key_of(file, "attention.layer_norm_rms_epsilon")))},
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

}  // namespace furlong
