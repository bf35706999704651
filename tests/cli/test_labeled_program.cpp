// The program on labeled data: prepare, train, evaluate.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tests/cli/program.h"

namespace furlong {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;
using testing::Finished;

class LabeledProgramTest : public testing::WithProgram {
 protected:
  Finished prepare(const std::vector<std::string>& more) const {
    std::string table = "id,label,review\n";
    for (int i = 0; i < 120; ++i)
      table += fmt::format("{},{},\"{}, {}\"\n", i, i % 2 == 0 ? "good" : "bad", i % 2 == 0 ? "liked it" : "hated it",
                           i / 2);
    std::vector<std::string> all{
        "prepare", "labeled",  file("reviews.csv", table), "--text-field", "review",     "--label-field",
        "label",   "--output", path("reviews.h5"),         "--split",      "0.6,0.2,0.2"};
    all.insert(all.end(), more.begin(), more.end());
    return furlong(all);
  }
  std::string config() const {
    return file("config.yaml", "data:\n  dataset: " + path("reviews.h5") + R"(
  sequence_length: 12
  batch_size: 8
model:
  architecture: encoder
  n_layers: 1
  d_model: 16
  n_heads: 2
objective:
  name: classification
optimizer:
  learning_rate: 0.01
schedule:
  warmup_steps: 2
trainer:
  max_steps: 40
  validate_every: 20
log:
  every: 1
)");
  }
};

TEST_F(LabeledProgramTest, PrepareTrainAndEvaluate) {
  const Finished prepared = prepare({"--json"});
  ASSERT_EQ(prepared.status, 0) << prepared.err;
  const Json report = Json::parse(prepared.out);
  EXPECT_EQ(report["documents"], 120);
  EXPECT_EQ(report["labels"], Json({{"good", 60}, {"bad", 60}}));
  const Finished trained = furlong({"train", config(), "--run-dir", path("run")});
  ASSERT_EQ(trained.status, 0) << trained.err;
  // "liked it, 12" and <document> are 13 tokens.
  EXPECT_THAT(trained.err, HasSubstr("documents of the train split are longer than 12 tokens and are truncated"));
  EXPECT_THAT(trained.err, HasSubstr("accuracy 1.000"));
  const Finished evaluated = furlong({"evaluate", path("run"), "--split", "test", "--json"});
  ASSERT_EQ(evaluated.status, 0) << evaluated.err;
  const Json found = Json::parse(evaluated.out);
  EXPECT_EQ(found["objective"], "classification");
  EXPECT_EQ(found["accuracy"], 1.0);
  EXPECT_GT(found["targets"], 5);
  EXPECT_LT(found["loss"], 0.2);
  EXPECT_FALSE(found.contains("perplexity"));
  for (const char* metric : {"accuracy", "balanced_accuracy", "f1_macro", "mcc", "auroc"})
    EXPECT_EQ(found["metrics"][metric], Json({{"value", 1.0}, {"low", 1.0}, {"high", 1.0}})) << metric;
  EXPECT_EQ(found["metrics"]["auprc"], Json({{"value", 1.0}, {"low", 1.0}, {"high", 1.0}, {"label", "bad"}}));
  const Finished generated = furlong({"generate", path("run"), "--prompt", "a"});
  EXPECT_EQ(generated.status, 2);
  EXPECT_THAT(generated.err, HasSubstr("this model is an encoder (objective classification)"));
  EXPECT_EQ(generated.out, "") << "a prompt that nothing follows";
  // Another order of labels would change their meaning.
  ASSERT_EQ(prepare({"--force", "--labels", "bad,good"}).status, 0);
  const Finished other = furlong({"evaluate", path("run")});
  EXPECT_EQ(other.status, 2);
  EXPECT_THAT(other.err,
              HasSubstr("vocabulary (bytes, labels bad, good) differs from the model's (bytes, labels good, bad)"));
  ASSERT_EQ(furlong({"prepare", "text", file("plain.txt", std::string(2000, 'a')), "-o", path("plain.h5")}).status, 0);
  const Finished plain = furlong({"evaluate", path("run"), "--data", path("plain.h5")});
  EXPECT_EQ(plain.status, 2);
  EXPECT_THAT(plain.err, HasSubstr("furlong predict applies this model to sequences without labels"));
}

TEST_F(LabeledProgramTest, PredictsTextsWithoutLabels) {
  ASSERT_EQ(prepare({}).status, 0);
  const Finished trained = furlong({"train", config(), "--run-dir", path("run"), "--set", "trainer.max_steps=3"});
  ASSERT_EQ(trained.status, 0) << trained.err;
  const std::vector<std::string> command{"predict",    path("run"), path("reviews.csv"), "--text-field", "review",
                                         "--id-field", "id"};
  const auto with = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all = command;
    all.insert(all.end(), more.begin(), more.end());
    return furlong(all);
  };
  const Finished printed = with({}), lines = with({"--json"}), table = with({"-o", path("new.tsv")});
  ASSERT_EQ(printed.status, 0) << printed.err;
  EXPECT_THAT(printed.out, ::testing::StartsWith("id\tpredicted\tprobability_good\tprobability_bad\n0\t"));
  EXPECT_EQ(std::count(printed.out.begin(), printed.out.end(), '\n'), 121);
  // Of more than 12 bytes with the document token: those with a number of two digits.
  EXPECT_THAT(printed.err, HasSubstr("100 of 120 sequences have more than 12 tokens"));
  EXPECT_THAT(table.out, HasSubstr("new.tsv: 120 sequences, "));
  EXPECT_EQ(content(path("new.tsv")), printed.out);
  ASSERT_EQ(with({"-o", path("new.jsonl")}).status, 0);
  EXPECT_EQ(content(path("new.jsonl")), lines.out);
  const Json last = Json::parse(lines.out.substr(lines.out.rfind('\n', lines.out.size() - 2) + 1));
  EXPECT_EQ(last["id"], "119");
  EXPECT_NEAR(last["probabilities"]["good"].get<double>() + last["probabilities"]["bad"].get<double>(), 1, 1e-12);
}

