// Exports that transformers loads without Furlong's code: what config.json needs besides the settings.
#include <gmock/gmock.h>

#include <limits>

#include "conversion/convert.h"
#include "conversion/export.h"
#include "framework/core/log.h"
#include "tests/conversion/tiny_models.h"
#include "tests/places.h"
#include "tests/temporary_folder.h"

namespace furlong {
namespace {

using namespace furlong::testing;
using ::testing::AllOf;
using ::testing::HasSubstr;

class NativeExport : public WithTemporaryFolder {
 protected:
  /// Exports a new model, which has no origin.
  Json exported(const Settings& settings, const Vocabulary& vocabulary) {
    SourceModel source{make_model(resolve(settings), vocabulary, Device{}, DType::float32), {}, {}, ""};
    ExportOptions options;
    options.overwrite = true;
    report_ = export_model(source, path("out"), options);
    return Json::parse(content(path("out/config.json")));
  }
  /// Imports a model with changed settings and exports it.
  Json changed(const std::filesystem::path& directory, const std::vector<std::string>& overrides) {
    ConvertOptions options;
    options.source = directory;
    options.destination = path("changed.h5");
    options.overrides = overrides;
    options.overwrite = true;
    convert(options);
    SourceModel source = open_source_model(options.destination);
    ExportOptions overwrite;
    overwrite.overwrite = true;
    report_ = export_model(source, path("out"), overwrite);
    EXPECT_EQ(open_source_model(path("out")).model.settings.model, source.model.settings.model);
    return Json::parse(content(path("out/config.json")));
  }

  static Settings small() {
    Settings settings;
    settings.model.n_layers = 1;
    settings.model.d_model = 16;
    settings.model.attention.n_heads = 2;
    settings.data.sequence_length = 64;
    return settings;
  }
  static Settings llama() {
    Settings settings = small();
    settings.model.norm = ops::NormKind::rmsnorm;
    settings.model.activation = layers::Activation::swiglu;
    settings.model.bias = false;
    return settings;
  }
  static Settings esm() {
    Settings settings = small();
    settings.model.architecture = layers::Architecture::encoder;
    settings.model.prediction_head = layers::PredictionHead::transform;
    settings.model.output_bias = true;
    settings.objective.name = Objective::masked_tokens;
    return settings;
  }

