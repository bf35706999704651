// Predictions of labels and losses of rows, as furlong evaluate --predictions writes them.
#include "evaluation/predictions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "datasets/tokenizers/tokenizer.h"
#include "evaluation/score_file.h"
#include "evaluation/sequences/hidden_states.h"
#include "tests/datasets/tokenizers/small_tokenizers.h"
#include "tests/evaluation/sequence_testing.h"
#include "tests/framework/engine_testing.h"

namespace furlong {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using Json = nlohmann::json;
using testing::message_of;
using testing::with;

class PredictionsTest : public testing::WithTemporaryFolder {
 protected:
  /// 40 documents, or 20 pairs, with three labels, all in the training split.
  TokenizedDataset labeled(std::uint64_t documents_per_label = 1) const {
    DatasetWriterOptions options;
    options.shares = {{1, 0, 0}};
    options.documents_per_label = documents_per_label;
    DatasetWriter writer(path("labeled.h5"), Vocabulary::bytes(true), options);
    const RandomKey key{7, 0, random_stream("labeled")};
    for (std::uint64_t i = 0; i < 40; ++i) {
      std::vector<std::uint16_t> letters;
      for (std::uint64_t k = 0; k < 3 + i % 7; ++k)
        letters.push_back(static_cast<std::uint16_t>('a' + random_word(key, 16 * i + k) % 8));
      writer.append(letters);
      writer.end_document();
      if (i % documents_per_label == 0) writer.label(static_cast<std::int32_t>(random_word(key, 1000 + i) % 3));
    }
    writer.finish("{}", {"no", "yes", "tab\t"});
    return TokenizedDataset::open(path("labeled.h5"));
  }
  static std::vector<std::string> lines_of(const std::string& text) {
    std::istringstream stream(text);
    std::vector<std::string> lines;
    for (std::string line; std::getline(stream, line);) lines.push_back(line);
    return lines;
  }
};

std::vector<std::string> classifier(const std::string& objective) {
  return {"model.architecture=encoder", "objective.name=" + objective, "model.attention.mechanism=softmax",
          "model.initializer_range=0.5"};
}

Model label_model(const std::string& objective, const TokenizedDataset& data, const Device& device = {},
                  DType dtype = DType::float64) {
  const Settings settings = testing::small_settings("none.h5", classifier(objective)).settings;
  return make_model(settings, model_vocabulary(settings, data.vocabulary()), device, dtype);
}

LabelPredictions predictions_of(Model& model, const TokenizedDataset& data, std::int64_t batch_size,
                                std::int64_t max_batches = 0) {
  const auto source =
      evaluation_source(model.settings, model.vocabulary, data, Split::train, 32, batch_size, max_batches);
  return predict_labels(model, *source, batch_size, max_batches);
}

TEST_F(PredictionsTest, LossAndAccuracyAreThoseOfEvaluate) {
  for (const auto& [objective, documents] :
       std::vector<std::pair<std::string, std::uint64_t>>{{"classification", 1}, {"pair_classification", 2}}) {
    const TokenizedDataset data = labeled(documents);
    Model model = label_model(objective, data);
    for (const std::int64_t batch_size : {1, 7}) {
      for (const std::int64_t max_batches : {0, 2}) {
        const LabelPredictions found = predictions_of(model, data, batch_size, max_batches);
        const Evaluation expected = evaluate(model, data, Split::train, 32, batch_size, max_batches);
        EXPECT_NEAR(found.found.loss, expected.loss, 1e-12);
        EXPECT_DOUBLE_EQ(found.found.accuracy, expected.accuracy);
        EXPECT_EQ(found.found.targets, expected.targets);
        EXPECT_EQ(found.found.tokens, expected.tokens);
        EXPECT_EQ(std::ssize(found.classes.labels), expected.targets);
      }
    }
    const LabelPredictions all = predictions_of(model, data, 7);
    EXPECT_EQ(all.classes.labels, data.labels()) << "the order of the split";
    for (std::size_t i = 0; i < all.classes.labels.size(); ++i) {
      const double* row = all.classes.scores.data() + 3 * i;
      EXPECT_NEAR(row[0] + row[1] + row[2], 1, 1e-12);
    }
  }
}

TEST_F(PredictionsTest, FileHasALineForEachSample) {
  const ClassScores classes{3, {2, 0}, {0.25, 0.125, 0.625, 0.125, 0.5, 0.375}};
  const std::vector<std::string> labels{"no", "yes", "tab\t"};
  for (const std::string name : {"p.tsv", "p.jsonl"}) {
    PredictionFile file(path(name));
    file.set_documents({4, 7});
    file.write_labels(classes, labels);
    EXPECT_FALSE(std::filesystem::exists(path(name))) << "appears with commit()";
    file.commit();
  }
  EXPECT_EQ(content(path("p.tsv")),
            "sample\tdocument\tlabel\tpredicted\tprobability_no\tprobability_yes\tprobability_tab\\x09\n"
            "1\t5\ttab\\x09\ttab\\x09\t0.25\t0.125\t0.625\n2\t8\tno\tyes\t0.125\t0.5\t0.375\n");
  const std::vector<std::string> lines = lines_of(content(path("p.jsonl")));
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(Json::parse(lines[0]), Json({{"sample", 1},
                                         {"document", 5},
                                         {"label", "tab\t"},
                                         {"predicted", "tab\t"},
                                         {"probabilities", {{"no", 0.25}, {"yes", 0.125}, {"tab\t", 0.625}}}}));
  EXPECT_THAT(message_of<UserError>([&] { PredictionFile{path("p.csv")}; }), HasSubstr(".tsv or .jsonl"));
}

TEST_F(PredictionsTest, FileHasTheNumbersOfTheDataset) {
  const std::vector<float> numbers{42.5F, 0, 60, 1, 60.1F, 0.001F, 16777215, 1e6F, 1e-40F, -1.17549435e-38F};
  for (const std::string name : {"n.tsv", "n.jsonl"}) {
    PredictionFile file(path(name));
    file.set_documents({0, 2, 3, 4});
    file.write_numbers(std::vector<double>{41.25, -1, 1.0 / 3, 0.5, 1, 2, 3, 4}, numbers, {"tm", "activity"});
    file.commit();
  }
  EXPECT_EQ(content(path("n.tsv")),
            "sample\tdocument\tlabel_tm\tlabel_activity\tpredicted_tm\tpredicted_activity\n"
            "1\t1\t42.5\t0\t41.25\t-1\n2\t3\t60.1\t0.001\t0.333333333\t0.5\n3\t4\t16777215\t1000000\t1\t2\n"
            "4\t5\t1e-40\t-1.1754944e-38\t3\t4\n");
  EXPECT_EQ(Json::parse(lines_of(content(path("n.jsonl")))[1]),
            Json({{"sample", 2},
                  {"document", 3},
                  {"label", {{"tm", 60.1}, {"activity", 0.001}}},
                  {"predicted", {{"tm", 1.0 / 3}, {"activity", 0.5}}}}));
}

TEST_F(PredictionsTest, FileHasSetsOfLabels) {
  const std::vector<double> logits{std::log(3), 0, -std::log(3), 1, 2, 3}, targets{1, 0, 0, 0, 0, 0};
  for (const std::string name : {"s.tsv", "s.jsonl"}) {
    PredictionFile file(path(name));
    file.set_documents({0, 1});
    file.write_sets(logits, targets, {"a;b", "b", "c\t"});
    file.commit();
  }
  const std::vector<std::string> tsv = lines_of(content(path("s.tsv"))), json = lines_of(content(path("s.jsonl")));
  ASSERT_EQ(tsv.size(), 3u);
  EXPECT_EQ(tsv[0], "sample\tdocument\tlabel\tpredicted\tprobability_a;b\tprobability_b\tprobability_c\\x09");
  EXPECT_THAT(tsv[1], StartsWith("1\t1\t[\"a;b\"]\t[\"a;b\"]\t0.75\t0.5\t")) << "a probability of 0.5 is not above it";
  EXPECT_THAT(tsv[2], StartsWith(R"(2	2	[]	["a;b","b","c\t"]	0.731058579	)"));
  const Json second = Json::parse(json.at(1));
  EXPECT_EQ(second["label"], Json::array());
  EXPECT_EQ(second["predicted"], Json({"a;b", "b", "c\t"}));
  EXPECT_NEAR(second["probabilities"]["c\t"], 1 / (1 + std::exp(-3)), 1e-12);
}

TEST_F(PredictionsTest, FileHasLabelsOfTokens) {
  Batch batch;
  batch.batch = 2;
  batch.n = 3;
  batch.targets = {-1, 1, 0, 0, -1, -1};
  const double third = std::log(3);
  const std::vector<double> logits{9, 0, 0, third, 0, third, third, 0, 9, 0, 9, 0};
  const Vocabulary vocabulary = Vocabulary::bytes(true).with_labels({"H", "E"});
  for (const std::string name : {"t.tsv", "t.jsonl"}) {
    PredictionFile file(path(name));
    file.set_documents({0, 1, 2, 3, 8, 9});
    file.write_token_labels(4, batch, logits, vocabulary);
    file.commit();
  }
  EXPECT_EQ(lines_of(content(path("t.jsonl"))).size(), 3u);
  const std::vector<std::string> tsv = lines_of(content(path("t.tsv")));
  ASSERT_EQ(tsv.size(), 4u);
  EXPECT_EQ(tsv[0], "sample\tdocument\tposition\tlabel\tpredicted\tprobability_H\tprobability_E");
  EXPECT_THAT(tsv[1], StartsWith("5\t9\t2\tE\tE\t0.25"));
  EXPECT_THAT(tsv[2], StartsWith("5\t9\t3\tH\tE\t0.25"));
  EXPECT_THAT(tsv[3], StartsWith("6\t10\t1\tH\tH\t0.75"));
}

// [CLS] is not a position: labels are those of the letters.
TEST_F(PredictionsTest, PositionsCountLettersOfATokenizer) {
  Batch batch;
  batch.batch = 1;
  batch.n = 4;
  batch.targets = {-1, 0, 1, -1};
  const Vocabulary vocabulary =
      Vocabulary::of_tokenizer(load_tokenizer(testing::letters_tokenizer(path("letters")))).with_labels({"H", "E"});
  ASSERT_EQ(vocabulary.frame_front().size(), 1u);
  PredictionFile file(path("t.tsv"));
  file.set_documents({0});
  file.write_token_labels(0, batch, std::vector<double>(8, 0.0), vocabulary);
  file.commit();
  EXPECT_EQ(lines_of(content(path("t.tsv"))).at(1), "1\t1\t1\tH\tH\t0.5\t0.5");
}

TEST_F(PredictionsTest, FileHasTheLossOfEachRow) {
  const TokenizedDataset data =
      TokenizedDataset::open(testing::write_store(path("text.h5"), testing::synthetic_text(300), "0.5,0.5,0"));
  Model model = testing::sequence_model(data.vocabulary(), {"model.attention.mechanism=softmax"});
  for (const auto& [name, batch_size] : {std::pair{"rows.tsv", 2}, {"rows.jsonl", 1000}}) {
    PredictionFile file(path(name));
    const Evaluation found =
        evaluate(model, data, Split::validation, 32, batch_size, 0, {}, {},
                 [&](std::uint64_t first, const Batch& batch, const ops::CrossEntropyResult& result) {
                   EXPECT_LE(batch.batch, 5) << "no rows beyond the split";
                   file.write_rows(first, batch, doubles_of(result.row_losses));
                 });
    file.commit();
    EXPECT_EQ(found.targets, 149);
  }
  const std::vector<std::string> tsv = lines_of(content(path("rows.tsv"))),
                                 json = lines_of(content(path("rows.jsonl")));
  ASSERT_EQ(tsv.size(), 6u);
  ASSERT_EQ(json.size(), 5u);
  EXPECT_EQ(tsv[0], "row\ttargets\tloss\tperplexity");
  for (std::size_t row = 0; row < 5; ++row) {
    const std::size_t begin = 32 * row, n = std::min<std::size_t>(32, 149 - begin);
    const std::vector<std::int32_t> tokens = data.read(Split::validation, begin, n + 1);
    const auto run = testing::defined_run(model, {tokens.begin(), tokens.end() - 1});
    double loss = 0;
    for (std::size_t i = 0; i < n; ++i) loss -= testing::defined_log_probability(model, run, i, tokens[i + 1]);
    loss /= static_cast<double>(n);
    const Json one = Json::parse(json[row]);
    EXPECT_EQ(one["row"], row + 1);
    EXPECT_EQ(one["targets"], n);
    EXPECT_NEAR(one["loss"], loss, 1e-10);
    EXPECT_NEAR(one["perplexity"], std::exp(loss), 1e-8);
    EXPECT_THAT(tsv[row + 1], StartsWith(fmt::format("{}\t{}\t{}\t", row + 1, n, tsv_number(one["loss"]))));
  }
}

class PredictionsEngines : public testing::EngineTest {};
FURLONG_INSTANTIATE_GPUS(PredictionsEngines);

TEST_P(PredictionsEngines, ProbabilitiesEqualThoseOfTheCpu) {
  const std::string path =
      std::filesystem::temp_directory_path() / ("predictions_" + std::to_string(::getpid()) + ".h5");
  DatasetWriterOptions options;
  options.shares = {{1, 0, 0}};
  options.documents_per_label = 1;
  DatasetWriter writer(path, Vocabulary::bytes(true), options);
  for (std::uint16_t i = 0; i < 6; ++i) {
    writer.append(std::vector<std::uint16_t>{std::uint16_t('a' + i), 'b', 'c'});
    writer.end_document();
    writer.label(i % 2);
  }
  writer.finish("{}", {"no", "yes"});
  const TokenizedDataset data = TokenizedDataset::open(path);
  Model cpu = label_model("classification", data, Device{}, DType::float32),
        gpu = label_model("classification", data, testing::device(), DType::float32);
  const ClassScores expected = predictions_of(cpu, data, 4).classes, found = predictions_of(gpu, data, 4).classes;
  ASSERT_EQ(found.scores.size(), 12u);
  for (std::size_t i = 0; i < 12; ++i) EXPECT_NEAR(found.scores[i], expected.scores[i], 1e-4);
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace furlong
