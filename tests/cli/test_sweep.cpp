// furlong sweep: several runs from one command.
#include <gmock/gmock.h>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <nlohmann/json.hpp>

#include "framework/io/atomic_file.h"
#include "tests/cli/job.h"
#include "tests/cli/page_example.h"
#include "tests/cli/program.h"
#include "tests/trainers/training.h"

namespace furlong {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::ordered_json;
using testing::expect_user_error;
using testing::Finished;

class SweepProgramTest : public testing::WithProgram {
 protected:
  void SetUp() override { file("base.yaml", base); }
  std::string sweep(const std::string& text) const {
    return file("sweep.yaml", "base: base.yaml\noutput: " + path("out") + "\n" + text);
  }
  /// Runs the sweep of sweep.yaml.
  Finished run(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> all{"sweep", path("sweep.yaml"), "--json-file", path("table.json")};
    all.insert(all.end(), more.begin(), more.end());
    return furlong(all);
  }
  /// Expects a user error after the warning that runs of different data do not compare.
  void expect_refused(const std::vector<std::string>& parts) const {
    Finished found = run();
    const std::size_t error = found.err.find("error: ");
    EXPECT_THAT(found.err.substr(0, error), HasSubstr("warning: the runs differ in data.dataset, data.task, so their"));
    found.err.erase(0, error);
    expect_user_error(found, parts);
  }
  Json table() const { return Json::parse(content(path("table.json")))["runs"]; }
  std::string metrics(const std::string& run) const { return content(path("out/" + run + "/metrics.jsonl")); }

  static constexpr const char* base = R"(
data: {task: copy, task_symbols: 4, sequence_length: 16, batch_size: 8}
model: {n_layers: 1, d_model: 16, n_heads: 2, attention: {mechanism: linear}}
schedule: {warmup_steps: 1}
trainer: {max_steps: 4, validate_every: 2, validation_batches: 1}
threads: 1
log: {every: 1, progress: none}
)";
};

TEST_F(SweepProgramTest, TrainsAllRunsOnceAndPrintsOneTable) {
  sweep("grid: {optimizer.learning_rate: [1e-3, 3e-2]}\nlist: [{seed: 1}, {seed: 2}]\n");
  const Finished first = run();
  ASSERT_EQ(first.status, 0) << first.err;
  const Json runs = table();
  ASSERT_EQ(runs.size(), 4u);
  double before = 0;
  for (const Json& one : runs) {
    EXPECT_EQ(one["state"], "finished");
    EXPECT_EQ(one["step"], 4);
    EXPECT_GE(one["best"], before) << "sorted";
    before = one["best"];
    EXPECT_GT(one["rate"], 0);
    EXPECT_GT(one["seconds"], 0);
    EXPECT_EQ(one["run_directory"], path("out/") + one["run"].get<std::string>());
    EXPECT_THAT(first.out, ::testing::ContainsRegex("\n" + one["run"].get<std::string>() + " +finished +4/4 "));
  }
  const Json means = Json::parse(content(path("table.json")))["means"];
  ASSERT_EQ(means.size(), 2u);
  EXPECT_LE(means[0]["mean"].get<double>(), means[1]["mean"].get<double>());
  for (const Json& mean : means) {
    std::vector<double> best;
    for (const Json& one : runs) {
      if (one["settings"]["optimizer.learning_rate"] == mean["settings"]["optimizer.learning_rate"])
        best.push_back(one["best"]);
    }
    EXPECT_EQ(mean["settings"].size(), 1u) << "without the seed";
    ASSERT_EQ(best.size(), 2u);
    EXPECT_EQ(mean["seeds"], 2);
    EXPECT_NEAR(mean["mean"], (best[0] + best[1]) / 2, 1e-12);
    EXPECT_NEAR(mean["deviation"], std::abs(best[0] - best[1]) / std::sqrt(2.0), 1e-12);
  }
  EXPECT_THAT(first.out, ::testing::ContainsRegex("\noptimizer.learning_rate=0.001 +2 +[0-9.]+ +[0-9.e-]+\n"));
  const std::string name = "learning_rate=0.001,seed=2";
  const auto found = std::find_if(runs.begin(), runs.end(), [&](const Json& one) { return one["run"] == name; });
  ASSERT_NE(found, runs.end());
  EXPECT_EQ((*found)["settings"], Json({{"optimizer.learning_rate", 0.001}, {"seed", 2}}));

  // The run equals that of furlong train.
  ASSERT_EQ(furlong({"train", path("base.yaml"), "--set", "optimizer.learning_rate=1e-3", "--set", "seed=2",
                     "--run-dir", path("alone")})
                .status,
            0);
  const auto losses = [](const std::string& text) {
    std::vector<double> found;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) found.push_back(Json::parse(line)["loss"]);
    return found;
  };
  EXPECT_EQ(losses(metrics(name)), losses(content(path("alone/metrics.jsonl"))));

  // The same command trains nothing, and trains a run that was added.
  const std::string unchanged = metrics(name);
  const Finished second = run();
  EXPECT_EQ(second.status, 0) << second.err;
  EXPECT_EQ(second.out, first.out);
  EXPECT_EQ(metrics(name), unchanged);
  EXPECT_EQ(table(), runs);
  sweep("grid: {optimizer.learning_rate: [1e-3, 3e-2, 1e-2]}\nlist: [{seed: 1}, {seed: 2}]\n");
  EXPECT_EQ(run().status, 0);
  EXPECT_EQ(table().size(), 6u);
  EXPECT_EQ(metrics(name), unchanged);
}

