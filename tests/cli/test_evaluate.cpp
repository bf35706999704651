// furlong evaluate as its page shows it, and what it refuses.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "tests/cli/page_example.h"
#include "tests/cli/program.h"
#include "tests/trainers/training.h"

namespace furlong {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using Json = nlohmann::ordered_json;
using testing::expect_user_error;
using testing::Finished;

class EvaluateProgramTest : public testing::WithProgram {
 protected:
  void SetUp() override {
    file("story.txt", testing::synthetic_text(4000));
    file("story.yaml", "data:\n  dataset: " + path("story.h5") + R"(
  sequence_length: 32
  batch_size: 4
model:
  position: learned
  max_sequence_length: 512
  n_layers: 1
  d_model: 16
  n_heads: 2
schedule:
  warmup_steps: 2
trainer:
  max_steps: 20
log:
  level: error
  progress: none
)");
  }
  Json evaluate(const std::string& run, const std::vector<std::string>& more) const {
    std::vector<std::string> all{"evaluate", path(run), "--json"};
    all.insert(all.end(), more.begin(), more.end());
    const Finished found = furlong(all);
    EXPECT_EQ(found.status, 0) << found.err;
    return Json::parse(found.out, nullptr, false);
  }
  void train_story() const {
    testing::run_line(folder_, "furlong prepare text story.txt --output story.h5");
    testing::run_line(folder_, "furlong train story.yaml --run-dir runs/story");
  }
};

TEST_F(EvaluateProgramTest, ExamplesOfThePageRun) {
  testing::run_example(folder_, "evaluate.md", 6);
  const std::string out = content(path("stdout"));
  testing::check_config(folder_, "evaluate.md");
  for (const char* part : {"on the test split of", "tokens of context", "17 to 32", "sequence length",
                           "associative_recall", "induction", "suite recall, 8 sequences"})
    EXPECT_THAT(out, HasSubstr(part));
  EXPECT_THAT(content(path("windows.tsv")), StartsWith("row\ttargets\tloss\tperplexity\n1\t32\t"));
}

TEST_F(EvaluateProgramTest, JsonHasPositionsAndLengths) {
  train_story();
  const Json plain = evaluate("runs/story", {}),
             found = evaluate("runs/story", {"--by-position", "--lengths", "16,32"});
  EXPECT_EQ(found["loss"], plain["loss"]);
  EXPECT_TRUE(plain["furlong"].contains("commit"));
  EXPECT_EQ(plain["weights"], "raw") << "no EMA";
  EXPECT_EQ(plain["sampler"], "windows");
  EXPECT_TRUE(plain["max_batches"].is_null());
  EXPECT_EQ(evaluate("runs/story", {"--max-batches", "1"})["max_batches"], 1);
  EXPECT_FALSE(plain.contains("by_position") || plain.contains("lengths") || plain.contains("metrics"));
  ASSERT_EQ(found["by_position"].size(), 6u);
  EXPECT_EQ(found["by_position"][5]["first"], 17);
  EXPECT_EQ(found["by_position"][5]["last"], 32);
  double sum = 0;
  std::int64_t targets = 0;
  for (const Json& range : found["by_position"]) {
    targets += range["targets"].get<std::int64_t>();
    sum += range["loss"].get<double>() * range["targets"].get<double>();
  }
  EXPECT_EQ(targets, found["targets"]);
  EXPECT_NEAR(sum / static_cast<double>(targets), found["loss"], 1e-6);
  EXPECT_EQ(found["lengths"][0]["sequence_length"], 16);
  EXPECT_EQ(found["lengths"][0]["targets"], found["targets"]);
  EXPECT_NEAR(found["lengths"][1]["loss"], found["loss"], 1e-6);
}

// A new split of the same text: what was training data is in the test split.
TEST_F(EvaluateProgramTest, NoticesThatTheDatasetChanged) {
  train_story();
  EXPECT_EQ(evaluate("runs/story", {})["data_changed"], false);
  testing::run_line(folder_, "furlong prepare text story.txt --output other.h5 --split 0.5,0.25,0.25");
  EXPECT_TRUE(evaluate("runs/story", {"--data", path("other.h5")})["data_changed"].is_null()) << "another dataset";
  testing::run_line(folder_, "furlong prepare text story.txt --output story.h5 --force --split 0.5,0.25,0.25");
  for (const std::vector<std::string>& more : {std::vector<std::string>{}, {"--data", path("./story.h5")}}) {
    EXPECT_EQ(evaluate("runs/story", more)["data_changed"], true);
    EXPECT_THAT(content(path("stderr")),
                AllOf(HasSubstr("was trained on other data than"), HasSubstr("story.h5 contains now"),
                      HasSubstr("its validation split may hold training data")));
  }
  const Finished analyzed = furlong({"analyze", "attention", path("runs/story"), "--json-file", path("errors.json")});
  EXPECT_EQ(analyzed.status, 0);
  EXPECT_THAT(analyzed.err, HasSubstr("was trained on other data than"));
  EXPECT_EQ(Json::parse(content(path("errors.json")))["data_changed"], true);
}

TEST_F(EvaluateProgramTest, SuiteIsSeeded) {
  train_story();
  const auto suite = [&](const std::string& seed) {
    return evaluate("runs/story", {"--suite", "recall", "--lengths", "32,512", "--samples", "4", "--seed", seed});
  };
  const Json first = suite("1");
  EXPECT_EQ(first, suite("1"));
  EXPECT_NE(first["results"], suite("2")["results"]);
  EXPECT_EQ(first["samples"], 4);
  std::set<std::string> tasks;
  for (const Json& one : first["results"]) {
    tasks.insert(one["task"]);
    EXPECT_TRUE(one.contains("not_run") || (one["accuracy"].is_number() && one["loss"].is_number()));
  }
  EXPECT_EQ(tasks.size(), 4u);
}

TEST_F(EvaluateProgramTest, InvalidInputIsAUserErrorAndNothingIsHalfWritten) {
  train_story();
  const std::string run = path("runs/story");
  const auto refused = [&](const std::vector<std::string>& more, const std::vector<std::string>& parts) {
    std::vector<std::string> all{"evaluate", run};
    all.insert(all.end(), more.begin(), more.end());
    expect_user_error(furlong(all), parts);
  };
  refused({"--lengths", "0"}, {"--lengths"});
  refused({"--lengths", "4q"}, {"--lengths: found 4q; expected a number of tokens such as 4096 or 4k"});
  refused({"--lengths", "16,1k"}, {"--lengths 1024", "512 learned positions"});
  refused({"--lengths", "16,512", "--predictions", path("out.tsv")}, {"--lengths 512", "validation split"});
  refused({"--predictions", path("out.csv")}, {"out.csv", ".tsv or .jsonl"});
  refused({"--predictions", path("none/out.tsv")}, {"none"});
  refused({"--suite", "needles"}, {"--suite", "recall"});
  refused({"--suite", "recall", "--split", "test"}, {"--split applies only to evaluation without --suite"});
  refused({"--suite", "recall", "--lengths", "1k"}, {"--lengths 1024", "512 positions"});
  refused({"--suite", "recall", "--lengths", "33"}, {"--lengths 33", "use 34"});
  refused({"--suite", "recall", "--samples", "0"}, {"--samples"});
  refused({"--samples", "3"}, {"--samples", "--suite"});
  refused({"--seed", "3"}, {"--seed applies only to --suite and --bootstrap; remove --seed"});
  refused({"--bootstrap", "10"}, {"--bootstrap applies only to classification models; remove --bootstrap"});
  testing::run_line(folder_, "furlong prepare text story.txt --output whole.h5 --split 1,0,0");
  refused({"--data", path("whole.h5"), "--predictions", path("out.tsv")}, {"whole.h5", "validation split"});
  for (const auto& entry : std::filesystem::directory_iterator(folder_))
    EXPECT_THAT(entry.path().filename().string(), ::testing::Not(HasSubstr("out."))) << "a file that is not whole";
}

TEST_F(EvaluateProgramTest, HelpFitsIn80Columns) {
  std::istringstream lines(furlong({"evaluate", "--help"}).out);
  int examples = 0;
  for (std::string line; std::getline(lines, line);) {
    EXPECT_LE(line.size(), 80u) << line;
    examples += line.starts_with("  furlong ");
  }
  EXPECT_EQ(examples, 4);
}

}  // namespace
}  // namespace furlong
