// Predictions of sequences without labels, against those of furlong evaluate --predictions.
#include "evaluation/predict.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "datasets/tokenizers/tokenizer.h"
#include "evaluation/measures/label_measures.h"
#include "framework/core/log.h"
#include "tests/datasets/tokenizers/small_tokenizers.h"
#include "tests/evaluation/sequence_testing.h"
#include "tests/framework/engine_testing.h"
#include "trainers/model/objective.h"

namespace furlong {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;
using testing::message_of;
using testing::residues;
using testing::with;

class PredictTest : public testing::WithTemporaryFolder {
 protected:
  static constexpr std::size_t documents = 20;

  static std::string sequence(std::size_t i) { return residues(3 + i * 5 % 17, i + 1); }
  /// The sequences as FASTA; the id of document i (from 1) is p<i>.
  std::string fasta() const {
    std::string text;
    for (std::size_t i = 0; i < documents; ++i) text += fmt::format(">p{} of a test\n{}\n", i + 1, sequence(i));
    return file("proteins.fasta", text);
  }
  /// The same sequences with labels, all in the training split.
  TokenizedDataset labeled(LabelKind kind) const {
    DatasetWriterOptions options;
    options.shares = {{1, 0, 0}};
    options.documents_per_label = 1;
    options.label_kind = kind;
    const std::string name = path(fmt::format("{}.h5", name_of(kind)));
    DatasetWriter writer(name, Vocabulary::protein(), options);
    for (std::size_t i = 0; i < documents; ++i) {
      const std::string text = sequence(i);
      std::vector<std::uint16_t> letters;
      for (const std::int32_t id : Vocabulary::protein().encode(text)) letters.push_back(std::uint16_t(id));
      writer.append(letters);
      writer.end_document();
      std::vector<std::int32_t> ids{static_cast<std::int32_t>(i % 2)};
      if (kind == LabelKind::tokens) {
        ids.clear();
        for (const char letter : text) ids.push_back(letter == 'A' ? -1 : letter % 2);
      }
      const std::vector<float> numbers{40.0F + static_cast<float>(i), -0.001F * static_cast<float>(i * i)};
      if (kind == LabelKind::numbers) {
        writer.label(DocumentLabel{{}, numbers});
      } else {
        writer.label(DocumentLabel{ids, {}});
      }
    }
    writer.finish("{}", {"first", "second"});
    return TokenizedDataset::open(name);
  }