// Nothing but standard output has the table, unless it is also a file.
TEST_F(SweepProgramTest, LostTableIsAnErrorWithoutFile) {
  sweep("list: [{seed: 1}, {seed: 2}]\n");
  const int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
  for (const std::vector<std::string>& selected : {std::vector<std::string>{}, {"--index", "1"}}) {
    std::vector<std::string> arguments{"sweep", path("sweep.yaml")};
    arguments.insert(arguments.end(), selected.begin(), selected.end());
    const Finished lost = testing::Program(folder_, arguments, {.out = full}).wait();
    EXPECT_EQ(lost.status, 1);
    EXPECT_THAT(lost.err, HasSubstr("error: cannot write the table to standard output; all runs are saved"));
    arguments.insert(arguments.end(), {"--json-file", path("table.json")});
    const Finished kept = testing::Program(folder_, arguments, {.out = full}).wait();
    EXPECT_EQ(kept.status, 0) << kept.err;
    EXPECT_EQ(table().size(), 2u);
  }
  close(full);
}

TEST_F(SweepProgramTest, ListsRunsWithoutTraining) {
  sweep("grid: {seed: [7, 8], schedule.name: [linear]}\n");
  const Finished done = furlong({"sweep", path("sweep.yaml"), "--dry-run"});
  EXPECT_EQ(done.status, 0) << done.err;
  EXPECT_EQ(done.out,
            "1  seed=7,name=linear  --set seed=7 --set schedule.name=linear\n"
            "2  seed=8,name=linear  --set seed=8 --set schedule.name=linear\n");
  EXPECT_FALSE(fs::exists(path("out")));
}

TEST_F(SweepProgramTest, WarnsIfRunsValidateDifferentParts) {
  const auto warnings = [&](const std::string& grid) {
    sweep("grid: {" + grid + "}\n");
    return furlong({"sweep", path("sweep.yaml"), "--dry-run"}).err;
  };
  EXPECT_EQ(warnings("data.batch_size: [4], seed: [7, 8]"), "");
  EXPECT_THAT(warnings("data.batch_size: [4, 8]"), HasSubstr("their losses do not compare"));
  EXPECT_THAT(warnings("data.sequence_length: [16, 32]"), HasSubstr("their losses do not compare"));
  EXPECT_EQ(warnings("data.batch_size: [4, 8], trainer.validation_batches: [0]"), "");
  const std::string store = testing::write_texts(path("text.h5"), {testing::synthetic_text(4000, 1)}, "0.8,0.2");
  file("base.yaml",
       "data: {dataset: " + store + ", sequence_length: 16, batch_size: 8}\n" + "trainer: {validation_batches: 1}\n");
  EXPECT_EQ(warnings("data.sampler: [random, sequential]"), "");
  EXPECT_THAT(warnings("data.sampler: [random, documents]"), HasSubstr("their losses do not compare"));
  // Rows of documents are not full: the product of their number and length says nothing.
  EXPECT_THAT(warnings("data.sampler: [documents]}\nlist: [{data.batch_size: 8, data.sequence_length: 16}, "
                       "{data.batch_size: 4, data.sequence_length: 32}]\n#"),
              HasSubstr("their losses do not compare"));
}

