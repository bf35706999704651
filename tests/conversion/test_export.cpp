// furlong export: imported models are restored bit for bit, and Furlong's own models round-trip.
#include "conversion/export.h"

#include <gmock/gmock.h>

#include <ctime>
#include <regex>

#include "conversion/convert.h"
#include "conversion/performer_directory.h"
#include "conversion/tokenizer_export.h"
#include "datasets/tokenizers/tokenizer.h"
#include "tests/conversion/tiny_gguf.h"
#include "tests/conversion/tiny_models.h"
#include "tests/temporary_folder.h"
#include "trainers/checkpoint/checkpoint_origin.h"

namespace furlong {
namespace {

using namespace furlong::testing;
using ::testing::HasSubstr;

class Export : public WithTemporaryFolder {
 protected:
  /// Imports a model to a checkpoint and exports it again.
  ExportReport there_and_back(const TinyModel& model, const ExportOptions& options = {}) {
    ConvertOptions conversion;
    conversion.source = model.write(folder_ / "source");
    conversion.destination = path("model.h5");
    conversion.overwrite = true;
    convert(conversion);
    return exported("model.h5", "back", options);
  }
  /// Imports a model with linear attention, which Furlong exports with code.
  void import_linear(const TinyModel& model, const std::string& checkpoint) {
    ConvertOptions conversion;
    conversion.source = model.write(folder_ / "source");
    conversion.destination = path(checkpoint);
    conversion.attention = "elu1";
    convert(conversion);
  }
  ExportReport exported(const std::string& checkpoint, const std::string& directory,
                        const ExportOptions& options = {}) {
    SourceModel source = open_source_model(path(checkpoint));
    return export_model(source, path(directory), options);
  }