  static std::vector<Json> rows_of(const std::string& text) {
    std::istringstream stream(text);
    std::vector<Json> rows;
    for (std::string line; std::getline(stream, line);) rows.push_back(Json::parse(line));
    return rows;
  }
  static std::string text_of(Model& model, const std::string& input, bool json_lines = true,
                             const PredictOptions& options = {}, ReadSummary* summary = nullptr) {
    std::string text;
    PredictionRows rows(json_lines, [&](std::string_view part) { text += part; });
    const ReadSummary found = predict(model, {.paths = {input}}, rows, options);
    if (summary) *summary = found;
    return text;
  }
  /// The rows of furlong evaluate --predictions.
  std::vector<Json> evaluated(Model& model, const TokenizedDataset& data) const {
    const LabelKind kind = model.settings.objective.label_kind();
    const std::vector<std::string>& labels = model.vocabulary.labels();
    std::vector<std::uint64_t> all(documents);
    for (std::size_t i = 0; i < documents; ++i) all[i] = i;
    PredictionFile file(path("p.jsonl"));
    file.set_documents(all);
    if (kind == LabelKind::classes) {
      const auto source = evaluation_source(model.settings, model.vocabulary, data, Split::train, 32, 3);
      file.write_labels(predict_labels(model, *source, 3).classes, labels);
    } else {
      LabelMeasures measures(model);
      evaluate(model, data, Split::train, 32, 3, 0, measures.loss(), {},
               [&](std::uint64_t first, const Batch& batch, const ops::CrossEntropyResult&) {
                 if (kind == LabelKind::tokens)
                   file.write_token_labels(first, batch, measures.logits(), model.vocabulary);
               });
      if (kind == LabelKind::numbers) file.write_numbers(measures.predicted(), data.label_numbers(), labels);
      if (kind == LabelKind::sets) file.write_sets(measures.predicted(), measures.targets(), labels);
    }
    file.commit();
    return rows_of(content(path("p.jsonl")));
  }
};

Model labeled_model(const Vocabulary& data, const std::vector<std::string>& overrides, const Device& device = {},
                    DType dtype = DType::float64) {
  const Settings settings =
      testing::small_settings("none.h5", with({"model.architecture=encoder", "model.initializer_range=0.5"}, overrides))
          .settings;
  return make_model(settings, model_vocabulary(settings, data), device, dtype);
}

Vocabulary classes() { return Vocabulary::protein().with_labels({"no", "yes"}); }

/// Expects the same predicted label, list or numbers, and probabilities.
void expect_same(const Json& found, const Json& expected, double tolerance = 1e-9) {
  ASSERT_EQ(found.contains("probabilities"), expected.contains("probabilities"));
  for (const char* key : {"predicted", "probabilities"}) {
    if (!expected.contains(key)) continue;
    if (!expected[key].is_object()) {
      EXPECT_EQ(found[key], expected[key]);
      continue;
    }
    ASSERT_EQ(found[key].size(), expected[key].size());
    for (const auto& [label, value] : expected[key].items())
      EXPECT_NEAR(found[key].at(label).get<double>(), value.get<double>(), tolerance) << key << " " << label;
  }
}

TEST_F(PredictTest, RowsHaveThePredictionsOfEvaluateInTheOrderOfTheInput) {
  const std::string input = fasta();
  for (const auto& [objective, kind] : std::vector<std::pair<std::vector<std::string>, LabelKind>>{
           {{"objective.name=classification"}, LabelKind::classes},
           {{"objective.name=classification", "objective.pooling=class_token"}, LabelKind::classes},
           {{"objective.name=regression", "model.position=learned", "model.max_sequence_length=32"},
            LabelKind::numbers},
           {{"objective.name=multi_label_classification", "model.attention.mechanism=linear"}, LabelKind::sets},
           {{"objective.name=token_classification"}, LabelKind::tokens}}) {
    const TokenizedDataset data = labeled(kind);
    Model model = labeled_model(data.vocabulary(), objective);
    const std::vector<Json> expected = evaluated(model, data);
    for (const std::int64_t batch_tokens : {1, 40, 8192}) {
      const std::vector<Json> rows = rows_of(text_of(model, input, true, {.batch_tokens = batch_tokens}));
      if (kind != LabelKind::tokens) {
        ASSERT_EQ(rows.size(), documents);
        ASSERT_EQ(expected.size(), documents);
        for (std::size_t i = 0; i < documents; ++i) {
          EXPECT_EQ(rows[i]["id"], fmt::format("p{}", i + 1));
          expect_same(rows[i], expected[i]);
        }
        continue;
      }
      std::size_t row = 0, labels = 0;
      for (std::size_t i = 0; i < documents; ++i) {
        for (std::size_t k = 0; k < sequence(i).size(); ++k, ++row) {
          ASSERT_LT(row, rows.size());
          EXPECT_EQ(rows[row]["id"], fmt::format("p{}", i + 1));
          EXPECT_EQ(rows[row]["position"], k + 1);
          EXPECT_EQ(rows[row]["token"], sequence(i).substr(k, 1));
          if (sequence(i)[k] == 'A') continue;  // without a label in the dataset
          ASSERT_LT(labels, expected.size());
          EXPECT_EQ(expected[labels]["document"], i + 1);
          EXPECT_EQ(expected[labels]["position"], k + 1);
          expect_same(rows[row], expected[labels++]);
        }
      }
      EXPECT_EQ(row, rows.size()) << "<document> has no row";
      EXPECT_EQ(labels, expected.size());
      EXPECT_LT(labels, row);
    }
  }
}

TEST_F(PredictTest, TsvHasTheColumnsOfEvaluate) {
  const std::string input = file("s.txt", "MKV\n\nAG\n");
  const auto header = [&](const std::string& objective, const Vocabulary& vocabulary) {
    Model model = labeled_model(vocabulary, {"objective.name=" + objective});
    const std::string text = text_of(model, input, false);
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), objective == "token_classification" ? 6 : 3);
    return text.substr(0, text.find('\n'));
  };
  const Vocabulary numbers = Vocabulary::protein().with_labels({"tm", "activity"}, {{50, 10}, {0, 1}});
  EXPECT_EQ(header("classification", classes()), "id\tpredicted\tprobability_no\tprobability_yes");
  EXPECT_EQ(header("multi_label_classification", classes()), "id\tpredicted\tprobability_no\tprobability_yes");
  EXPECT_EQ(header("regression", numbers), "id\tpredicted_tm\tpredicted_activity");
  EXPECT_EQ(header("token_classification", classes()),
            "id\tposition\ttoken\tpredicted\tprobability_no\tprobability_yes");
}

