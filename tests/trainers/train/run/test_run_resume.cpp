// What a run starts from, and which files of an earlier run it removes. With several ranks, no rank removes files that
// another has yet to read or is already writing.
#include "trainers/train/run/run_resume.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <fstream>
#include <set>
#include <thread>

#include "framework/core/log.h"
#include "tests/trainers/parallel_testing.h"
#include "tests/trainers/training.h"
#include "trainers/train/parallel/agreement.h"
#include "trainers/train/signals.h"

namespace furlong {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using namespace std::chrono_literals;
using parallel_testing::Report;
using parallel_testing::run_world;

class RunResumeTest : public testing::WithTemporaryFolder {
 protected:
  RunResumeTest() : store(testing::write_store(path("tokens.h5"), testing::synthetic_text(2000))) {}

  fs::path checkpoints() const { return path("run/checkpoints"); }
  /// A saved run of `steps` steps, with the best checkpoint so far.
  void train(int steps) const {
    const std::vector<std::string> keys{"run_directory=" + path("run"), fmt::format("trainer.max_steps={}", steps),
                                        "schedule.warmup_steps=1", "trainer.validate_every=2"};
    furlong::train(testing::small_settings(store, keys), {});
    ASSERT_TRUE(fs::exists(checkpoints() / "best.h5"));
  }
  TrainResult run(const std::string& name, const std::vector<std::string>& keys,
                  const TrainOptions& options = {}) const {
    const std::vector<std::string> all{"run_directory=" + path(name), "schedule.warmup_steps=0"};
    return furlong::train(testing::small_settings(store, testing::with(all, keys)), options);
  }
  TrainOptions from(const fs::path& checkpoint) const {
    TrainOptions options;
    options.resume = TrainOptions::Resume::path;
    options.checkpoint = checkpoint;
    return options;
  }
  /// Copies what a resume reads, with another number of this name; of a tensor, as its first element.
  static void copy_with(const fs::path& from, const fs::path& to, const std::string& changed, double value) {
    const CheckpointReader whole = CheckpointReader::open(from);
    CheckpointWriter writer(to);
    for (const TensorInfo& info : whole.tensors()) {
      std::vector<float> values(info.bytes / sizeof(float));
      whole.read(info.name, values.data(), info.bytes);
      if (info.name == changed) values[0] = static_cast<float>(value);
      writer.tensor(info.name, info.dtype, info.shape, values.data());
    }
    for (const char* name : {"config", "vocabulary", "version", "commit", "data_fingerprint"})
      writer.text(name, whole.text(name));
    for (const char* name : {"step", "optimizer_steps", "tokens", "sampler_counter", "seed",
                             "validations_without_improvement", "validated_at"})
      writer.integer(name, name == changed ? static_cast<std::int64_t>(value) : whole.integer(name));
    for (const char* name : {"best_validation", "last_validation"})
      writer.number(name, name == changed ? value : whole.number(name));
    writer.finish();
  }
  std::set<std::string> names_in(const fs::path& folder) const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename().string());
    return names;
  }
  /// resume_run with two ranks, which also run `before` and `behind`.
  void resume(const TrainOptions& options, bool keep_best, const std::function<void(int rank)>& before,
              const std::function<void(const ProcessGroup& group, const Trainer& trainer)>& behind) const {
    run_world(2, [&](ProcessGroup& group, const Report&) {
      const TokenizedDataset data = TokenizedDataset::open(store);
      const RunDirectory directory(path("run"), group);
      std::optional<CheckpointDirectory> kept;
      if (group.is_first()) kept.emplace(directory.checkpoints(), 3, keep_best);
      Trainer trainer(settings(), data, Device{}, std::nullopt, &group);
      before(group.rank());
      resume_run(options, group, directory, trainer, kept ? &*kept : nullptr);
      behind(group, trainer);
    });
  }
  static TrainOptions resume_never() {
    TrainOptions options;
    options.resume = TrainOptions::Resume::never;
    return options;
  }
  Settings settings(const std::vector<std::string>& more = {}) const {
    return testing::small_settings(store, more).settings;
  }

  std::string store;
  const TrainOptions never = resume_never();
};