TEST_F(LabeledProgramTest, WritesPredictionsAndIntervals) {
  ASSERT_EQ(prepare({}).status, 0);
  const Finished trained = furlong({"train", config(), "--run-dir", path("run"), "--set", "trainer.max_steps=3"});
  ASSERT_EQ(trained.status, 0) << trained.err;
  const Finished table = furlong({"evaluate", path("run"), "--predictions", path("p.tsv"), "--bootstrap", "50"});
  ASSERT_EQ(table.status, 0) << table.err;
  EXPECT_THAT(table.out, HasSubstr("95% interval, 50 resamples"));
  EXPECT_THAT(table.out, HasSubstr("balanced_accuracy"));
  EXPECT_THAT(content(path("p.tsv")),
              ::testing::StartsWith("sample\tdocument\tlabel\tpredicted\tprobability_good\tprobability_bad\n1\t"));
  const auto metrics = [&](const std::string& seed) {
    const Finished found = furlong({"evaluate", path("run"), "--json", "--seed", seed});
    return Json::parse(found.out)["metrics"];
  };
  EXPECT_EQ(metrics("1"), metrics("1"));
  EXPECT_NE(metrics("1"), metrics("2"));
  const Finished without = furlong({"evaluate", path("run"), "--json", "--bootstrap", "0"});
  EXPECT_TRUE(Json::parse(without.out)["metrics"]["auroc"]["low"].is_null());
  testing::expect_user_error(furlong({"evaluate", path("run"), "--bootstrap", "0", "--seed", "5"}),
                             {"--seed has no effect with --bootstrap 0"});
  testing::expect_user_error(furlong({"convert", path("run"), path("new.h5"), "--allow-unexpected"}),
                             {"--allow-unexpected: ", "is a Furlong checkpoint"});
  testing::expect_user_error(prepare({"--force", "--unknown", "map"}), {"--unknown has no effect on bytes"});
  for (const std::vector<std::string>& more : {std::vector<std::string>{"--by-position"}, {"--suite", "recall"}}) {
    std::vector<std::string> all{"evaluate", path("run")};
    all.insert(all.end(), more.begin(), more.end());
    testing::expect_user_error(furlong(all), {more[0], "this model predicts labels"});
  }
  testing::expect_user_error(furlong({"evaluate", path("run"), "--lengths", "4,8"}),
                             {"--lengths applies only to models that predict tokens; use --sequence-length N"});
}