TEST_F(PredictTest, EmptySequencesAreLeftOutAndCounted) {
  Model model = labeled_model(classes(), {"objective.name=classification"});
  ReadSummary summary;
  const std::vector<Json> rows = rows_of(text_of(model, file("s.txt", "MKV\n\nAGW\n"), true, {}, &summary));
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(rows[0]["id"], "1");
  EXPECT_EQ(rows[1]["id"], "3");
  EXPECT_EQ(summary.empty, 1U);
  EXPECT_EQ(summary.sequences, 2U);
}

// [CLS] and [SEP] are no positions.
TEST_F(PredictTest, PositionsCountTheLettersOfATokenizer) {
  const Vocabulary letters =
      Vocabulary::of_tokenizer(load_tokenizer(testing::letters_tokenizer(path("letters")))).with_labels({"H", "E"});
  Model model = labeled_model(letters, {"objective.name=token_classification"});
  const std::vector<Json> rows = rows_of(text_of(model, file("s.fasta", ">a\nMK\n>b\nV\n")));
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_EQ(rows[1]["id"], "a");
  EXPECT_EQ(rows[1]["position"], 2);
  EXPECT_EQ(rows[1]["token"], "K");
  EXPECT_EQ(rows[2]["position"], 1);
  EXPECT_EQ(rows[2]["token"], "V");
}

TEST_F(PredictTest, LongSequencesAreCutAsInTraining) {
  const std::string input = file("s.fasta", ">short\nMKV\n>long\n" + residues(20) + "\n");
  const std::vector<std::string> objective{"objective.name=classification"};
  Model learned = labeled_model(classes(), with(objective, {"model.position=learned", "model.max_sequence_length=16",
                                                            "data.sequence_length=16"}));
  const std::string cut = file("cut.fasta", ">short\nMKV\n>long\n" + residues(20).substr(0, 16) + "\n");
  ReadSummary long_one, cut_one;
  EXPECT_EQ(text_of(learned, input, true, {}, &long_one), text_of(learned, cut, true, {}, &cut_one));
  EXPECT_EQ(long_one.cut, 1U);
  ReadSummary short_one;
  text_of(learned, file("short.fasta", ">short\nMKV\n"), true, {}, &short_one);
  EXPECT_EQ(short_one.cut, 0U);
  EXPECT_EQ(long_one.tokens, cut_one.tokens);
  EXPECT_THAT(message_of<UserError>([&] { text_of(learned, input, true, {.sequence_length = 17}); }),
              HasSubstr("--sequence-length 17: the model has 16 positions"));
  Model rotary = labeled_model(classes(), with(objective, {"data.sequence_length=16"}));
  EXPECT_EQ(text_of(rotary, input), text_of(rotary, cut));
  EXPECT_NE(text_of(rotary, input, true, {.sequence_length = 20}), text_of(rotary, cut));
}

TEST_F(PredictTest, PicturesAreRefusedAndNamesThatBeginAlikeAreNot) {
  Model model = labeled_model(classes(), {"objective.name=classification"});
  for (const std::string begin : {"\x89PNG\r\n\x1a\n", "P6 2 2 255\n", "P5\n# made by hand\n2 2\n255\n"})
    EXPECT_THAT(message_of<UserError>([&] { text_of(model, file("picture.txt", begin + "MKV\n")); }),
                HasSubstr("is a picture"));
  Model bytes = labeled_model(Vocabulary::bytes(true).with_labels({"no", "yes"}), {"objective.name=classification"});
  for (const char* text : {"P69905 is a protein\n", "P53 mutants\n", "P5 and P6\n"})
    EXPECT_NO_THROW(text_of(bytes, file("text.txt", text))) << text;
}