// Rank 1 would save at once if the run is finished; rank 0, still looking for orphans, would remove its shard.
TEST_F(RunResumeTest, WaitsUntilRankZeroHasCleanedUp) {
  train(4);
  for (int i = 0; i < 1000; ++i)
    std::ofstream(checkpoints() / fmt::format("step_00000009.shard_{}_of_1000.h5", i))
        << "shard of a checkpoint that was never completed";
  resume(
      {}, true, [](int) {},
      [&](const ProcessGroup& group, const Trainer& trainer) {
        EXPECT_EQ(trainer.steps(), 4);
        int orphans = 0;
        for (const auto& entry : fs::directory_iterator(checkpoints()))
          orphans += entry.path().filename().string().find(".shard_") != std::string::npos;
        EXPECT_EQ(orphans, 0) << "rank " << group.rank();
        group.barrier();
      });
}

// Without checkpoint.keep_best the best checkpoint is removed, but not before all ranks have read it.
TEST_F(RunResumeTest, KeepsBestCheckpointUntilAllRanksHaveReadIt) {
  train(4);
  ASSERT_EQ(CheckpointReader::open(checkpoints() / "best.h5").integer("step"), 4);
  TrainOptions options;
  options.resume = TrainOptions::Resume::path;
  options.checkpoint = checkpoints() / "best.h5";
  const auto late = [](int rank) {
    if (rank == 1) std::this_thread::sleep_for(1s);
  };
  resume(options, false, late, [](const ProcessGroup&, const Trainer& trainer) { EXPECT_EQ(trainer.steps(), 4); });
  EXPECT_FALSE(fs::exists(checkpoints() / "best.h5"));
}

TEST_F(RunResumeTest, ResumeNeverKeepsEarlierRunUntilAllRanksCanStart) {
  train(4);
  const auto late = [&](int rank) {
    if (rank == 0) return;
    std::this_thread::sleep_for(1s);
    EXPECT_TRUE(fs::exists(checkpoints() / "step_00000004.h5"));
  };
  resume(never, true, late, [](const ProcessGroup&, const Trainer& trainer) { EXPECT_EQ(trainer.steps(), 0); });
  EXPECT_FALSE(fs::exists(checkpoints() / "step_00000004.h5"));
}

TEST_F(RunResumeTest, RestartOfTorchrunRemovesNothing) {
  train(4);
  ASSERT_EQ(setenv("TORCHELASTIC_RESTART_COUNT", "1", 1), 0);
  EXPECT_THAT(testing::message_of<UserError>([&] { run("run", {}, never); }),
              HasSubstr("--resume never: torchrun has started this job again"));
  EXPECT_TRUE(fs::exists(checkpoints() / "step_00000004.h5"));
  ASSERT_EQ(setenv("TORCHELASTIC_RESTART_COUNT", "0", 1), 0);
  EXPECT_EQ(run("run", {"trainer.max_steps=2"}, never).step, 2);
  ASSERT_EQ(unsetenv("TORCHELASTIC_RESTART_COUNT"), 0);
}

// Rank 0's path of the run directory means nothing to rank 1, as on hosts that mount it elsewhere.
TEST_F(RunResumeTest, RanksMayHaveDifferentPathsOfTheRunDirectory) {
  train(4);
  parallel_testing::WorldOptions options;
  options.before = [&](int rank) { fs::current_path(rank == 0 ? folder_ : fs::path("/")); };
  run_world(
      2,
      [&](ProcessGroup& group, const Report&) {
        const TokenizedDataset data = TokenizedDataset::open(store);
        const RunDirectory directory(group.is_first() ? "/proc/self/cwd/run" : path("run"), group);
        std::optional<CheckpointDirectory> kept;
        if (group.is_first()) kept.emplace(directory.checkpoints(), 3, true);
        Trainer trainer(settings(), data, Device{}, std::nullopt, &group);
        EXPECT_TRUE(resume_run({}, group, directory, trainer, kept ? &*kept : nullptr));
        EXPECT_EQ(trainer.steps(), 4);
      },
      options);
}