TEST_F(LabeledProgramTest, ReportsEachClassAndWarnsOfAbsentOnes) {
  ASSERT_EQ(prepare({}).status, 0);
  ASSERT_EQ(furlong({"train", config(), "--run-dir", path("run")}).status, 0);
  const Finished whole = furlong({"evaluate", path("run"), "--split", "test", "--json"});
  ASSERT_EQ(whole.status, 0) << whole.err;
  EXPECT_THAT(whole.err, ::testing::Not(HasSubstr("no samples")));
  const Json found = Json::parse(whole.out);
  const std::int64_t good = found["labels"]["good"]["samples"], bad = found["labels"]["bad"]["samples"];
  EXPECT_EQ(good + bad, found["targets"]);
  EXPECT_EQ(found["labels"]["bad"], Json({{"precision", 1.0}, {"recall", 1.0}, {"f1", 1.0}, {"samples", bad}}));
  EXPECT_EQ(found["confusion_matrix"].dump(), fmt::format(R"({{"good":{{"good":{}}},"bad":{{"bad":{}}}}})", good, bad));
  const Finished table = furlong({"evaluate", path("run"), "--split", "test"});
  EXPECT_THAT(table.out, HasSubstr("  label         precision     recall         f1    samples\n"));
  EXPECT_THAT(table.out, HasSubstr(fmt::format("  bad             1.00000    1.00000    1.00000 {:>10}\n", bad)));
  EXPECT_THAT(table.out, HasSubstr(fmt::format("   1 good         {:>6}      0\n", good)));

  // F1 is 1 although nothing is known about a class.
  std::string one_class = "label,review\n";
  for (int i = 0; i < 40; ++i) one_class += fmt::format("bad,\"hated it, {}\"\n", i);
  const Finished prepared =
      furlong({"prepare", "labeled", file("bad.csv", one_class), "--text-field", "review", "--label-field", "label",
               "--labels", "good,bad", "--split", "0.6,0.2,0.2", "--output", path("bad.h5")});
  ASSERT_EQ(prepared.status, 0) << prepared.err;
  const Finished partial = furlong({"evaluate", path("run"), "--data", path("bad.h5"), "--json"});
  ASSERT_EQ(partial.status, 0) << partial.err;
  EXPECT_EQ(Json::parse(partial.out)["metrics"]["f1_macro"]["value"], 1.0);
  EXPECT_THAT(partial.err, HasSubstr("bad.h5: the validation split has no samples of 1 of 2 labels: good; means over "
                                     "labels do not measure them"));
  const Json absent = Json::parse(partial.out)["labels"]["good"];
  EXPECT_EQ(absent, Json({{"precision", nullptr}, {"recall", nullptr}, {"f1", nullptr}, {"samples", 0}}));
}

TEST_F(LabeledProgramTest, ReportsEscapeLabels) {
  std::string table = "label,review\n";
  for (int i = 0; i < 60; ++i) table += i % 2 == 0 ? "\x1b[31mred,liked it\n" : "tea,hated it\n";
  const Finished prepared = furlong({"prepare", "labeled", file("red.csv", table), "--text-field", "review",
                                     "--label-field", "label", "--split", "0.6,0.2,0.2", "-o", path("reviews.h5")});
  ASSERT_EQ(furlong({"train", config(), "--run-dir", path("run"), "--set", "trainer.max_steps=2"}).status, 0);
  const Finished evaluated = furlong({"evaluate", path("run"), "--split", "test"});
  for (const Finished& finished : {prepared, evaluated}) {
    EXPECT_EQ(finished.status, 0) << finished.err;
    EXPECT_THAT(finished.out, HasSubstr("\\x1b[31mred"));
    EXPECT_EQ(finished.out.find('\x1b'), std::string::npos) << finished.out;
    EXPECT_EQ(finished.err.find('\x1b'), std::string::npos) << finished.err;
  }
}

