#pragma once
// Tiny models of other programs, as Hugging Face directories.
#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "formats/safetensors_writer.h"
#include "tests/datasets/tokenizers/small_tokenizers.h"

namespace furlong::testing {

using Json = nlohmann::ordered_json;

/// Tensors by name, and the content of config.json; write() creates the directory.
struct TinyModel {
  Json config;
  std::map<std::string, ForeignTensor> described;
  std::map<std::string, std::vector<float>> values;
  std::map<std::string, std::vector<std::int64_t>> integers;

  void add(const std::string& name, const Shape& shape, double deviation, double mean = 0,
           const std::string& type = "F32") {
    std::vector<float> drawn(static_cast<std::size_t>(shape.elements()));
    std::normal_distribution<double> normal(mean, deviation);
    // Multiples of 1/64 below 2 are exact in every type.
    for (float& value : drawn)
      value = static_cast<float>(std::clamp(std::round(normal(random_) * 64) / 64, -1.984375, 1.984375));
    described[name] = {name, shape, type};
    values[name] = std::move(drawn);
  }
  void add_integers(const std::string& name, const Shape& shape, const std::string& type = "I64") {
    described[name] = {name, shape, type};
    std::vector<std::int64_t>& list = integers[name];
    for (std::int64_t i = 0; i < shape.elements(); ++i) list.push_back(type == "BOOL" ? i % 2 : i);
  }
  void remove(const std::string& name) {
    described.erase(name);
    values.erase(name);
    integers.erase(name);
  }
  const std::vector<float>& operator[](const std::string& name) const { return values.at(name); }

  std::string write(const std::filesystem::path& directory) const {
    std::filesystem::create_directories(directory);
    write_file(directory / "config.json", config.dump(2) + "\n");
    letters_tokenizer(directory);
    write_weights(directory / "model.safetensors");
    return directory.string();
  }
  void write_weights(const std::filesystem::path& path) const {
    std::vector<ForeignTensor> list;
    for (const auto& [name, tensor] : described) list.push_back(tensor);
    SafetensorsWriter file(path, list);
    for (const auto& [name, numbers] : values) file.write(name, numbers);
    for (const auto& [name, numbers] : integers) file.write_integers(name, numbers);
    file.finish();
  }