TEST_F(RunResumeTest, RanksAgreeOnPathsThatAreNotUtf8) {
  run_world(2, [&](ProcessGroup& group, const Report&) {
    const TokenizedDataset data = TokenizedDataset::open(store);
    Settings present = settings();
    present.run_directory = "run\xff";
    const TrainOptions options = from("run\xff");
    EXPECT_NO_THROW(check_agreement(group, present, data, &options));
  });
}

TEST_F(RunResumeTest, ResumeNeverKeepsEarlierRunIfItsFilesCannotBeWritten) {
  train(4);
  const std::set<std::string> before = names_in(checkpoints());
  const std::string metrics = content(path("run/metrics.jsonl"));
  for (const char* name : {"config.yaml", "tensorboard"}) {
    fs::rename(path("run") + "/" + name, path("kept"));
    if (std::string(name) == "tensorboard")
      file("run/tensorboard", "a file");
    else
      fs::create_directory(path("run/config.yaml"));
    EXPECT_THAT(testing::message_of<UserError>([&] { run("run", {}, never); }), HasSubstr(name));
    EXPECT_EQ(names_in(checkpoints()), before) << name;
    EXPECT_EQ(content(path("run/metrics.jsonl")), metrics) << name;
    fs::remove(path("run") + "/" + name);
    fs::rename(path("kept"), path("run") + "/" + name);
  }
  EXPECT_EQ(run("run", {"trainer.max_steps=2"}, never).step, 2);
}

// With a correct checksum.
TEST_F(RunResumeTest, RejectsStateThatNoOptimizerHas) {
  train(4);
  const fs::path whole = checkpoints() / "step_00000004.h5";
  const double nan = std::nan(""), infinite = HUGE_VAL;
  const auto refusal = [&](const std::string& key, double value) {
    copy_with(whole, path("changed.h5"), key, value);
    return testing::message_of<UserError>([&] { run("other", {}, from(path("changed.h5"))); });
  };
  const std::string first = "first_moments/final_norm.gain", second = "second_moments/final_norm.gain";
  EXPECT_THAT(refusal(first, nan), HasSubstr("tensor " + first + " has 1 values that are NaN or infinite; use"));
  EXPECT_THAT(refusal(first, infinite), HasSubstr(first));
  for (const double value : {nan, infinite, -1.0})
    EXPECT_THAT(refusal(second, value), HasSubstr("tensor " + second + " has 1 values that are NaN, infinite or neg"));
  for (const char* counter : {"step", "optimizer_steps", "tokens", "sampler_counter"}) {
    EXPECT_THAT(refusal(counter, -1), HasSubstr(std::string(counter) + " is -1; expected 0 to 2^53"));
    EXPECT_THAT(refusal(counter, 0x1p62), HasSubstr(std::string(counter) + " is 4611686018427387904; expected"));
  }
  EXPECT_THAT(refusal("best_validation", nan), HasSubstr("best_validation is NaN"));
  copy_with(whole, path("changed.h5"), "best_validation", 3);
  EXPECT_EQ(run("other", {"trainer.max_steps=4"}, from(path("changed.h5"))).step, 4);
}

TEST_F(RunResumeTest, ReplacesNoFileOfItsUser) {
  const std::vector<std::string> keys{"run_directory=" + path("run"), "trainer.max_steps=2", "schedule.warmup_steps=0"};
  LoadedSettings loaded = testing::small_settings(store, keys);
  fs::create_directories(path("run/checkpoints"));
  const std::string own = file("run/config.yaml", "# my notes\n{}\n"), data = content(store);
  loaded.files = {own};
  EXPECT_THAT(testing::message_of<UserError>([&] { furlong::train(loaded, {}); }),
              HasSubstr("run/config.yaml: training would replace this config"));
  EXPECT_EQ(content(own), "# my notes\n{}\n");
  fs::remove(own);
  const auto refuses_traces = [&](const std::string& directory) {
    loaded.settings.run_directory = directory;
    for (const std::string& trace :
         {store, directory + "/config.yaml", directory + "/resume_id", directory + "/.lock",
          directory + "/metrics.jsonl", directory + "/checkpoints", directory + "/checkpoints/trace.json"}) {
      TrainOptions options;
      options.trace = TraceOptions{.path = trace};
      EXPECT_THAT(testing::message_of<UserError>([&] { furlong::train(loaded, options); }), HasSubstr("--trace"));
    }
  };
  refuses_traces(path("new"));
  refuses_traces(path("new/"));
  EXPECT_FALSE(fs::exists(path("new")));
  loaded.settings.run_directory = path("run");
  furlong::train(loaded, {});
  EXPECT_NO_THROW(furlong::train(loaded, {})) << "the run's own config";
  refuses_traces(path("run"));
  EXPECT_EQ(content(store), data);
}

