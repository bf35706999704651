// furlong train with several ranks, as started by a launcher: output, resuming, and failures.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/cli/job.h"
#include "tests/trainers/training.h"
#include "trainers/checkpoint/checkpoints.h"
#include "trainers/model/model.h"

namespace furlong {
namespace {

namespace fs = std::filesystem;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;
using store_testing::steady_clock;
using testing::all_errors;
using testing::error_lines;
using testing::Finished;
using testing::Job;
using testing::JobOptions;
using testing::Program;
using testing::seconds_since;

constexpr double timeout = 5;    // parallel.timeout of all runs
constexpr double patience = 30;  // that a loaded machine may add

class TrainProcesses : public testing::WithTemporaryFolder {
 protected:
  TrainProcesses() {
    testing::write_store(path("tokens.h5"), testing::synthetic_text(3000));
    file("config.yaml", "data:\n  dataset: " + path("tokens.h5") + R"(
  sequence_length: 16
  batch_size: 6
model:
  n_layers: 2
  d_model: 16
  n_heads: 2
  dropout: 0.1
  attention:
    mechanism: linear
optimizer:
  learning_rate: 0.01
  ema_decay: 0.9
schedule:
  name: constant
  warmup_steps: 2
trainer:
  max_steps: 10
  validate_every: 5
  validation_batches: 3
checkpoint:
  every: 5
  keep_last: 20
log:
  every: 1
  level: warning
  progress: none
threads: 1
device: cpu
parallel:
  timeout: 5
)");
  }

