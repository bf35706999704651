// Directories of models that transformers loads with trust_remote_code; tests/parity/transformers_export.py loads them.
#include <gmock/gmock.h>

#include <map>
#include <set>

#include "conversion/convert.h"
#include "conversion/export.h"
#include "conversion/transformers_model.h"
#include "datasets/tokenizers/sentencepiece_proto.h"
#include "datasets/tokenizers/train_tokenizer.h"
#include "evaluation/sequences/hidden_states.h"
#include "tests/conversion/tiny_models.h"
#include "tests/datasets/tokenizers/small_tokenizers.h"
#include "tests/temporary_folder.h"

namespace furlong {
namespace {

using namespace furlong::testing;
using ::testing::HasSubstr;

class TransformersExport : public WithTemporaryFolder {
 protected:
  /// A small linear model with values of its own in every parameter.
  Model make(const std::function<void(Settings&)>& change, const Vocabulary& vocabulary = Vocabulary::bytes(true)) {
    Settings settings;
    settings.model.n_layers = 2;
    settings.model.d_model = 16;
    settings.model.attention.n_heads = 4;
    settings.model.attention.mechanism = "linear";
    settings.model.attention.feature_map = "favor_positive";
    settings.model.attention.n_features = 8;
    settings.data.sequence_length = 8;
    change(settings);
    Model model = make_model(resolve(settings), vocabulary, Device{}, DType::float32);
    float value = 0;
    for (const Parameter& parameter : model.store->parameters())
      std::generate_n(parameter.master().data<float>(), parameter.shape().elements(), [&] { return value += 0.125F; });
    return model;
  }
  static void encoder(Settings& settings, Objective objective) {
    settings.model.architecture = layers::Architecture::encoder;
    settings.objective.name = objective;
  }
  Json exported(Model model) { return exported(SourceModel{std::move(model), {}, {}, ""}); }
  Json exported(SourceModel source) {
    ExportOptions options;
    options.overwrite = true;
    report_ = export_model(source, path("out"), options);
    return Json::parse(content(path("out/config.json")));
  }
  std::set<std::string> tensors() const {
    std::set<std::string> names;
    const auto file = open_safetensors(path("out"));
    for (const ForeignTensor& tensor : file->tensors()) names.insert(tensor.name);
    return names;
  }
  ExportReport report_;
};

// Tokenizers cut texts to it: neither below the length of training, nor above the number of learned positions.
TEST_F(TransformersExport, BoundsTheSourcesLongestText) {
  ConvertOptions options;
  options.source = tiny_bert().write(folder_ / "source");  // with 12 positions
  word_tokenizer(options.source, 21);
  options.destination = path("model.h5");
  options.overwrite = true;
  options.attention = "elu1";
  options.max_sequence_length = 24;
  for (const auto& [own, expected] : {std::pair{"", 24},
                                      {"{\"model_max_length\": 1e30}", 24},
                                      {"{\"model_max_length\": 25}", 24},
                                      {"{\"model_max_length\": 16}", 16},
                                      {"{\"model_max_length\": 11}", 24},
                                      {"{\"model_max_length\": null}", 24}}) {
    std::filesystem::remove(path("source/tokenizer_config.json"));
    if (*own != '\0') file("source/tokenizer_config.json", own);
    convert(options);
    SourceModel source = open_source_model(path("model.h5"));
    EXPECT_EQ(source.model.settings.data.sequence_length, 12);
    exported(std::move(source));
    EXPECT_EQ(Json::parse(content(path("out/tokenizer_config.json"))).at("model_max_length"), expected) << own;
  }
  // An unchanged model keeps the file as it is. Without one, Furlong's has the number.
  options.attention.clear();
  options.max_sequence_length = 0;
  std::filesystem::remove(path("source/tokenizer_config.json"));
  convert(options);
  exported(open_source_model(path("model.h5")));
  EXPECT_TRUE(report_.for_hugging_face);
  EXPECT_EQ(Json::parse(content(path("out/tokenizer_config.json"))).at("model_max_length"), 12);
}

TEST_F(TransformersExport, DirectoryHoldsCodeConfigAndTokenizer) {
  const Json config = exported(make([](Settings&) {}));
  EXPECT_FALSE(report_.for_hugging_face);
  EXPECT_EQ(config.at("model_type"), "furlong");
  EXPECT_EQ(config.at("architectures"), Json::array({"FurlongForCausalLM"}));
  EXPECT_EQ(config.at("auto_map"), Json({{"AutoConfig", "configuration_furlong.FurlongConfig"},
                                         {"AutoModel", "modeling_furlong.FurlongModel"},
                                         {"AutoModelForCausalLM", "modeling_furlong.FurlongForCausalLM"}}));
  EXPECT_EQ(config.at("hidden_size"), 16);
  EXPECT_EQ(config.at("random_features"), 8);
  EXPECT_EQ(config.at("norm_placement"), "pre");
  EXPECT_EQ(config.at("attention_layers"), Json::array({"linear", "linear"}));
  EXPECT_EQ(config.at("eos_token_id"), 256);
  EXPECT_EQ(config.at("tokenizer_class"), "PreTrainedTokenizerFast");
  EXPECT_EQ(transformers_sources().size(), 6U);
  for (const auto& [name, text] : transformers_sources()) {
    EXPECT_EQ(content(path("out/" + name)), text);
    EXPECT_THAT(text, ::testing::EndsWith("\n")) << name;
  }
  EXPECT_THAT(content(path("out/modeling_furlong.py")), HasSubstr("class FurlongForCausalLM("));
  EXPECT_THAT(content(path("out/configuration_furlong.py")), HasSubstr("class FurlongConfig("));
}

TEST_F(TransformersExport, WritesAModelCardAndKeepsThatOfAUser) {
  exported(make([](Settings&) {}));
  EXPECT_THAT(content(path("out/README.md")), ::testing::StartsWith("---\nlibrary_name: transformers\n"));
  EXPECT_THAT(content(path("out/README.md")), HasSubstr("AutoModelForCausalLM.from_pretrained"));
  EXPECT_THAT(content(path("out/README.md")), ::testing::Not(HasSubstr("Trained with sequences")));
  exported(make([](Settings& settings) { encoder(settings, Objective::masked_tokens); }));
  EXPECT_THAT(content(path("out/README.md")), HasSubstr("pipeline_tag: fill-mask"));
  file("out/README.md", "# Mine\n");
  exported(make([](Settings&) {}));
  EXPECT_EQ(content(path("out/README.md")), "# Mine\n");
}

TEST_F(TransformersExport, ByteTokenizerGivesTheSameIds) {
  const Model model = make([](Settings& settings) { encoder(settings, Objective::masked_tokens); });
  exported(make([](Settings& settings) { encoder(settings, Objective::masked_tokens); }));
  const std::shared_ptr<const Tokenizer> tokenizer = load_tokenizer(path("out/tokenizer.json"));
  const std::string text = "In the beginning \xc3\xa9\n\t~ 0  x";
  EXPECT_EQ(Vocabulary::of_tokenizer(tokenizer).encode(text), model.vocabulary.encode(text));
  EXPECT_EQ(Json::parse(content(path("out/tokenizer_config.json"))).at("mask_token"), "<mask>");
}

TEST_F(TransformersExport, TokenizerFramesTextsAsTrainingDoes) {
  const auto framed = [&](const std::function<void(Settings&)>& change) {
    exported(make(change, Vocabulary::bytes(true).with_labels({"no", "yes"})));
    const std::shared_ptr<const Tokenizer> tokenizer = load_tokenizer(path("out/tokenizer.json"));
    return tokenizer->framed(tokenizer->encode("ab"));
  };
  using Ids = std::vector<std::int32_t>;
  EXPECT_EQ(framed([](Settings&) {}), (Ids{'a', 'b'}));
  EXPECT_EQ(framed([](Settings& s) { encoder(s, Objective::masked_tokens); }), (Ids{'a', 'b', 256}));
  EXPECT_EQ(framed([](Settings& s) {
              encoder(s, Objective::classification);
              s.objective.pooling = ops::Pooling::first;
            }),
            (Ids{258, 'a', 'b', 256}));
}

std::string pieces_model() {
  SentencePieceProto proto;
  proto.bpe = true;
  proto.pieces = {{"<unk>", 0, SentencePieceProto::Type::unknown},
                  {"<s>", 0, SentencePieceProto::Type::control},
                  {"</s>", 0, SentencePieceProto::Type::control},
                  {"a", -2},
                  {"\u2581", -3},
                  {"\u2581a", -1}};
  proto.beginning = 1;
  proto.end = 2;
  return proto.serialized();
}

// A tokenizer without a class token, and one that puts only <s> in front.
TEST_F(TransformersExport, TokenizerOfPiecesFramesTextsAsTrainingDoes) {
  using Ids = std::vector<std::int32_t>;
  const auto pieces = load_tokenizer(file("a.model", pieces_model()));
  const auto bytes = load_tokenizer(bpe_tokenizer(folder_ / "bpe"));
  const auto framed = [&](const std::function<void(Settings&)>& change, const std::shared_ptr<const Tokenizer>& own) {
    exported(make(change, Vocabulary::of_tokenizer(own).with_labels({"no", "yes"})));
    EXPECT_EQ(report_.tokenizer_obstacle, "");
    EXPECT_EQ(load_tokenizer(path("out"))->to_json(), own->to_json());
    const std::shared_ptr<const Tokenizer> written = load_tokenizer(path("out/tokenizer.json"));
    return written->framed(written->encode("a"));
  };
  const auto causal = [](Settings&) {};
  const auto masked = [](Settings& s) { encoder(s, Objective::masked_tokens); };
  const auto labeled = [](Settings& s) {
    encoder(s, Objective::classification);
    s.objective.pooling = ops::Pooling::first;
  };
  EXPECT_EQ(framed(causal, pieces), (Ids{1, 5}));
  EXPECT_EQ(framed(masked, pieces), (Ids{1, 5, 2}));
  EXPECT_EQ(framed(labeled, pieces), (Ids{7, 1, 5, 2}));
  EXPECT_EQ(framed(causal, bytes), (Ids{'a'}));
  EXPECT_EQ(framed(masked, bytes), (Ids{'a', 261}));
  EXPECT_EQ(framed(labeled, bytes), (Ids{263, 'a', 261}));
}

// The settings of an export name no data, and those of a trained model may have the size of its embedding.
TEST_F(TransformersExport, FrameOfATrainedEncoderComesBack) {
  const auto linear = [](Settings& s) {
    encoder(s, Objective::masked_tokens);
    s.data.use("trained.h5");
    s.data.sequence_length = 512;
    s.model.vocabulary_size = 300;
  };
  const auto esm = [&](Settings& s) {
    linear(s);
    s.model.attention = s.model.attention.plain();
    s.model.attention.mechanism = "softmax";
    s.model.prediction_head = layers::PredictionHead::transform;
    s.model.output_bias = true;
  };
  const std::vector<std::function<void(Settings&)>> changes{linear, esm};
  for (const std::string& tokenizer : {file("a.model", pieces_model()), bpe_tokenizer(folder_ / "bpe")}) {
    const Vocabulary data = Vocabulary::of_tokenizer(load_tokenizer(tokenizer));
    for (const auto& change : changes) {
      Model model = make(change, data);
      const SequenceFrame frame = frame_of(model);
      EXPECT_EQ(frame.back, std::vector<std::int32_t>{data.document_id().value()});
      exported(std::move(model));
      EXPECT_EQ(report_.for_hugging_face, &change == &changes[1]) << report_.reason;
      ConvertOptions options;
      options.source = path("out");
      options.destination = path("converted.h5");
      options.overwrite = true;
      convert(options);
      for (const std::string& place : {path("out"), path("converted.h5")}) {
        const Model copy = open_source_model(place).model;
        EXPECT_EQ(frame_of(copy).front, frame.front) << tokenizer;
        EXPECT_EQ(frame_of(copy).back, frame.back) << tokenizer;
        EXPECT_TRUE(model_vocabulary(copy.settings, data) == copy.vocabulary) << "the data can be evaluated";
      }
      if (tokenizer.ends_with(".model")) {
        EXPECT_EQ(load_tokenizer(path("out/tokenizer.model"))->to_json(), data.tokenizer()->to_json());
      }
    }
  }
}

TEST_F(TransformersExport, SentencePieceTokenizerOfANativeModelComesBack) {
  std::string text;
  for (int i = 0; i < 50; ++i) text += "in the beginning was the word\n";
  train_tokenizer({.inputs = {file("a.txt", text)}, .output = path("a.model"), .vocabulary_size = 300});
  const auto own = load_tokenizer(path("a.model"));
  const auto llama = [](Settings& s) {
    s.model.attention = s.model.attention.plain();
    s.model.attention.mechanism = "softmax";
    s.model.norm = ops::NormKind::rmsnorm;
    s.model.activation = layers::Activation::swiglu;
    s.model.bias = false;
  };
  exported(make(llama, Vocabulary::of_tokenizer(own)));
  EXPECT_TRUE(report_.for_hugging_face) << report_.reason;
  EXPECT_EQ(load_tokenizer(path("out"))->to_json(), own->to_json());
  EXPECT_TRUE(open_source_model(path("out")).model.vocabulary == Vocabulary::of_tokenizer(own));
  const auto written = load_tokenizer(path("out/tokenizer.json"));
  EXPECT_EQ(written->framed(written->encode("  the word\n")), own->framed(own->encode("  the word\n")));
}

TEST_F(TransformersExport, CardWarnsOfATokenizerThatTransformersCannotRead) {
  SentencePieceProto proto;
  proto.pieces = {
      {"<unk>", 0, SentencePieceProto::Type::unknown}, {"a", -1}, {"new", 0, SentencePieceProto::Type::user_defined}};
  const auto own = load_tokenizer(file("a.model", proto.serialized()));
  exported(make([](Settings&) {}, Vocabulary::of_tokenizer(own)));
  EXPECT_THAT(report_.tokenizer_obstacle, HasSubstr("user-defined"));
  EXPECT_FALSE(std::filesystem::exists(path("out/tokenizer.json")));
  EXPECT_TRUE(std::filesystem::exists(path("out/tokenizer.model")));
  const std::string card = content(path("out/README.md"));
  EXPECT_THAT(card, HasSubstr("**Warning:** AutoTokenizer does not give the ids of this model's tokenizer: it has "
                              "user-defined tokens, such as 'new'."));
  EXPECT_THAT(card, ::testing::Not(HasSubstr("import AutoModelForCausalLM, AutoTokenizer")));
}

TEST_F(TransformersExport, NamesTheClassOfEachHead) {
  const auto auto_map = [&](const std::function<void(Settings&)>& change, const Vocabulary& vocabulary) {
    return exported(make(change, vocabulary)).at("auto_map");
  };
  const Vocabulary plain = Vocabulary::bytes(true), labeled = plain.with_labels({"no", "yes"});
  EXPECT_EQ(auto_map([](Settings& s) { encoder(s, Objective::masked_tokens); }, plain).at("AutoModelForMaskedLM"),
            "modeling_furlong.FurlongForMaskedLM");
  EXPECT_TRUE(tensors().contains("model.token_embedding.weight"));
  const Json classes = auto_map(
      [](Settings& s) {
        encoder(s, Objective::classification);
        s.model.attention.mechanism = "softmax";
      },
      labeled);
  EXPECT_EQ(classes.at("AutoModelForSequenceClassification"), "modeling_furlong.FurlongForSequenceClassification");
  EXPECT_FALSE(classes.contains("AutoModelForMaskedLM"));
  EXPECT_TRUE(tensors().contains("classifier.weight"));
  EXPECT_THAT(report_.reason, ::testing::StartsWith("classifiers of transformers have a dense layer before"));
  const Json pairs = exported(make([](Settings& s) { encoder(s, Objective::pair_classification); }, labeled));
  EXPECT_EQ(pairs.at("pair_classification"), true);
  EXPECT_EQ(pairs.at("id2label"), Json({{"0", "no"}, {"1", "yes"}}));
  EXPECT_TRUE(tensors().contains("matching.weight"));
  EXPECT_FALSE(pairs.contains("problem_type"));
  const Json sets = exported(make([](Settings& s) { encoder(s, Objective::multi_label_classification); }, labeled));
  EXPECT_EQ(sets.at("problem_type"), "multi_label_classification");
  const Vocabulary numbers = plain.with_labels({"tm", "activity"}, {{60.5, 8.25}, {0.1, 1e-3}});
  const Json regression = exported(make([](Settings& s) { encoder(s, Objective::regression); }, numbers));
  EXPECT_EQ(regression.at("problem_type"), "regression");
  EXPECT_EQ(regression.at("label_scales"), Json({{60.5, 8.25}, {0.1, 1e-3}}));
  EXPECT_EQ(regression.at("architectures"), Json::array({"FurlongForSequenceClassification"}));
  const Json of_tokens = exported(make([](Settings& s) { encoder(s, Objective::token_classification); }, labeled));
  EXPECT_EQ(of_tokens.at("architectures"), Json::array({"FurlongForTokenClassification"}));
  EXPECT_EQ(of_tokens.at("auto_map").at("AutoModelForTokenClassification"),
            "modeling_furlong.FurlongForTokenClassification");
  EXPECT_THAT(transformers_card(make([](Settings& s) { encoder(s, Objective::token_classification); }, labeled), ""),
              HasSubstr("pipeline_tag: token-classification\n"));
  const Json none = exported(make([](Settings& s) {
    encoder(s, Objective::masked_tokens);
    s.model.prediction_head = layers::PredictionHead::none;
  }));
  EXPECT_EQ(none.at("architectures"), Json::array({"FurlongModel"}));
}

TEST_F(TransformersExport, NamesParametersAfterTheirModules) {
  exported(make([](Settings& s) {
    s.model.attention.feature_map = "hedgehog";
    s.model.attention.n_features = 0;
    s.model.attention.mechanism = layers::AttentionConfig{}.mechanism;
    s.model.attention.layer_mechanisms = {"linear", "softmax linear linear softmax"};
    s.model.tied_embeddings = false;
    s.model.output_bias = true;
    s.model.short_convolution = 3;
  }));
  const std::set<std::string> names = tensors();
  for (const char* name :
       {"lm_head.weight", "lm_head.bias", "model.final_norm.gain", "model.blocks.0.attention.mechanism.key_features",
        "model.blocks.1.attention.heads_1_2.query_features", "model.blocks.1.attention.short_convolution.weight"})
    EXPECT_TRUE(names.contains(name)) << name;
}

TEST_F(TransformersExport, ComesBackBitForBit) {
  const auto comes_back = [&](const std::function<void(Settings&)>& change, const Vocabulary& vocabulary) {
    const Model before = make(change, vocabulary);
    exported(make(change, vocabulary));
    const SourceModel after = open_source_model(path("out"));
    EXPECT_EQ(after.model.settings, before.settings);
    EXPECT_TRUE(after.model.vocabulary == before.vocabulary);
    ASSERT_EQ(after.model.store->parameters().size(), before.store->parameters().size());
    for (const Parameter& parameter : before.store->parameters())
      EXPECT_EQ(after.model.store->find(parameter.name()).master().to_vector<float>(),
                parameter.master().to_vector<float>())
          << parameter.name();
  };
  const Vocabulary bytes = Vocabulary::bytes(true);
  for (const char* last : {"softmax", "linear"}) {  // several runs of heads, and one
    comes_back(
        [last](Settings& s) {
          s.model.attention.mechanism = layers::AttentionConfig{}.mechanism;
          s.model.attention.head_mechanisms = {"linear", "linear", last, last};
        },
        bytes);
  }
  comes_back(
      [](Settings& s) {
        encoder(s, Objective::masked_tokens);
        s.model.attention = s.model.attention.plain();
        s.model.attention.mechanism = "linformer";
        s.model.attention.sharing = layers::ProjectionSharing::layers;
      },
      Vocabulary::protein());
  comes_back([](Settings& s) { encoder(s, Objective::pair_classification); }, bytes.with_labels({"no", "yes"}));
  comes_back([](Settings& s) { encoder(s, Objective::token_classification); }, bytes.with_labels({"no", "yes"}));
  comes_back([](Settings& s) { encoder(s, Objective::regression); }, bytes.with_labels({"tm"}, {{60.5, 8.25}}));
  const auto scales = open_source_model(path("out")).model.vocabulary.label_scales();
  ASSERT_EQ(scales.size(), 1U);
  EXPECT_EQ(scales[0].mean, 60.5);
  EXPECT_EQ(scales[0].scale, 8.25);
}

/// The embedded Python file of this name.
std::string python_source(const std::string& name) {
  for (const auto& [file, text] : transformers_sources())
    if (file == name) return text;
  ADD_FAILURE() << name << " is not embedded";
  return {};
}

TEST_F(TransformersExport, PythonNamesEveryFeatureMap) {
  const std::string source = python_source("features_furlong.py");
  for (const ops::FeatureMapInfo& info : ops::feature_maps()) {
    EXPECT_THAT(source, HasSubstr(fmt::format("\"{}\"", info.name)))
        << "a feature map without code in conversion/transformers/features_furlong.py";
  }
}

TEST_F(TransformersExport, ConfigHasThePropertiesOfTheFeatureMap) {
  for (const ops::FeatureMapInfo& info : ops::feature_maps()) {
    SCOPED_TRACE(info.name);
    const Json config = transformers_config(make([&](Settings& s) {
      s.model.attention.feature_map = info.name;
      s.model.attention.n_features = info.needs_random_projection ? 8 : 0;
    }));
    EXPECT_EQ(config.at("feature_map"), info.name);
    EXPECT_EQ(config.at("signed_features"), info.can_cancel);
    EXPECT_EQ(config.at("needs_oprf_a"), info.needs_oprf_a);
    EXPECT_EQ(config.at("learns_inputs"), info.learns_inputs);
  }
}

// A key that changes the arithmetic and is missing in the exported config would give exported models other outputs.
TEST_F(TransformersExport, EveryModelKeyIsExportedOrMattersOnlyInTraining) {
  const std::map<std::string, std::string> exported_names{{"model.attention.mechanism", "attention_layers"},
                                                          {"model.attention.layers", "attention_layers"},
                                                          {"model.attention.heads", "attention_layers"},
                                                          {"model.attention.window", "window"},
                                                          {"model.attention.softmax_window", "softmax_window"},
                                                          {"model.attention.feature_map", "feature_map"},
                                                          {"model.attention.n_features", "random_features"},
                                                          {"model.attention.order", "order"},
                                                          {"model.attention.kernel_epsilon", "kernel_epsilon"},
                                                          {"model.attention.normalizer", "normalizer"},
                                                          {"model.attention.centering", "centering"},
                                                          {"model.attention.scaling", "scaling"},
                                                          {"model.attention.denominator_guard", "denominator_guard"},
                                                          {"model.attention.chunk_size", "chunk_size"},
                                                          {"model.attention.projected_length", "projected_length"},
                                                          {"model.attention.projection", "projection"},
                                                          {"model.attention.sharing", "sharing"},
                                                          {"model.architecture", "causal"},
                                                          {"model.vocabulary_size", "vocab_size"},
                                                          {"model.n_layers", "num_hidden_layers"},
                                                          {"model.d_model", "hidden_size"},
                                                          {"model.n_heads", "num_attention_heads"},
                                                          {"model.n_key_value_heads", "num_key_value_heads"},
                                                          {"model.d_head", "head_dim"},
                                                          {"model.d_feedforward", "intermediate_size"},
                                                          {"model.activation", "hidden_act"},
                                                          {"model.norm", "norm"},
                                                          {"model.norm_epsilon", "norm_epsilon"},
                                                          {"model.norm_placement", "norm_placement"},
                                                          {"model.embedding_norm", "embedding_norm"},
                                                          {"model.query_key_norm", "query_key_norm"},
                                                          {"model.bias", "use_bias"},
                                                          {"model.query_key_value_bias", "query_key_value_bias"},
                                                          {"model.token_dropout", "token_dropout"},
                                                          {"model.shared_layers", "shared_layers"},
                                                          {"model.d_embedding", "embedding_size"},
                                                          {"model.n_segments", "type_vocab_size"},
                                                          {"model.tied_embeddings", "tie_word_embeddings"},
                                                          {"model.prediction_head", "prediction_head"},
                                                          {"model.output_bias", "output_bias"},
                                                          {"model.position", "position"},
                                                          {"model.rotary_base", "rotary_base"},
                                                          {"model.rotary_placement", "rotary_placement"},
                                                          {"model.rotary_scaling", "rotary_frequencies"},
                                                          {"model.rotary_scaling_factor", "rotary_frequencies"},
                                                          {"model.rotary_original_length", "rotary_frequencies"},
                                                          {"model.rotary_low_frequency_factor", "rotary_frequencies"},
                                                          {"model.rotary_high_frequency_factor", "rotary_frequencies"},
                                                          {"model.rotary_beta_fast", "rotary_frequencies"},
                                                          {"model.rotary_beta_slow", "rotary_frequencies"},
                                                          {"model.rotary_attention_factor", "rotary_attention_factor"},
                                                          {"model.max_sequence_length", "max_position_embeddings"},
                                                          {"model.dropout", "dropout"},
                                                          {"model.short_convolution", "short_convolution"},
                                                          {"model.initializer_range", "initializer_range"}};
  // Random projections are tensors, adapters are merged, and dtype is that of the tensors.
  const std::set<std::string> only_in_training{"model.attention.max_features",
                                               "model.attention.random_projection",
                                               "model.attention.redraw_every",
                                               "model.lora_rank",
                                               "model.lora_alpha",
                                               "model.dtype",
                                               "model.weights"};

  Json config = transformers_config(make([](Settings&) {}));
  config.update(transformers_config(make([](Settings& s) {
    encoder(s, Objective::masked_tokens);
    s.model.attention = s.model.attention.plain();
    s.model.attention.mechanism = "linformer";
  })));
  const std::string python = python_source("configuration_furlong.py");
  Settings settings;
  const config::Table table = settings_table(settings);
  std::set<std::string> keys;
  for (const config::Key& key : table.keys()) {
    if (!key.path().starts_with("model.")) continue;
    keys.insert(key.path());
    const auto found = exported_names.find(key.path());
    ASSERT_NE(found != exported_names.end(), only_in_training.contains(key.path()))
        << key.path() << ": if it changes the arithmetic, add it to transformers_config() and to "
        << "conversion/transformers/, and here to exported_names; otherwise reset it in computation_settings(), and "
        << "add it here to only_in_training";
    if (found == exported_names.end()) continue;
    EXPECT_TRUE(config.contains(found->second)) << key.path();
    EXPECT_THAT(python, HasSubstr(fmt::format("\n        {}=", found->second))) << "an argument of FurlongConfig";
  }
  for (const auto& [key, name] : exported_names) EXPECT_TRUE(keys.contains(key)) << key << " is no key";
  for (const std::string& key : only_in_training) EXPECT_TRUE(keys.contains(key)) << key << " is no key";
}

}  // namespace
}  // namespace furlong
