// The page on labels: prepare, train, evaluate and export for numbers, sets and labels of tokens.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/cli/page_example.h"
#include "tests/cli/program.h"
#include "tests/places.h"

namespace furlong {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;
using testing::example_of;
using testing::expect_user_error;
using testing::Finished;

/// Proteins of K and E. tm rises with the number of K; activity falls. Kinases start with K, and membrane proteins have
/// an E. K is in a helix, E in a strand; the first residue has no structure.
class LabelObjectivesProgramTest : public testing::WithProgram {
 protected:
  void SetUp() override {
    std::string table = "id,sequence,tm,activity\n", reviews = "text,label\n", lines, fasta, structure;
    for (int i = 0; i < 160; ++i) {
      std::string sequence, states;
      for (int t = 0; t < 8; ++t) sequence += (i * 7 + t * t * (i % 5 + 1)) % 3 == 0 ? 'E' : 'K';
      const auto n = std::count(sequence.begin(), sequence.end(), 'K');
      for (const char letter : sequence) states += letter == 'K' ? 'H' : 'S';
      states[0] = '.';
      table +=
          fmt::format("{},{},{},{}\n", i, sequence, 40 + 2.5 * static_cast<double>(n), static_cast<double>(-n) / 1000);
      reviews += fmt::format("\"a {} film, number {}\",{}\n", sequence[0] == 'K' ? "fine" : "dull", i,
                             sequence[0] == 'K' ? "good" : "bad");
      Json labels = Json::array();
      if (sequence[0] == 'K') labels.push_back("kinase");
      if (n < 8) labels.push_back("membrane");
      lines += Json{{"text", sequence}, {"label", labels}}.dump() + "\n";
      fasta += fmt::format(">P{} of a test\n{}\n", i, sequence);
      structure += fmt::format(">P{}\n{}\n", i, states);
    }
    file("reviews.csv", reviews);
    file("stability.csv", table);
    file("function.jsonl", lines);
    file("variants.csv", table);
    file("proteins.fasta", fasta);
    file("structure.fasta", structure);
    file("encoder.yaml", R"(data:
  dataset: stability.h5
  sequence_length: 16
  batch_size: 8
model:
  architecture: encoder
  n_layers: 1
  d_model: 16
  n_heads: 2
objective:
  name: regression
optimizer:
  learning_rate: 0.01
schedule:
  warmup_steps: 2
trainer:
  max_steps: 80
  validate_every: 40
log:
  progress: none
)");
  }
  /// Evaluates a run and returns the rows of --predictions.
  std::vector<Json> predictions(const std::string& run) const {
    const Finished finished = furlong({"evaluate", path("runs/" + run), "--split", "test", "--predictions",
                                       path("p.jsonl"), "--data", path(run + ".h5")});
    EXPECT_EQ(finished.status, 0) << finished.err;
    std::vector<Json> rows;
    for (const std::string& line : lines_of("p.jsonl")) rows.push_back(Json::parse(line));
    return rows;
  }
  std::vector<std::string> lines_of(const std::string& name) const {
    std::istringstream text(content(path(name)));
    std::vector<std::string> lines;
    for (std::string line; std::getline(text, line);) lines.push_back(line);
    return lines;
  }
  /// Predictions of the page's three runs, against what evaluate measured and the labels of the input.
  void expect_predictions(const Json& numbers, const Json& sets, const Json& tokens) const {
    const std::vector<std::string> records = lines_of("stability.csv"), structure = lines_of("structure.fasta");
    double squares = 0;
    std::vector<Json> rows = predictions("stability");
    ASSERT_EQ(rows.size(), numbers["targets"].get<std::size_t>());
    for (const Json& row : rows) {
      const auto given = row["label"]["tm"].get<double>();
      const std::string& record = records.at(row["document"]);  // the first line is the header
      EXPECT_THAT(record, HasSubstr(fmt::format(",{},{}", given, row["label"]["activity"].get<double>())));
      squares += std::pow(given - row["predicted"]["tm"].get<double>(), 2);
    }
    EXPECT_NEAR(std::sqrt(squares / static_cast<double>(rows.size())), numbers["labels"]["tm"]["rmse"], 1e-5);

    rows = predictions("function");
    ASSERT_EQ(rows.size(), sets["targets"].get<std::size_t>());
    std::size_t right = 0;
    for (const Json& row : rows) {
      right += row["label"] == row["predicted"];
      for (const auto& [label, probability] : row["probabilities"].items())
        EXPECT_EQ(std::count(row["predicted"].begin(), row["predicted"].end(), label), probability > 0.5);
    }
    EXPECT_NEAR(static_cast<double>(right) / static_cast<double>(rows.size()), sets["accuracy"], 1e-12);

    rows = predictions("structure");
    ASSERT_EQ(rows.size(), tokens["targets"].get<std::size_t>());
    right = 0;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      EXPECT_EQ(rows[i]["sample"], i / 7 + 1);
      EXPECT_EQ(rows[i]["position"], i % 7 + 2) << "the first residue has no label";
      const std::string& states = structure.at(2 * rows[i]["document"].get<std::size_t>() - 1);
      EXPECT_EQ(rows[i]["label"], states.substr(i % 7 + 1, 1));
      right += rows[i]["label"] == rows[i]["predicted"];
    }
    EXPECT_NEAR(static_cast<double>(right) / static_cast<double>(rows.size()), tokens["accuracy"], 1e-12);
  }
  /// Runs the page's lines of furlong predict on the texts of the datasets, and expects the predictions of evaluate.
  void expect_predictions_of_sequences() const {
    const auto lines = example_of("labels.md", "sh", 1);
    ASSERT_EQ(lines.size(), 3u);
    std::vector<std::string> printed;
    for (const std::string& line : lines) printed.push_back(run_line(line));
    EXPECT_THAT(printed[0], HasSubstr("variants.tsv: 160 sequences, "));
    EXPECT_THAT(content(path("variants.tsv")), ::testing::StartsWith("id\tpredicted_tm\tpredicted_activity\n0\t"));
    EXPECT_THAT(printed[2], ::testing::StartsWith("id\tposition\ttoken\tpredicted\tprobability_"));
    const std::string numbers = run_line(
        "furlong predict runs/stability variants.csv --text-field sequence --id-field id --json --batch-tokens 64");
    expect_same_predictions("stability", parsed(numbers), "", 1e-4);  // of 40 to 60 in float32
    expect_same_predictions("function", parsed(content(path("function_predicted.jsonl"))), "P", 1e-5);
    std::vector<Json> second_to_last;  // the first residue has no label in the dataset
    for (const Json& row : parsed(run_line("furlong predict runs/structure proteins.fasta --json")))
      if (row["position"] > 1) second_to_last.push_back(row);
    expect_same_predictions("structure", second_to_last, "P", 1e-5);
  }
  static std::vector<Json> parsed(const std::string& lines) {
    std::istringstream text(lines);
    std::vector<Json> rows;
    for (std::string line; std::getline(text, line);) rows.push_back(Json::parse(line));
    return rows;
  }
  /// `rows` have ids <prefix>0, <prefix>1, ..., equally many of each of the dataset's 160 documents.
  void expect_same_predictions(const std::string& run, const std::vector<Json>& rows, const std::string& prefix,
                               double tolerance) const {
    ASSERT_EQ(rows.size() % 160, 0u);
    for (const Json& expected : predictions(run)) {
      const auto document = expected["document"].get<std::size_t>() - 1;
      const std::size_t place = expected.contains("position") ? expected["position"].get<std::size_t>() - 2 : 0;
      const Json& found = rows.at(document * (rows.size() / 160) + place);
      EXPECT_EQ(found.at("id"), fmt::format("{}{}", prefix, document));
      const char* values = expected.contains("probabilities") ? "probabilities" : "predicted";
      ASSERT_GT(expected[values].size(), 0u);
      for (const auto& [label, value] : expected[values].items())
        EXPECT_NEAR(found.at(values).at(label).get<double>(), value.get<double>(), tolerance);
      if (expected.contains("probabilities")) {
        EXPECT_EQ(found.at("predicted"), expected["predicted"]);
      }
    }
  }
  /// Runs a line of the page in the test's folder and returns what it prints.
  std::string run_line(const std::string& line) const {
    const std::string command = fmt::format("cd '{}' && furlong() {{ '{}' \"$@\"; }} && {} >stdout 2>stderr",
                                            folder_.string(), testing::program_under_test(), line);
    EXPECT_EQ(std::system(command.c_str()), 0) << line << "\n" << content(path("stderr"));
    return content(path("stdout"));
  }
};

