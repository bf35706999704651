#include "trainers/train/train.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>

#include <cmath>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "framework/autodiff/tape.h"
#include "framework/core/log.h"
#include "framework/io/atomic_file.h"
#include "tests/trainers/training.h"

namespace furlong {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;
using testing::expect_equal_tensors;
using testing::message_of;
using testing::small_settings;
using Resume = TrainOptions::Resume;

// Its second half is random: what is learned from the first half makes predictions there worse, so that validation is
// best early.
std::string misleading_text() {
  std::string text = testing::synthetic_text(300);
  for (std::uint64_t i = 0; i < 300; ++i)
    text.push_back(static_cast<char>('a' + random_word({5, 0, random_stream("misleading text")}, i) % 8));
  return text;
}

class TrainTest : public testing::WithTemporaryFolder {
 protected:
  TrainTest() : store(testing::write_store(path("tokens.h5"), testing::synthetic_text(4000))) {}

  LoadedSettings settings(const std::string& run, const std::vector<std::string>& overrides = {}) const {
    std::vector<std::string> all{"run_directory=" + path(run), "trainer.max_steps=12", "trainer.validate_every=4",
                                 "checkpoint.every=3", "log.every=2"};
    all.insert(all.end(), overrides.begin(), overrides.end());
    return small_settings(store, all);
  }
  TrainResult run(const std::string& name, const std::vector<std::string>& overrides = {},
                  Resume resume = Resume::automatic, const fs::path& checkpoint = {}) const {
    TrainOptions options;
    options.resume = resume;
    options.checkpoint = checkpoint;
    return train(settings(name, overrides), options);
  }
  std::vector<Json> metrics(const std::string& name) const {
    std::istringstream lines(content(path(name + "/metrics.jsonl")));
    std::vector<Json> found;
    for (std::string line; std::getline(lines, line);) found.push_back(Json::parse(line));
    return found;
  }
  // Without values that depend on the clock and the arena's history.
  std::vector<Json> measured(const std::string& name) const {
    auto lines = metrics(name);
    for (Json& line : lines) {
      line.erase("tokens_per_second");
      line.erase("memory_bytes");
    }
    return lines;
  }
  std::set<std::string> checkpoints(const std::string& name) const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(path(name + "/checkpoints")))
      names.insert(entry.path().filename().string());
    return names;
  }
  std::string checkpoint(const std::string& name, int step) const {
    return path(fmt::format("{}/checkpoints/step_{:08d}.h5", name, step));
  }

  std::string store;
};

TEST_F(TrainTest, WritesMetricsConfigAndCheckpoints) {
  const TrainResult result = run("run");
  EXPECT_EQ(result.step, 12);
  EXPECT_FALSE(result.interrupted);
  EXPECT_FALSE(result.stopped_early);
  EXPECT_EQ(result.run_directory, path("run"));
  EXPECT_EQ(result.checkpoint, checkpoint("run", 12));

  std::vector<std::string> places;
  std::int64_t trained = 0;
  for (const Json& line : metrics("run")) {
    std::vector<std::string> keys;
    for (const auto& [key, value] : line.items()) keys.push_back(key);
    std::vector<std::string> expected{"step",          "split",         "loss",        "tokens", "tokens_per_second",
                                      "learning_rate", "gradient_norm", "memory_bytes"};
    const bool validation = line["split"] == "validation";
    if (validation) expected.push_back("accuracy");
    if (line.contains("best")) expected.push_back("best");
    EXPECT_EQ(keys, expected);
    places.push_back(line["split"].get<std::string>() + " " + line["step"].dump());
    EXPECT_GT(line["loss"], 0);
    EXPECT_GT(line["tokens_per_second"], 0);
    EXPECT_GT(line["memory_bytes"], 0);
    if (validation) {
      EXPECT_EQ(line["tokens"], 3 * 2 * 32);
      EXPECT_TRUE(line["learning_rate"].is_null() && line["gradient_norm"].is_null());
    } else {
      EXPECT_EQ(line["tokens"], line["step"].get<int>() * 2 * 32);
      EXPECT_GT(line["tokens"], trained);
      trained = line["tokens"];
    }
  }
  EXPECT_THAT(places, ElementsAre("train 1", "train 2", "train 4", "validation 4", "train 6", "train 8", "validation 8",
                                  "train 10", "train 12", "validation 12"));
  EXPECT_EQ(metrics("run").back()["loss"], result.validation_loss);
  EXPECT_EQ(metrics("run")[8]["loss"], result.train_loss);

  EXPECT_EQ(load_settings(path("run/config.yaml")).settings, settings("run").settings);
  EXPECT_THAT(checkpoints("run"), ElementsAre("best.h5", "best.json", "step_00000009.h5", "step_00000012.h5"));
  EXPECT_FALSE(fs::is_empty(path("run/tensorboard")));
  const CheckpointReader last = CheckpointReader::open(result.checkpoint);
  EXPECT_EQ(last.integer("step"), 12);
  EXPECT_EQ(last.text("metrics"), content(path("run/metrics.jsonl"))) << "checkpoints contain the metrics";
}

