// The file of a sweep, names of its runs, and errors in it.
#include "evaluation/sweep/sweep.h"

#include <gmock/gmock.h>

#include <set>

#include "framework/core/error.h"
#include "tests/temporary_folder.h"

namespace furlong {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* base = R"(
data: {task: copy, task_symbols: 4, sequence_length: 16, batch_size: 8}
model: {n_layers: 1, d_model: 16, n_heads: 2}
trainer: {max_steps: 4}
)";

class SweepTest : public testing::WithTemporaryFolder {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(path("configs"));
    file("configs/base.yaml", base);
  }
  /// Returns the runs of a sweep with this text after base and output.
  std::vector<SweepRun> plan(const std::string& text, const std::vector<std::string>& overrides = {}) const {
    return plan_sweep(file("configs/sweep.yaml", "base: base.yaml\noutput: out\n" + text), overrides);
  }
  std::vector<std::string> names(const std::string& text) const {
    std::vector<std::string> found;
    for (const SweepRun& run : plan(text, {"trainer.sample_tokens=1"})) found.push_back(run.name);
    return found;
  }
  void expect_refusal(const std::string& text, const std::vector<std::string>& parts,
                      const std::vector<std::string>& overrides = {}) const {
    SCOPED_TRACE(text);
    const std::string message = testing::message_of<UserError>([&] { plan(text, overrides); });
    for (const std::string& part : parts) EXPECT_THAT(message, HasSubstr(part));
  }
};

TEST_F(SweepTest, CombinesGridAndListInOrder) {
  const std::vector<SweepRun> runs = plan(
      "grid: {optimizer.learning_rate: [1e-3, 0.003], model.attention.feature_map: [elu1, relu]}\n"
      "list: [{seed: 1}, {seed: 2, model.d_model: 32}]\n",
      {"model.attention.mechanism=linear", "trainer.max_steps=6"});
  std::vector<std::string> found;
  for (const SweepRun& run : runs) found.push_back(run.name);
  EXPECT_THAT(
      found,
      ElementsAre(
          "learning_rate=0.001,feature_map=elu1,seed=1", "learning_rate=0.001,feature_map=elu1,seed=2,d_model=32",
          "learning_rate=0.001,feature_map=relu,seed=1", "learning_rate=0.001,feature_map=relu,seed=2,d_model=32",
          "learning_rate=0.003,feature_map=elu1,seed=1", "learning_rate=0.003,feature_map=elu1,seed=2,d_model=32",
          "learning_rate=0.003,feature_map=relu,seed=1", "learning_rate=0.003,feature_map=relu,seed=2,d_model=32"));
  const Settings& last = runs.back().loaded.settings;
  EXPECT_EQ(last.optimizer.learning_rate, 0.003);
  EXPECT_EQ(last.model.d_model, 32);
  EXPECT_EQ(last.seed, 2);
  EXPECT_EQ(last.trainer.max_steps, 6);
  EXPECT_EQ(last.run_directory, std::filesystem::path("out") / runs.back().name);
}

