// Run directories as furlong report and furlong runs read them, and the page's data.
#include "evaluation/report/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "framework/core/error.h"
#include "framework/io/atomic_file.h"
#include "tests/temporary_folder.h"

namespace furlong {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;
using testing::message_of;

class ReportTest : public testing::WithTemporaryFolder {
 protected:
  /// Writes a run directory.
  std::filesystem::path write_run(const std::string& name, const std::string& metrics, const std::string& config) {
    const std::filesystem::path run = folder_ / name;
    std::filesystem::create_directories(run);
    write_file_atomically(run / "metrics.jsonl", metrics);
    if (!config.empty()) write_file_atomically(run / "config.yaml", config);
    return run;
  }
  static std::string train_line(int step, double loss, double tokens_per_second = 100) {
    return fmt::format(
        "{{\"step\":{},\"split\":\"train\",\"loss\":{},\"tokens\":{},\"tokens_per_second\":{},"
        "\"gradient_norm\":null}}\n",
        step, loss, 200 * step, tokens_per_second);
  }
  static std::string validation_line(int step, double loss) {
    return fmt::format(
        "{{\"step\":{},\"split\":\"validation\",\"loss\":{},\"tokens\":512,\"tokens_per_second\":9,"
        "\"accuracy\":0.5}}\n",
        step, loss);
  }
  static constexpr const char* config = "data: {dataset: d.h5}\ntrainer: {max_steps: 4}\nseed: 7\n";
};

/// The JSON in a page.
Json data_of(const std::string& page) {
  const std::string begin = "id=\"data\">", end = "</script>";
  const std::size_t from = page.find(begin) + begin.size();
  return Json::parse(page.substr(from, page.find(end, from) - from));
}

TEST_F(ReportTest, RunThatStoppedEarlyIsFinished) {
  const std::string patient = "data: {dataset: d.h5}\ntrainer: {max_steps: 9, early_stopping_patience: 2}\n";
  const std::string one_worse = train_line(1, 5) + validation_line(1, 4) + validation_line(2, 4.5);
  EXPECT_EQ(read_run(write_run("one", one_worse, patient)).state, RunState::stopped);
  EXPECT_EQ(read_run(write_run("better", one_worse + validation_line(3, 3), patient)).state, RunState::stopped);
  EXPECT_EQ(read_run(write_run("two", one_worse + validation_line(3, 4), patient)).state, RunState::finished);
  EXPECT_EQ(read_run(write_run("impatient", one_worse + validation_line(3, 4), config)).state, RunState::stopped);
}

TEST_F(ReportTest, ReadsMetricsConfigAndState) {
  const auto path =
      write_run("run",
                train_line(1, 5) + validation_line(1, 4.5) + train_line(3, 3, 50) + validation_line(3, 4) +
                    train_line(4, 2) + validation_line(4, 4.25) + "{\"step\":5,\"spl",  // being written
                config);
  const RunFiles run = read_run(path);
  EXPECT_EQ(run.state, RunState::finished);
  EXPECT_EQ(run.step, 4);
  EXPECT_EQ(run.max_steps, 4);
  EXPECT_EQ(run.config.at("seed"), 7);
  EXPECT_EQ(run.config.at("trainer.max_steps"), 4);
  EXPECT_EQ(run.best_loss, 4);
  EXPECT_EQ(run.best_step, 3);
  EXPECT_EQ(run.last("train", "loss"), 2);
  EXPECT_TRUE(std::isnan(run.last("train", "gradient_norm")));
  EXPECT_EQ(run.tokens(), 800);
  EXPECT_DOUBLE_EQ(run.seconds(), 200 / 100.0 + 400 / 50.0 + 200 / 100.0);
  EXPECT_THAT(run.splits.at("validation").values.at("accuracy"), ElementsAre(0.5, 0.5, 0.5));
  EXPECT_TRUE(run.problems.empty());
  std::filesystem::create_directory(path / "checkpoints");
  EXPECT_EQ(read_run(path).state, RunState::stopped) << "the last step was not saved";
  write_file_atomically(path / "checkpoints" / "step_00000004.h5", "");
  EXPECT_EQ(read_run(path).state, RunState::finished);
}

// With --allow-new-data the losses of the earlier data are no bar.
TEST_F(ReportTest, BestLossIsThatOfTheLastMarkedLine) {
  std::string marked = validation_line(1, 4), later = validation_line(3, 6);
  for (std::string* line : {&marked, &later}) line->insert(line->size() - 2, ",\"best\":1");
  const RunFiles run = read_run(write_run("run", marked + validation_line(2, 5) + later, config));
  EXPECT_EQ(run.best_loss, 6);
  EXPECT_EQ(run.best_step, 3);
  EXPECT_EQ(run.splits.at("validation").values.count("best"), 0u) << "no curve";
  const std::string patient = "data: {dataset: d.h5}\ntrainer: {max_steps: 9, early_stopping_patience: 2}\n";
  const std::string anew = marked + validation_line(2, 5) + later + validation_line(4, 7);
  EXPECT_EQ(read_run(write_run("anew", anew, patient)).state, RunState::stopped);
  EXPECT_EQ(read_run(write_run("resumed", anew + validation_line(5, 7) + train_line(6, 1), patient)).state,
            RunState::stopped);
  EXPECT_EQ(read_run(write_run("ended", anew + validation_line(5, 7), patient)).state, RunState::finished);
}

// The lock file of an active or killed training has its host's name; the end of a training empties the file.
TEST_F(ReportTest, RunWithMarkedLockAndRecentMetricsIsRunning) {
  const auto run = write_run("run", train_line(1, 5), config);
  EXPECT_EQ(read_run(run).state, RunState::stopped) << "no lock file";
  write_file_atomically(run / ".lock", "another-host\n");
  EXPECT_EQ(read_run(run).state, RunState::running);
  std::filesystem::last_write_time(run / "metrics.jsonl",
                                   std::filesystem::file_time_type::clock::now() - std::chrono::minutes(3));
  EXPECT_EQ(read_run(run).state, RunState::stopped) << "no metrics for three minutes";
  std::filesystem::last_write_time(run / "metrics.jsonl",
                                   std::filesystem::file_time_type::clock::now() + std::chrono::hours(1));
  EXPECT_EQ(read_run(run).state, RunState::stopped) << "the clock was set back";
  std::filesystem::last_write_time(run / "metrics.jsonl", std::filesystem::file_time_type::clock::now());
  write_file_atomically(run / ".lock", "");
  EXPECT_EQ(read_run(run).state, RunState::stopped) << "ended in order";
}

TEST_F(ReportTest, KeepsColumnsAlignedIfAKeyAppearsLater) {
  const auto path =
      write_run("run",
                train_line(1, 5) + "{\"step\":2,\"split\":\"train\",\"loss\":null,\"tokens\":400,\"skipped\":1}\n" +
                    train_line(3, 4),
                "");
  const RunFiles run = read_run(path);
  const MetricColumns& train = run.splits.at("train");
  const std::vector<double>& skipped = train.values.at("skipped");
  ASSERT_EQ(skipped.size(), 3u);
  EXPECT_TRUE(std::isnan(skipped[0]) && std::isnan(skipped[2]));
  EXPECT_EQ(skipped[1], 1);
  EXPECT_TRUE(std::isnan(train.values.at("loss")[1]));
  EXPECT_DOUBLE_EQ(train.seconds[2], 2 + 2);  // the second line has no rate
}

// A column is as long as all lines: memory must not grow with their product.
TEST_F(ReportTest, BoundsTheColumnsOfAFile) {
  std::string text;
  for (int i = 0; i < 600; ++i)
    text += fmt::format("{{\"step\":{0},\"split\":\"train\",\"k{0}\":1}}\n{{\"step\":1,\"split\":\"s{0}\"}}\n", i);
  const RunFiles run = read_run(write_run("run", text, ""));
  EXPECT_EQ(run.splits.size(), 16U);
  EXPECT_EQ(run.splits.at("train").values.size(), 256U);
  EXPECT_EQ(run.splits.at("train").step.size(), 600U);
  ASSERT_EQ(run.problems.size(), 2U);
  EXPECT_THAT(run.problems[0], HasSubstr("more than 256 keys in a split"));
}

TEST_F(ReportTest, ReportsDamagedLinesAndConfigs) {
  const auto path = write_run("run", "no json\n" + train_line(1, 5) + "{\"step\":\"x\"}\n", "model: {d_modell: 3}\n");
  const RunFiles run = read_run(path);
  EXPECT_EQ(run.step, 1);
  ASSERT_EQ(run.problems.size(), 2u);
  EXPECT_THAT(run.problems[0], HasSubstr("2 lines are not a metrics object"));
  EXPECT_THAT(run.problems[1], HasSubstr("d_model"));
  EXPECT_TRUE(run.config.empty());
}

TEST_F(ReportTest, RejectsFoldersThatAreNoRuns) {
  std::filesystem::create_directories(folder_ / "empty");
  EXPECT_THAT(message_of<UserError>([&] { read_run(folder_ / "empty"); }), HasSubstr("it has no metrics.jsonl"));
  EXPECT_THAT(message_of<UserError>([&] { read_run(folder_ / "missing"); }),
              HasSubstr("missing: does not exist; expected a run"));
  EXPECT_THAT(message_of<UserError>([&] { find_runs(folder_ / "missing"); }),
              HasSubstr("missing: does not exist; expected the directory"));
  const auto run = write_run("run", train_line(1, 5), "");
  EXPECT_THAT(message_of<UserError>([&] { read_run(run / "metrics.jsonl"); }),
              HasSubstr("metrics.jsonl: not a directory; expected a run directory"));
  EXPECT_THAT(message_of<UserError>([&] { open_runs({run.string(), run.string() + "/"}); }), HasSubstr("given twice"));
}

TEST_F(ReportTest, FindsRunsAndNamesThemByWhatDiffers) {
  write_run("a/seed_1", train_line(1, 5), config);
  write_run("b/seed_1", train_line(1, 5), config);
  write_run("deep/1/2/3/4", train_line(1, 5), config);
  std::filesystem::create_directory_symlink(folder_ / "deep/1/2/3/4", folder_ / "linked");
  std::filesystem::create_directory_symlink(folder_ / "a/seed_1", folder_ / "a/latest");
  std::filesystem::create_directory_symlink("..", folder_ / "a/up");
  EXPECT_THAT(find_runs(folder_), ElementsAre(folder_ / "a/seed_1", folder_ / "b/seed_1", folder_ / "linked"));
  for (const char* link : {"linked", "a/latest", "a/up"}) std::filesystem::remove(folder_ / link);
  const std::vector<ReportRun> runs = open_runs({(folder_ / "a/seed_1").string(), (folder_ / "b/seed_1").string()});
  EXPECT_EQ(runs[0].name, "a/seed_1");
  EXPECT_EQ(runs[1].name, "b/seed_1");
  write_file_atomically(folder_ / "a/finetune.json", "{}");
  EXPECT_EQ(open_runs({(folder_ / "a").string()})[0].name, "seed_1") << "the stages of furlong finetune";
  EXPECT_THAT(message_of<UserError>([&] { open_runs({(folder_ / "b").string()}); }),
              HasSubstr("/b: not a run directory; expected RUN..., such as " + (folder_ / "b/seed_1").string() +
                        "; furlong runs " + (folder_ / "b").string() + " lists them"));
}

TEST_F(ReportTest, ReadsTablesOfLongRangeArena) {
  const std::filesystem::path file = folder_ / "lra.json";
  const std::string result =
      R"({"task": "listops", "mechanism": "elu1", "accuracy": {"value": 0.5, "low": 0.4, "high": 0.6}})";
  write_file_atomically(file, "{\"size\": \"desk\", \"results\": [" + result + "]}");
  ReportTables tables;
  tables.lra.push_back(read_lra(file));
  EXPECT_EQ(data_of(report_page({}, tables, {}))["lra"][0]["results"][0]["accuracy"]["value"], 0.5);
  for (const char* other : {"[]", "{}", "{\"results\": 3}", "{\"results\": [3]}", "{\"results\": [{\"task\": 1}]}"}) {
    write_file_atomically(file, other);
    EXPECT_THAT(message_of<UserError>([&] { read_lra(file); }),
                HasSubstr("lra.json: not results of Long Range Arena; expected the file of furlong bench lra"))
        << other;
  }
  write_file_atomically(file, "{");
  EXPECT_THAT(message_of<UserError>([&] { read_lra(file); }), HasSubstr("lra.json"));
  EXPECT_THAT(message_of<UserError>([&] { read_lra(folder_ / "none.json"); }), HasSubstr("none.json"));
}

TEST_F(ReportTest, PageHasTheNumbersOfTheFiles) {
  const auto path = write_run("run", train_line(1, 0.1) + train_line(2, 1.0 / 3) + validation_line(2, 0.7), config);
  const std::string page = report_page(open_runs({path.string()}), {}, {});
  const Json data = data_of(page);
  const Json& train = data["runs"][0]["splits"]["train"];
  EXPECT_EQ(train["step"], Json({1.0, 2.0}));
  EXPECT_EQ(train["values"]["loss"], Json({0.1, 1.0 / 3}));
  EXPECT_FALSE(train["values"].contains("gradient_norm")) << "a key without a measured value";
  EXPECT_EQ(data["runs"][0]["splits"]["validation"]["values"]["loss"], Json({0.7}));
  EXPECT_EQ(data["runs"][0]["config"]["seed"], "7");
  for (const char* foreign : {"http://", "https://", "src=", "@import"}) {
    const std::size_t found = page.find(foreign);
    // The namespace of SVG is a name, not an address.
    EXPECT_TRUE(found == std::string::npos || page.substr(found).starts_with("http://www.w3.org/2000/svg")) << foreign;
  }
}

TEST_F(ReportTest, TextOfAModelCannotEndTheScript) {
  std::vector<ReportRun> runs = open_runs({write_run("run", train_line(1, 5), config).string()});
  runs[0].samples = {{"<!--", "</script><script>alert(1)</script>\xff"}};
  const std::string page = report_page(runs, {}, {});
  EXPECT_EQ(page.find("alert(1)</script>"), std::string::npos);
  EXPECT_EQ(data_of(page)["runs"][0]["samples"][0]["text"], "</script><script>alert(1)</script>\xef\xbf\xbd");
}

TEST_F(ReportTest, ThinnedRowsKeepExtremesAndEnds) {
  MetricColumns columns;
  for (int row = 0; row < 10000; ++row) {
    columns.step.push_back(row);
    columns.values["loss"].push_back(row == 5001 ? 99 : row == 7003 ? -99 : std::sin(row));
    columns.values["gradient_norm"].push_back(row == 1234 ? 1e6 : 1);
  }
  const std::vector<std::size_t> rows = thinned(columns, 300);
  EXPECT_LE(rows.size(), 300u);
  EXPECT_GE(rows.size(), 200u);
  EXPECT_TRUE(std::is_sorted(rows.begin(), rows.end()));
  for (const std::size_t row : {0, 1234, 5001, 7003, 9999})
    EXPECT_TRUE(std::binary_search(rows.begin(), rows.end(), row)) << row;
  EXPECT_EQ(thinned(columns, 20000).size(), 10000u);
  for (const int missing : {5000, 5002, 7002, 7004}) columns.values["loss"][static_cast<std::size_t>(missing)] = NAN;
  EXPECT_EQ(thinned(columns, 300), rows) << "steps without a loss have no extreme";
}

}  // namespace
}  // namespace furlong