TEST_F(SweepProgramTest, WarnsIfRunsValidateDifferentTargets) {
  file("base.yaml", R"(
data: {dataset: a.h5, sequence_length: 16}
model: {architecture: encoder}
objective: {name: masked_tokens}
trainer: {validation_batches: 0}
)");
  const auto warnings = [&](const std::string& grid) {
    sweep("grid: {" + grid + "}\n");
    const Finished done = furlong({"sweep", path("sweep.yaml"), "--dry-run"});
    EXPECT_EQ(done.status, 0) << done.err;
    return done.err;
  };
  const auto differ = [](const std::string& keys) { return HasSubstr("the runs differ in " + keys + ", so their"); };
  EXPECT_THAT(warnings("objective.mask_probability: [0.1, 0.2]"), differ("objective.mask_probability"));
  EXPECT_THAT(warnings("data.dataset: [a.h5, b.h5], data.packing: [none, documents]"),
              differ("data.dataset, data.packing"));
  EXPECT_THAT(warnings("data.sampler: [random, documents]"), differ("data.sampler"));
  EXPECT_THAT(warnings("data.sequence_length: [8, 16]"), Not(HasSubstr("the runs differ")));
  EXPECT_THAT(warnings("data.sampler: [documents], data.sequence_length: [8, 16]"), differ("data.sequence_length"));
  EXPECT_THAT(warnings("objective.name: [token_classification], data.sequence_length: [8, 16]"),
              differ("data.sequence_length"));
  EXPECT_THAT(warnings("seed: [1, 2]"), Not(HasSubstr("the runs differ")));
}

TEST_F(SweepProgramTest, TrainsOneRunByIndex) {
  sweep("list: [{seed: 1}, {seed: 2}, {seed: 3}]\n");
  ASSERT_EQ(run({"--index", "2"}).status, 0);
  EXPECT_TRUE(fs::exists(path("out/seed=2/metrics.jsonl")));
  EXPECT_FALSE(fs::exists(path("out/seed=1")));
  const Json runs = table();
  ASSERT_EQ(runs.size(), 3u);
  EXPECT_EQ(runs[0]["run"], "seed=2") << "runs without a loss come last";
  EXPECT_FALSE(Json::parse(content(path("table.json"))).contains("means")) << "one run has a loss";
  EXPECT_EQ(runs[1]["state"], "not started");
  EXPECT_TRUE(runs[1]["best"].is_null());
  EXPECT_TRUE(runs[1]["step"].is_null());
  expect_user_error(run({"--index", "4"}), {"--index 4", "has 3 runs", "from 1 to 3"});
  expect_user_error(run({"--index", "1", "--set", "trainer.max_steps=2"}),
                    {"seed=2", "a run with other settings: ", "trainer.max_steps is 4 instead of 2"});
  expect_user_error(furlong({"sweep", path("sweep.yaml"), "--json-file", path("out/seed=2/metrics.jsonl")}),
                    {"--json-file", "seed=2/metrics.jsonl: training writes its own files there"});
}