TEST_F(LabeledProgramTest, NoticesOtherLabelsOfTheSameTexts) {
  std::string table = "first,second,review\n";
  for (int i = 0; i < 60; ++i) table += fmt::format("{},{},text {}\n", i % 2, i / 2 % 2, i);
  const std::string input = file("two.csv", table);
  const auto prepare_with = [&](const char* field) {
    return furlong({"prepare", "labeled", input, "--text-field", "review", "--label-field", field, "--labels", "0,1",
                    "--split", "0.6,0.2,0.2", "-o", path("reviews.h5"), "--force"});
  };
  const auto train = [&](int steps) {
    return furlong({"train", config(), "--run-dir", path("run"), "--set", fmt::format("trainer.max_steps={}", steps)});
  };
  ASSERT_EQ(prepare_with("first").status, 0);
  ASSERT_EQ(train(2).status, 0);
  EXPECT_EQ(Json::parse(furlong({"evaluate", path("run"), "--json"}).out)["data_changed"], false);
  ASSERT_EQ(prepare_with("second").status, 0);
  EXPECT_EQ(Json::parse(furlong({"evaluate", path("run"), "--json"}).out)["data_changed"], true);
  testing::expect_user_error(train(4), {"was trained on other data"});
}

TEST_F(LabeledProgramTest, RejectsLengthOfClassTokenAlone) {
  ASSERT_EQ(prepare({}).status, 0);
  const Finished trained = furlong({"train", config(), "--run-dir", path("run"), "--set", "trainer.max_steps=2",
                                    "--set", "schedule.warmup_steps=1", "--set", "objective.pooling=class_token"});
  ASSERT_EQ(trained.status, 0) << trained.err;
  const Finished refused = furlong({"evaluate", path("run"), "--sequence-length", "1"});
  EXPECT_EQ(refused.status, 2);
  EXPECT_THAT(refused.err, HasSubstr("--sequence-length 1: the <class> token"));
  EXPECT_EQ(furlong({"evaluate", path("run"), "--sequence-length", "2"}).status, 0);
}

// Masked self-pretraining, then the labels of the same documents.
TEST_F(LabeledProgramTest, OutputLayerOfOtherWeightsIsTakenForTheSameLabelsOnly) {
  ASSERT_EQ(prepare({}).status, 0);
  const auto train = [&](const std::string& run, const std::string& steps, const std::string& weights,
                         const std::vector<std::string>& more) {
    std::vector<std::string> all{"train",     config(),
                                 "--run-dir", path(run),
                                 "--set",     "trainer.max_steps=" + steps,
                                 "--set",     "schedule.warmup_steps=1"};
    if (!weights.empty()) all.insert(all.end(), {"--set", "model.weights=" + path(weights)});
    all.insert(all.end(), more.begin(), more.end());
    const Finished done = furlong(all);
    EXPECT_EQ(done.status, 0) << done.err;
    return done.err;
  };
  const auto first_loss = [&](const std::string& run) {
    std::istringstream lines(content(path(run + "/metrics.jsonl")));
    std::string line;
    std::getline(lines, line);
    return Json::parse(line)["loss"].get<double>();
  };
  const std::string untrained = "so here it starts untrained: classifier.weight";
  train("tokens", "2", "",
        {"--set", "objective.name=masked_tokens", "--set", "model.tied_embeddings=false", "--set",
         "data.sampler=documents"});
  EXPECT_THAT(train("labels", "40", "tokens", {}), HasSubstr(untrained));
  EXPECT_GT(first_loss("labels"), 0.5);
  EXPECT_THAT(train("same", "1", "labels", {}), ::testing::Not(HasSubstr("untrained")));
  EXPECT_LT(first_loss("same"), 0.2);
  ASSERT_EQ(prepare({"--force", "--labels", "bad,good"}).status, 0);
  EXPECT_THAT(train("others", "1", "labels", {}), HasSubstr(untrained));
  EXPECT_GT(first_loss("others"), 0.5);
}