TEST_F(RunResumeTest, ResumeNeverKeepsEarlierRunUntilTheNewOneCanStart) {
  train(4);
  const std::set<std::string> before = names_in(checkpoints()), events = names_in(path("run/tensorboard"));
  const std::string metrics = content(path("run/metrics.jsonl"));
  EXPECT_THAT(testing::message_of<UserError>([&] { run("run", {"model.weights=" + path("typo.h5")}, never); }),
              HasSubstr("typo.h5: does not exist"));
  file("text.h5", "no checkpoint");
  EXPECT_THAT(testing::message_of<UserError>([&] { run("run", {"model.weights=" + path("text.h5")}, never); }),
              HasSubstr("text.h5"));
  EXPECT_THAT(testing::message_of<UserError>([&] { run("run", {"model.weights=" + path("run")}, never); }),
              HasSubstr("is a checkpoint of this run directory, which --resume never removes"));
  fs::create_symlink(checkpoints() / "best.h5", path("link.h5"));
  EXPECT_THAT(testing::message_of<UserError>([&] { run("run", {"model.weights=" + path("link.h5")}, never); }),
              HasSubstr("is a checkpoint of this run directory, which --resume never removes"));
  EXPECT_EQ(names_in(checkpoints()), before);
  EXPECT_EQ(names_in(path("run/tensorboard")), events);
  EXPECT_EQ(content(path("run/metrics.jsonl")), metrics);

  fs::copy_file(checkpoints() / "best.h5", path("weights.h5"));
  file("run/tensorboard/notes.txt", "not of the run");
  const TrainResult result = run("run", {"model.weights=" + path("weights.h5"), "trainer.max_steps=2"}, never);
  EXPECT_EQ(result.step, 2);
  EXPECT_EQ(names_in(checkpoints()), (std::set<std::string>{"best.h5", "best.json", "step_00000002.h5"}));
  const std::set<std::string> after = names_in(path("run/tensorboard"));
  EXPECT_EQ(after.size(), 2u) << "its own events and the other file";
  EXPECT_TRUE(after.contains("notes.txt"));
}

TEST_F(RunResumeTest, JobThatStartsAgainContinuesItsOwnRun) {
  train(4);
  TrainOptions other;
  other.resume = TrainOptions::Resume::path;
  other.checkpoint = path("run");
  setenv("FURLONG_RESUME_ID", "42", 1);
  EXPECT_EQ(run("new", {"trainer.max_steps=6"}, other).step, 6);
  const std::string metrics = content(path("new/metrics.jsonl"));
  EXPECT_EQ(run("new", {"trainer.max_steps=7"}, other).step, 7) << "another start of the same job";
  EXPECT_TRUE(content(path("new/metrics.jsonl")).starts_with(metrics));
  fs::rename(path("run"), path("elsewhere"));
  EXPECT_EQ(run("new", {"trainer.max_steps=7"}, other).step, 7) << "PATH need not exist any more";
  EXPECT_THAT(testing::message_of<UserError>([&] { run("newer", {"trainer.max_steps=7"}, other); }),
              HasSubstr("does not exist"));
  EXPECT_FALSE(fs::exists(path("newer")));
  fs::rename(path("elsewhere"), path("run"));
  EXPECT_EQ(run("new", {"trainer.max_steps=8"}, never).step, 8);
  EXPECT_TRUE(content(path("new/metrics.jsonl")).starts_with(metrics));
  setenv("FURLONG_RESUME_ID", "43", 1);
  EXPECT_THAT(testing::message_of<UserError>([&] { run("new", {"trainer.max_steps=9"}, other); }),
              HasSubstr("contains checkpoints of another run"));
  EXPECT_EQ(run("new", {"trainer.max_steps=3"}, never).step, 3);
  unsetenv("FURLONG_RESUME_ID");
  EXPECT_FALSE(content(path("new/metrics.jsonl")).starts_with(metrics));
}