  ExportReport report_;
};

// Without these keys transformers takes the family's defaults: in Llama, tokens 1 and 2 would start and end a text.
TEST_F(NativeExport, WritesSpecialTokens) {
  const Vocabulary dna = Vocabulary::dna();
  const Json config = exported(llama(), dna);
  EXPECT_EQ(report_.model_type, "llama") << report_.reason;
  EXPECT_EQ(config.at("eos_token_id"), *dna.document_id());
  EXPECT_TRUE(config.at("bos_token_id").is_null());
  EXPECT_TRUE(config.at("pad_token_id").is_null());

  Settings gpt2 = small();
  gpt2.model.position = layers::Position::learned;
  gpt2.model.activation = layers::Activation::gelu_tanh;
  const Json without = exported(gpt2, Vocabulary::bytes(false));
  EXPECT_EQ(report_.model_type, "gpt2") << report_.reason;
  for (const char* key : {"eos_token_id", "bos_token_id", "pad_token_id"})
    EXPECT_TRUE(without.at(key).is_null()) << key;

  const Vocabulary letters = Vocabulary::of_tokenizer(load_tokenizer(letters_tokenizer(folder_ / "letters")));
  const Json with_tokenizer = exported(llama(), letters);
  EXPECT_EQ(with_tokenizer.at("pad_token_id"), 0);
  EXPECT_EQ(with_tokenizer.at("eos_token_id"), letters.document_id().value());
}

// EsmModel of transformers computes with pad_token_id, and transformers 4 needs it below max_position_embeddings.
TEST_F(NativeExport, PaddingOfEsmIsNoTokenOfItsInputs) {
  const Vocabulary dna = Vocabulary::dna();
  EXPECT_EQ(exported(esm(), dna).at("pad_token_id"), dna.with_encoder_tokens().class_id().value());
  EXPECT_EQ(report_.model_type, "esm") << report_.reason;
  Settings larger = esm();
  larger.model.vocabulary_size = 24;
  EXPECT_EQ(exported(larger, dna).at("pad_token_id"), dna.with_encoder_tokens().size());
  const Vocabulary letters = Vocabulary::of_tokenizer(load_tokenizer(letters_tokenizer(folder_ / "letters")));
  EXPECT_EQ(exported(esm(), letters).at("pad_token_id"), 0);

  exported(esm(), Vocabulary::bytes(true));
  EXPECT_EQ(report_.model_type, "furlong");
  EXPECT_THAT(report_.reason, HasSubstr("esm, the closest class of transformers: the vocabulary has no padding token"));
}

// LlamaConfig of transformers 5 rejects such widths, whatever head_dim is; MistralConfig does not.
TEST_F(NativeExport, LlamaNeedsAWidthThatItsHeadsDivide) {
  Settings settings = llama();
  settings.model.attention.n_heads = 3;
  settings.model.attention.d_head = 8;
  const Json config = exported(settings, Vocabulary::dna());
  EXPECT_EQ(report_.model_type, "mistral") << report_.reason;
  EXPECT_EQ(config.at("head_dim"), 8);
  EXPECT_TRUE(config.at("sliding_window").is_null());
}

// transformers 4 would load these models as native ones and compute something else.
TEST_F(NativeExport, SettingsThatTransformers4IgnoresNeedCode) {
  Json config;
  const auto reason = [&](const Settings& settings) {
    config = exported(settings, Vocabulary::dna());
    return report_.for_hugging_face ? "" : report_.reason;
  };
  Settings encoder = esm();
  encoder.model.rotary_base = 500000;
  EXPECT_THAT(reason(encoder), HasSubstr("transformers 4 always takes 10000 for ESM"));
  Settings window = llama();
  window.model.attention.window = 8;
  EXPECT_EQ(reason(window), "");
  window.model.rotary_scaling = {.kind = ops::RotaryScalingKind::linear, .factor = 4};
  EXPECT_THAT(reason(window), HasSubstr("ignore model.rotary_scaling for Mistral"));
  Settings yarn = llama();
  yarn.model.max_sequence_length = 64;
  yarn.model.rotary_scaling = {.kind = ops::RotaryScalingKind::yarn, .factor = 4, .original_length = 16};
  EXPECT_THAT(reason(yarn), HasSubstr("as the original length of yarn"));
  yarn.model.rotary_scaling.original_length = 64;
  EXPECT_EQ(reason(yarn), "");
  EXPECT_EQ(config["rope_scaling"]["factor"], 4.0);
  EXPECT_FALSE(config["rope_scaling"].contains("original_max_position_embeddings"))
      << "transformers 4.51 would take the ratio of the two lengths, 1, as the factor";
}

// transformers reads these frequencies instead of computing them from rope_theta.
TEST_F(NativeExport, LeavesOutRotaryFrequenciesOfAnotherBase) {
  std::filesystem::copy(source_directory() / "tests/conversion/families/esm", path("esm"));
  Json config = Json::parse(content(path("esm/config.json")));
  config["rope_theta"] = 500.0;
  file("esm/config.json", config.dump());
  const auto has_frequencies = [&] {
    EXPECT_TRUE(report_.for_hugging_face) << report_.reason;
    return content(path("out/model.safetensors")).find("inv_freq") != std::string::npos;
  };
  SourceModel source = open_source_model(path("esm"));
  report_ = export_model(source, path("out"), {});
  EXPECT_TRUE(has_frequencies());
  changed(path("esm"), {"model.rotary_base=10000"});
  EXPECT_FALSE(has_frequencies());
}

TEST_F(NativeExport, LeavesOutCodeOfTheModel) {
  TinyModel tiny = tiny_llama();
  tiny.config["auto_map"] = {{"AutoModelForCausalLM", "own_code.LlamaForCausalLM"}};
  const LogCapture log;
  SourceModel source = open_source_model(tiny.write(folder_ / "code"));
  EXPECT_THAT(log.text(), HasSubstr("auto_map names code of the model's own"));
  report_ = export_model(source, path("out"), {});
  EXPECT_EQ(report_.model_type, "llama") << report_.reason;
  EXPECT_FALSE(Json::parse(content(path("out/config.json"))).contains("auto_map"));
}

TEST_F(NativeExport, ReplacesRotaryKeysOfTheOriginal) {
  TinyModel tiny = tiny_llama();
  tiny.config.erase("rope_theta");
  tiny.config["bos_token_id"] = 2;
  tiny.config["original_max_position_embeddings"] = 16;
  tiny.config["rope_parameters"] = {{"rope_type", "llama3"},
                                    {"rope_theta", 500.0},
                                    {"factor", 8.0},
                                    {"low_freq_factor", 1.0},
                                    {"high_freq_factor", 4.0}};
  const std::string source = tiny.write(folder_ / "source");
  const Json base = changed(source, {"model.rotary_base=1000"});
  EXPECT_EQ(report_.model_type, "llama") << report_.reason;
  EXPECT_EQ(base.at("rope_theta"), 1000.0);
  EXPECT_EQ(base.at("rope_scaling").at("rope_type"), "llama3");
  EXPECT_EQ(base.at("rope_scaling").at("original_max_position_embeddings"), 16);
  EXPECT_EQ(base.at("bos_token_id"), 2);
  const Json plain = changed(source, {"model.rotary_scaling=none"});
  EXPECT_EQ(plain.at("rope_theta"), 500.0);
  EXPECT_FALSE(plain.contains("rope_scaling"));
  for (const Json* config : {&base, &plain}) {
    EXPECT_FALSE(config->contains("rope_parameters"));
    EXPECT_FALSE(config->contains("original_max_position_embeddings"));
  }
}

TEST_F(NativeExport, ReplacesWindowsOfTheOriginal) {
  const std::filesystem::path source = source_directory() / "tests/conversion/families/qwen2_window";
  const Json config = changed(source, {"model.attention.window=0"});
  EXPECT_EQ(report_.model_type, "qwen2") << report_.reason;
  EXPECT_FALSE(config.contains("layer_types"));
  EXPECT_EQ(config.at("use_sliding_window"), false);
}

TEST_F(NativeExport, RejectsValuesBeyondTheRangeOfTheType) {
  SourceModel source = open_source_model(tiny_llama().write(folder_ / "source"));
  float& value = source.model.store->find("blocks.0.feedforward.output.weight").master().data<float>()[5];
  const auto refused = [&](const std::string& dtype) {
    ExportOptions options;
    options.dtype = dtype;
    const std::string message = message_of<UserError>([&] { export_model(source, path("out"), options); });
    EXPECT_FALSE(std::filesystem::exists(path("out/model.safetensors")));
    EXPECT_FALSE(std::filesystem::exists(path("out/config.json")));
    return message;
  };
  value = 70000;
  EXPECT_THAT(refused("float16"), AllOf(HasSubstr("model.layers.0.mlp.down_proj.weight: found 70000"),
                                        HasSubstr("float16"), HasSubstr("--dtype bfloat16 or float32")));
  value = std::numeric_limits<float>::max();
  EXPECT_THAT(refused("bfloat16"), HasSubstr("--dtype float32"));
  ExportOptions single;
  single.dtype = "float32";
  export_model(source, path("out"), single);
  std::vector<float> written(12 * 20);
  open_safetensors(path("out"))->read("model.layers.0.mlp.down_proj.weight", written);
  EXPECT_EQ(written[5], value);
}

}  // namespace
}  // namespace furlong