  std::vector<std::string> arguments(const std::string& run, const std::vector<std::string>& keys = {}) const {
    std::vector<std::string> all{"train", path("config.yaml"), "--run-dir", path(run)};
    for (const std::string& key : keys) all.insert(all.end(), {"--set", key});
    return all;
  }
  Job job(int size, const std::string& run, const std::vector<std::string>& keys = {},
          const JobOptions& options = {}) const {
    return Job(size, path("output_of_" + run), arguments(run, keys), options);
  }
  /// Trains to the end.
  void train(int size, const std::string& run, const std::vector<std::string>& keys = {}) const {
    const std::vector<Finished> found = job(size, run, keys).wait();
    for (const Finished& process : found) ASSERT_EQ(process.status, 0) << all_errors(found);
  }
  /// Without values that depend on the clock and the arena's history.
  std::vector<Json> metrics(const std::string& run) const {
    std::istringstream lines(content(path(run + "/metrics.jsonl")));
    std::vector<Json> found;
    for (std::string line; std::getline(lines, line);) {
      found.push_back(Json::parse(line));
      found.back().erase("tokens_per_second");
      found.back().erase("memory_bytes");
    }
    return found;
  }
  void expect_near(const std::string& run, const std::string& other) const {
    const std::vector<Json> found = metrics(run), expected = metrics(other);
    ASSERT_EQ(found.size(), expected.size());
    ASSERT_GT(found.size(), 5u);
    for (std::size_t i = 0; i < found.size(); ++i) {
      for (const auto& [key, value] : expected[i].items()) {
        ASSERT_TRUE(found[i].contains(key)) << key;
        if (key == "accuracy") continue;  // one token more or less
        if (value.is_number_float()) {
          EXPECT_NEAR(found[i][key].get<double>(), value.get<double>(), 1e-5 * std::abs(value.get<double>()))
              << found[i];
        } else {
          EXPECT_EQ(found[i][key], value) << found[i];
        }
      }
    }
  }
  /// Checks that the newest checkpoint is complete; returns its step.
  std::int64_t newest_step(const std::string& run) const {
    const CheckpointReader checkpoint = CheckpointReader::open(newest_checkpoint_of(path(run)));
    EXPECT_GT(load_model(checkpoint, Device{}, Weights::raw).store->trained_parameter_count(), 1000);
    return checkpoint.integer("step");
  }
};

TEST_F(TrainProcesses, WriteSameFilesAsOneProcess) {
  Job alone = job(1, "alone"), three = job(3, "three");
  Job two = job(2, "two");
  alone.wait();
  three.wait();
  const std::vector<Finished> found = two.wait();
  ASSERT_EQ(found[0].status, 0) << all_errors(found);
  EXPECT_EQ(found[1].status, 0);
  EXPECT_THAT(found[0].out, HasSubstr("done at step 10; the run is in " + path("two")));
  EXPECT_EQ(found[1].out, "");
  EXPECT_EQ(all_errors(found), "");
  EXPECT_EQ(metrics("alone").size(), 12u);
  EXPECT_EQ(std::distance(fs::directory_iterator(path("three/tensorboard")), fs::directory_iterator{}), 1)
      << "of rank 0";
  expect_near("two", "alone");
  expect_near("three", "alone");
  for (const char* run : {"alone", "two", "three"}) EXPECT_EQ(newest_step(run), 10);
  EXPECT_EQ(load_settings(path("two/config.yaml")).settings.parallel,
            load_settings(path("alone/config.yaml")).settings.parallel);
}

TEST_F(TrainProcesses, EachRankLogsOneLineThenRankZeroOnly) {
  const std::vector<Finished> found = job(2, "run", {"log.level=info", "log.progress=lines"}).wait();
  ASSERT_EQ(found[0].status, 0) << all_errors(found);
  EXPECT_THAT(found[0].err, HasSubstr("[rank 0] info: rank 0 of 2 on "));
  EXPECT_THAT(found[0].err, HasSubstr("2 ranks (gloo), rank 0 uses 1 thread"));
  EXPECT_THAT(found[0].err, HasSubstr("step 10/10"));
  EXPECT_THAT(found[1].err, ::testing::StartsWith("[rank 1] info: rank 1 of 2 on "));
  EXPECT_EQ(std::count(found[1].err.begin(), found[1].err.end(), '\n'), 1) << found[1].err;
}

TEST_F(TrainProcesses, ResumeWithAnyWorldSize) {
  train(1, "alone", {"trainer.max_steps=14"});
  const std::vector<Json> undisturbed = metrics("alone");
  for (const bool sharded : {false, true}) {
    const std::string kind = sharded ? "sharded_" : "whole_";
    const ::testing::ScopedTrace trace(__FILE__, __LINE__, kind);
    const auto keys = [&](int last) {
      return std::vector<std::string>{fmt::format("parallel.zero_stage={}", sharded ? 1 : 0),
                                      fmt::format("trainer.max_steps={}", last)};
    };
    Job two = job(2, kind + "two", keys(14));
    train(4, kind + "changing", keys(3));
    EXPECT_EQ(newest_step(kind + "changing"), 3);
    train(2, kind + "changing", keys(6));
    train(3, kind + "changing", keys(9));
    train(1, kind + "changing", keys(14));
    train(2, kind + "same", keys(10));
    train(2, kind + "same", keys(14));
    two.wait();
    // The last step before a stop is validated; the undisturbed run has no such line.
    std::vector<Json> changing = metrics(kind + "changing");
    std::erase_if(changing,
                  [](const Json& line) { return line["split"] == "validation" && line["step"].get<int>() % 3 == 0; });
    ASSERT_EQ(changing.size(), undisturbed.size());
    EXPECT_EQ(changing.size(), 17u);
    for (std::size_t i = 0; i < changing.size(); ++i) {
      EXPECT_EQ(changing[i]["step"], undisturbed[i]["step"]);
      EXPECT_EQ(changing[i]["tokens"], undisturbed[i]["tokens"]);
      EXPECT_NEAR(changing[i]["loss"].get<double>() / undisturbed[i]["loss"].get<double>(), 1, 1e-5) << changing[i];
    }
    EXPECT_EQ(metrics(kind + "same"), metrics(kind + "two")) << "equal world sizes are bitwise equal";
    EXPECT_EQ(newest_step(kind + "same"), 14);
  }
}

// Without moving averages the shards of the same step would differ.
TEST_F(TrainProcesses, KeepShardsOfTheBestCheckpointThatTheyResumeFrom) {
  train(2, "run");
  const fs::path folder = path("run/checkpoints"), best = folder / "best.h5";
  const std::int64_t step = CheckpointReader::open(best).integer("step");
  for (const std::int64_t saved : {5, 10}) fs::remove(checkpoint_path(folder, saved));
  const std::string stop = fmt::format("trainer.max_steps={}", step);
  const std::vector<Finished> found = Job(2, path("output"),
                                          [&] {
                                            auto all = arguments("run", {"optimizer.ema_decay=0", stop});
                                            all.insert(all.end(), {"--resume", best.string()});
                                            return all;
                                          }())
                                          .wait();
  for (const Finished& process : found) ASSERT_EQ(process.status, 0) << all_errors(found);
  EXPECT_EQ(CheckpointReader::open(best).integer("step"), step) << "with the checksums of its shards";
  EXPECT_EQ(CheckpointReader::open(checkpoint_path(folder, step)).integer("step"), step);
}

TEST_F(TrainProcesses, StopRequestOfOneRankStopsAllAtSameStep) {
  const std::vector<std::string> endless{"trainer.max_steps=10000000", "checkpoint.every=0",
                                         "trainer.validate_every=0"};
  for (const int told : {0, 2}) {
    const std::string run = "run" + std::to_string(told);
    Job processes = job(3, run, endless);
    processes[0].wait_for_more(path(run + "/metrics.jsonl"), 0);
    processes[told].send(SIGTERM);
    const std::vector<Finished> found = processes.wait();
    for (const Finished& process : found) EXPECT_EQ(process.status, 3) << process.err;
    EXPECT_EQ(all_errors(found), "");
    EXPECT_THAT(found[0].out, HasSubstr("stopped by a signal, saved at step "));
    EXPECT_EQ(found[1].out + found[2].out, "");
    EXPECT_EQ(metrics(run).back()["step"], newest_step(run));
  }
}

// --- Refusals

TEST_F(TrainProcesses, RejectUnsupportedSettings) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases{
      {{"parallel.backend=none"},
       "parallel.backend: none supports one process only, but the launcher (environment variables) started 2 "
       "processes"},
      {{"data.batch_size=1"}, "data.batch_size: 1: the launcher (environment variables) started 2 processes"},
      {{"data.sampler=stream", "data.stateful=true"},
       "data.stateful: true: the launcher (environment variables) started 2 processes"},
      {{"data.sampler=stream", "data.batch_size=5"}, "expected a multiple of 2"},
      {{"teacher.loss=distillation", "teacher.checkpoint=" + path("teacher")},
       "teacher.loss: distillation: the launcher (environment variables) started 2"},
  };
  std::vector<std::unique_ptr<Job>> jobs;
  for (std::size_t i = 0; i < cases.size(); ++i)
    jobs.push_back(std::make_unique<Job>(2, path("output" + std::to_string(i)), arguments("run", cases[i].first)));
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const std::vector<Finished> found = jobs[i]->wait();
    const std::vector<std::string> lines = error_lines(found);
    ASSERT_EQ(lines.size(), 1u) << all_errors(found);
    EXPECT_THAT(lines[0], HasSubstr(cases[i].second));
    for (const Finished& process : found) EXPECT_THAT(process.status, AnyOf(1, 2));
  }
  EXPECT_FALSE(fs::exists(path("run"))) << "nothing was created";
}