TEST_F(TrainTest, MemoryIsThatOfTheRunNotOfEarlierOnes) {
  const auto memory = [&](const char* name, const char* length) {
    run(name, {std::string("data.sequence_length=") + length});
    return metrics(name).back()["memory_bytes"].get<double>();
  };
  const double large = memory("large", "128"), small = memory("small", "8");
  EXPECT_LT(small, large / 2);
}

TEST_F(TrainTest, KeepsLastAndBestCheckpoints) {
  testing::write_store(store, misleading_text(), "0.5,0.4,0.1");
  run("run", {"trainer.max_steps=80", "trainer.validate_every=2", "optimizer.learning_rate=0.05",
              "checkpoint.keep_last=3", "checkpoint.every=5", "schedule.name=constant"});
  double best = HUGE_VAL;
  int best_step = 0;
  for (const Json& line : metrics("run")) {
    if (line["split"] != "validation" || line["loss"] >= best) continue;
    best = line["loss"];
    best_step = line["step"];
  }
  ASSERT_LT(best_step, 70) << "the test shows nothing when the best is among the last";
  EXPECT_THAT(checkpoints("run"),
              ElementsAre("best.h5", "best.json", "step_00000070.h5", "step_00000075.h5", "step_00000080.h5"));
  const Json record = Json::parse(content(path("run/checkpoints/best.json")));
  EXPECT_EQ(record["step"], best_step);
  EXPECT_EQ(record["validation_loss"], best);
  EXPECT_EQ(CheckpointReader::open(path("run/checkpoints/best.h5")).integer("step"), best_step);

  run("without", {"checkpoint.keep_best=false", "checkpoint.keep_last=1", "checkpoint.every=0"});
  EXPECT_THAT(checkpoints("without"), ElementsAre("step_00000012.h5"));
}

TEST_F(TrainTest, RejectsCheckpointWithAnotherStepsName) {
  run("run");
  const std::string later = checkpoint("run", 99);
  fs::rename(checkpoint("run", 12), later);
  fs::remove(path("run/checkpoints/best.h5"));
  fs::remove(path("run/checkpoints/best.json"));
  EXPECT_THAT(message_of<UserError>([&] { run("run"); }), HasSubstr("contains step 12, but its name"));
  EXPECT_TRUE(fs::exists(later));
  fs::rename(later, checkpoint("run", 12));
  EXPECT_EQ(run("run").step, 12);
}

// The run continues from the remains of a run that was killed: later lines, an earlier checkpoint, a torn line, half a
// file.
TEST_F(TrainTest, ResumesFromNewestCompleteCheckpoint) {
  const std::vector<std::string> overrides{"model.dropout=0.1", "optimizer.ema_decay=0.9", "checkpoint.keep_last=20"};
  run("whole", overrides);
  run("killed", overrides);
  for (const int later : {9, 12}) fs::remove(checkpoint("killed", later));
  fs::resize_file(checkpoint("killed", 8), 5000);
  const fs::path left = partial_path(path("killed/checkpoints/step_00000010.h5"));
  std::ofstream(left) << "half";
  std::ofstream(path("killed/metrics.jsonl"), std::ios::app) << "{\"step\": 13, \"spl";
  for (const char* best : {"best.h5", "best.json"}) fs::remove(path(std::string("killed/checkpoints/") + best));
  const auto kept = content(path("killed/metrics.jsonl")).substr(0, 200);
  const TrainResult result = run("killed", overrides);
  EXPECT_EQ(result.step, 12);
  EXPECT_EQ(measured("killed"), measured("whole"));
  EXPECT_EQ(content(path("killed/metrics.jsonl")).substr(0, 200), kept)
      << "lines up to the checkpoint keep their bytes";
  EXPECT_FALSE(fs::exists(left));
  expect_equal_tensors(checkpoint("whole", 12), checkpoint("killed", 12));
  expect_equal_tensors(path("whole/checkpoints/best.h5"), path("killed/checkpoints/best.h5"));
}