TEST_F(PredictTest, FilesOfFurlongAreRefused) {
  Model bytes = labeled_model(Vocabulary::bytes(true).with_labels({"no", "yes"}), {"objective.name=classification"});
  const std::string signature("\x89HDF\r\n\x1a\n");
  for (const std::string& begin : {signature, "FURLONG1" + std::string(504, '\0') + signature})
    EXPECT_THAT(message_of<UserError>([&] { text_of(bytes, file("data.h5", begin + "more")); }),
                HasSubstr("is an HDF5 file; expected text, FASTA, a table or JSON lines"));
}

// Read as text, each header and each line of a record would be a sequence.
TEST_F(PredictTest, FastaUnderAnotherNameIsNotReadAsText) {
  Model protein = labeled_model(classes(), {"objective.name=classification"});
  const std::string records = ">a first\nMKV\nMKV\n>b\nMKVMKV\n";
  const std::string expected = text_of(protein, file("records.fa", records));
  EXPECT_EQ(text_of(protein, file("RECORDS.FASTA", records)), expected);
  for (const char* before : {"", "\n \n", "; a comment\n"})
    EXPECT_THAT(message_of<UserError>([&] { text_of(protein, file("records.pep", before + records)); }),
                HasSubstr("begins with '>' as FASTA does, but is read as text, each line as a sequence; pass "
                          "--input-format fasta, or text"));
  Model bytes = labeled_model(Vocabulary::bytes(true).with_labels({"no", "yes"}), {"objective.name=classification"});
  const LogCapture captured;
  text_of(bytes, file("quote.txt", "> a quote\n"));
  EXPECT_THAT(captured.text(), HasSubstr("begins with '>' as FASTA does"));
}

TEST_F(PredictTest, ModelsWithoutLabelsOrOfPairsAreRefused) {
  const std::string input = file("s.txt", "MKV\n");
  Model causal = testing::sequence_model(Vocabulary::protein(), {}),
        masked = testing::sequence_model(Vocabulary::protein(), testing::encoder),
        pairs = labeled_model(classes(), {"objective.name=pair_classification"});
  for (Model* model : {&causal, &masked})
    EXPECT_THAT(message_of<UserError>([&] { text_of(*model, input); }), HasSubstr("predicts tokens, not labels"));
  EXPECT_THAT(message_of<UserError>([&] { text_of(pairs, input); }), HasSubstr("pairs of texts"));
}

class PredictEngines : public testing::EngineTest {
 protected:
  static std::vector<Json> rows(Model& model, const std::string& input) {
    std::string text;
    PredictionRows output(true, [&](std::string_view part) { text += part; });
    predict(model, {.paths = {input}}, output, {.batch_tokens = 24});
    std::istringstream lines(text);
    std::vector<Json> found;
    for (std::string line; std::getline(lines, line);) found.push_back(Json::parse(line));
    return found;
  }
};
FURLONG_INSTANTIATE_GPUS(PredictEngines);

TEST_P(PredictEngines, PredictionsEqualThoseOfTheCpu) {
  const std::filesystem::path input =
      std::filesystem::temp_directory_path() / fmt::format("predict_{}.txt", ::getpid());
  std::ofstream(input) << residues(5) << "\n" << residues(11, 2) << "\n" << residues(7, 3) << "\n";
  for (const std::string objective : {"classification", "token_classification"}) {
    const std::vector<std::string> overrides{"objective.name=" + objective, "model.attention.mechanism=softmax"};
    Model cpu = labeled_model(classes(), overrides, Device{}, DType::float32),
          gpu = labeled_model(classes(), overrides, testing::device(), DType::float32);
    const std::vector<Json> expected = rows(cpu, input.string()), found = rows(gpu, input.string());
    ASSERT_EQ(found.size(), expected.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
      EXPECT_EQ(found[i]["id"], expected[i]["id"]);
      for (const auto& [label, value] : expected[i]["probabilities"].items())
        EXPECT_NEAR(found[i]["probabilities"].at(label).get<double>(), value.get<double>(), 1e-4);
    }
  }
  std::filesystem::remove(input);
}

}  // namespace
}  // namespace furlong
