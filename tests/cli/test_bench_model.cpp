// The program furlong bench model: output, errors and exit status.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/cli/page_example.h"
#include "tests/cli/program.h"
#include "tests/trainers/training.h"

namespace furlong {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using Json = nlohmann::ordered_json;
using testing::expect_user_error;
using testing::Finished;

class BenchModelProgram : public testing::WithProgram {
 protected:
  BenchModelProgram() { write_config("model.yaml", "position: learned", path("missing.h5")); }
  void write_config(const char* name, const std::string& keys, const std::string& dataset) const {
    std::ofstream(path(name)) << "model:\n  n_layers: 2\n  d_model: 16\n  n_heads: 2\n  " << keys
                              << "\ndata:\n  dataset: " << dataset << "\n  sequence_length: 16\n  batch_size: 2\n"
                              << "device: cpu\ntrainer:\n  max_steps: 2\n";
  }
  Finished bench(const std::string& model, std::vector<std::string> more) const {
    more.insert(more.begin(), {"bench", "model", path(model.c_str())});
    return furlong(more);
  }
  Json written() const {
    std::ifstream file(path("model.json"));
    return Json::parse(file);
  }
};

void expect_run(const Json& run, double tokens) {
  EXPECT_EQ(run["seconds"].size(), 3u);
  EXPECT_GT(run["median_seconds"], 0);
  EXPECT_EQ(run["tokens"], tokens);
  EXPECT_DOUBLE_EQ(run["tokens_per_second"], tokens / run["median_seconds"].get<double>());
}

TEST_F(BenchModelProgram, PrintsAndWritesJsonWithoutADataset) {
  const Finished done = bench(
      "model.yaml", {"--set", "model.vocabulary_size=20", "--lengths", "8,16", "--batch", "3", "--dtype", "bfloat16",
                     "--repeats", "3", "--max-tokens", "2", "--threads", "2", "--json-file", path("model.json")});
  ASSERT_EQ(done.status, 0) << done.err;
  EXPECT_THAT(done.err, AllOf(HasSubstr("info: n = 8: "), HasSubstr("info: n = 16: ")));
  EXPECT_THAT(done.out, AllOf(HasSubstr("decoder, "), HasSubstr(" bfloat16; cpu, "), HasSubstr("\nroofline: float32 "),
                              HasSubstr(fmt::format("{:>8}  {:<27}{:>6}", 8, "training step", 3)),
                              HasSubstr(fmt::format("{:>8}  {:<27}{:>6}", 16, "generation of 2, 1 thread", 1)),
                              Not(HasSubstr("no generation"))));
  const Json object = written();
  EXPECT_TRUE(object["furlong"].contains("commit"));
  EXPECT_EQ(object["config"]["data"]["batch_size"], 3);
  EXPECT_EQ(object["dtype"], "bfloat16");
  EXPECT_GT(object["machine"]["threads"], 0);
  EXPECT_GT(object["parameters"], 20 * 16);
  for (const char* rate : {"float32_flops_per_second", "bfloat16_flops_per_second", "memory_bytes_per_second"})
    EXPECT_GT(object["roofline"][rate], 1e6) << rate;
  ASSERT_EQ(object["lengths"].size(), 2u);
  for (const Json& length : object["lengths"]) {
    const double n = length["n"];
    const Json& step = length["training_step"];
    expect_run(step, 3 * n);
    EXPECT_DOUBLE_EQ(step["flops_per_second"], step["flops"].get<double>() / step["median_seconds"].get<double>());
    EXPECT_GT(step["peak_bytes"], 0);
    EXPECT_TRUE(step["fraction_of_peak"].is_null() || step["fraction_of_peak"] <= 1.0);
    expect_run(length["forward"], 3 * n);
    ASSERT_EQ(length["generation"].size(), 2u);
    for (const Json& one : length["generation"]) {
      const double batch = one["batch"];
      expect_run(one["prompt"], batch * (n - 2));
      expect_run(one["step"], batch);
      EXPECT_EQ(one["steps"], 2);
      EXPECT_EQ(one["threads"], batch == 1 ? 1 : 2);
      EXPECT_GT(one["weight_bytes"], 0);
      EXPECT_GT(one["state_bytes"], 0);
    }
    EXPECT_TRUE(length["no_generation"].is_null());
  }
}

TEST_F(BenchModelProgram, MeasuresRunsAndCheckpoints) {
  testing::write_store(path("text.h5"), testing::synthetic_text(2000));
  write_config("trained.yaml", "position: rotary", path("text.h5"));
  ASSERT_EQ(furlong({"train", path("trained.yaml"), "--run-dir", path("run")}).status, 0);
  std::filesystem::remove(path("text.h5"));
  for (const std::string model : {"run", "run/checkpoints/step_00000002.h5"}) {
    const Finished done =
        bench(model, {"--repeats", "1", "--set", "model.n_layers=1", "--json-file", path("model.json")});
    ASSERT_EQ(done.status, 0) << done.err;
    const Json object = written();
    EXPECT_EQ(object["config"]["model"]["n_layers"], 1);
    EXPECT_EQ(object["lengths"][0]["n"], 16);
    EXPECT_EQ(object["lengths"][0]["generation"].size(), 2u);
  }
}

TEST_F(BenchModelProgram, ReportsWhyEncodersDoNotGenerate) {
  const Finished done =
      bench("model.yaml", {"--set", "model.vocabulary_size=20", "--set", "model.architecture=encoder", "--set",
                           "objective.name=masked_tokens", "--repeats", "1", "--json-file", path("model.json")});
  ASSERT_EQ(done.status, 0) << done.err;
  EXPECT_THAT(done.out, AllOf(HasSubstr("forward"), Not(HasSubstr("generation of")),
                              HasSubstr("no generation: the model is an encoder (objective.name: masked_tokens)\n")));
  const Json object = written();
  EXPECT_TRUE(object["lengths"][0]["generation"].empty());
  EXPECT_THAT(object["lengths"][0]["no_generation"].get<std::string>(), HasSubstr("encoder"));
}

TEST_F(BenchModelProgram, RejectsInvalidInputBeforeMeasuring) {
  const auto refused = [&](std::vector<std::string> more, const std::vector<std::string>& parts) {
    SCOPED_TRACE(more.back());
    more.insert(more.end(), {"--set", "model.vocabulary_size=20"});
    expect_user_error(bench("model.yaml", more), parts);
  };
  refused({"--lengths", "32"},
          {"--lengths 32: the model has learned positions for 16 tokens", "--set model.max_sequence_length=32"});
  refused({"--lengths", "1"}, {"expected at least 2 (--lengths)"});
  refused({"--lengths", "8,8"}, {"--lengths 8,8: 8 is listed twice"});
  refused({"--dtype", "float64"}, {"--dtype", "expected float32 or bfloat16"});
  refused({"--json-file", path("none/model.json")}, {"none/model.json"});
  refused({"--json-file", path("model.yaml")}, {"model.yaml: is both input and output; choose another --json-file"});
  refused({"--set", "model.n_heads=3"}, {"model.n_heads"});
  refused({"--lengths", "8k", "--batch", "1000000", "--set", "model.max_sequence_length=8192"},
          {"this configuration needs", "data.batch_size"});
  expect_user_error(bench("model.yaml", {}), {"missing.h5 does not exist", "--set model.vocabulary_size=N"});
  expect_user_error(bench("nothing.yaml", {}), {"nothing.yaml: does not exist"});
  expect_user_error(bench("nothing.h5", {}), {"nothing.h5: does not exist"});
  std::filesystem::create_directory(path("empty"));
  expect_user_error(bench("empty", {}), {"empty"});
}

// The example of docs/commands.md, with the quickstart's own config.
TEST_F(BenchModelProgram, RunsExampleOfItsPage) {
  std::filesystem::create_directory(path("configs"));
  std::filesystem::copy_file(testing::source_directory() / "configs/quickstart.yaml", path("configs/quickstart.yaml"));
  testing::run_example(folder_, "commands.md", 1);
  const Json object = written();
  EXPECT_EQ(object["lengths"][0]["n"], 2048);
  EXPECT_EQ(object["batch"], 2);
}

}  // namespace
}  // namespace furlong
