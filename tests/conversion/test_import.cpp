// Imports of other programs' models: results compared with references, and rejected files.
#include "conversion/import_model.h"

#include <gmock/gmock.h>

#include "conversion/convert.h"
#include "framework/core/log.h"
#include "framework/io/atomic_file.h"
#include "tests/conversion/naive_transformer.h"
#include "tests/temporary_folder.h"
#include "trainers/model/weights.h"

namespace furlong {
namespace {

using namespace furlong::testing;

class Import : public WithTemporaryFolder {
 protected:
  std::string written(const TinyModel& model) { return model.write(folder_ / "source"); }

  /// Returns the logits or hidden states of one row.
  static std::vector<float> computed(Model& model, const std::vector<int>& tokens, const std::vector<int>& segments,
                                     bool hidden) {
    Tape tape(Stream{});
    const Tape::NoGradient guard(tape);
    layers::ForwardContext context{tape};
    const auto n = static_cast<std::int64_t>(tokens.size());
    const auto as_tensor = [&](const std::vector<int>& ids) {
      return Tensor::from(std::vector<std::int32_t>(ids.begin(), ids.end()), {1, n});
    };
    if (!segments.empty()) context.segments = as_tensor(segments);
    const Tensor input = as_tensor(tokens);
    const Tensor states =
        (model.encoder ? model.encoder->hidden(context, input) : model.decoder->hidden(context, input)).value();
    if (hidden) return states.to_vector<float>();
    const Tensor rows = states.reshape({n, states.extent(2)});
    return (model.encoder ? model.encoder->logits(Stream{}, rows) : model.decoder->logits(Stream{}, rows))
        .to_vector<float>();
  }

  static void expect_near(const std::vector<float>& found, const Rows& wanted) {
    // Two layers of float32 products of at most 20 numbers below 2: a few hundred rounding errors of 6e-8 each,
    // relative to logits around 3.
    constexpr double tolerance = 2e-5;
    ASSERT_EQ(found.size(), wanted.size() * wanted[0].size());
    double largest = 0;
    for (std::size_t i = 0; i < found.size(); ++i) {
      const double expected = wanted[i / wanted[0].size()][i % wanted[0].size()];
      EXPECT_NEAR(static_cast<double>(found[i]), expected, tolerance) << "number " << i;
      largest = std::max(largest, std::abs(expected));
    }
    EXPECT_GT(largest, 1) << "logits too small for a comparison";
  }