TEST_F(TrainProcesses, RejectDifferencesBetweenRanks) {
  testing::write_store(path("other.h5"), testing::synthetic_text(3000, 2));
  const std::vector<std::pair<std::string, std::string>> cases{
      {"data.dataset=" + path("other.h5"),
       "failed: invalid input: data.dataset: " + path("other.h5") + ": differs from the data of rank 0"},
      {"model.n_heads=4",
       "failed: invalid input: model.n_heads: 4 on this rank and 2 on rank 0; expected equal values"},
  };
  for (const auto& [key, expected] : cases) {
    JobOptions options;
    options.change = [&](int rank, std::vector<std::string>& arguments) {
      if (rank == 1) arguments.insert(arguments.end(), {"--set", key});
    };
    const std::vector<Finished> found = job(2, "run", {}, options).wait();
    const std::vector<std::string> lines = error_lines(found);
    ASSERT_EQ(lines.size(), 1u) << all_errors(found);
    EXPECT_THAT(lines[0], HasSubstr("error: rank 1 on host "));
    EXPECT_THAT(lines[0], HasSubstr(expected));
    for (const Finished& process : found) EXPECT_NE(process.status, 0);
    EXPECT_TRUE(!fs::exists(path("run")) || !fs::exists(path("run/metrics.jsonl"))) << "nothing was trained";
  }
  // Options of the command line.
  const std::vector<std::pair<std::vector<std::string>, std::string>> arguments_of_one{
      {{"--trace", path("trace.json")}, "--trace: true on this rank and false on rank 0"},
      {{"--resume", "never"}, "--resume: \"never\" on this rank and \"auto\" on rank 0"},
      {{"--set", "model.weights=elsewhere"}, "model.weights: \"elsewhere\" on this rank and \"\" on rank 0"}};
  for (const auto& [more, expected] : arguments_of_one) {
    JobOptions options;
    options.change = [&more](int rank, std::vector<std::string>& arguments) {
      if (rank == 1) arguments.insert(arguments.end(), more.begin(), more.end());
    };
    const std::vector<Finished> found = job(2, "run", {}, options).wait();
    ASSERT_EQ(error_lines(found).size(), 1u) << all_errors(found);
    EXPECT_THAT(error_lines(found)[0], HasSubstr("failed: invalid input: " + expected));
  }
  // A copy of the dataset and another number of threads are allowed.
  fs::copy_file(path("tokens.h5"), path("copy.h5"));
  JobOptions options;
  options.change = [&](int rank, std::vector<std::string>& arguments) {
    if (rank == 1)
      arguments.insert(arguments.end(), {"--set", "data.dataset=" + path("copy.h5"), "--set", "threads=2"});
  };
  for (const Finished& process : job(2, "copied", {}, options).wait()) EXPECT_EQ(process.status, 0) << process.err;
}