TEST_F(LabeledProgramTest, FinetuneRejectsOtherLabelsThanTheTeachers) {
  ASSERT_EQ(prepare({}).status, 0);
  ASSERT_EQ(furlong({"train", config(), "--run-dir", path("run"), "--set", "trainer.max_steps=2"}).status, 0);
  ASSERT_EQ(prepare({"--force", "--labels", "bad,good"}).status, 0);
  const std::string recipe = file("recipe.yaml", fmt::format(R"(
data: {{dataset: {}, sequence_length: 12, batch_size: 8}}
model: {{attention: {{mechanism: linear, feature_map: elu1}}}}
objective: {{name: classification}}
finetune: {{source: {}, stages: [attention_transfer], attention_transfer: {{max_steps: 2}}}}
)",
                                                             path("reviews.h5"), path("run")));
  testing::expect_user_error(furlong({"finetune", recipe, "--run-dir", path("student")}),
                             {"reviews.h5 has the labels bad,good, but the model in", "predicts good,bad",
                              "prepare the data with --labels good,bad"});
  EXPECT_FALSE(std::filesystem::exists(path("student")));
}

TEST_F(LabeledProgramTest, SplitsWithInputsOfTheirOwnAreOfDocuments) {
  const std::string train = file("train.fa", ">a\nACGT\n>b\nACGA\n"), test = file("test.fa", ">c\nTTTT\n");
  const Finished prepared =
      furlong({"prepare", "fasta", train, "--test-inputs", test, "--split", "1,0,0", "-o", path("d.h5"), "--json"});
  ASSERT_EQ(prepared.status, 0) << prepared.err;
  EXPECT_EQ(Json::parse(prepared.out)["splits"]["test"]["documents"], 1);
  testing::expect_user_error(furlong({"prepare", "fasta", train, "--test-inputs", test, "--split", "1,0,0", "-o",
                                      path("s.h5"), "--split-by", "span"}),
                             {"--test-inputs needs --split-by document"});
}

TEST_F(LabeledProgramTest, LabelTypeSilencesTheWarningOfNumbers) {
  std::string table;
  for (int i = 0; i < 60; ++i) table += fmt::format("abc,{}.5\n", i);
  const std::string input = file("numbers.csv", table);
  const std::vector<std::string> all{"prepare", "labeled", input, "--split", "1,0,0", "--force"};
  EXPECT_THAT(furlong(all).err, HasSubstr("pass --label-type number"));
  std::vector<std::string> given = all;
  given.insert(given.end(), {"--label-type", "class"});
  EXPECT_EQ(furlong(given).err, "");
}

TEST_F(LabeledProgramTest, ReportNamesLabels) {
  const Finished prepared = prepare({});
  ASSERT_EQ(prepared.status, 0) << prepared.err;
  EXPECT_THAT(prepared.out, HasSubstr("120 documents"));
  const Json splits = Json::parse(prepare({"--force", "--json"}).out)["splits"];
  std::string table = "          train   validation         test  label\n";
  for (const char* label : {"good", "bad"}) {
    table += "  ";
    for (const char* split : {"train", "validation", "test"})
      table += fmt::format("{:>13}", splits[split]["labels"][label].get<int>());
    table += fmt::format("  {}\n", label);
  }
  EXPECT_THAT(prepared.out, HasSubstr(table));
  EXPECT_EQ(splits["train"]["labels"]["good"].get<int>() + splits["train"]["labels"]["bad"].get<int>(),
            splits["train"]["documents"].get<int>());
  const Finished refused = prepare({"--force", "--labels", "good"});
  EXPECT_EQ(refused.status, 2);
  EXPECT_THAT(refused.err, HasSubstr("reviews.csv:3: the label 'bad' is not in --labels: good"));
}

}  // namespace
}  // namespace furlong