TEST_F(RunResumeTest, WarnsAboutChangedSettings) {
  const auto warnings = [&](const std::vector<std::string>& keys) {
    const LogCapture log;
    run("run", testing::with({"log.level=warning"}, keys));
    return log.text();
  };
  run("run", {"trainer.max_steps=4"});
  EXPECT_THAT(warnings({"trainer.max_steps=6", "optimizer.learning_rate=0.02", "model.dropout=0.1"}),
              HasSubstr("step_00000004.h5: was trained with other settings: model.dropout (0.0 then, 0.1 now), "
                        "optimizer.learning_rate (0.01 then, 0.02 now); the present ones apply to further steps"));
  EXPECT_THAT(warnings({"trainer.max_steps=6", "optimizer.learning_rate=0.03", "model.dropout=0.1"}),
              HasSubstr("optimizer.learning_rate (0.02 then, 0.03 now)"))
      << "also if no step is left";
  fs::copy_file(store, path("copy.h5"));
  const std::string continued =
      warnings({"trainer.max_steps=8", "optimizer.learning_rate=0.02", "model.dropout=0.1",
                "data.dataset=" + path("copy.h5"), "checkpoint.every=2", "trainer.validate_every=4", "log.every=1"});
  EXPECT_THAT(continued, ::testing::Not(HasSubstr("other settings")))
      << "keys that may change, and the schedule of another number of steps";
  EXPECT_THAT(continued, HasSubstr("the learning rate rises from 2.00e-03 to "));
}

TEST_F(RunResumeTest, NewDataNeedsConsentAndStartsBestLossesAnew) {
  const auto keys = [](int steps) {
    return std::vector<std::string>{fmt::format("trainer.max_steps={}", steps), "trainer.validate_every=2"};
  };
  run("run", keys(4));
  // Random bytes are harder than any text: no loss on them is below the earlier best.
  std::string noise(2000, ' ');
  for (std::size_t i = 0; i < noise.size(); ++i)
    noise[i] = static_cast<char>(random_word(RandomKey{1, 0, 0}, i) & 0xff);
  testing::write_store(store, noise);
  EXPECT_THAT(testing::message_of<UserError>([&] { run("run", keys(6)); }), HasSubstr("was trained on other data"));
  TrainOptions options = from(path("run"));
  options.allow_new_data = true;
  run("elsewhere", keys(6), options);
  options.resume = TrainOptions::Resume::automatic;
  run("run", keys(6), options);
  for (const char* name : {"elsewhere", "run"})
    EXPECT_EQ(CheckpointReader::open(path(name) + std::string("/checkpoints/best.h5")).integer("step"), 6) << name;
}

TEST_F(RunResumeTest, BestCheckpointIsTheBestOfAnotherDirectoryToo) {
  train(4);
  const std::string best = content(checkpoints() / "best.json");
  ASSERT_THAT(best, HasSubstr("\"step\":4"));
  run("other", {"trainer.max_steps=4"}, from(checkpoints() / "step_00000004.h5"));
  EXPECT_EQ(content(path("other/checkpoints/best.json")), best);
  EXPECT_EQ(CheckpointReader::open(path("other/checkpoints/best.h5")).integer("step"), 4);
}