  void expect_same_tensors(const TinyModel& model, const std::string& directory) {
    const auto file = open_safetensors(path(directory));
    ASSERT_EQ(file->tensors().size(), model.described.size());
    for (const auto& [name, tensor] : model.described) {
      const ForeignTensor* found = file->find(name);
      ASSERT_NE(found, nullptr) << name;
      EXPECT_EQ(found->stored_type, tensor.stored_type) << name;
      EXPECT_EQ(found->shape, tensor.shape) << name;
      if (model.integers.contains(name)) {
        EXPECT_EQ(file->read_integers(name), model.integers.at(name)) << name;
        continue;
      }
      std::vector<float> values(static_cast<std::size_t>(tensor.shape.elements()));
      file->read(name, values);
      EXPECT_EQ(values, model[name]) << name;
    }
  }
};

TEST_F(Export, RestoresImportedModels) {
  int number = 0;
  for (const TinyModel& model :
       {tiny_gpt2(), tiny_gpt2(""), tiny_llama(), tiny_bert(), tiny_bert(false), tiny_albert()}) {
    SCOPED_TRACE(++number);
    std::filesystem::remove_all(path("back"));
    const ExportReport report = there_and_back(model);
    EXPECT_TRUE(report.for_hugging_face) << report.reason;
    EXPECT_EQ(report.rounded, 0);
    expect_same_tensors(model, "back");
    EXPECT_EQ(content(path("back/config.json")), content(path("source/config.json")));
    EXPECT_EQ(content(path("back/vocab.txt")), content(path("source/vocab.txt")));
    EXPECT_EQ(content(path("back/model.safetensors")), content(path("source/model.safetensors")));
  }
}

// The output layer of tied embeddings is written under the names that the file had.
TEST_F(Export, KeepsNamesOfDuplicateTensors) {
  TinyModel only_head = tiny_gpt2();
  only_head.described["lm_head.weight"] = {"lm_head.weight", only_head.described.at("transformer.wte.weight").shape,
                                           "F32"};
  only_head.values["lm_head.weight"] = only_head["transformer.wte.weight"];
  there_and_back(only_head);
  expect_same_tensors(only_head, "back");
}

// transformers before version 5 writes the bias of an untied output layer as "bias"; version 5 has one more, unused.
TEST_F(Export, ReadsUntiedOutputBiasUnderEitherName) {
  TinyModel one_bias = tiny_bert();
  one_bias.config["tie_word_embeddings"] = false;
  TinyModel two = one_bias;
  two.add("cls.predictions.decoder.bias", {tiny_vocabulary}, 0.3);
  ASSERT_NE(two["cls.predictions.decoder.bias"], two["cls.predictions.bias"]);
  for (const auto& [model, name] :
       {std::pair{one_bias, "cls.predictions.bias"}, std::pair{two, "cls.predictions.decoder.bias"}}) {
    SCOPED_TRACE(name);
    std::filesystem::remove_all(path("back"));
    there_and_back(model);
    expect_same_tensors(model, "back");
    const SourceModel source = open_source_model(path("source"));
    EXPECT_EQ(source.model.store->find("output_bias").master().to_vector<float>(), model[name]);
  }
  TinyModel without = one_bias;
  without.remove("cls.predictions.bias");
  EXPECT_THAT(message_of<UserError>([&] { there_and_back(without); }), HasSubstr("cls.predictions.decoder.bias"));
}

TEST_F(Export, ConvertsDtype) {
  ExportOptions options;
  options.dtype = "bfloat16";
  TinyModel model = tiny_gpt2();
  model.values["transformer.wte.weight"][0] = 0.1F;  // not representable in bfloat16
  const ExportReport report = there_and_back(model, options);
  EXPECT_EQ(report.rounded, 1);
  EXPECT_EQ(open_safetensors(path("back"))->find("transformer.wte.weight")->stored_type, "BF16");
  const Json config = Json::parse(content(path("back/config.json")));
  EXPECT_EQ(config.at("torch_dtype"), "bfloat16");
  EXPECT_EQ(config.at("eos_token_id"), 3);
}

// Four times the tokens take about four times as long, not sixteen times.
TEST_F(Export, TimeOfTokenizerIsLinearInItsSize) {
  const auto seconds_of = [&](int n_words) {
    const std::string folder = word_tokenizer(folder_ / std::to_string(n_words), n_words);
    const Vocabulary vocabulary = Vocabulary::of_tokenizer(load_tokenizer(folder));
    const auto processor_seconds = [] {
      timespec now{};
      clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
      return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
    };
    const double begin = processor_seconds();
    const auto files = export_tokenizer(vocabulary, {}).files;
    const double taken = processor_seconds() - begin;
    EXPECT_EQ(nlohmann::json::parse(files.front().second).at("model").at("vocab").size(),
              static_cast<std::size_t>(n_words) + 6);
    return taken;
  };
  const double few = seconds_of(20'000), many = seconds_of(80'000);
  EXPECT_LT(many, 8 * few);
}

// An export writes the files of a checkpoint's origin.
TEST_F(Export, ForgedOriginsNameNoOtherFiles) {
  const TinyModel bert = tiny_bert();
  const SourceModel source = open_source_model(bert.write(folder_ / "source"));
  CheckpointOrigin kept = source.origin->to_checkpoint();
  EXPECT_NO_THROW(Origin::from_checkpoint(kept, "m.h5"));
  for (const char* name : {".git/config", ".git//config", "../vocab.txt", "/vocab.txt", "model.safetensors", ""}) {
    Json object = Json::parse(kept.json);
    object["files"][0] = name;
    kept.json = object.dump();
    EXPECT_THAT(message_of<UserError>([&] { Origin::from_checkpoint(kept, "m.h5"); }),
                HasSubstr(fmt::format("names the file '{}', which is none of a model's tokenizer", name)));
  }
}

// Objects of a JSON library that keep their order take quadratic time.
TEST_F(Export, BoundsKeysOfTheOriginalTokenizerConfig) {
  ConvertOptions options;
  options.source = tiny_bert().write(folder_ / "source");
  word_tokenizer(options.source, 21);
  std::string config = "{";
  for (int i = 0; i < 60'000; ++i) config += fmt::format("\"k{}\":0,", i);
  write_file(path("source/tokenizer_config.json"), config + "\"last\":0}");
  options.destination = path("model.h5");
  options.attention = "elu1";
  convert(options);
  EXPECT_EQ(testing::message_of<UserError>([&] { exported("model.h5", "back"); }),
            "tokenizer_config.json: objects have too many or too long keys; expected at most 32,768 in one object, "
            "fewer in several");
}

// AutoTokenizer needs it next to a model with code, and gives the same ids whatever the case of the vocabulary.
TEST_F(Export, WritesTokenizerJsonOfAWordPieceVocabulary) {
  for (const bool cased : {false, true}) {
    for (const char* config :
         {"", "{\"do_lower_case\": false}", "{\"do_lower_case\": false, \"tokenizer_class\": \"BertTokenizer\"}"}) {
      SCOPED_TRACE(fmt::format("{} {}", cased, config));
      const bool has_config = *config != '\0';
      ConvertOptions options;
      options.source = tiny_bert().write(folder_ / "source");
      word_tokenizer(options.source, 21);
      const std::string vocabulary = content(path("source/vocab.txt"));
      if (cased) write_file(path("source/vocab.txt"), std::regex_replace(vocabulary, std::regex("w7"), "W7"));
      if (has_config)
        write_file(path("source/tokenizer_config.json"), config);
      else
        std::filesystem::remove(path("source/tokenizer_config.json"));
      options.destination = path("model.h5");
      options.overwrite = true;
      options.attention = "elu1";
      convert(options);
      ExportOptions overwrite;
      overwrite.overwrite = true;
      exported("model.h5", "back", overwrite);
      const Json tokenizer = Json::parse(content(path("back/tokenizer.json")));
      EXPECT_EQ(tokenizer.at("model").at("type"), "WordPiece");
      EXPECT_EQ(tokenizer.at("model").at("vocab").at(cased ? "W7" : "w7"), 12);
      EXPECT_EQ(tokenizer.at("normalizer").at("lowercase"), !cased && !has_config);
      EXPECT_EQ(load_tokenizer(path("back/tokenizer.json"))->to_json(), load_tokenizer(path("source"))->to_json());
      EXPECT_EQ(content(path("back/vocab.txt")), content(path("source/vocab.txt")));
      const Json written = Json::parse(content(path("back/tokenizer_config.json")));
      const bool has_class = fmt::format("{}", config).find("Bert") != std::string::npos;
      EXPECT_EQ(written.at("tokenizer_class"), has_class ? "BertTokenizer" : "PreTrainedTokenizerFast");
      EXPECT_EQ(Json::parse(content(path("back/config.json"))).at("tokenizer_class"), written.at("tokenizer_class"));
      EXPECT_EQ(written.at("do_lower_case"), !cased && !has_config);
      EXPECT_EQ(written.at("mask_token"), "[MASK]");
      EXPECT_EQ(written.at("model_input_names").at(1), "token_type_ids") << "tiny_bert() has segments";
    }
  }
}

// A list of letters: AutoTokenizer reads tokenizer.json, Furlong its own vocabulary.
TEST_F(Export, WritesTokenizerJsonOfLetters) {
  there_and_back(tiny_bert());
  import_linear(tiny_bert(), "linear.h5");
  exported("linear.h5", "with_code");
  const auto original = load_tokenizer(path("source"));
  for (const std::string folder : {"back", "with_code"}) {
    SCOPED_TRACE(folder);
    const auto written = load_tokenizer(path(folder + "/tokenizer.json"));
    for (const std::string text : {"LAGV", " l A\tJ\nJQ\u00e9\u3000W", "", "[MASK]A[mask]"}) {
      SCOPED_TRACE(text);
      const auto ids = original->encode(text, SpecialTokenMode::as_token);
      EXPECT_EQ(written->encode(text, SpecialTokenMode::as_token), ids);
      EXPECT_EQ(written->framed(ids), original->framed(ids));
    }
    EXPECT_EQ(Json::parse(content(path(folder + "/tokenizer_config.json"))).at("pad_token"), "[PAD]");
  }
  EXPECT_EQ(load_tokenizer(path("with_code"))->to_json(), original->to_json());
}

TEST_F(Export, RejectsExistingModel) {
  there_and_back(tiny_gpt2());
  EXPECT_THAT(message_of<UserError>([&] { exported("model.h5", "back"); }), HasSubstr("--force"));
  ExportOptions options;
  options.overwrite = true;
  exported("model.h5", "back", options);
}

// Removes only files of an earlier model, recognized by their names.
TEST_F(Export, OverwriteRemovesFilesOfTheEarlierModel) {
  import_linear(tiny_bert(), "linear.h5");
  exported("linear.h5", "out");
  std::filesystem::create_directories(path("out/1_Pooling"));
  std::filesystem::create_directories(path("out/notes"));
  const std::vector<std::string> earlier{"vocab.json",
                                         "merges.txt",
                                         "1_Pooling/config.json",
                                         "model.safetensors.index.json",
                                         "model-00001-of-00002.safetensors",
                                         "model-00002-of-00002.safetensors"};
  const std::vector<std::string> others{"README.md", "notes/tokenizer.json", "model-mine.safetensors", "vocab.txt.old"};
  for (const auto* list : {&earlier, &others})
    for (const std::string& name : *list) file("out/" + name, "{}");
  ConvertOptions options;
  options.source = path("source");
  options.destination = path("softmax.h5");
  convert(options);
  EXPECT_THAT(message_of<UserError>([&] { exported("softmax.h5", "out"); }), HasSubstr("--force"));
  for (const std::string& name : earlier) EXPECT_TRUE(std::filesystem::exists(path("out/" + name))) << name;
  ExportOptions over;
  over.overwrite = true;
  // Without config.json there is no model, so existing files belong to the user.
  std::filesystem::create_directories(path("mine"));
  file("mine/merges.txt", "{}");
  EXPECT_THAT(exported("softmax.h5", "mine", over).removed, ::testing::IsEmpty());
  EXPECT_EQ(content(path("mine/merges.txt")), "{}");
  const ExportReport report = exported("softmax.h5", "out", over);
  std::vector<std::string> removed = earlier;
  removed.insert(removed.end(),
                 {"furlong_vocabulary.json", "attention_furlong.py", "cache_furlong.py", "configuration_furlong.py",
                  "features_furlong.py", "labels_furlong.py", "modeling_furlong.py"});
  EXPECT_THAT(report.removed, ::testing::UnorderedElementsAreArray(removed));
  for (const std::string& name : removed) EXPECT_FALSE(std::filesystem::exists(path("out/" + name))) << name;
  EXPECT_FALSE(std::filesystem::exists(path("out/1_Pooling")));
  for (const std::string& name : others) EXPECT_EQ(content(path("out/" + name)), "{}") << name;
  EXPECT_EQ(content(path("out/vocab.txt")), content(path("source/vocab.txt")));
  EXPECT_EQ(Json::parse(content(path("out/config.json"))).at("model_type"), "bert");
}

TEST_F(Export, ConfigContainsNoLocalPaths) {
  SourceModel source = open_source_model(tiny_gpt2().write(folder_ / "source"));
  Settings& settings = source.model.settings;
  settings.model.attention.mechanism = "linear";
  settings.model.attention.feature_map = "elu1";
  settings.model.attention.n_features = 4;
  settings.run_directory = path("run");
  settings.data.dataset = path("tokens.h5");
  settings.model.weights = path("weights.h5");
  settings.teacher.checkpoint = path("teacher.h5");
  settings.teacher.loss = "distillation";
  settings.finetune.source = path("source");
  settings.finetune.stages = {"task"};
  EXPECT_FALSE(export_model(source, path("out"), {}).for_hugging_face);
  EXPECT_THAT(content(path("out/config.json")), Not(HasSubstr(folder_.string())));
  Settings expected = settings;
  expected.run_directory.clear();
  expected.data.dataset.clear();
  expected.model.weights.clear();
  expected.teacher = {};
  expected.finetune = {};
  EXPECT_EQ(open_source_model(path("out")).model.settings, expected);
}

TEST_F(Export, ConvertedModelsRoundTrip) {
  ConvertOptions options;
  options.source = tiny_bert().write(folder_ / "source");
  options.destination = path("linear.h5");
  options.attention = "windowed:4+hedgehog";
  options.layers = "1";
  convert(options);
  const ExportReport report = exported("linear.h5", "out");
  EXPECT_FALSE(report.for_hugging_face);
  EXPECT_EQ(report.model_type, "furlong");
  EXPECT_EQ(report.reason,
            "bert: classes of transformers have softmax attention, and model.attention is not softmax over all visible "
            "tokens");
  EXPECT_EQ(content(path("out/vocab.txt")), content(path("source/vocab.txt")));
  const auto file = open_safetensors(path("out"));
  EXPECT_NE(file->find("model.blocks.1.attention.query_key_value.weight"), nullptr);
  EXPECT_NE(file->find("carried.bert.pooler.dense.weight"), nullptr);
  EXPECT_NE(file->find("model.blocks.1.attention.mechanism.query_features"), nullptr);

  const SourceModel before = open_source_model(path("linear.h5")), after = open_source_model(path("out"));
  EXPECT_EQ(before.model.settings, after.model.settings);
  EXPECT_TRUE(before.model.vocabulary == after.model.vocabulary);
  ASSERT_EQ(before.model.store->parameters().size(), after.model.store->parameters().size());
  for (const Parameter& parameter : before.model.store->parameters())
    EXPECT_EQ(parameter.master().to_vector<float>(),
              after.model.store->find(parameter.name()).master().to_vector<float>())
        << parameter.name();
  EXPECT_EQ(before.origin->carried.size(), after.origin->carried.size());
  EXPECT_EQ(before.origin->config, after.origin->config);
}

// BertModel, with another attention, with an added head, and as a Furlong model.
TEST_F(Export, ExportsModelsWithoutHead) {
  ConvertOptions options;
  options.source = tiny_bert(false).write(folder_ / "source");
  options.destination = path("linear.h5");
  options.attention = "elu1";
  convert(options);
  EXPECT_EQ(exported("linear.h5", "performer").model_type, "furlong");
  const SourceModel before = open_source_model(path("linear.h5")), after = open_source_model(path("performer"));
  EXPECT_EQ(before.model.settings, after.model.settings);
  EXPECT_EQ(after.model.settings.model.prediction_head, layers::PredictionHead::none);
  EXPECT_EQ(after.model.store->find("embedding_norm.gain").master().to_vector<float>(),
            before.model.store->find("embedding_norm.gain").master().to_vector<float>());

  options.attention.clear();
  options.overrides = {"model.prediction_head=transform", "model.output_bias=true"};
  options.destination = path("headed.h5");
  const ConversionResult headed = convert(options);
  EXPECT_EQ(headed.tensors.reinitialized.size(), 5U);
  const ExportReport report = exported("headed.h5", "headed");
  EXPECT_TRUE(report.for_hugging_face) << report.reason;
  EXPECT_THAT(report.left_out, ::testing::IsEmpty());
  EXPECT_EQ(Json::parse(content(path("headed/config.json"))).at("architectures"), Json({"BertForMaskedLM"}));
  const auto file = open_safetensors(path("headed"));
  EXPECT_NE(file->find("bert.encoder.layer.1.output.dense.weight"), nullptr);
  EXPECT_NE(file->find("cls.predictions.transform.dense.weight"), nullptr);
  EXPECT_EQ(open_source_model(path("headed")).model.settings.model, headed.settings.model);
  // With another attention, tensors keep the names of the original config.json.
  options.source = path("headed.h5");
  options.overrides.clear();
  options.attention = "elu1";
  options.destination = path("both.h5");
  convert(options);
  exported("both.h5", "both");
  EXPECT_EQ(open_source_model(path("both")).model.settings, open_source_model(path("both.h5")).model.settings);

  Settings settings = before.model.settings;
  settings.model.attention = settings.model.attention.plain();
  Model own = make_model(settings, before.model.vocabulary, Device{}, DType::float32);
  write_model(own, std::nullopt, path("own.h5"));
  EXPECT_TRUE(exported("own.h5", "own").for_hugging_face);
  EXPECT_EQ(Json::parse(content(path("own/config.json"))).at("architectures"), Json({"BertModel"}));
}

TEST_F(Export, KeepsChatTemplateOfGguf) {
  const std::string chat = "{% for message in messages %}{{ message['content'] + '<|im_end|>\n' }}{% endfor %}";
  ConvertOptions options;
  options.source = file("chat.gguf", tiny_gguf({gguf_text_pair("tokenizer.chat_template", chat)}));
  options.destination = path("chat.h5");
  convert(options);
  exported("chat.h5", "chat");
  Json config = Json::parse(content(path("chat/tokenizer_config.json")));
  EXPECT_EQ(config.at("chat_template"), chat);
  EXPECT_EQ(config.at("eos_token"), "<|im_end|>");
  EXPECT_TRUE(std::filesystem::exists(path("chat/tokenizer.json")));
  EXPECT_FALSE(std::filesystem::exists(path("chat/chat_template.jinja")));
  // The template is kept if the attention changes.
  options.source = path("chat.h5");
  options.destination = path("linear.h5");
  options.attention = "elu1";
  convert(options);
  exported("linear.h5", "linear");
  EXPECT_EQ(Json::parse(content(path("linear/tokenizer_config.json"))).at("chat_template"), chat);
  SourceModel again = open_source_model(path("linear"));
  export_model(again, path("again"), {});
  EXPECT_EQ(content(path("again/tokenizer_config.json")), content(path("linear/tokenizer_config.json")));

  options.source = file("plain.gguf", tiny_gguf());
  options.destination = path("plain.h5");
  options.attention.clear();
  convert(options);
  exported("plain.h5", "plain");
  EXPECT_FALSE(Json::parse(content(path("plain/tokenizer_config.json"))).contains("chat_template"));
}

TEST_F(Export, RejectsDamagedFurlongDirectories) {
  import_linear(tiny_gpt2(), "linear.h5");
  exported("linear.h5", "out");
  Json config = Json::parse(content(path("out/config.json")));
  const auto refused = [&](const Json& changed) {
    file("out/config.json", changed.dump());
    return message_of<UserError>([&] { open_source_model(path("out")); });
  };
  Json no_settings = config, unknown = config, no_origin = config;
  no_settings["furlong"].erase("settings");
  unknown["furlong"]["settings"]["model"]["n_hats"] = 3;
  no_origin["furlong"]["origin"].erase("config");
  EXPECT_THAT(refused(no_settings), HasSubstr("furlong.settings"));
  EXPECT_THAT(refused(unknown), HasSubstr("n_hats"));
  EXPECT_THAT(refused(no_origin), HasSubstr("origin"));
}

// A Furlong model that is equivalent to a GPT-2 is written as GPT-2.
TEST_F(Export, WritesOwnModelsAsKnownFamily) {
  Settings settings;
  settings.model.n_layers = 2;
  settings.model.d_model = 16;
  settings.model.attention.n_heads = 2;
  settings.model.position = layers::Position::learned;
  settings.model.activation = layers::Activation::gelu_tanh;
  settings.data.sequence_length = 8;
  Model gpt2 = make_model(resolve(settings), Vocabulary::bytes(true), Device{}, DType::float32);
  write_model(gpt2, std::nullopt, path("gpt2.h5"));
  const ExportReport report = exported("gpt2.h5", "gpt2");
  EXPECT_EQ(report.model_type, "gpt2") << report.reason;
  EXPECT_EQ(Json::parse(content(path("gpt2/config.json"))).at("n_positions"), 8);
  EXPECT_EQ(Json::parse(content(path("gpt2/tokenizer_config.json"))).at("model_max_length"), 8);

  settings.model.position = layers::Position::rotary;
  Model other = make_model(resolve(settings), Vocabulary::bytes(true), Device{}, DType::float32);
  write_model(other, std::nullopt, path("other.h5"));
  const ExportReport own = exported("other.h5", "other");
  EXPECT_EQ(own.model_type, "furlong");
  EXPECT_FALSE(Json::parse(content(path("other/tokenizer_config.json"))).contains("model_max_length"));
  EXPECT_EQ(
      own.reason,
      "gpt2, the closest class of transformers: model.position is rotary, and in that family it would be learned");
  const SourceModel back = open_source_model(path("other"));
  EXPECT_EQ(back.model.store->find("blocks.0.attention.output.weight").master().to_vector<float>(),
            other.store->find("blocks.0.attention.output.weight").master().to_vector<float>());
}

// y = x Wᵀ + (alpha / rank) x Aᵀ Bᵀ, as one matrix.
TEST_F(Export, MergesAdaptersIntoWeights) {
  ConvertOptions options;
  options.source = tiny_llama().write(folder_ / "source");
  options.destination = path("lora.h5");
  options.overrides = {"model.lora_rank=2", "model.lora_alpha=6"};
  convert(options);
  SourceModel source = open_source_model(path("lora.h5"));
  const std::string stem = "blocks.0.feedforward.output.";
  const auto set = [&](const std::string& name, float value) {
    Parameter& parameter = source.model.store->find(stem + name);
    std::fill_n(parameter.master().data<float>(), parameter.shape().elements(), value);
  };
  set("lora_a.weight", 0.5F);
  set("lora_b.weight", 0.25F);
  export_model(source, path("out"), {});
  std::vector<float> values(12 * 20);
  const auto written = open_safetensors(path("out"));
  written->read("model.layers.0.mlp.down_proj.weight", values);
  const TinyModel tiny = tiny_llama();
  EXPECT_EQ(values[7], tiny["model.layers.0.mlp.down_proj.weight"][7] + 3 * 2 * 0.125F);
  EXPECT_EQ(written->tensors().size(), tiny.described.size());
}

}  // namespace
}  // namespace furlong