TEST_F(SweepProgramTest, RunWithoutItsLastCheckpointIsNotFinished) {
  sweep("list: [{seed: 1}, {seed: 2}, {seed: 3}]\n");
  for (const char* index : {"1", "2"}) ASSERT_EQ(run({"--index", index}).status, 0);
  fs::remove(path("out/seed=1/checkpoints/step_00000004.h5"));  // as after a failed write
  ASSERT_EQ(run({"--index", "3"}).status, 0);
  for (const Json& one : table()) EXPECT_EQ(one["state"], one["run"] == "seed=1" ? "stopped" : "finished");
  EXPECT_EQ(Json::parse(content(path("table.json")))["means"][0]["seeds"], 2);
}

TEST_F(SweepProgramTest, SeveralRanksTrainOneRun) {
  sweep("list: [{seed: 1}, {seed: 2}]\n");
  const std::vector<Finished> found =
      testing::Job(2, folder_, {"sweep", path("sweep.yaml"), "--index", "1", "--json-file", path("table.json")}).wait();
  for (const Finished& rank : found) EXPECT_EQ(rank.status, 0) << rank.err;
  EXPECT_THAT(found[0].out, HasSubstr("seed=1  finished"));
  EXPECT_EQ(found[1].out, "");
  EXPECT_EQ(table()[0]["step"], 4);
  // Without --index, one error for all ranks.
  const std::vector<Finished> refused = testing::Job(2, folder_, {"sweep", path("sweep.yaml")}).wait();
  ASSERT_EQ(testing::error_lines(refused).size(), 1u) << testing::all_errors(refused);
  EXPECT_THAT(testing::error_lines(refused)[0], HasSubstr("--index K"));
  for (const Finished& rank : refused) EXPECT_NE(rank.status, 0);
}

TEST_F(SweepProgramTest, FailingRunDoesNotStopTheOthers) {
  // The second run has no weights to start from.
  sweep("list: [{seed: 1}, {model.weights: nowhere.h5}, {seed: 3}]\n");
  const Finished done = run();
  EXPECT_EQ(done.status, 2);
  const std::string failed = table()[2]["run"];
  EXPECT_THAT(failed, HasSubstr("weights=nowhere.h5"));
  EXPECT_THAT(done.err, ::testing::EndsWith("error: 1 of 3 runs failed: " + failed + "\n"));
  EXPECT_THAT(done.out, HasSubstr(failed + "  failed"));
  const Json runs = table();
  EXPECT_EQ(runs[0]["state"], "finished");
  EXPECT_EQ(runs[1]["state"], "finished");
  EXPECT_THAT(runs[2]["error"].get<std::string>(), HasSubstr("nowhere.h5"));
  // As the error of a single run.
  const Finished alone = run({"--index", "2"});
  EXPECT_EQ(alone.status, 2);
  EXPECT_THAT(alone.err, HasSubstr("error: nowhere.h5"));
}

TEST_F(SweepProgramTest, MissingDatasetIsReportedBeforeTheFirstRun) {
  sweep("list: [{seed: 1}, {seed: 2, data.task: none, data.task_symbols: null, data.dataset: nowhere.h5}]\n");
  expect_refused({"nowhere.h5 does not exist; expected a tokenized dataset"});
  EXPECT_FALSE(fs::exists(path("out")));
  expect_user_error(run({"--dry-run"}), {"--dry-run excludes --json-file"});
  const Finished planned = furlong({"sweep", path("sweep.yaml"), "--dry-run"});
  EXPECT_EQ(planned.status, 0);
  EXPECT_THAT(planned.err, HasSubstr("nowhere.h5 does not exist yet"));
}