TEST_F(TrainProcesses, RejectDifferentOptionsOfBenchComm) {
  JobOptions options;
  options.change = [](int rank, std::vector<std::string>& arguments) {
    if (rank == 1) arguments.insert(arguments.end(), {"--bytes", "2048"});
  };
  const std::vector<Finished> found = Job(2, path("output"), {"bench", "comm", "--repeats", "1"}, options).wait();
  ASSERT_EQ(error_lines(found).size(), 1u) << all_errors(found);
  EXPECT_THAT(error_lines(found)[0], HasSubstr("failed: invalid input: --bytes: [2048] on this rank and ["));
}

TEST_F(TrainProcesses, ReportArgumentErrorOnce) {
  JobOptions options;
  options.change = [&](int, std::vector<std::string>& arguments) {
    arguments.insert(arguments.end(), {"--trace", path("trace.json"), "--trace-steps", "6-3"});
  };
  const std::vector<Finished> found = job(3, "run", {}, options).wait();
  for (const Finished& process : found) EXPECT_NE(process.status, 0);
  ASSERT_EQ(error_lines(found).size(), 1u) << all_errors(found);
  EXPECT_THAT(error_lines(found)[0], HasSubstr("--trace-steps 6-3: expected"));
}

// --- The run directory

// Rank 0 of a second job finds the directory locked; its other ranks must not change the first job's files.
TEST_F(TrainProcesses, KeepFilesOfAnotherJob) {
  const std::string part = "run/checkpoints/.step_00000005.shard_1_of_2.h5.0123456789ab.partial";
  fs::create_directories(path("run/checkpoints"));
  file(part, "half of it");
  const int lock = open(path("run/.lock").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0666);
  ASSERT_EQ(flock(lock, LOCK_EX | LOCK_NB), 0);
  const std::vector<Finished> found = job(3, "run").wait();
  close(lock);
  for (const Finished& process : found) EXPECT_NE(process.status, 0);
  ASSERT_EQ(error_lines(found).size(), 1u) << all_errors(found);
  EXPECT_THAT(error_lines(found)[0], HasSubstr("another training uses this run directory"));
  EXPECT_TRUE(fs::exists(path(part)));
  train(2, "run");
  EXPECT_FALSE(fs::exists(path(part))) << "the owner of the lock removes it";
}