// The losses of steps 2 and 5 are lower than any that follows. Their checkpoint is discarded, or in another directory.
TEST_F(RunResumeTest, FirstValidationIsTheBestWithoutTheBestCheckpoint) {
  const TokenizedDataset data = TokenizedDataset::open(store);
  Trainer earlier(settings({"schedule.warmup_steps=0"}), data, Device{});
  {
    CheckpointDirectory directory(checkpoints(), 9, true);
    for (const double loss : {0.002, 0.001}) {
      earlier.step();
      earlier.step();
      ASSERT_TRUE(earlier.note_validation(loss));
      earlier.step();
      earlier.save(directory.path_for(earlier.steps()));
      directory.committed(earlier.steps(), loss);
    }
    ASSERT_EQ(directory.best()->step, 6);
  }
  run("other", {"trainer.max_steps=7"}, from(checkpoints() / "step_00000006.h5"));
  ASSERT_TRUE(fs::exists(path("other/checkpoints/best.h5")));
  EXPECT_EQ(CheckpointReader::open(path("other/checkpoints/best.h5")).integer("step"), 7);
  run("run", {"trainer.max_steps=5", "trainer.validate_every=4"}, from(checkpoints() / "step_00000003.h5"));
  ASSERT_TRUE(fs::exists(checkpoints() / "best.h5"));
  EXPECT_GE(CheckpointReader::open(checkpoints() / "best.h5").integer("step"), 4);
}

TEST_F(RunResumeTest, RejectsBestCheckpointOfAnotherStepThanItsRecord) {
  train(4);
  const fs::path best = checkpoints() / "best.h5", second = checkpoints() / "step_00000002.h5";
  fs::rename(second, best);
  fs::rename(checkpoints() / "step_00000004.h5", path("fourth.h5"));
  file("run/checkpoints/best.json", R"({"step":20,"validation_loss":1,"file":"best.h5"})");
  const std::set<std::string> before = names_in(checkpoints());
  for (const TrainOptions& options : {TrainOptions{}, from(best)})
    EXPECT_THAT(testing::message_of<UserError>([&] { run("run", {"trainer.max_steps=5"}, options); }),
                HasSubstr(best.string() + ": contains step 2, but best.json gives step 20; copy it to "
                                          "step_00000002.h5 and remove best.json"));
  EXPECT_EQ(names_in(checkpoints()), before);

  fs::rename(path("fourth.h5"), checkpoints() / "step_00000004.h5");
  EXPECT_THAT(testing::message_of<UserError>([&] { run("run", {"trainer.max_steps=5"}, from(best)); }),
              HasSubstr("contains step 2, but best.json gives step 20"));
  fs::copy_file(best, second);
  fs::remove(checkpoints() / "best.json");
  EXPECT_EQ(run("run", {"trainer.max_steps=5"}).step, 5);
  EXPECT_TRUE(fs::exists(checkpoints() / "step_00000004.h5")) << "it has resumed from the newest step";
  EXPECT_TRUE(fs::exists(best));
}

TEST_F(RunResumeTest, ResumesFromIntactCheckpointIfBestIsWronglyRecorded) {
  train(4);
  fs::rename(checkpoints() / "step_00000002.h5", checkpoints() / "best.h5");
  file("run/checkpoints/best.json", R"({"step":20,"validation_loss":1,"file":"best.h5"})");
  const auto expect_step = [](const ProcessGroup&, const Trainer& trainer) { EXPECT_EQ(trainer.steps(), 4); };
  resume(
      {}, true, [](int) {}, expect_step);
  EXPECT_TRUE(fs::exists(checkpoints() / "best.h5"));
  EXPECT_EQ(run("run", {"trainer.max_steps=5"}).step, 5);
}

// best.h5 is a copy on file systems without hard links.
TEST_F(RunResumeTest, LoadedBestCheckpointReplacesDamagedOneOfItsStep) {
  train(4);
  const fs::path best = checkpoints() / "best.h5", step = checkpoints() / "step_00000004.h5";
  fs::copy_file(best, path("copy.h5"));
  fs::rename(path("copy.h5"), best);
  fs::resize_file(step, fs::file_size(step) - 1);
  const auto expect_step = [](const ProcessGroup&, const Trainer& trainer) { EXPECT_EQ(trainer.steps(), 4); };
  resume(
      {}, false, [](int) {}, expect_step);
  EXPECT_EQ(CheckpointReader::open(step).integer("step"), 4) << "the loaded one has its name";
  EXPECT_FALSE(fs::exists(best)) << "removed without keep_best";
  EXPECT_EQ(run("run", {"trainer.max_steps=4", "checkpoint.keep_best=false"}).step, 4);
}