TEST_F(SweepProgramTest, SignalSavesAndTheSameCommandContinues) {
  sweep("list: [{seed: 1}, {seed: 2, trainer.max_steps: 1000000}, {seed: 3}]\n");
  const std::vector<std::string> fewer{"--set", "checkpoint.every=0", "--set", "trainer.validate_every=0"};
  std::vector<std::string> all{"sweep", path("sweep.yaml")};
  all.insert(all.end(), fewer.begin(), fewer.end());
  testing::Program program(folder_, all);
  const std::string second = "out/seed=2,max_steps=1000000";
  program.wait_for_more(path(second + "/metrics.jsonl"), 0);
  program.send(SIGINT);
  const Finished stopped = program.wait();
  EXPECT_EQ(stopped.status, 3) << stopped.err;
  EXPECT_THAT(stopped.out, HasSubstr("seed=2,max_steps=1000000  stopped"));
  EXPECT_THAT(stopped.out, HasSubstr("stopped by a signal, saved; run the same command again"));
  EXPECT_FALSE(fs::exists(path("out/seed=3")));
  EXPECT_FALSE(fs::is_empty(path(second + "/checkpoints")));
  // It continues, so the settings of the stopped run must be its own.
  sweep("list: [{seed: 1}, {seed: 2}, {seed: 3}]\n");
  fs::rename(path(second), path("out/seed=2"));
  expect_user_error(
      run(fewer), {"out/seed=2/config.yaml", "trainer.max_steps is 1000000 instead of 4", "another output directory"});
  EXPECT_FALSE(fs::exists(path("out/seed=3"))) << "refused before training";
  fs::remove_all(path("out/seed=2"));
  EXPECT_EQ(run(fewer).status, 0);
  for (const Json& one : table()) EXPECT_EQ(one["step"], 4);
}

TEST_F(SweepProgramTest, LeavesRunsOfOtherProcessesAlone) {
  sweep("list: [{seed: 1}, {seed: 2}]\n");
  fs::create_directories(path("out/seed=1"));
  const int lock = open(path("out/seed=1/.lock").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0666);
  ASSERT_EQ(flock(lock, LOCK_EX | LOCK_NB), 0);
  const Finished done = run();
  EXPECT_EQ(done.status, 0) << done.err;
  EXPECT_THAT(done.err, HasSubstr("seed=1: another process trains this run; skipped"));
  EXPECT_THAT(done.out, HasSubstr("seed=1  running"));
  EXPECT_THAT(done.out, HasSubstr("seed=2  finished"));
  EXPECT_EQ(std::distance(fs::directory_iterator(path("out/seed=1")), {}), 1);
  close(lock);
}

TEST_F(SweepProgramTest, SeveralProcessesShareASweep) {
  sweep("list: [{seed: 1}, {seed: 2}, {seed: 3}, {seed: 4}]\n");
  std::vector<std::unique_ptr<testing::Program>> programs;
  for (const char* name : {"a", "b", "c"}) {
    fs::create_directories(path(name));
    programs.push_back(std::make_unique<testing::Program>(
        folder_ / name, std::vector<std::string>{"sweep", path("sweep.yaml"), "--set", "checkpoint.every=1", "--set",
                                                 "checkpoint.keep_last=1"}));
  }
  for (const auto& program : programs) {
    const Finished done = program->wait();
    EXPECT_EQ(done.status, 0) << done.err;
  }
  EXPECT_EQ(run({"--set", "checkpoint.every=1", "--set", "checkpoint.keep_last=1"}).status, 0);
  for (const Json& one : table()) {
    EXPECT_EQ(one["state"], "finished");
    std::istringstream lines(metrics(one["run"]));
    int steps = 0;
    for (std::string line; std::getline(lines, line);) steps += Json::parse(line)["split"] == "train";
    EXPECT_EQ(steps, 4) << one["run"] << ": each step once";
  }
}

TEST_F(SweepProgramTest, ExampleOfThePageRuns) {
  fs::create_directories(path("configs"));
  std::string text;
  for (const std::string& line : testing::example_of("sweep.md", "yaml")) text += line + "\n";
  file("configs/rates.yaml", text);
  const fs::path quickstart = testing::source_directory() / "configs/quickstart.yaml";
  fs::copy_file(quickstart, path("configs/quickstart.yaml"));
  testing::run_line(folder_, testing::example_of("sweep.md").front());
  EXPECT_THAT(content(path("stdout")), HasSubstr("8  learning_rate=0.003,feature_map=favor_relu,seed=2"));
  fs::remove(path("stdout"));
  file("configs/quickstart.yaml", base);
  testing::run_example(folder_, "sweep.md", 3);
  const std::string out = content(path("stdout"));
  EXPECT_THAT(out,
              HasSubstr("3  learning_rate=0.001,feature_map=favor_relu,seed=1  --set optimizer.learning_rate=0.001"));
  EXPECT_THAT(out, HasSubstr("learning_rate=0.003,feature_map=favor_positive,seed=2  finished"));
  EXPECT_EQ(Json::parse(content(path("rates.json")))["runs"].size(), 8u);
}