TEST_F(TrainTest, LeavesFinishedRunUnchanged) {
  const TrainResult first = run("run");
  const std::string metrics_before = content(path("run/metrics.jsonl")), file_before = content(first.checkpoint);
  const TrainResult again = run("run");
  EXPECT_EQ(again.step, 12);
  EXPECT_TRUE(std::isnan(again.train_loss));
  EXPECT_EQ(again.validation_loss, first.validation_loss);
  EXPECT_EQ(again.checkpoint, first.checkpoint);
  EXPECT_EQ(content(path("run/metrics.jsonl")), metrics_before);
  EXPECT_EQ(content(first.checkpoint), file_before);
}

TEST_F(TrainTest, MoreStepsContinueFinishedRun) {
  run("run", {"schedule.name=constant"});
  EXPECT_EQ(run("run", {"schedule.name=constant", "trainer.max_steps=16"}).step, 16);
  run("whole", {"schedule.name=constant", "trainer.max_steps=16"});
  // Validation after step 12 is the only line that one has for another reason than the other; both have it, since 4
  // divides 12.
  EXPECT_EQ(measured("run"), measured("whole"));
}

TEST_F(TrainTest, ResumeNeverRemovesEarlierRun) {
  run("run");
  const auto first = measured("run");
  EXPECT_EQ(run("run", {"trainer.max_steps=5"}, Resume::never).step, 5);
  EXPECT_EQ(metrics("run").back()["step"], 5);
  EXPECT_EQ(measured("run")[0], first[0]);
  EXPECT_THAT(checkpoints("run"), ElementsAre("best.h5", "best.json", "step_00000004.h5", "step_00000005.h5"));
  EXPECT_EQ(std::distance(fs::directory_iterator(path("run/tensorboard")), fs::directory_iterator{}), 1);
}

TEST_F(TrainTest, ResumesFromCheckpointOfAnotherRun) {
  run("whole", {"checkpoint.keep_last=10"});
  EXPECT_EQ(run("other", {}, Resume::path, checkpoint("whole", 6)).step, 12);
  EXPECT_EQ(measured("other"), measured("whole")) << "the metrics are copied to the new run";
  expect_equal_tensors(checkpoint("whole", 12), checkpoint("other", 12));
  // From a run directory instead of a file: the newest checkpoint, not the best.
  for (const char* best : {"best.h5", "best.json"}) fs::remove(path(std::string("whole/checkpoints/") + best));
  fs::copy_file(checkpoint("whole", 3), path("whole/checkpoints/best.h5"));
  EXPECT_EQ(run("newest", {}, Resume::path, path("whole")).step, 12);
  EXPECT_THAT(checkpoints("newest"), ElementsAre("best.h5", "best.json", "step_00000012.h5"))
      << "no step was left, and the validation after step 12 was the best";
  // From a finished run: no step is left, but the checkpoint exists.
  EXPECT_TRUE(fs::exists(run("copy", {}, Resume::path, checkpoint("whole", 12)).checkpoint));
  EXPECT_THAT(message_of<UserError>([&] { run("other", {}, Resume::path, path("nowhere")); }), HasSubstr("nowhere"));
}

TEST_F(TrainTest, RejectsReplacingCheckpointsOfAnotherRun) {
  run("whole");
  run("seed2", {"seed=2"});
  const auto names = checkpoints("seed2");
  const std::string before = content(path("seed2/metrics.jsonl"));
  const std::string message = message_of<UserError>([&] { run("seed2", {}, Resume::path, path("whole")); });
  EXPECT_THAT(message, HasSubstr(path("seed2/checkpoints") + ": contains checkpoints of another run, up to step 12"));
  EXPECT_THAT(message, HasSubstr("choose another --run-dir"));
  EXPECT_EQ(checkpoints("seed2"), names);
  EXPECT_EQ(content(path("seed2/metrics.jsonl")), before);
}