TEST_F(RunResumeTest, RejectsCheckpointWithShardsThatItsNameDoesNotProtect) {
  train(4);
  const fs::path step = checkpoints() / "step_00000004.h5", kept = checkpoints() / "kept.h5";
  resume(
      {}, true, [](int) {}, [&](const ProcessGroup&, const Trainer& trainer) { trainer.save(step); });
  for (const char* name : {"best.h5", "best.json"}) fs::remove(checkpoints() / name);
  fs::rename(step, kept);
  EXPECT_THAT(testing::message_of<UserError>([&] { run("run", {"trainer.max_steps=5"}, from(kept)); }),
              HasSubstr(kept.string() + ": contains step 4 in shards, which are removed if no checkpoint has the name "
                                        "step_00000004.h5; rename it"));
  EXPECT_EQ(CheckpointReader::open(kept).integer("step"), 4);
  fs::rename(kept, step);
  EXPECT_EQ(run("run", {"trainer.max_steps=5"}, from(step)).step, 5);
}

TEST_F(RunResumeTest, RefusesToReplaceBestCheckpointWithoutRecord) {
  train(4);
  const fs::path best = checkpoints() / "best.h5";
  for (const char* name : {"step_00000002.h5", "step_00000004.h5", "best.json"}) fs::remove(checkpoints() / name);
  fs::create_symlink(best, path("link.h5"));
  EXPECT_THAT(testing::message_of<UserError>([&] { run("run", {"trainer.max_steps=5"}, from(path("link.h5"))); }),
              HasSubstr(best.string() + ": is a checkpoint of another run"));
  EXPECT_EQ(CheckpointReader::open(best).integer("step"), 4);
}

// Losses of other samples do not compare.
TEST_F(RunResumeTest, ValidationOfOtherSamplesStartsAnew) {
  const auto best = [&] { return CheckpointReader::open(path("run/checkpoints/best.h5")).integer("step"); };
  const auto resumed = [&](const std::vector<std::string>& keys) {
    const LogCapture log;
    run("run", testing::with({"trainer.validate_every=1", "log.level=warning"}, keys));
    return log.text();
  };
  run("run", {"trainer.max_steps=4", "trainer.validate_every=1", "trainer.validation_batches=1"});
  file("run/checkpoints/best.json", fmt::format(R"({{"step":{},"validation_loss":0.001,"file":"best.h5"}})", best()));
  EXPECT_THAT(resumed({"trainer.max_steps=5", "trainer.validation_batches=2"}),
              HasSubstr("the best validation loss starts anew"));
  EXPECT_EQ(best(), 5);
  EXPECT_THAT(resumed({"trainer.max_steps=6", "trainer.validation_batches=2"}),
              ::testing::Not(HasSubstr("starts anew")));
  EXPECT_THAT(resumed({"trainer.max_steps=7", "trainer.validation_batches=1000"}), HasSubstr("starts anew"));
  EXPECT_THAT(resumed({"trainer.max_steps=8", "trainer.validation_batches=0", "data.sampler=sequential"}),
              ::testing::Not(HasSubstr("starts anew")))
      << "all windows of the split";
  EXPECT_THAT(resumed({"trainer.max_steps=8", "trainer.validation_batches=1"}),
              ::testing::Not(HasSubstr("starts anew")))
      << "a complete run validates no more";
  EXPECT_THAT(resumed({"trainer.max_steps=9", "trainer.validation_batches=0", "data.packing=documents"}),
              HasSubstr("starts anew"))
      << "other targets";
}

TEST_F(RunResumeTest, SignalInTheLastStepLeavesACompleteRun) {
  const StopRequests stop_requests;
  ASSERT_EQ(std::raise(SIGTERM), 0);
  EXPECT_FALSE(run("complete", {"trainer.max_steps=1"}).interrupted);
  EXPECT_TRUE(run("longer", {"trainer.max_steps=2"}).interrupted);
}

}  // namespace
}  // namespace furlong