TEST_F(LabelObjectivesProgramTest, ExamplesOfThePageRun) {
  testing::check_config(folder_, "labels.md");
  const auto lines = example_of("labels.md");
  ASSERT_EQ(lines.size(), 13u);
  std::vector<std::string> outputs;
  for (const std::string& line : lines) outputs.push_back(run_line(line));
  EXPECT_THAT(outputs[1], HasSubstr("  tm: mean "));
  const Json classes = Json::parse(outputs[8]), numbers = Json::parse(outputs[9]), sets = Json::parse(outputs[10]),
             tokens = Json::parse(outputs[11]);
  EXPECT_GT(classes["accuracy"], 0.9);
  EXPECT_EQ(numbers["objective"], "regression");
  EXPECT_GT(numbers["pearson"], 0.9);
  EXPECT_LT(numbers["loss"], 0.3);
  EXPECT_GT(numbers["baseline_loss"], 0.5);
  EXPECT_LT(numbers["labels"]["tm"]["rmse"], 2);
  EXPECT_LT(numbers["labels"]["activity"]["rmse"], 0.001);
  EXPECT_FALSE(numbers.contains("accuracy"));
  EXPECT_GT(sets["f1_micro"], 0.8);
  EXPECT_TRUE(sets["labels"]["kinase"]["auroc"].is_number());
  EXPECT_GT(tokens["accuracy"], 0.95);
  EXPECT_GT(tokens["f1_macro"], 0.95);
  EXPECT_EQ(tokens["labels"]["H"]["samples"].get<int>() + tokens["labels"]["S"]["samples"].get<int>(),
            tokens["targets"]);
  EXPECT_GT(tokens["confusion_matrix"]["H"]["H"], 0);
  EXPECT_GT(sets["labels"]["kinase"]["recall"], 0.5);
  EXPECT_EQ(tokens["targets"].get<int>() % 7, 0) << "the first residue and <document> have no label";
  const Json config = Json::parse(content(path("exported/config.json")));
  EXPECT_EQ(config["architectures"], Json::array({"FurlongForTokenClassification"}));
  EXPECT_EQ(config["id2label"].size(), 2u);
  const Finished text = furlong({"evaluate", path("runs/stability"), "--data", path("stability.h5")});
  EXPECT_THAT(text.out, HasSubstr("  rmse           "));
  EXPECT_THAT(text.out, HasSubstr("  label           pearson   spearman       rmse\n  tm "));
  expect_predictions(numbers, sets, tokens);
  expect_predictions_of_sequences();
}