TEST_F(TrainProcesses, RejectRunDirectoryThatIsNotShared) {
  for (const bool exists : {false, true}) {
    if (exists) fs::create_directories(path("elsewhere"));
    JobOptions options;
    options.change = [&](int rank, std::vector<std::string>& arguments) {
      if (rank == 1) arguments[3] = path("elsewhere");
    };
    const std::vector<Finished> found = job(2, "run", {}, options).wait();
    for (const Finished& process : found) EXPECT_NE(process.status, 0);
    ASSERT_EQ(error_lines(found).size(), 1u) << all_errors(found);
    EXPECT_THAT(error_lines(found)[0], HasSubstr("failed: invalid input: run_directory: " + path("elsewhere") +
                                                 ": not the directory that rank 0"));
    EXPECT_EQ(fs::exists(path("elsewhere")), exists);
  }
  EXPECT_FALSE(fs::exists(path("run/metrics.jsonl"))) << "nothing was trained";
  train(2, "run");
  EXPECT_FALSE(fs::exists(path("run/.shared")));
}

TEST_F(TrainProcesses, RejectDifferentInitialWeights) {
  train(1, "first", {"trainer.max_steps=2"});
  train(1, "second", {"trainer.max_steps=3"});
  JobOptions options;
  options.change = [&](int rank, std::vector<std::string>& arguments) {
    arguments.insert(arguments.end(), {"--set", "model.weights=" + path(rank == 1 ? "second" : "first")});
  };
  const std::vector<Finished> found = job(2, "run", {}, options).wait();
  ASSERT_EQ(error_lines(found).size(), 1u) << all_errors(found);
  EXPECT_THAT(error_lines(found)[0],
              HasSubstr("failed: invalid input: " + path("second") + ": contains step 0, sample 0, weights "));
  EXPECT_THAT(error_lines(found)[0], HasSubstr("expected the same checkpoint, or a copy of it, on all ranks"));
  fs::copy(path("first"), path("copy"), fs::copy_options::recursive);
  options.change = [&](int rank, std::vector<std::string>& arguments) {
    arguments.insert(arguments.end(), {"--set", "model.weights=" + path(rank == 1 ? "copy" : "first")});
  };
  for (const Finished& process : job(2, "copied", {}, options).wait()) EXPECT_EQ(process.status, 0) << process.err;
}

// Some launchers end all ranks a while after the first one exits.
TEST_F(TrainProcesses, PrintSampleBeforeRanksExit) {
  Job processes = job(2, "run", {"trainer.max_steps=2", "trainer.sample_prompt=ab", "trainer.sample_tokens=3000"});
  EXPECT_EQ(processes[1].wait().status, 0);
  EXPECT_THAT(content(path("output_of_run/rank0/stdout")), HasSubstr("sample at temperature"));
  const Finished first = processes[0].wait();
  EXPECT_EQ(first.status, 0) << first.err;
  EXPECT_GT(first.out.size(), 3000u);
}