TEST_F(SweepProgramTest, ChecksDatasetsOfRunsToTrainBeforeTheFirstRun) {
  const std::string text = file("text", std::string(4000, 'a'));
  ASSERT_EQ(furlong({"prepare", "text", text, "-o", path("good.h5")}).status, 0);
  const auto with_dataset = [](const std::string& name) {
    return "{data.task: null, data.task_symbols: null, data.dataset: " + name + "}";
  };
  sweep("list: [{data.task: copy}, " + with_dataset(file("bad.h5", "no dataset")) + "]\n");
  expect_refused({"dataset=", "bad.h5"});
  EXPECT_FALSE(fs::exists(path("out")));
  // A dataset that does not fit its run.
  sweep("list: [{data.task: copy}, " + with_dataset(path("good.h5")) + "]\n");
  expect_user_error(run({"--set", "data.ignore_tokens=[none_such]"}), {"none_such"});
  EXPECT_FALSE(fs::exists(path("out")));
  ASSERT_EQ(run().status, 0);
  fs::remove(path("good.h5"));
  EXPECT_EQ(run().status, 0) << "finished runs need no dataset";
}

TEST_F(SweepProgramTest, InvalidInputIsAUserError) {
  sweep("grid: {optimizer.lr: [1]}\n");
  expect_user_error(run(), {"sweep.yaml:3:23: unknown key optimizer.lr"});
  EXPECT_FALSE(fs::exists(path("out")));
  sweep("list: [{seed: 1}]\n");
  expect_user_error(furlong({"sweep", path("sweep.yaml"), "--json-file", path("none/table.json")}),
                    {"none/table.json"});
  for (const char* input : {"sweep.yaml", "base.yaml"}) {
    expect_user_error(furlong({"sweep", path("sweep.yaml"), "--json-file", path(input)}),
                      {path(input) + ": is both input and output; choose another --json-file"});
  }
  EXPECT_EQ(content(path("base.yaml")), base);
  expect_user_error(run({"--index", "0"}), {"--index: found 0"});
  expect_user_error(run({"--index", "1", "--dry-run"}), {"--dry-run", "--index"});
  expect_user_error(furlong({"sweep", path("missing.yaml")}), {"missing.yaml: does not exist"});
  EXPECT_FALSE(fs::exists(path("out")));
}

TEST_F(SweepProgramTest, RunWithDamagedCheckpointsFailsAlone) {
  sweep("list: [{seed: 1}, {seed: 2}]\n");
  ASSERT_EQ(run().status, 0);
  for (const auto& entry : fs::directory_iterator(path("out/seed=1/checkpoints"))) {
    if (entry.path().extension() == ".h5") fs::resize_file(entry.path(), 1000);
  }
  sweep("list: [{seed: 1}, {seed: 2}, {seed: 3}]\n");
  const Finished other = run({"--index", "2"});
  EXPECT_EQ(other.status, 0) << other.err;
  const Finished done = run();
  EXPECT_EQ(done.status, 2) << done.err;
  EXPECT_THAT(done.err, HasSubstr("is intact"));
  EXPECT_THAT(done.err, HasSubstr("to start from step 0, remove "));
  EXPECT_THAT(done.err, ::testing::EndsWith("error: 1 of 3 runs failed: seed=1\n"));
  for (const Json& one : table()) EXPECT_EQ(one["state"], one["run"] == "seed=1" ? "failed" : "finished");
}

