// furlong report and furlong runs on trainings of the program itself.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tests/cli/program.h"
#include "tests/trainers/training.h"

namespace furlong {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;
using testing::expect_user_error;
using testing::Finished;

class ReportProgramTest : public testing::WithProgram {
 protected:
  void SetUp() override {
    for (const std::string mechanism : {"linear", "softmax"}) {
      const std::string config =
          file(mechanism + ".yaml",
               fmt::format("run_directory: {}\nmodel: {{d_model: 16, n_layers: 1, n_heads: 2, attention: {{mechanism: "
                           "{}}}}}\ndata: {{task: copy, task_symbols: 4, sequence_length: 16, batch_size: 40}}\n"
                           "trainer: {{max_steps: 4, validate_every: 2}}\nlog: {{every: 1}}\n",
                           path("runs/" + mechanism), mechanism));
      const Finished trained = furlong({"train", config});
      ASSERT_EQ(trained.status, 0) << trained.err;
    }
  }
};

TEST_F(ReportProgramTest, WritesThePageOfTwoRuns) {
  const std::string page = path("report.html");
  const Finished done = furlong({"report", path("runs/linear"), path("runs/softmax"), "-o", page, "--analyze"});
  ASSERT_EQ(done.status, 0) << done.err;
  EXPECT_THAT(done.out, HasSubstr("2 runs"));
  const std::string text = content(page), begin = "id=\"data\">";
  const std::size_t from = text.find(begin) + begin.size();
  const Json data = Json::parse(text.substr(from, text.find("</script>", from) - from));
  // Every number of metrics.jsonl is on the page.
  std::istringstream lines(content(path("runs/linear/metrics.jsonl")));
  std::size_t row = 0;
  for (std::string line; std::getline(lines, line);) {
    const Json record = Json::parse(line);
    if (record["split"] != "train") continue;
    const Json& train = data["runs"][0]["splits"]["train"];
    for (const char* key : {"loss", "learning_rate", "gradient_norm", "memory_bytes"})
      EXPECT_EQ(train["values"][key][row], record[key]) << key << " of line " << row;
    ++row;
  }
  EXPECT_EQ(row, 4u);
  EXPECT_EQ(data["runs"][0]["config"]["model.attention.mechanism"], "linear");
  EXPECT_EQ(data["runs"][1]["config"]["model.attention.mechanism"], "softmax");
  ASSERT_EQ(data["runs"][0]["attention"].size(), 1u) << done.err;
  EXPECT_EQ(data["runs"][0]["attention"][0]["heads"].size(), 2u);
}

TEST_F(ReportProgramTest, WatchEndsWithTheLastRun) {
  const Finished done = furlong({"report", path("runs/linear"), "-o", path("report.html"), "--watch"});
  EXPECT_EQ(done.status, 0);
  EXPECT_THAT(done.err, HasSubstr("no run is active"));
}

TEST_F(ReportProgramTest, ListsSortsAndFiltersRuns) {
  const Finished all = furlong({"runs", path("runs"), "--sort", "best", "--json"});
  ASSERT_EQ(all.status, 0) << all.err;
  const Json rows = Json::parse(all.out);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_LE(rows[0]["best"].get<double>(), rows[1]["best"].get<double>());
  EXPECT_EQ(rows[0]["state"], "finished");
  EXPECT_EQ(rows[0]["step"], 4);
  EXPECT_TRUE(std::filesystem::exists(rows[0]["run_directory"].get<std::string>() + "/metrics.jsonl"));
  const std::int64_t tokens = rows[0]["tokens"];
  ASSERT_GE(tokens, 1000);
  EXPECT_THAT(furlong({"runs", path("runs")}).out, HasSubstr(fmt::format("  {}  ", tokens)));
  const Finished one =
      furlong({"runs", path("runs"), "--where", "model.attention.mechanism=linear", "--columns", "seed,model.d_model"});
  ASSERT_EQ(one.status, 0) << one.err;
  EXPECT_EQ(std::count(one.out.begin(), one.out.end(), '\n'), 2) << one.out;
  EXPECT_THAT(one.out, HasSubstr("model.d_model"));
  EXPECT_THAT(one.out, ::testing::ContainsRegex("linear +finished +4/4"));
  const Finished none = furlong({"runs", path("runs"), "--where", "loss<0"});
  EXPECT_EQ(std::count(none.out.begin(), none.out.end(), '\n'), 1) << "the header";
  EXPECT_THAT(none.err, HasSubstr("no run matches --where"));
}

TEST_F(ReportProgramTest, ComparesTheTimeOfTheLastLineWithDates) {
  const auto matching = [&](const std::string& condition) {
    const Finished found = furlong({"runs", path("runs"), "--where", "changed" + condition, "--json"});
    EXPECT_EQ(found.status, 0) << found.err;
    return Json::parse(found.out).size();
  };
  const std::string time = Json::parse(furlong({"runs", path("runs"), "--json"}).out)[0]["changed"];
  ASSERT_EQ(time.size(), 16u) << time;
  EXPECT_EQ(matching(">2020-01-31"), 2u);
  EXPECT_EQ(matching("<2020-01-31 18:30"), 0u);
  EXPECT_EQ(matching(">2020"), 2u);
  EXPECT_EQ(matching(">9000"), 0u);
  EXPECT_GE(matching("=" + time.substr(0, 10)), 1u);
  EXPECT_EQ(matching("=" + time.substr(0, 10)) + matching("!=" + time.substr(0, 10)), 2u);
  EXPECT_GE(matching("=" + time), 1u);
  for (const std::string value : {"1", "today", "2020-1-31", "20200131", "2020-01-31T18:30"})
    expect_user_error(furlong({"runs", path("runs"), "--where", "changed>" + value}),
                      {"--where changed>" + value, "expected a date or time such as 2027-01-31"});
}

TEST_F(ReportProgramTest, AcceptsEveryKeyOfConfigs) {
  const Finished found = furlong({"runs", path("runs"), "--columns", "model.attention.layers,teacher.temperature",
                                  "--sort", "finetune.source", "--where", "teacher.temperature!=2", "--json"});
  ASSERT_EQ(found.status, 0) << found.err;
  const Json rows = Json::parse(found.out);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_TRUE(rows[0]["teacher.temperature"].is_null()) << "it has no effect in these runs";
  expect_user_error(furlong({"runs", path("runs"), "--columns", "teacher.temperatur"}),
                    {"neither a column", "nor a config key", "did you mean teacher.temperature?"});
}

TEST_F(ReportProgramTest, KeysOfConfigsKeepTheirTypes) {
  const Finished found =
      furlong({"runs", path("runs"), "--columns", "model.tied_embeddings,data.task,model.d_model", "--json"});
  ASSERT_EQ(found.status, 0) << found.err;
  const Json row = Json::parse(found.out)[0];
  EXPECT_TRUE(row["model.tied_embeddings"].is_boolean()) << row;
  EXPECT_TRUE(row["data.task"].is_string()) << row;
  EXPECT_TRUE(row["model.d_model"].is_number_integer()) << row;
}

TEST_F(ReportProgramTest, CommandsDoNotReplaceTheRunThatTheyRead) {
  const std::string run = path("runs/linear"), metrics = run + "/metrics.jsonl", best = run + "/checkpoints/best.h5";
  const auto refused = [&](const std::vector<std::string>& words, const std::string& file, const char* option) {
    const std::string before = content(file);
    expect_user_error(furlong(words), {file + ": is both input and output; choose another " + option});
    EXPECT_EQ(content(file), before);
  };
  refused({"report", run, "-o", metrics}, metrics, "--output");
  refused({"analyze", "attention", run, "--json-file", best}, best, "--json-file");
  refused({"evaluate", run, "--predictions", metrics}, metrics, "--predictions");
  const std::string data = file("data.json", "{}");
  refused({"analyze", "attention", run, "--data", data, "--json-file", data}, data, "--json-file");
  expect_user_error(furlong({"report", run, "-o", path("linear.yaml")}), {"the extension '.yaml'; expected .html"});
  // Nor of others.
  const std::string other = path("runs/softmax/checkpoints/best.h5"),
                    store = testing::write_store(path("store.h5"), testing::synthetic_text(400));
  expect_user_error(furlong({"analyze", "attention", run, "--json-file", other}),
                    {"best.h5: is a checkpoint; this command does not replace it; choose another --json-file"});
  expect_user_error(
      furlong({"evaluate", run, "--predictions", store}),
      {"store.h5: is a tokenized dataset; this command does not replace it; choose another --predictions"});
  std::string damaged = content(store);
  damaged[12] ^= 1;  // in the superblock
  expect_user_error(furlong({"evaluate", run, "--predictions", file("damaged.h5", damaged)}),
                    {"damaged.h5: is an HDF5 file that is damaged or of another version"});
  EXPECT_EQ(content(path("damaged.h5")), damaged);
}

TEST_F(ReportProgramTest, SamplesOfOtherPromptsRemain) {
  const Finished done = furlong({"report", path("runs/linear"), "-o", path("report.html"), "--samples", "1", "--prompt",
                                 "no symbol", "--prompt", "0 1"});
  EXPECT_EQ(done.status, 0) << done.err;
  EXPECT_THAT(done.err, HasSubstr("no samples of the prompt 'no symbol'"));
  EXPECT_THAT(content(path("report.html")), HasSubstr(R"("prompt":"0 1")"));
  expect_user_error(furlong({"report", path("runs/linear"), "--samples", "1", "--device", "none"}), {"none"});
  std::filesystem::remove_all(path("runs/linear/checkpoints"));
  const Finished without = furlong({"report", path("runs/linear"), "-o", path("report.html"), "--samples", "1"});
  EXPECT_EQ(without.status, 0) << without.err;
  EXPECT_THAT(without.err, HasSubstr("linear: no samples: "));
}

TEST_F(ReportProgramTest, LargeSeedsAreExact) {
  const std::string large = "9007199254740993";  // 2^53 + 1 is no double
  std::string config = content(path("runs/linear/config.yaml"));
  config.replace(config.find("seed: 1"), 7, "seed: " + large);
  file("runs/linear/config.yaml", config);
  const auto matching = [&](const std::string& condition) {
    const Finished found =
        furlong({"runs", path("runs"), "--where", "seed" + condition, "--columns", "seed", "--json"});
    EXPECT_EQ(found.status, 0) << found.err;
    return found.out;
  };
  EXPECT_THAT(matching("=" + large), HasSubstr(large));
  EXPECT_THAT(matching("=9007199254740992"), ::testing::Not(HasSubstr("seed")));
}

TEST_F(ReportProgramTest, RunsWithoutTheValueComeLastInBothDirections) {
  std::filesystem::create_directories(path("runs/unvalidated"));
  file("runs/unvalidated/metrics.jsonl",
       "{\"step\":1,\"split\":\"train\",\"loss\":5,\"tokens\":100,\"tokens_per_second\":50}\n"
       "{\"step\":2,\"split\":\"train\",\"loss\":5,\"tokens\":400,\"tokens_per_second\":100}\n");
  for (const bool reverse : {false, true}) {
    std::vector<std::string> words{"runs", path("runs"), "--sort", "best", "--columns", "best_step", "--json"};
    if (reverse) words.emplace_back("--reverse");
    const Json rows = Json::parse(furlong(words).out);
    ASSERT_EQ(rows.size(), 3u);
    EXPECT_TRUE(rows[2]["best"].is_null() && rows[2]["best_step"].is_null()) << rows[2];
    EXPECT_EQ(rows[0]["best"].get<double>() > rows[1]["best"].get<double>(), reverse);
    EXPECT_EQ(rows[2]["rate"], 80) << "400 tokens in 2 + 3 seconds";
  }
  expect_user_error(furlong({"runs", path("runs"), "--where", "seed==1"}), {"--where seed==1", "COLUMN=VALUE"});
}

TEST_F(ReportProgramTest, RejectsWhatIsNoRunColumnOrCondition) {
  expect_user_error(furlong({"report", path("missing")}), {"missing: does not exist; expected a run directory"});
  expect_user_error(furlong({"report", folder_.string() + "/linear.yaml"}),
                    {"linear.yaml: not a directory; expected a run directory"});
  expect_user_error(furlong({"report", path("runs")}), {"runs: not a run directory; expected RUN..., such as "});
  expect_user_error(furlong({"report", path("runs/linear"), "--lra", path("linear.yaml")}), {"linear.yaml"});
  expect_user_error(furlong({"report", path("runs/linear"), "-o", path("none/report.html")}), {"none"});
  expect_user_error(furlong({"runs", path("missing")}),
                    {"missing: does not exist; expected the directory that holds your runs"});
  expect_user_error(furlong({"runs", folder_.string() + "/linear.yaml"}), {"linear.yaml: not a directory"});
  expect_user_error(furlong({"runs", path("runs"), "--sort", "bestt"}), {"'bestt'", "did you mean best?"});
  expect_user_error(furlong({"runs", path("runs"), "--where", "loss"}), {"--where loss", "COLUMN=VALUE"});
  expect_user_error(furlong({"runs", path("runs"), "--where", "loss<x"}), {"'x' is not a number"});
  std::filesystem::create_directories(path("empty"));
  expect_user_error(furlong({"runs", path("empty")}), {"no run directories"});
}

}  // namespace
}  // namespace furlong