TEST_F(TrainTest, WarnsAboutRemovedLaterCheckpoints) {
  run("run", {"checkpoint.keep_last=10"});
  const std::vector<Json> first = measured("run");
  const LogCapture said;
  const TrainResult result =
      run("run", {"checkpoint.keep_last=10", "log.level=warning"}, Resume::path, checkpoint("run", 6));
  EXPECT_EQ(result.step, 12);
  EXPECT_EQ(measured("run"), first);
  EXPECT_THAT(said.text(),
              HasSubstr("removes the later checkpoints step_00000008.h5, step_00000009.h5, step_00000012.h5"));
}

TEST_F(TrainTest, FewerStepsLeaveRunUnchanged) {
  run("run");
  const std::string config = content(path("run/config.yaml")), before = content(path("run/metrics.jsonl"));
  const auto names = checkpoints("run");
  EXPECT_EQ(run("run", {"trainer.max_steps=8"}).step, 12);
  EXPECT_EQ(content(path("run/config.yaml")), config);
  EXPECT_EQ(content(path("run/metrics.jsonl")), before);
  EXPECT_EQ(checkpoints("run"), names);
  EXPECT_EQ(std::distance(fs::directory_iterator(path("run/tensorboard")), fs::directory_iterator{}), 1);
}

// As written by an earlier version or another program.
TEST_F(TrainTest, CheckpointWithoutMetricsHasEmptyHistory) {
  run("run");
  {
    const CheckpointReader whole = CheckpointReader::open(checkpoint("run", 12));
    CheckpointWriter writer(path("without.h5"));
    for (const TensorInfo& info : whole.tensors()) {
      std::vector<char> bytes(info.bytes);
      whole.read(info.name, bytes.data(), bytes.size());
      writer.tensor(info.name, info.dtype, info.shape, bytes.data());
    }
    for (const char* name : {"config", "vocabulary", "version", "commit"}) writer.text(name, whole.text(name));
    for (const char* name : {"step", "optimizer_steps", "tokens", "sampler_counter", "seed",
                             "validations_without_improvement", "validated_at"})
      writer.integer(name, whole.integer(name));
    for (const char* name : {"best_validation", "last_validation"}) writer.number(name, whole.number(name));
    writer.finish();
  }
  EXPECT_EQ(run("other", {"trainer.max_steps=14"}, Resume::path, path("without.h5")).step, 14);
  EXPECT_EQ(metrics("other").front()["step"], 14);
}

TEST_F(TrainTest, RejectsAnotherModelNamingTheKey) {
  run("run");
  const std::string before = content(path("run/metrics.jsonl"));
  const std::string message = message_of<UserError>([&] { run("run", {"model.n_layers=3"}); });
  EXPECT_THAT(message, HasSubstr("model.n_layers was 2 in the checkpoint and is 3 now"));
  EXPECT_THAT(message, HasSubstr("--resume never"));
  EXPECT_THAT(message_of<UserError>([&] { run("run", {"seed=9"}); }), HasSubstr("seed was 1"));
  EXPECT_EQ(content(path("run/metrics.jsonl")), before);
  EXPECT_EQ(load_settings(path("run/config.yaml")).settings, settings("run").settings);
}

TEST_F(TrainTest, KeepsRunWithDamagedCheckpointsOnly) {
  run("run");
  for (const std::string& name : checkpoints("run")) {
    if (name.ends_with(".h5")) fs::resize_file(path("run/checkpoints/" + name), 3000);
  }
  EXPECT_THAT(message_of<UserError>([&] { run("run"); }), HasSubstr("--resume never"));
  EXPECT_EQ(run("run", {}, Resume::never).step, 12);
}

TEST_F(TrainTest, RejectsSecondTrainingInRunDirectory) {
  fs::create_directories(path("run"));
  const int lock = open((path("run") + "/.lock").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0666);
  ASSERT_GE(lock, 0);
  ASSERT_EQ(flock(lock, LOCK_EX | LOCK_NB), 0);
  EXPECT_THAT(message_of<UserError>([&] { run("run"); }), HasSubstr("another training uses this run directory"));
  close(lock);
  EXPECT_EQ(run("run").step, 12);
}

/// Sets a launcher's environment while it lives.
class Launched {
 public:
  explicit Launched(std::vector<std::pair<std::string, std::string>> variables) : variables_(std::move(variables)) {
    for (const auto& [name, value] : variables_) setenv(name.c_str(), value.c_str(), 1);
  }
  ~Launched() {
    for (const auto& [name, value] : variables_) unsetenv(name.c_str());
  }
  Launched(const Launched&) = delete;
  Launched& operator=(const Launched&) = delete;