// YAML aliases can contain themselves, and repeat a list exponentially often.
TEST_F(SweepTest, BoundsValues) {
  expect_refusal("list:\n- &l {seed: *l}\n", {"more than 65536 parts of up to 16 bytes, or is nested more than 8"});
  expect_refusal("grid: {seed: &a [1, *a]}\n", {"nested more than 8 deep"});
  std::string lists = "&a0 [1, 1, 1, 1, 1, 1, 1, 1]";
  for (int i = 1; i < 7; ++i) lists += fmt::format(", &a{0} [*a{1}, *a{1}, *a{1}, *a{1}, *a{1}, *a{1}]", i, i - 1);
  expect_refusal("grid: {seed: [[" + lists + "]]}\n", {"a value has more than 65536 parts"});
  std::string texts = "&t " + std::string(100'000, 'x');
  for (int i = 0; i < 20; ++i) texts += ", *t";
  expect_refusal("grid: {data.ignore_tokens: [[" + texts + "]]}\n", {"a value has more than 65536 parts"});
}

TEST_F(SweepTest, NamesAreDistinctFileNames) {
  // Two keys with the same last part, texts with other characters, a list, a value that is not a plain scalar.
  EXPECT_THAT(names("grid: {model.dropout: [0.1], schedule.name: [linear, cosine]}"),
              ElementsAre("dropout=0.1,name=linear", "dropout=0.1,name=cosine"));
  EXPECT_THAT(names("list: [{objective.name: next_token, schedule.name: linear}, {}]"),
              ElementsAre("objective.name=next_token,schedule.name=linear", "base"));
  const std::vector<std::string> prompts =
      names("grid: {trainer.sample_prompt: ['a/b', 'a b', \"..\", '4', \"" + std::string(300, 'x') + "\"]}");
  EXPECT_EQ(std::set<std::string>(prompts.begin(), prompts.end()).size(), 5u);
  for (const std::string& name : prompts) {
    EXPECT_EQ(name.find_first_of("/ "), std::string::npos) << name;
    EXPECT_LT(name.size(), 200u);
  }
  EXPECT_THAT(prompts[0], ::testing::StartsWith("sample_prompt=a-b-"));
  EXPECT_EQ(prompts[3], "sample_prompt=4");
  // A run keeps its name when values are added.
  EXPECT_EQ(names("grid: {trainer.sample_prompt: ['a b', 'c']}")[0], prompts[1]);
}

TEST_F(SweepTest, OutputDefaultsToTheNameOfTheFile) {
  const std::string sweep = file("configs/rates.yaml", "base: base.yaml\nlist: [{seed: 3}]\n");
  EXPECT_EQ(plan_sweep(sweep, {})[0].loaded.settings.run_directory, "runs/rates/seed=3");
}

TEST_F(SweepTest, ErrorsNameThePlaceInTheSweep) {
  expect_refusal("grid: {optimizer.lr: [1, 2]}",
                 {"sweep.yaml:3:23: unknown key optimizer.lr; did you mean optimizer.learning_rate?"});
  expect_refusal("list:\n  - seed: 1\n  - {seed: 2, model.layers: 3}\n",
                 {"sweep.yaml:5:29", "unknown key model.layers"});
  expect_refusal("grid: {seed: [1, x]}", {"sweep.yaml:3:18: seed: found x; expected an integer"});
  expect_refusal("grid: {model.n_features: [1]}", {"sweep.yaml:3:27", "model.attention.n_features"});
  expect_refusal("grid: {model.d_model: [15]}", {"model.d_model"});
  expect_refusal("gird: {seed: [1]}", {"sweep.yaml:3:7: unknown key gird; did you mean grid?"});
  expect_refusal("optimizer.learning_rate: [1]", {"unknown key optimizer.learning_rate", "under grid: or list:"});
  expect_refusal("", {"grid and list are missing"});
  expect_refusal("grid: {}", {"sweep.yaml:3:7: grid: is empty"});
  expect_refusal("grid: {seed: []}", {"sweep.yaml:3:14: grid: seed: found an empty list"});
  expect_refusal("grid: {seed: 1}", {"sweep.yaml:3:14: grid: seed: found 1; expected a list of values"});
  expect_refusal("grid: {optimizer: {learning_rate: [1]}}",
                 {"expected a list of values; join sections and keys by dots"});
  expect_refusal("grid: [seed]", {"sweep.yaml:3:7: grid: found a list; expected config keys"});
  expect_refusal("list: {seed: 1}", {"sweep.yaml:3:7: list: found a section", "expected a list of maps"});
  expect_refusal("list: [1]", {"sweep.yaml:3:8: list: found 1"});
  expect_refusal("list: [{seed: {a: 1}}]", {"seed: found a section"});
  expect_refusal("grid: {seed: [1], seed: [2]}", {"seed is set twice, first at line 3, column 8"});
  expect_refusal("grid: {seed: [1]}\nlist: [{seed: 2}]",
                 {"sweep.yaml:4:15: seed is set twice, also in grid at line 3"});
  expect_refusal("grid: {run_directory: [a]}", {"run_directory is set for each run", "output:"});
  expect_refusal("grid: {seed: [1]}", {"--set run_directory=x", "change output in"}, {"run_directory=x"});
  expect_refusal("grid: {seed: [1]}", {"--set optimizer.lr=1: unknown key"}, {"optimizer.lr=1"});
  std::string many = "0";
  for (int i = 1; i < 101; ++i) many += ", " + std::to_string(i);
  expect_refusal("grid: {seed: [" + many + "], trainer.max_steps: [" + many + "]}", {"more than 10000 runs"});
  EXPECT_THAT(testing::message_of<UserError>([&] { plan_sweep(file("a.yaml", "list: [{seed: 1}]"), {}); }),
              HasSubstr("a.yaml: base is missing"));
  EXPECT_THAT(
      testing::message_of<UserError>([&] { plan_sweep(file("a.yaml", "base: b.yaml\nlist: [{seed: 1}]"), {}); }),
      HasSubstr("b.yaml: does not exist"));
}

TEST_F(SweepTest, RefusesRunsWithEqualNames) {
  expect_refusal("list: [{trainer.sample_prompt: 'a,seed=2'}, {trainer.sample_prompt: a, seed: 2}]",
                 {"two runs have the name sample_prompt=a,seed=2"}, {"trainer.sample_tokens=1"});
}

TEST_F(SweepTest, RefusesRunsWithEqualSettings) {
  expect_refusal("list: [{seed: 1}, {seed: 2}, {seed: 1}]", {"runs 1 and 3 have equal settings, seed=1 and seed=1"});
  expect_refusal("grid: {optimizer.learning_rate: [1e-3, 0.001]}", {"have equal settings"});
  // The default of another key's value.
  expect_refusal("list: [{seed: 1}, {seed: 1, model.d_feedforward: 64}]",
                 {"runs 1 and 2 have equal settings, seed=1 and seed=1,d_feedforward=64"});
  expect_refusal("grid: {seed: [1, 2]}", {"have equal settings"}, {"seed=5"});
}

}  // namespace
}  // namespace furlong