  /// Returns the error of an import, and checks that nothing was written.
  std::string refused(const std::filesystem::path& source, const ImportOptions& import = {}) {
    ConvertOptions options;
    options.source = source;
    options.destination = path("out.h5");
    options.import = import;
    const std::string message = message_of<UserError>([&] { convert(options); });
    EXPECT_FALSE(std::filesystem::exists(options.destination)) << message;
    EXPECT_TRUE(partial_files(path("out.h5")).empty()) << message;
    return message;
  }
};

using ::testing::HasSubstr;
const std::vector<int> row{5, 9, 24, 3, 7, 7, 11};

TEST_F(Import, LlamaMatchesReference) {
  const TinyModel tiny = tiny_llama();
  SourceModel source = open_source_model(written(tiny));
  expect_near(computed(source.model, row, {}, false), NaiveTransformer(tiny).llama(row));
  EXPECT_EQ(source.report.matched.size(), source.model.store->parameters().size());
  EXPECT_TRUE(source.report.is_faultless(false, false));
  EXPECT_TRUE(source.report.reinitialized.empty());
}

TEST_F(Import, BertMatchesReference) {
  const TinyModel tiny = tiny_bert();
  SourceModel source = open_source_model(written(tiny));
  const std::vector<int> segments{0, 0, 0, 1, 1, 1, 1}, none(row.size());
  expect_near(computed(source.model, row, segments, false), NaiveTransformer(tiny).bert_logits(row, segments));
  expect_near(computed(source.model, row, {}, false), NaiveTransformer(tiny).bert_logits(row, none));
}

TEST_F(Import, BertWithoutHeadReturnsHiddenStates) {
  const TinyModel tiny = tiny_bert(false);
  SourceModel source = open_source_model(written(tiny));
  expect_near(computed(source.model, row, {}, true),
              NaiveTransformer(tiny).bert_states(row, std::vector<int>(row.size()), ""));
  EXPECT_EQ(source.model.settings.model.prediction_head, layers::PredictionHead::none);
  EXPECT_FALSE(source.model.settings.model.output_bias);
  EXPECT_THAT(message_of<UserError>([&] { require_output_layer(source.model.settings, "x.h5"); }),
              HasSubstr("x.h5: the model has no output layer over tokens (model.prediction_head: none)"));
  TinyModel albert = tiny_albert();
  for (const char* name : {"predictions.dense.weight", "predictions.dense.bias", "predictions.LayerNorm.weight",
                           "predictions.LayerNorm.bias", "predictions.bias"})
    albert.remove(name);
  EXPECT_EQ(open_source_model(written(albert)).model.settings.model.prediction_head, layers::PredictionHead::none);
}

// A model without a masked-token head can be trained with a label head.
TEST_F(Import, ModelWithoutHeadCanTrainOnLabels) {
  SourceModel source = open_source_model(written(tiny_bert(false)));
  write_model(source.model, source.origin, path("headless.h5"));
  Settings settings = source.model.settings;
  const layers::ModelConfig unset;
  settings.model.prediction_head = unset.prediction_head;
  settings.objective.name = Objective::classification;
  settings.data.sampler = "random";
  const Vocabulary vocabulary = source.model.vocabulary.with_labels({"no", "yes"});
  Model classifier = make_empty_model(settings, vocabulary, Device{});
  const WeightsReport report = initialize_from(CheckpointReader::open(path("headless.h5")), classifier);
  EXPECT_THAT(report.unused, ::testing::IsEmpty());
  EXPECT_THAT(report.missing, ::testing::Contains("classifier.weight"));
  Model drawn = make_model(settings, vocabulary, Device{});
  for (const std::string& name : report.missing) {
    EXPECT_TRUE(name.starts_with("classifier.")) << name;
    EXPECT_EQ(classifier.store->find(name).master().to_vector<float>(),
              drawn.store->find(name).master().to_vector<float>())
        << name;
  }
}

// Older names of gains and biases.
TEST_F(Import, ReadsGammaAndBeta) {
  TinyModel tiny = tiny_bert();
  const TinyModel before = tiny;
  for (const auto& [name, tensor] : before.described) {
    const std::size_t at = name.find("LayerNorm.");
    if (at == std::string::npos) continue;
    const bool bias = name.ends_with("bias");
    const std::string other = name.substr(0, at + 10) + (bias ? "beta" : "gamma");
    tiny.described[other] = {other, tensor.shape, tensor.stored_type};
    tiny.values[other] = tiny[name];
    tiny.remove(name);
  }
  SourceModel source = open_source_model(written(tiny));
  expect_near(computed(source.model, row, {}, false),
              NaiveTransformer(before).bert_logits(row, std::vector<int>(row.size())));
}

TEST_F(Import, ReadsSettingsOfEachFamily) {
  const layers::ModelConfig gpt2 = open_source_model(tiny_gpt2().write(folder_ / "gpt2")).model.settings.model;
  EXPECT_EQ(gpt2.activation, layers::Activation::gelu_tanh);
  EXPECT_EQ(gpt2.position, layers::Position::learned);
  EXPECT_EQ(gpt2.max_sequence_length, 12);
  EXPECT_EQ(gpt2.d_feedforward, 20);
  EXPECT_TRUE(gpt2.tied_embeddings);
  const layers::ModelConfig llama = open_source_model(tiny_llama().write(folder_ / "llama")).model.settings.model;
  EXPECT_EQ(llama.attention.n_kv_heads, 2);
  EXPECT_EQ(llama.attention.d_head, 4);
  EXPECT_EQ(llama.rotary_base, 100);
  EXPECT_FALSE(llama.bias);
  EXPECT_FALSE(llama.tied_embeddings);
  const SourceModel albert = open_source_model(tiny_albert().write(folder_ / "albert"));
  EXPECT_TRUE(albert.model.settings.model.shared_layers);
  EXPECT_EQ(albert.model.settings.model.d_embedding, 4);
  EXPECT_EQ(albert.model.settings.objective.name, Objective::masked_tokens);
  EXPECT_EQ(albert.model.vocabulary.size(), 25);
}

TEST_F(Import, ReadsOtherNamesOfGpt2Keys) {
  TinyModel tiny = tiny_gpt2();
  const auto layers = tiny.config["n_layer"], heads = tiny.config["n_head"], length = tiny.config["n_positions"],
             width = tiny.config["n_embd"];
  for (const char* key : {"n_layer", "n_head", "n_positions", "n_embd"}) tiny.config.erase(key);
  tiny.config.update({{"num_hidden_layers", layers},
                      {"num_attention_heads", heads},
                      {"max_position_embeddings", length},
                      {"hidden_size", width}});
  const layers::ModelConfig read = open_source_model(tiny.write(folder_ / "aliases")).model.settings.model;
  EXPECT_EQ(read, open_source_model(tiny_gpt2().write(folder_ / "plain")).model.settings.model);
}

TEST_F(Import, ReadsRotaryScaling) {
  const auto of = [&](const char* key, const Json& rope) {
    TinyModel tiny = tiny_llama();
    tiny.config[key] = rope;
    return open_source_model(tiny.write(folder_ / "scaled")).model.settings.model;
  };
  const layers::ModelConfig linear = of("rope_scaling", {{"type", "linear"}, {"factor", 2.0}});
  EXPECT_EQ(linear.rotary_scaling.kind, ops::RotaryScalingKind::linear);
  EXPECT_EQ(linear.rotary_scaling.factor, 2);
  const layers::ModelConfig llama3 = of("rope_parameters", {{"rope_type", "llama3"},
                                                            {"rope_theta", 500.0},
                                                            {"factor", 8.0},
                                                            {"low_freq_factor", 1.0},
                                                            {"high_freq_factor", 4.0},
                                                            {"original_max_position_embeddings", 16}});
  EXPECT_EQ(llama3.rotary_scaling.kind, ops::RotaryScalingKind::llama3);
  EXPECT_EQ(llama3.rotary_base, 500);
  EXPECT_EQ(llama3.rotary_scaling.original_length, 16);
  const layers::ModelConfig yarn = of("rope_scaling", {{"rope_type", "yarn"},
                                                       {"factor", 4.0},
                                                       {"original_max_position_embeddings", 16},
                                                       {"mscale", 1.0},
                                                       {"mscale_all_dim", 0.5}});
  EXPECT_EQ(yarn.rotary_scaling.kind, ops::RotaryScalingKind::yarn);
  EXPECT_NEAR(yarn.rotary_scaling.attention_factor, (0.1 * std::log(4.0) + 1) / (0.05 * std::log(4.0) + 1), 1e-15);
  EXPECT_EQ(of("rope_scaling", {{"type", "linear"}, {"factor", 1.0}}).rotary_scaling.kind,
            ops::RotaryScalingKind::none);
}

// Versions of transformers write some keys in several places.
TEST_F(Import, ReadsRotaryKeysAsTransformersDoes) {
  using ops::RotaryScalingKind;
  const auto with = [&](const Json& changes) {
    TinyModel tiny = tiny_llama();
    tiny.config.update(changes);
    return tiny.write(folder_ / "scaled");
  };
  const auto of = [&](const Json& changes) {
    return open_source_model(with(changes)).model.settings.model.rotary_scaling;
  };
  const Json yarn{{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 16}};
  const Json plain{{"rope_type", "default"}, {"rope_theta", 100.0}},
      other{{"rope_type", "default"}, {"rope_theta", 500.0}};
  EXPECT_EQ(of({{"rope_scaling", yarn}, {"rope_parameters", plain}}).kind, RotaryScalingKind::yarn);
  EXPECT_EQ(of({{"rope_scaling", Json::object()}, {"rope_parameters", yarn}}).kind, RotaryScalingKind::yarn);
  EXPECT_EQ(of({{"rope_scaling", nullptr}, {"rope_parameters", yarn}}).kind, RotaryScalingKind::yarn);
  EXPECT_THAT(refused(with({{"rope_scaling", yarn}, {"rope_parameters", other}})),
              HasSubstr("config.json: rope_parameters.rope_theta: found 500"));

  Json llama3{{"rope_type", "llama3"},
              {"factor", 8.0},
              {"low_freq_factor", 1.0},
              {"high_freq_factor", 4.0},
              {"original_max_position_embeddings", 16}};
  for (const Json& rope : {yarn, llama3}) {
    EXPECT_EQ(of({{"rope_scaling", rope}}).original_length, 16);
    EXPECT_EQ(of({{"rope_scaling", rope}, {"original_max_position_embeddings", 8}}).original_length, 8);
  }

  Json sharper = yarn;  // the frequencies stay, the scores change
  sharper["factor"] = 1.0;
  EXPECT_EQ(of({{"rope_scaling", sharper}}).kind, RotaryScalingKind::none);
  sharper["attention_factor"] = 1.25;
  EXPECT_EQ(of({{"rope_scaling", sharper}}).kind, RotaryScalingKind::yarn);
  EXPECT_EQ(of({{"rope_scaling", sharper}}).attention_factor, 1.25);
}

// Unsupported keys that change the computation are rejected by name.
TEST_F(Import, RejectsUnsupportedKeys) {
  struct Case {
    TinyModel model;
    const char* key;
    Json value;
  };
  const std::vector<Case> cases{{tiny_gpt2(), "scale_attn_by_inverse_layer_idx", true},
                                {tiny_gpt2(), "scale_attn_weights", false},
                                {tiny_gpt2(), "activation_function", "tanh"},
                                {tiny_gpt2(), "add_cross_attention", true},
                                {tiny_gpt2(), "is_causal", false},
                                {tiny_gpt2(), "n_head", 3},
                                {tiny_gpt2(), "n_layer", -1},
                                {tiny_gpt2(), "n_embd", "eight"},
                                {tiny_llama(), "attention_bias", true},
                                {tiny_llama(), "mlp_bias", true},
                                {tiny_llama(), "is_causal", false},
                                {tiny_llama(), "hidden_act", "relu"},
                                {tiny_llama(), "sliding_window", 128},
                                {tiny_llama(), "partial_rotary_factor", 0.5},
                                {tiny_llama(), "rope_scaling", {{"type", "dynamic"}, {"factor", 2.0}}},
                                {tiny_bert(), "position_embedding_type", "relative_key"},
                                {tiny_bert(), "is_decoder", true},
                                {tiny_albert(), "num_hidden_groups", 2},
                                {tiny_albert(), "inner_group_num", 2},
                                {tiny_bert(), "model_type", "mamba"}};
  for (const Case& one : cases) {
    TinyModel model = one.model;
    model.config[one.key] = one.value;
    const std::string key = one.key, message = refused(model.write(folder_ / "refused"));
    EXPECT_THAT(message, HasSubstr("config.json")) << message;
    // After the config is read, n_head is called model.n_heads.
    if (key != "n_head") {
      EXPECT_THAT(message, HasSubstr(key == "rope_scaling" ? "rope_scaling.type" : key)) << message;
    }
  }
}

// For any value of any key an import succeeds or fails in one line, without taking minutes or gigabytes.
TEST_F(Import, HandlesAnyValueOfAnyKey) {
  const std::vector<Json> values{nullptr,
                                 true,
                                 false,
                                 0,
                                 -1,
                                 1,
                                 2,
                                 3,
                                 1000000000,
                                 2147483648LL,
                                 1e300,
                                 1e-300,
                                 0.5,
                                 "",
                                 "x",
                                 "gelu",
                                 Json::array(),
                                 Json::object(),
                                 Json::array({1, 2})};
  int accepted = 0, refused = 0;
  for (const TinyModel& tiny : {tiny_gpt2(), tiny_llama(), tiny_bert(), tiny_albert()}) {
    const std::filesystem::path source = tiny.write(folder_ / "any");
    Json keys = tiny.config;
    keys["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 2.0}};  // and missing keys
    keys["tie_word_embeddings"] = true;
    keys["n_inner"] = nullptr;
    for (const auto& [key, before] : keys.items()) {
      for (const Json& value : values) {
        Json config = tiny.config;
        config[key] = value;
        write_file(source / "config.json", config.dump());
        try {
          open_source_model(source);
          ++accepted;
        } catch (const UserError& error) {
          EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
          ++refused;
        } catch (const std::exception& error) {
          ADD_FAILURE() << tiny.config.at("model_type") << ": " << key << " = " << value << ": " << error.what();
        }
      }
    }
  }
  EXPECT_GT(accepted, 50);
  EXPECT_GT(refused, 500);
}

TEST_F(Import, AccountsForEveryTensor) {
  TinyModel missing = tiny_gpt2();
  missing.remove("transformer.h.1.ln_2.bias");
  EXPECT_THAT(refused(missing.write(folder_ / "missing")), AllOf(HasSubstr("1 missing (transformer.h.1.ln_2.bias [8])"),
                                                                 ::testing::Not(HasSubstr("--allow-unexpected"))));

  TinyModel extra = tiny_gpt2();
  extra.add("transformer.h.2.ln_1.weight", {8}, 1);
  EXPECT_THAT(
      refused(extra.write(folder_ / "extra")),
      HasSubstr("1 unexpected (transformer.h.2.ln_1.weight [8]); furlong convert --allow-unexpected imports the model "
                "without them"));

  TinyModel misshapen = tiny_gpt2();
  misshapen.add("transformer.wpe.weight", {13, 8}, 1);
  EXPECT_THAT(refused(misshapen.write(folder_ / "misshapen")),
              HasSubstr("1 misshapen (transformer.wpe.weight [13, 8], expected [12, 8])"));

  // A transposed square matrix has the right shape; the shape of c_attn reveals the wrong layout.
  TinyModel turned = tiny_gpt2();
  turned.add("transformer.h.0.attn.c_attn.weight", {24, 8}, 1);
  EXPECT_THAT(refused(turned.write(folder_ / "turned")), HasSubstr("expected [8, 24]"));

  TinyModel unequal = tiny_bert();
  unequal.values["cls.predictions.decoder.weight"][5] += 0.5F;
  EXPECT_THAT(refused(unequal.write(folder_ / "unequal")), HasSubstr("unequal"));

  TinyModel broken = tiny_llama();
  broken.values["model.norm.weight"][3] = std::numeric_limits<float>::infinity();
  EXPECT_THAT(refused(broken.write(folder_ / "broken")), HasSubstr("model.norm.weight contains inf"));

  TinyModel other = tiny_gpt2("other.");
  EXPECT_THAT(refused(other.write(folder_ / "other")), HasSubstr("tensor transformer.wte.weight is missing"));
}

// safetensors.torch.save_model() keeps one of several names for shared weights.
TEST_F(Import, ReadsTiedWeightsUnderTheNameOfTheOutputLayer) {
  const TinyModel both = tiny_gpt2();
  TinyModel one = both;
  one.remove("lm_head.weight");
  one.add("lm_head.weight", {tiny_vocabulary, 8}, 1);
  one.values["lm_head.weight"] = both["transformer.wte.weight"];
  one.remove("transformer.wte.weight");
  SourceModel usual = open_source_model(both.write(folder_ / "both"));
  SourceModel found = open_source_model(one.write(folder_ / "one"));
  EXPECT_EQ(computed(found.model, row, {}, false), computed(usual.model, row, {}, false));
}

TEST_F(Import, WarnsOfLinksOutOfTheDirectory) {
  const std::string source = written(tiny_gpt2());
  file("secret", "private");
  std::filesystem::create_symlink("../secret", folder_ / "source/merges.txt");
  std::filesystem::create_symlink("vocab.txt", folder_ / "source/modules.json");
  const LogCapture captured;
  open_source_model(source);
  EXPECT_THAT(captured.text(), AllOf(HasSubstr("merges.txt: is a link to " + path("secret") + ", outside"),
                                     ::testing::Not(HasSubstr("modules.json"))));
}

TEST_F(Import, EncodersNeedARowForTheMaskToken) {
  TinyModel bert = tiny_bert();
  const std::string source = written(bert);
  std::string letters = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n";
  for (char letter = 'A'; std::count(letters.begin(), letters.end(), '\n') < tiny_vocabulary; ++letter)
    letters += std::string(1, letter) + "\n";
  file("source/vocab.txt", letters);
  EXPECT_THAT(refused(source), HasSubstr("its tokenizer of 27 tokens has no mask or class token, and the model's "
                                         "embedding of 27 no row for it; add a row to the model"));
}

TEST_F(Import, HonorsAllowMissingAndAllowUnexpected) {
  TinyModel tiny = tiny_gpt2();
  tiny.remove("transformer.h.1.ln_2.bias");
  tiny.remove("transformer.h.1.mlp.c_fc.weight");
  tiny.add("score.weight", {3, 8}, 1);
  const std::string source = written(tiny);
  ImportOptions options;
  options.allow_missing = true;
  EXPECT_THAT(refused(source, options), HasSubstr("1 unexpected (score.weight [3, 8])"));
  options.allow_unexpected = true;
  const SourceModel found = open_source_model(source, options);
  ASSERT_EQ(found.report.reinitialized.size(), 2U);
  EXPECT_EQ(found.report.reinitialized[0].name, "blocks.1.feedforward_norm.bias");
  const std::string up = found.report.reinitialized[1].name;
  EXPECT_EQ(up, "blocks.1.feedforward.input.weight");
  const Model drawn = make_model(found.model.settings, found.model.vocabulary, Device{});
  EXPECT_EQ(found.model.store->find(up).master().to_vector<float>(), drawn.store->find(up).master().to_vector<float>());
  ASSERT_EQ(found.origin->carried.size(), 3U);  // two causal masks and the head
  EXPECT_EQ(found.origin->carried[2].name, "score.weight");
}

TEST_F(Import, ReportsFaults) {
  TinyModel tiny = tiny_llama();
  tiny.remove("model.layers.0.mlp.up_proj.weight");
  tiny.remove("model.layers.1.mlp.up_proj.weight");
  std::string text;
  ImportOptions options;
  options.on_fault = [&](const TensorReport& report) { text = report.text(); };
  refused(written(tiny), options);
  EXPECT_THAT(text, HasSubstr("model.layers.N.mlp.up_proj.weight [20, 12]  (N = 0 to 1)"));
  EXPECT_THAT(text, HasSubstr("2 missing"));
}

TEST_F(Import, RejectsDamagedAndMissingFiles) {
  const std::string source = written(tiny_gpt2());
  const std::string weights = content(source + "/model.safetensors");
  for (const std::size_t length :
       {std::size_t{0}, std::size_t{5}, std::size_t{100}, weights.size() / 2, weights.size() - 1}) {
    file("source/model.safetensors", weights.substr(0, length));
    EXPECT_THAT(refused(source), HasSubstr("model.safetensors")) << length;
  }
  file("source/model.safetensors", weights);
  file("source/config.json", "{\"model_type\": \"gpt2\"");
  EXPECT_THAT(refused(source), HasSubstr("config.json: expected a JSON object"));
  file("source/config.json", "[]");
  EXPECT_THAT(refused(source), HasSubstr("config.json: expected a JSON object"));
  file("source/config.json", "{}");
  EXPECT_THAT(refused(source), HasSubstr("model_type: this key is missing"));
  std::filesystem::remove(source + "/model.safetensors");
  file("source/config.json", tiny_gpt2().config.dump());
  EXPECT_THAT(refused(source), HasSubstr(source));
  EXPECT_THAT(refused(path("nowhere")), HasSubstr("nowhere: does not exist; expected a Hugging Face directory"));
}

TEST_F(Import, RejectsMismatchedTokenizer) {
  const std::string source = written(tiny_gpt2());
  std::filesystem::remove(source + "/vocab.txt");
  EXPECT_THAT(refused(source), HasSubstr("--tokenizer PATH"));
  ImportOptions options;
  options.tokenizer = letters_tokenizer(folder_ / "many", "ABCDEFGHIJKLMNOPQRSTUVWXYZ");
  EXPECT_THAT(refused(source, options), HasSubstr("31 tokens, but the model's embedding has 27"));
  options.tokenizer = letters_tokenizer(folder_ / "own");
  EXPECT_EQ(open_source_model(source, options).model.vocabulary.size(), 25);
}

// llama.cpp stores rotary pairs in rows 2i and 2i + 1; Furlong stores them in the halves of a head.
TEST(Mapping, ReordersInterleavedRows) {
  const Part part{"q", {8, 1}, Layout::interleaved, 4};
  const std::vector<float> foreign{0, 10, 1, 11, 20, 30, 21, 31};
  std::vector<float> ours(8), back(8);
  to_ours(part, foreign, ours);
  EXPECT_EQ(ours, (std::vector<float>{0, 1, 10, 11, 20, 21, 30, 31}));
  to_foreign(part, ours, back);
  EXPECT_EQ(back, foreign);
}

TEST(Mapping, TransposeRoundTrips) {
  const Part part{"w", {37, 70}, Layout::transposed};  // more than one tile in each direction
  std::vector<float> foreign(37 * 70), ours(foreign.size()), back(foreign.size());
  for (std::size_t i = 0; i < foreign.size(); ++i) foreign[i] = static_cast<float>(i);
  to_ours(part, foreign, ours);
  EXPECT_EQ(ours[5 * 37 + 11], foreign[11 * 70 + 5]);
  to_foreign(part, ours, back);
  EXPECT_EQ(back, foreign);
  EXPECT_EQ((Mapping{"p", {part}}.shape()), (Shape{70, 37}));
}

}  // namespace
}  // namespace furlong