 private:
  std::vector<std::pair<std::string, std::string>> variables_;
};

// Several ranks: test_train_processes.cpp.
TEST_F(TrainTest, LauncherWithOneProcessEqualsNoLauncher) {
  const std::vector<std::string> short_run{"trainer.max_steps=4", "schedule.warmup_steps=1"};
  run("plain", short_run);
  for (const auto& [name, variables] :
       std::vector<std::pair<std::string, std::vector<std::pair<std::string, std::string>>>>{
           {"torchrun",
            {{"RANK", "0"},
             {"WORLD_SIZE", "1"},
             {"LOCAL_RANK", "0"},
             {"MASTER_ADDR", "127.0.0.1"},
             {"MASTER_PORT", "1"}}},
           {"open_mpi",
            {{"OMPI_COMM_WORLD_RANK", "0"},
             {"OMPI_COMM_WORLD_SIZE", "1"},
             {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
             {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}}},
           {"pmi", {{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}, {"MPI_LOCALRANKID", "0"}, {"MPI_LOCALNRANKS", "1"}}}}) {
    const Launched launched(variables);
    EXPECT_EQ(run(name, short_run).step, 4) << name;
    EXPECT_EQ(measured(name), measured("plain")) << name;
  }
}

TEST_F(TrainTest, RejectsIncompleteLauncherEnvironment) {
  for (const char* name : {"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}) {
    const Launched launched(std::vector<std::pair<std::string, std::string>>{{name, "4"}});
    EXPECT_THAT(message_of<UserError>([&] { run("run"); }), HasSubstr(std::string(name) + "=4 is set, but not "));
    EXPECT_FALSE(fs::exists(path("run"))) << "nothing was created";
  }
}

TEST_F(TrainTest, StopsEarlyAndStaysStopped) {
  testing::write_store(store, misleading_text(), "0.5,0.4,0.1");
  const std::vector<std::string> overrides{"trainer.max_steps=200",        "trainer.validate_every=2",
                                           "optimizer.learning_rate=0.05", "trainer.early_stopping_patience=3",
                                           "schedule.name=constant",       "log.every=150"};
  const TrainResult result = run("run", overrides);
  EXPECT_TRUE(result.stopped_early);
  EXPECT_LT(result.step, 150);
  std::vector<double> losses;
  Json last;
  for (const Json& line : metrics("run")) {
    if (line["split"] == "validation") losses.push_back(line["loss"]);
    if (line["split"] == "train") last = line;
  }
  EXPECT_EQ(last["step"], result.step) << "otherwise tokens and seconds of the run are those of an earlier step";
  EXPECT_EQ(last["tokens"], CheckpointReader::open(result.checkpoint).integer("tokens"));
  const auto best = std::min_element(losses.begin(), losses.end());
  EXPECT_EQ(losses.end() - best, 4) << "three without improvement after the best";
  EXPECT_EQ(CheckpointReader::open(result.checkpoint).integer("step"), result.step);
  const std::string before = content(path("run/metrics.jsonl")), trained_with = content(path("run/config.yaml"));
  std::vector<std::string> others = overrides;
  others.emplace_back("optimizer.weight_decay=0.5");
  for (const auto& keys : {overrides, others}) {
    const TrainResult again = run("run", keys);
    EXPECT_TRUE(again.stopped_early);
    EXPECT_EQ(again.step, result.step);
    EXPECT_EQ(content(path("run/metrics.jsonl")), before);
    EXPECT_EQ(content(path("run/config.yaml")), trained_with);
  }
}

TEST_F(TrainTest, TrainsWithoutValidationSplit) {
  testing::write_store(store, testing::synthetic_text(2000), "1,0,0");
  const TrainResult result = run("run");
  EXPECT_EQ(result.step, 12);
  EXPECT_TRUE(std::isnan(result.validation_loss));
  for (const Json& line : metrics("run")) EXPECT_EQ(line["split"], "train");
}

TEST_F(TrainTest, StepWithoutTargetsHasNoLoss) {
  // Ten x, and then what can be learned: windows of two tokens in order, one a step.
  testing::write_store(store, std::string(10, 'x') + testing::synthetic_text(990));
  run("run", {"data.sampler=sequential", "data.ignore_tokens=[x]", "data.sequence_length=2", "data.batch_size=1",
              "log.every=1"});
  const std::vector<Json> lines = metrics("run");
  for (const Json& line : lines) {
    EXPECT_EQ(line["loss"].is_null(), line["split"] == "train" && line["step"] <= 4) << line;
  }
}

TEST_F(TrainTest, NonFiniteStepKeepsLastCheckpoint) {
  const std::vector<std::string> overrides{
      "optimizer.learning_rate=90", "schedule.warmup_steps=0", "optimizer.weight_decay=0.9", "trainer.max_steps=60",
      "trainer.validate_every=0",   "schedule.name=constant",  "checkpoint.every=1"};
  const std::string message = message_of<NonFiniteError>([&] { run("run", overrides); });
  EXPECT_THAT(message, HasSubstr("step "));
  const auto names = checkpoints("run");
  const std::string newest = names.empty() ? "none" : *names.rbegin();
  const auto step = CheckpointReader::open(path("run/checkpoints/" + newest)).integer("step");
  EXPECT_GT(step, 0);
  EXPECT_EQ(message_of<NonFiniteError>([&] { run("run", overrides); }), message)
      << "the same step fails again, in the same way";
}

TEST_F(TrainTest, RejectsTooLargeConfigBeforeTraining) {
  const std::string message = message_of<UserError>([&] {
    run("run", {"data.batch_size=10000", "data.sequence_length=3000", "model.d_model=1024"});
  });
  EXPECT_THAT(message, HasSubstr("GiB for tensors"));
  EXPECT_THAT(message, HasSubstr("data.batch_size"));
  // More than the address space.
  EXPECT_THAT(message_of<UserError>([&] {
                run("run", {"data.batch_size=1000000", "data.sequence_length=3000", "model.d_model=1024"});
              }),
              HasSubstr("needs more than 32 TiB for tensors"));
  // More elements than 64 bits can count.
  EXPECT_THAT(message_of<UserError>([&] {
                run("run",
                    {"data.batch_size=1000000", "data.sequence_length=3000", "model.n_heads=4096", "model.d_model=8192",
                     "model.d_head=16384", "model.d_feedforward=1000000", "model.vocabulary_size=10000000"});
              }),
              HasSubstr("needs more than 32 TiB for tensors"));
  EXPECT_FALSE(fs::exists(path("run"))) << "nothing was created";
}

TEST_F(TrainTest, RejectsConfigThatDoesNotFitDataBeforeTraining) {
  EXPECT_THAT(message_of<UserError>([&] { run("run", {"data.sequence_length=100000"}); }), HasSubstr(store));
  EXPECT_THAT(message_of<UserError>([&] { run("run", {"model.vocabulary_size=100"}); }),
              HasSubstr("model.vocabulary_size: 100"));
  EXPECT_THAT(message_of<UserError>([&] { run("run", {"data.ignore_tokens=[Nope]"}); }),
              HasSubstr("data.ignore_tokens: 'Nope'"));
  EXPECT_FALSE(fs::exists(path("run"))) << "nothing was created";
}

TEST_F(TrainTest, RejectsInvalidSampleBeforeTraining) {
  const auto message = [&](const std::vector<std::string>& overrides) {
    return message_of<UserError>([&] { run("run", overrides); });
  };
  EXPECT_THAT(message({"trainer.sample_tokens=5"}), HasSubstr("trainer.sample_prompt: the prompt is empty"));
  const std::vector<std::string> learned{"model.position=learned", "trainer.sample_tokens=30",
                                         "trainer.sample_prompt=abc"};
  EXPECT_THAT(
      message(learned),
      HasSubstr(
          "--set trainer.sample_prompt=abc: trainer.sample_prompt: prompt and trainer.sample_tokens are 33 tokens"));
  {
    DatasetWriter writer(store, Vocabulary::dna(), {});
    const std::vector<std::uint16_t> ids(2000, 2);
    writer.append(ids);
    writer.end_document();
    writer.finish("{}");
  }
  EXPECT_THAT(message({"trainer.sample_tokens=5", "trainer.sample_prompt=ACGTJ"}),
              HasSubstr("trainer.sample_prompt: 'J' at position 5"));
  EXPECT_FALSE(fs::exists(path("run"))) << "nothing was created";
  EXPECT_EQ(run("run", {"trainer.sample_tokens=5", "trainer.max_steps=4"}).step, 4)
      << "the document token stands in for an empty prompt";
}

}  // namespace
}  // namespace furlong
