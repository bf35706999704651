// Model families whose tiny random models transformers saved (tests/parity/make_import_goldens.py): Furlong computes
// the logits that transformers computed in float64, and exports the files it read.
#include <gmock/gmock.h>

#include "conversion/convert.h"
#include "conversion/export.h"
#include "conversion/import_model.h"
#include "evaluation/logits.h"
#include "tests/conversion/tiny_gguf.h"
#include "tests/places.h"
#include "tests/temporary_folder.h"

namespace furlong {
namespace {

namespace fs = std::filesystem;
using namespace furlong::testing;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

fs::path directory_of(const std::string& family) { return source_directory() / "tests/conversion/families" / family; }

/// Logits of one row, or hidden states of a model without a head, in float64.
std::vector<double> computed(const Model& source, const std::vector<std::int64_t>& ids) {
  Model model = copy_of(source, Device(), DType::float64);
  Tape tape(Stream{});
  const Tape::NoGradient guard(tape);
  layers::ForwardContext context{tape};
  const auto n = static_cast<std::int64_t>(ids.size());
  const Tensor tokens = Tensor::from(std::vector<std::int32_t>(ids.begin(), ids.end()), {1, n});
  const Tensor states =
      (model.encoder ? model.encoder->hidden(context, tokens) : model.decoder->hidden(context, tokens)).value();
  const Tensor rows = states.reshape({n, states.extent(2)});
  if (!has_output_layer(model.settings)) return rows.to_vector<double>();
  return (model.encoder ? model.encoder->logits(Stream{}, rows) : model.decoder->logits(Stream{}, rows))
      .to_vector<double>();
}

constexpr const char* families[] = {"gpt2",  "llama3",       "llama_yarn", "bert",    "albert",           "mistral",
                                    "qwen2", "qwen2_window", "qwen3",      "roberta", "roberta_headless", "esm"};

class Family : public WithTemporaryFolder {
 protected:
  fs::path converted(const std::string& family, const std::string& attention = "") {
    ConvertOptions options;
    options.source = directory_of(family);
    options.destination = path(family + ".h5");
    options.attention = attention;
    convert(options);
    return options.destination;
  }
  ExportReport exported(const fs::path& checkpoint, const std::string& directory) {
    SourceModel model = open_source_model(checkpoint);
    return export_model(model, path(directory), {});
  }
};

TEST_F(Family, MatchesTransformers) {
  for (const char* family : families) {
    SCOPED_TRACE(family);
    const SourceModel model = open_source_model(directory_of(family));
    EXPECT_TRUE(model.report.is_faultless(false, false));
    EXPECT_TRUE(model.report.reinitialized.empty());
    const auto file = open_safetensors(directory_of(family) / "expected.safetensors");
    const std::vector<float> expected = floats(*file, "logits");
    const std::vector<double> found = computed(model.model, file->read_integers("tokens"));
    ASSERT_EQ(found.size(), expected.size());
    double largest = 0;
    for (std::size_t i = 0; i < found.size(); ++i) {
      // The file rounds to float32, and transformers scales the embeddings of ESM by a float32 factor.
      EXPECT_NEAR(found[i], static_cast<double>(expected[i]), 1e-6 * (1 + std::abs(found[i]))) << i;
      largest = std::max(largest, std::abs(found[i]));
    }
    EXPECT_GT(largest, 1);
  }
}

TEST_F(Family, ExportRestoresEveryTensorAndFile) {
  for (const std::string family : families) {
    SCOPED_TRACE(family);
    const fs::path source = directory_of(family);
    const ExportReport report = exported(converted(family), family);
    EXPECT_TRUE(report.for_hugging_face) << report.reason;
    EXPECT_EQ(report.rounded, 0);
    for (const char* name : {"config.json", "vocab.txt", "tokenizer_config.json"})
      EXPECT_EQ(content(path(family) + "/" + name), content((source / name).string())) << name;
    const auto before = open_safetensors(source / "model.safetensors"), after = open_safetensors(path(family));
    ASSERT_EQ(after->tensors().size(), before->tensors().size());
    for (const ForeignTensor& tensor : before->tensors()) {
      const ForeignTensor* found = after->find(tensor.name);
      ASSERT_NE(found, nullptr) << tensor.name;
      EXPECT_EQ(found->stored_type, tensor.stored_type) << tensor.name;
      EXPECT_EQ(found->shape, tensor.shape) << tensor.name;
      EXPECT_EQ(floats(*after, tensor.name), floats(*before, tensor.name)) << tensor.name;
    }
  }
}

// A Performer keeps the family's biases, norms, positions and token dropout, and the rows that no parameter holds.
TEST_F(Family, PerformerReturnsFromItsDirectory) {
  for (const std::string family : families) {
    SCOPED_TRACE(family);
    const fs::path checkpoint = converted(family, "favor_positive");
    EXPECT_EQ(exported(checkpoint, family).model_type, "furlong");
    const SourceModel before = open_source_model(checkpoint), after = open_source_model(path(family));
    ASSERT_EQ(after.model.store->parameters().size(), before.model.store->parameters().size());
    for (const Parameter& parameter : before.model.store->parameters())
      EXPECT_EQ(after.model.store->find(parameter.name()).master().to_vector<float>(),
                parameter.master().to_vector<float>())
          << parameter.name();
    const std::vector<std::int64_t> tokens =
        open_safetensors(directory_of(family) / "expected.safetensors")->read_integers("tokens");
    EXPECT_EQ(computed(after.model, tokens), computed(before.model, tokens));
    EXPECT_EQ(after.origin->carried.size(), before.origin->carried.size());
  }
}

class FamilyKeys : public WithTemporaryFolder {
 protected:
  /// Copies a family's directory with changed keys of config.json; a discarded value removes the key.
  fs::path with(const std::string& family, const Json& changes) {
    const fs::path copy = folder_ / "changed";
    fs::remove_all(copy);
    fs::copy(directory_of(family), copy);
    Json config = Json::parse(content((copy / "config.json").string()));
    if (!changes.empty()) config.update(changes);
    file("changed/config.json", config.dump());
    return copy;
  }
  layers::ModelConfig settings(const std::string& family, const Json& changes) {
    return open_source_model(with(family, changes)).model.settings.model;
  }
  std::string refused(const std::string& family, const Json& changes, const ImportOptions& options = {}) {
    const fs::path source = with(family, changes);
    return message_of<UserError>([&] { open_source_model(source, options); });
  }
};

TEST_F(FamilyKeys, ReadsWindows) {
  EXPECT_EQ(settings("mistral", {}).attention.window, 5);
  EXPECT_EQ(settings("mistral", {{"sliding_window", nullptr}}).attention.window, 0);
  EXPECT_EQ(settings("qwen2", {{"sliding_window", 7}}).attention.window, 0);
  const Json all{{"use_sliding_window", true}, {"sliding_window", 7}};
  const auto types = [&](const char* first, const char* second) {
    Json keys = all;
    keys["layer_types"] = {first, second};
    return keys;
  };
  EXPECT_EQ(settings("qwen3", types("sliding_attention", "sliding_attention")).attention.window, 7);
  EXPECT_EQ(settings("qwen3", types("full_attention", "full_attention")).attention.window, 0);
  EXPECT_THAT(refused("qwen3", types("full_attention", "sliding_attention")),
              AllOf(HasSubstr("config.json: layer_types: 1 of 2 layers"), HasSubstr("all or none")));
  EXPECT_THAT(refused("qwen3", types("full_attention", "linear")), HasSubstr("layer_types: found \"linear\""));
  Json some = all;
  some["layer_types"] = nullptr;
  some["max_window_layers"] = 1;
  EXPECT_THAT(refused("qwen2", some), HasSubstr("config.json: max_window_layers: 1 of 2 layers"));
  some["max_window_layers"] = 28;
  EXPECT_EQ(settings("qwen2", some).attention.window, 0);
}

TEST_F(FamilyKeys, RejectsUnsupportedValuesByName) {
  const std::vector<std::tuple<const char*, const char*, Json>> cases{
      {"mistral", "layer_types", Json::array({"full_attention", "full_attention"})},
      {"mistral", "hidden_act", "relu"},
      {"mistral", "is_causal", false},
      {"qwen3", "is_causal", false},
      {"qwen2", "partial_rotary_factor", 0.5},
      {"qwen3", "attention_bias", true},
      {"roberta", "position_embedding_type", "relative_key"},
      {"roberta", "pad_token_id", 0},
      {"roberta", "max_position_embeddings", 2},
      {"roberta", "hidden_act", "relu"},
      {"esm", "position_embedding_type", "absolute"},
      {"esm", "position_embedding_type", nullptr},
      {"esm", "is_folding_model", true},
      {"esm", "hidden_act", "relu"},
      {"esm", "tie_word_embeddings", false},
      {"esm", "mask_token_id", 5}};
  for (const auto& [family, key, value] : cases)
    EXPECT_THAT(refused(family, {{key, value}}), HasSubstr(std::string("config.json: ") + key)) << family;
  for (const char* kind : {"dynamic", "longrope"})
    EXPECT_THAT(refused("qwen2", {{"rope_parameters", {{"rope_type", kind}, {"factor", 2.0}}}}),
                HasSubstr("rope_parameters.rope_type: found " + std::string(kind)));
}

// For any value of any key an import succeeds or fails in one line.
TEST_F(FamilyKeys, HandlesAnyValueOfAnyKey) {
  const std::vector<Json> values{nullptr,          true,          0, -1, 3, 1000000000, 1e300, 0.5, "x",
                                 Json::array({1}), Json::object()};
  int accepted = 0, refused_count = 0;
  for (const char* family : {"mistral", "qwen3", "roberta", "esm"}) {
    Json keys = Json::parse(content((directory_of(family) / "config.json").string()));
    for (const char* more : {"layer_types", "sliding_window", "use_sliding_window", "max_window_layers", "rope_theta"})
      keys[more] = nullptr;
    for (const auto& [key, before] : keys.items()) {
      for (const Json& value : values) {
        const fs::path source = with(family, {{key, value}});
        try {
          open_source_model(source);
          ++accepted;
        } catch (const UserError& error) {
          EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
          ++refused_count;
        } catch (const std::exception& error) {
          ADD_FAILURE() << family << ": " << key << " = " << value << ": " << error.what();
        }
      }
    }
  }
  EXPECT_GT(accepted, 50);
  EXPECT_GT(refused_count, 300);
}

TEST_F(FamilyKeys, ArchitectureReplacesMissingModelType) {
  const Json missing{{"model_type", nullptr}};
  EXPECT_THAT(refused("roberta", missing), AllOf(HasSubstr("config.json: model_type: this key is missing"),
                                                 HasSubstr("--architecture NAME"), HasSubstr("roberta")));
  ImportOptions options;
  options.architecture = "roberta";
  EXPECT_EQ(open_source_model(with("roberta", missing), options).origin->model_type, "roberta");
  EXPECT_EQ(open_source_model(with("roberta", {}), options).origin->model_type, "roberta");
  EXPECT_THAT(refused("esm", {}, options), HasSubstr("found esm, but --architecture is roberta"));
  options.architecture = "mamba";
  EXPECT_THAT(refused("roberta", missing, options), HasSubstr("--architecture: found mamba; expected one of gpt2"));
}

class FamilyGguf : public WithTemporaryFolder {
 protected:
  /// The decoder of a family as llama.cpp's converter writes it: neighboring rows of rotary pairs for llama only.
  static std::string gguf_of(const std::string& family, const std::string& architecture,
                             const std::vector<std::string>& more = {}) {
    const Json config = Json::parse(content((directory_of(family) / "config.json").string()));
    const auto file = open_safetensors(directory_of(family) / "model.safetensors");
    const std::map<std::string, std::string> renamed{{"model.embed_tokens", "token_embd"},
                                                     {"model.norm", "output_norm"},
                                                     {"lm_head", "output"},
                                                     {"input_layernorm", "attn_norm"},
                                                     {"self_attn.q_proj", "attn_q"},
                                                     {"self_attn.k_proj", "attn_k"},
                                                     {"self_attn.v_proj", "attn_v"},
                                                     {"self_attn.q_norm", "attn_q_norm"},
                                                     {"self_attn.k_norm", "attn_k_norm"},
                                                     {"self_attn.o_proj", "attn_output"},
                                                     {"post_attention_layernorm", "ffn_norm"},
                                                     {"mlp.gate_proj", "ffn_gate"},
                                                     {"mlp.up_proj", "ffn_up"},
                                                     {"mlp.down_proj", "ffn_down"}};
    const std::size_t d_head = config.contains("head_dim") ? config.at("head_dim").get<std::size_t>() : 4;
    std::vector<GgufTensor> tensors;
    for (const ForeignTensor& tensor : file->tensors()) {
      const std::size_t dot = tensor.name.rfind('.');
      std::string stem = tensor.name.substr(0, dot), block;
      if (stem.starts_with("model.layers.")) {
        block = "blk." + stem.substr(13, 2);
        stem = stem.substr(15);
      }
      std::vector<float> values = floats(*file, tensor.name);
      if (architecture == "llama" && (stem.ends_with("q_proj") || stem.ends_with("k_proj"))) {
        const std::size_t width = values.size() / static_cast<std::size_t>(tensor.shape[0]);
        const std::vector<float> halves = values;
        for (std::size_t row = 0; row < halves.size() / width; ++row) {
          const std::size_t head = row / d_head, i = row % d_head, half = d_head / 2;
          const std::size_t target = head * d_head + 2 * (i % half) + i / half;
          std::copy_n(halves.begin() + static_cast<std::ptrdiff_t>(row * width), width,
                      values.begin() + static_cast<std::ptrdiff_t>(target * width));
        }
      }
      std::vector<std::uint64_t> extents(tensor.shape.begin(), tensor.shape.end());
      std::reverse(extents.begin(), extents.end());
      tensors.push_back({block + renamed.at(stem) + tensor.name.substr(dot), extents, 0, packed(values)});
    }
    const auto key = [&](const char* name) { return architecture + "." + name; };
    const auto integer = [&](const char* name, const char* from) {
      return gguf_integer(key(name).c_str(), config.at(from).get<std::uint32_t>());
    };
    std::string tokens;
    for (int byte = 0; byte < 33; ++byte) tokens += gguf_text(byte_character(byte));
    std::vector<std::string> pairs{
        gguf_text_pair("general.architecture", architecture),
        integer("block_count", "num_hidden_layers"),
        integer("context_length", "max_position_embeddings"),
        integer("embedding_length", "hidden_size"),
        integer("feed_forward_length", "intermediate_size"),
        integer("attention.head_count", "num_attention_heads"),
        integer("attention.head_count_kv", "num_key_value_heads"),
        gguf_integer(key("attention.key_length").c_str(), static_cast<std::uint32_t>(d_head)),
        gguf_real(key("attention.layer_norm_rms_epsilon").c_str(),
                  static_cast<float>(config.at("rms_norm_eps").get<double>())),
        gguf_text_pair("tokenizer.ggml.model", "gpt2"),
        gguf_text_pair("tokenizer.ggml.pre", "qwen2"),
        gguf_pair("tokenizer.ggml.tokens", 9, gguf_array(8, 33, tokens)),
        gguf_pair("tokenizer.ggml.merges", 9, gguf_array(8, 0, ""))};
    pairs.insert(pairs.end(), more.begin(), more.end());
    return gguf_file(pairs, tensors);
  }
};

TEST_F(FamilyGguf, GivesTheParametersOfTheDirectory) {
  const std::vector<std::pair<const char*, const char*>> cases{
      {"mistral", "llama"}, {"qwen2", "qwen2"}, {"qwen2_window", "qwen2"}, {"qwen3", "qwen3"}};
  for (const auto& [family, architecture] : cases) {
    SCOPED_TRACE(family);
    SourceModel found = open_source_model(file("model.gguf", gguf_of(family, architecture)));
    const SourceModel wanted = open_source_model(directory_of(family));
    EXPECT_EQ(found.origin->model_type, architecture);
    EXPECT_EQ(found.model.settings.model.attention.window, 0);
    ASSERT_EQ(found.model.store->parameters().size(), wanted.model.store->parameters().size());
    for (const Parameter& parameter : wanted.model.store->parameters())
      EXPECT_EQ(found.model.store->find(parameter.name()).master().to_vector<float>(),
                parameter.master().to_vector<float>())
          << parameter.name();
    const ExportReport report = export_model(found, path(family), {});
    EXPECT_EQ(report.model_type, architecture) << report.reason;
    const auto before = open_safetensors(directory_of(family) / "model.safetensors"),
               after = open_safetensors(path(family));
    ASSERT_EQ(after->tensors().size(), before->tensors().size());
    for (const ForeignTensor& tensor : before->tensors())
      EXPECT_EQ(floats(*after, tensor.name), floats(*before, tensor.name)) << tensor.name;
  }
}

TEST_F(FamilyGguf, RejectsUnsupportedMetadataByName) {
  const auto refused = [&](const char* architecture, const std::vector<std::string>& more) {
    return message_of<UserError>([&] { open_source_model(file("model.gguf", gguf_of("qwen3", architecture, more))); });
  };
  EXPECT_THAT(refused("gemma", {}), HasSubstr("general.architecture: found gemma; expected llama, qwen2 or qwen3"));
  EXPECT_THAT(refused("qwen3", {gguf_integer("qwen3.expert_count", 8)}), HasSubstr("qwen3.expert_count: found 8"));
  EXPECT_THAT(refused("qwen3", {gguf_integer("qwen3.attention.sliding_window", 8)}),
              HasSubstr("qwen3.attention.sliding_window: found 8"));
  EXPECT_THAT(refused("qwen3", {gguf_integer("qwen3.rope.dimension_count", 4)}),
              HasSubstr("qwen3.rope.dimension_count: found 4; expected 6"));
  EXPECT_THAT(refused("qwen3", {gguf_text_pair("qwen3.rope.scaling.type", "longrope")}),
              HasSubstr("qwen3.rope.scaling.type: found longrope"));
}

}  // namespace
}  // namespace furlong