TEST_F(TrainProcesses, AsynchronousCheckpointsEqualSynchronousOnes) {
  for (const char* sharded : {"0", "1"}) {
    const std::string kind = std::string("parallel.zero_stage=") + sharded;
    train(2, "background", {kind, "trainer.max_steps=5", "checkpoint.every=1"});
    train(2, "foreground", {kind, "trainer.max_steps=5", "checkpoint.every=1", "checkpoint.async=false"});
    for (int step = 1; step <= 5; ++step) {
      const fs::path name = checkpoint_path("checkpoints", step);
      testing::expect_equal_tensors(fs::path(path("background")) / name, fs::path(path("foreground")) / name);
    }
    fs::remove_all(path("background"));
    fs::remove_all(path("foreground"));
  }
}

// --- Faults

struct Fault {
  std::string name;
  std::function<void(Job&)> action;
  std::string line;  ///< in what one of the processes says
  int stopped = -1;
  JobOptions options = {};
  bool trains = true;  ///< and has a checkpoint
};

/// From now on rank 0's files cannot grow beyond some bytes, as on a full disk.
void fill_disk(Job& job) {
  const rlimit limit{1000, 1000};
  ASSERT_EQ(prlimit(job[0].process(), RLIMIT_FSIZE, &limit, nullptr), 0);
}

// Most of the time is waiting, so some cases run at the same time.
TEST_F(TrainProcesses, FaultEndsAllRanksWithOneMessage) {
  const auto sends = [](int rank, int signal) { return [=](Job& job) { job[rank].send(signal); }; };
  const auto with_store = [&](const std::string& store) {
    JobOptions options;
    options.change = [store](int rank, std::vector<std::string>& arguments) {
      if (rank == 1) arguments.insert(arguments.end(), {"--set", "data.dataset=" + store});
    };
    return options;
  };
  const auto nothing = [](Job&) {};
  // Inherited by the processes: a write beyond the limit fails instead of killing them.
  const auto before = std::signal(SIGXFSZ, SIG_IGN);
  const std::vector<Fault> faults{
      {"killed", sends(1, SIGKILL), "error: rank 1 on host "},
      {"first_killed", sends(0, SIGKILL), "error: rank 0 on host "},
      {"stopped", sends(1, SIGSTOP), "error: rank 1 on host ", 1},
      {"no_data", nothing, "failed: invalid input: data.dataset: " + path("nowhere.h5"), -1,
       with_store(path("nowhere.h5")), false},
      {"disk_full", fill_disk, ": File too large; raise the file size limit (ulimit -f)"},
  };
  const std::vector<std::string> endless{"trainer.max_steps=10000000", "trainer.validate_every=0"};
  std::vector<std::unique_ptr<Job>> jobs;
  for (const Fault& fault : faults)
    jobs.push_back(
        std::make_unique<Job>(3, path("output_of_" + fault.name), arguments(fault.name, endless), fault.options));
  std::signal(SIGXFSZ, before);
  for (std::size_t i = 0; i < faults.size(); ++i) {
    if (!faults[i].trains) continue;
    (*jobs[i])[0].wait_for_more(path(faults[i].name + "/checkpoints/step_00000005.h5"), 0);
    faults[i].action(*jobs[i]);
  }
  const auto begin = steady_clock::now();
  for (std::size_t i = 0; i < faults.size(); ++i) {
    const Fault& fault = faults[i];
    const ::testing::ScopedTrace trace(__FILE__, __LINE__, fault.name);
    const std::vector<Finished> found = jobs[i]->wait(fault.stopped);
    EXPECT_LT(seconds_since(begin), timeout + patience);
    for (const Finished& process : found) EXPECT_NE(process.status, 0);
    const std::vector<std::string> lines = error_lines(found);
    ASSERT_EQ(lines.size(), 1u) << all_errors(found);
    EXPECT_THAT(lines[0], HasSubstr(fault.line));
    if (fault.trains) {
      EXPECT_GE(newest_step(fault.name), 5);
    }
  }
}

}  // namespace
}  // namespace furlong