TEST_F(SweepProgramTest, EarlyStoppedRunsAreFinished) {
  const std::string text = file("text", std::string(4000, 'a'));
  ASSERT_EQ(furlong({"prepare", "text", text, "-o", path("data.h5")}).status, 0);
  sweep("list: [{data.task: null, data.task_symbols: null, data.dataset: " + path("data.h5") + "}]\n");
  // The weights do not change, so the second validation is no better.
  const std::vector<std::string> keys{"--set", "optimizer.learning_rate=1e-30",    "--set", "trainer.max_steps=100",
                                      "--set", "trainer.early_stopping_patience=1"};
  ASSERT_EQ(run(keys).status, 0);
  EXPECT_EQ(table()[0]["step"], 4);
  EXPECT_EQ(table()[0]["state"], "finished");
  fs::remove(path("data.h5"));
  const Finished again = run(keys);
  EXPECT_EQ(again.status, 0) << again.err << "finished runs need no dataset";
  EXPECT_EQ(table()[0]["state"], "finished");
}

TEST_F(SweepProgramTest, RunsOfOtherDataAreRefused) {
  const auto prepare = [&](char letter) {
    const std::string text = file("text", std::string(4000, letter));
    ASSERT_EQ(furlong({"prepare", "text", text, "-o", path("data.h5"), "--force"}).status, 0);
  };
  prepare('a');
  file("base.yaml", "data: {dataset: " + path("data.h5") + R"(, sequence_length: 16, batch_size: 8}
model: {n_layers: 1, d_model: 16, n_heads: 2}
schedule: {warmup_steps: 1}
trainer: {max_steps: 4}
)");
  sweep("grid: {seed: [1]}\n");
  ASSERT_EQ(run().status, 0);
  prepare('b');
  sweep("grid: {seed: [1, 2]}\n");
  expect_user_error(run(), {"seed=1: was trained on other data than", "data.h5 contains now"});
  EXPECT_FALSE(fs::exists(path("out/seed=2"))) << "refused before training";
  prepare('a');
  EXPECT_EQ(run().status, 0);
}

TEST_F(SweepProgramTest, JsonFileInUseDoesNotFailTheRuns) {
  sweep("list: [{seed: 1}]\n");
  const AtomicFile other(path("table.json"));  // as another process of the same sweep
  const Finished done = run();
  EXPECT_EQ(done.status, 0) << done.err;
  EXPECT_THAT(done.err, HasSubstr("warning: --json-file: " + path("table.json") + ": another process is writing"));
  EXPECT_THAT(done.out, HasSubstr("seed=1  finished"));
  EXPECT_FALSE(fs::exists(path("table.json")));
  const int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
  const Finished lost =
      testing::Program(folder_, {"sweep", path("sweep.yaml"), "--json-file", path("table.json")}, {.out = full}).wait();
  close(full);
  EXPECT_EQ(lost.status, 1);
  EXPECT_THAT(lost.err, HasSubstr("error: cannot write the table to standard output; all runs are saved"));
}

TEST_F(SweepProgramTest, TableShowsRunsThatOtherProcessesHaveFinished) {
  sweep("list: [{seed: 1}, {seed: 2, trainer.max_steps: 1000000}]\n");
  fs::create_directories(path("out/seed=1"));
  const int lock = open(path("out/seed=1/.lock").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0666);
  ASSERT_EQ(flock(lock, LOCK_EX | LOCK_NB), 0);
  testing::Program program(folder_, {"sweep", path("sweep.yaml"), "--set", "checkpoint.every=0"});
  program.wait_for_more(path("out/seed=2,max_steps=1000000/metrics.jsonl"), 0);
  close(lock);
  fs::create_directories(path("other"));
  testing::Program train(path("other"),
                         {"train", path("base.yaml"), "--set", "seed=1", "--run-dir", path("out/seed=1")});
  ASSERT_EQ(train.wait().status, 0);
  program.send(SIGINT);
  const Finished stopped = program.wait();
  EXPECT_EQ(stopped.status, 3);
  EXPECT_THAT(stopped.err, HasSubstr("seed=1: another process trains this run; skipped"));
  EXPECT_THAT(stopped.out, ::testing::ContainsRegex("\nseed=1 +finished +4/4 "));
}

}  // namespace
}  // namespace furlong