TEST_F(LabelObjectivesProgramTest, StartsFromPretrainedWeights) {
  run_line("furlong prepare fasta proteins.fasta --alphabet protein --split-by document -o text.h5");
  run_line(
      "furlong train encoder.yaml --set data.dataset=text.h5 --set objective.name=masked_tokens --set "
      "trainer.max_steps=4 --run-dir runs/text");
  run_line(
      "furlong prepare labeled proteins.fasta --label-file structure.fasta --label-type token --unlabeled . -o "
      "structure.h5");
  run_line(
      "furlong train encoder.yaml --set data.dataset=structure.h5 --set objective.name=token_classification --set "
      "trainer.max_steps=4 --set model.weights=runs/text --run-dir runs/structure");
  EXPECT_THAT(content(path("stderr")), HasSubstr("classifier.weight"));
}

TEST_F(LabelObjectivesProgramTest, InvalidLabelsLeaveNoFile) {
  file("bad.csv", "sequence,tm\nKK,50\nKE,warm\n");
  const Finished refused = furlong({"prepare", "labeled", path("bad.csv"), "--alphabet", "protein", "--text-field",
                                    "sequence", "--label-field", "tm", "--label-type", "number"});
  expect_user_error(refused, {"bad.csv:3: 'warm' in tm is not a finite number"});
  expect_user_error(furlong({"prepare", "labeled", path("stability.csv"), "--alphabet", "protein", "--text-field",
                             "sequence", "--label-field", "tm,tm", "--label-type", "number", "-o", path("bad.h5")}),
                    {"--label-field: 'tm' occurs twice"});
  EXPECT_FALSE(std::filesystem::exists(path("bad.h5")));
  // The objective must match the labels.
  ASSERT_EQ(furlong({"prepare", "labeled", path("stability.csv"), "--alphabet", "protein", "--text-field", "sequence",
                     "--label-field", "tm", "--label-type", "number", "-o", path("stability.h5")})
                .status,
            0);
  const Finished other = furlong({"train", path("encoder.yaml"), "--set", "data.dataset=" + path("stability.h5"),
                                  "--set", "objective.name=token_classification", "--run-dir", path("run")});
  expect_user_error(other, {"the dataset has labels of type number, expected token"});
  EXPECT_FALSE(std::filesystem::exists(path("run")));
}

}  // namespace
}  // namespace furlong