 private:
  std::mt19937_64 random_{11};
};

/// The tokenizer of letters has 25 tokens; embeddings have two rows more.
inline constexpr std::int64_t tiny_vocabulary = 27;

inline TinyModel tiny_gpt2(const std::string& prefix = "transformer.") {
  constexpr std::int64_t d = 8, inner = 20;
  TinyModel model;
  model.config = {{"model_type", "gpt2"},
                  {"architectures", {"GPT2LMHeadModel"}},
                  {"vocab_size", tiny_vocabulary},
                  {"n_embd", d},
                  {"n_layer", 2},
                  {"n_head", 2},
                  {"n_positions", 12},
                  {"n_inner", inner},
                  {"activation_function", "gelu_new"},
                  {"layer_norm_epsilon", 1e-5},
                  {"eos_token_id", 3}};
  model.add(prefix + "wte.weight", {tiny_vocabulary, d}, 0.5);
  model.add(prefix + "wpe.weight", {12, d}, 0.3);
  for (int layer = 0; layer < 2; ++layer) {
    const std::string h = prefix + "h." + std::to_string(layer) + ".";
    const auto norm = [&](const std::string& name) {
      model.add(h + name + ".weight", {d}, 0.2, 1);
      model.add(h + name + ".bias", {d}, 0.2);
    };
    const auto linear = [&](const std::string& name, std::int64_t in, std::int64_t out) {
      model.add(h + name + ".weight", {in, out}, 0.4);
      model.add(h + name + ".bias", {out}, 0.2);
    };
    norm("ln_1");
    linear("attn.c_attn", d, 3 * d);
    linear("attn.c_proj", d, d);
    norm("ln_2");
    linear("mlp.c_fc", d, inner);
    linear("mlp.c_proj", inner, d);
    model.add_integers(h + "attn.bias", {1, 1, 12, 12}, "BOOL");
  }
  model.add(prefix + "ln_f.weight", {d}, 0.2, 1);
  model.add(prefix + "ln_f.bias", {d}, 0.2);
  return model;
}

/// Four query heads over two key heads of width 4.
inline TinyModel tiny_llama() {
  constexpr std::int64_t d = 12, inner = 20, queries = 16, keys = 8;
  TinyModel model;
  model.config = {{"model_type", "llama"},
                  {"architectures", {"LlamaForCausalLM"}},
                  {"vocab_size", tiny_vocabulary},
                  {"hidden_size", d},
                  {"intermediate_size", inner},
                  {"num_hidden_layers", 2},
                  {"num_attention_heads", 4},
                  {"num_key_value_heads", 2},
                  {"head_dim", 4},
                  {"hidden_act", "silu"},
                  {"rms_norm_eps", 1e-5},
                  {"rope_theta", 100.0},
                  {"max_position_embeddings", 64},
                  {"tie_word_embeddings", false},
                  {"torch_dtype", "bfloat16"}};
  model.add("model.embed_tokens.weight", {tiny_vocabulary, d}, 0.5, 0, "BF16");
  for (int layer = 0; layer < 2; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    model.add(prefix + "input_layernorm.weight", {d}, 0.2, 1, "BF16");
    model.add(prefix + "self_attn.q_proj.weight", {queries, d}, 0.4, 0, "BF16");
    model.add(prefix + "self_attn.k_proj.weight", {keys, d}, 0.4, 0, "BF16");
    model.add(prefix + "self_attn.v_proj.weight", {keys, d}, 0.4, 0, "BF16");
    model.add(prefix + "self_attn.o_proj.weight", {d, queries}, 0.3, 0, "BF16");
    model.add(prefix + "post_attention_layernorm.weight", {d}, 0.2, 1, "BF16");
    model.add(prefix + "mlp.gate_proj.weight", {inner, d}, 0.4, 0, "BF16");
    model.add(prefix + "mlp.up_proj.weight", {inner, d}, 0.4, 0, "F16");
    model.add(prefix + "mlp.down_proj.weight", {d, inner}, 0.3, 0, "BF16");
  }
  model.add("model.norm.weight", {d}, 0.2, 1, "BF16");
  model.add("lm_head.weight", {tiny_vocabulary, d}, 0.4, 0, "BF16");
  return model;
}

inline void add_encoder_norm(TinyModel& model, const std::string& name, std::int64_t width) {
  model.add(name + ".weight", {width}, 0.2, 1);
  model.add(name + ".bias", {width}, 0.2);
}
inline void add_encoder_linear(TinyModel& model, const std::string& name, std::int64_t in, std::int64_t out) {
  model.add(name + ".weight", {out, in}, 0.4);
  model.add(name + ".bias", {out}, 0.2);
}

inline TinyModel tiny_bert(bool head = true) {
  constexpr std::int64_t d = 8, inner = 12;
  TinyModel model;
  model.config = {{"model_type", "bert"},          {"architectures", {head ? "BertForMaskedLM" : "BertModel"}},
                  {"vocab_size", tiny_vocabulary}, {"hidden_size", d},
                  {"num_hidden_layers", 2},        {"num_attention_heads", 2},
                  {"intermediate_size", inner},    {"max_position_embeddings", 12},
                  {"type_vocab_size", 2},          {"hidden_act", "gelu"},
                  {"layer_norm_eps", 1e-12}};
  const std::string prefix = head ? "bert." : "";
  model.add(prefix + "embeddings.word_embeddings.weight", {tiny_vocabulary, d}, 0.5);
  model.add(prefix + "embeddings.position_embeddings.weight", {12, d}, 0.5);
  model.add(prefix + "embeddings.token_type_embeddings.weight", {2, d}, 0.5);
  model.add_integers(prefix + "embeddings.position_ids", {1, 12});
  add_encoder_norm(model, prefix + "embeddings.LayerNorm", d);
  for (int layer = 0; layer < 2; ++layer) {
    const std::string name = prefix + "encoder.layer." + std::to_string(layer) + ".";
    for (const char* part : {"query", "key", "value"}) add_encoder_linear(model, name + "attention.self." + part, d, d);
    add_encoder_linear(model, name + "attention.output.dense", d, d);
    add_encoder_norm(model, name + "attention.output.LayerNorm", d);
    add_encoder_linear(model, name + "intermediate.dense", d, inner);
    add_encoder_linear(model, name + "output.dense", inner, d);
    add_encoder_norm(model, name + "output.LayerNorm", d);
  }
  add_encoder_linear(model, prefix + "pooler.dense", d, d);
  if (!head) return model;
  add_encoder_linear(model, "cls.predictions.transform.dense", d, d);
  add_encoder_norm(model, "cls.predictions.transform.LayerNorm", d);
  model.add("cls.predictions.bias", {tiny_vocabulary}, 0.3);
  model.described["cls.predictions.decoder.weight"] = {"cls.predictions.decoder.weight", {tiny_vocabulary, d}, "F32"};
  model.values["cls.predictions.decoder.weight"] = model[prefix + "embeddings.word_embeddings.weight"];
  return model;
}

inline TinyModel tiny_albert() {
  constexpr std::int64_t d = 8, e = 4, inner = 12;
  TinyModel model;
  model.config = {{"model_type", "albert"},     {"vocab_size", tiny_vocabulary}, {"embedding_size", e},
                  {"hidden_size", d},           {"num_hidden_layers", 3},        {"num_attention_heads", 2},
                  {"intermediate_size", inner}, {"max_position_embeddings", 12}, {"type_vocab_size", 2},
                  {"hidden_act", "gelu_new"},   {"layer_norm_eps", 1e-12}};
  model.add("albert.embeddings.word_embeddings.weight", {tiny_vocabulary, e}, 0.5);
  model.add("albert.embeddings.position_embeddings.weight", {12, e}, 0.5);
  model.add("albert.embeddings.token_type_embeddings.weight", {2, e}, 0.5);
  add_encoder_norm(model, "albert.embeddings.LayerNorm", e);
  add_encoder_linear(model, "albert.encoder.embedding_hidden_mapping_in", e, d);
  const std::string block = "albert.encoder.albert_layer_groups.0.albert_layers.0.";
  for (const char* part : {"query", "key", "value", "dense"})
    add_encoder_linear(model, block + "attention." + part, d, d);
  add_encoder_norm(model, block + "attention.LayerNorm", d);
  add_encoder_linear(model, block + "ffn", d, inner);
  add_encoder_linear(model, block + "ffn_output", inner, d);
  add_encoder_norm(model, block + "full_layer_layer_norm", d);
  add_encoder_linear(model, "predictions.dense", d, e);
  add_encoder_norm(model, "predictions.LayerNorm", e);
  model.add("predictions.bias", {tiny_vocabulary}, 0.3);
  return model;
}

}  // namespace furlong::testing
