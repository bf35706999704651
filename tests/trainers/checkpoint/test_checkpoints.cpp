#include "trainers/checkpoint/checkpoints.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <exception>
#include <fstream>
#include <set>

#include "framework/core/error.h"
#include "framework/core/log.h"
#include "framework/io/atomic_file.h"
#include "framework/io/checkpoint_file.h"
#include "framework/io/checkpoint_shards.h"
#include "tests/temporary_folder.h"
#include "trainers/model/model.h"

// Override the C library's functions, to simulate a file system without hard links or locks.
static bool hard_links_work = true, locks_work = true;
extern "C" int link(const char* from, const char* to) noexcept {
  if (hard_links_work) return static_cast<int>(syscall(SYS_linkat, AT_FDCWD, from, AT_FDCWD, to, 0));
  errno = EPERM;
  return -1;
}
extern "C" int flock(int descriptor, int operation) noexcept {
  if (locks_work) return static_cast<int>(syscall(SYS_flock, descriptor, operation));
  errno = ENOTSUP;
  return -1;
}

namespace furlong {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::message_of;

class CheckpointDirectoryTest : public testing::WithTemporaryFolder {
 protected:
  static void write(const CheckpointDirectory& directory, std::int64_t step) {
    CheckpointWriter writer(directory.path_for(step));
    writer.integer("step", step);
    writer.finish();
  }
  static std::int64_t step_in(const fs::path& file) { return CheckpointReader::open(file).integer("step"); }
  static void damage(const fs::path& file) {
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekp(700);
    stream.put('\x55');
  }
  void record(std::int64_t step, double loss) const {
    write_file_atomically(checkpoints_ / "best.json",
                          fmt::format(R"({{"step":{},"validation_loss":{},"file":"best.h5"}})", step, loss));
  }
  /// Leaves best.h5 of step `best`, but a best.json that gives step `recorded`, whose file exists.
  void leave_other_record(CheckpointDirectory& directory, std::int64_t best, std::int64_t recorded) const {
    write(directory, best);
    directory.committed(best, 3.0);
    record(recorded, 2.0);
    write(directory, recorded);
  }
  std::set<std::string> files() const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(checkpoints_)) names.insert(entry.path().filename().string());
    return names;
  }
  const fs::path checkpoints_ = folder_ / "run" / "checkpoints";
};

TEST_F(CheckpointDirectoryTest, StepNamesSortNumerically) {
  const CheckpointDirectory directory(checkpoints_, 2, true);
  EXPECT_EQ(directory.path_for(1234), checkpoints_ / "step_00001234.h5");
  EXPECT_EQ(directory.path_for(0), checkpoints_ / "step_00000000.h5");
  EXPECT_EQ(directory.path_for(12'345'678'901), checkpoints_ / "step_12345678901.h5");
  EXPECT_THROW(directory.path_for(-1), ContractError);
  EXPECT_EQ(directory.newest_complete(), std::nullopt);
  EXPECT_THROW(CheckpointDirectory(checkpoints_, 0, true), ContractError);
  std::ofstream(folder_ / "file") << "";
  EXPECT_THROW(CheckpointDirectory(folder_ / "file", 1, true), UserError);
  EXPECT_THROW(CheckpointDirectory(folder_ / "file" / "below", 1, true), UserError);
}

TEST_F(CheckpointDirectoryTest, KeepsLastCheckpoints) {
  CheckpointDirectory directory(checkpoints_, 2, false);
  for (const std::int64_t step : {5, 10, 99'999'999, 100'000'000}) {
    write(directory, step);
    directory.committed(step, 1.0 / static_cast<double>(step));
  }
  EXPECT_THAT(directory.steps(), ElementsAre(99'999'999, 100'000'000));
  EXPECT_EQ(directory.newest_complete(), directory.path_for(100'000'000));
  EXPECT_FALSE(directory.best().has_value());
  EXPECT_EQ(files().size(), 2u);
}

TEST_F(CheckpointDirectoryTest, KeepsBestAcrossRuns) {
  {
    CheckpointDirectory directory(checkpoints_, 1, true);
    const std::vector<std::pair<std::int64_t, double>> losses = {{10, 3.0}, {20, 2.0}, {30, 2.5}, {40, std::nan("")}};
    for (const auto& [step, loss] : losses) {
      write(directory, step);
      directory.committed(step, loss);
    }
    write(directory, 50);
    directory.committed(50);
  }
  EXPECT_EQ(files(), (std::set<std::string>{"best.h5", "best.json", "step_00000050.h5"}));
  CheckpointDirectory directory(checkpoints_, 1, true);
  ASSERT_TRUE(directory.best().has_value());
  EXPECT_EQ(directory.best()->step, 20);
  EXPECT_EQ(directory.best()->validation_loss, 2.0);
  EXPECT_EQ(step_in(directory.best()->path), 20);
  write(directory, 60);
  directory.committed(60, 2.0);  // no better
  EXPECT_EQ(step_in(checkpoints_ / "best.h5"), 20);
  write(directory, 70);
  directory.committed(70, 1.9999999999999998);
  EXPECT_EQ(step_in(checkpoints_ / "best.h5"), 70);
  EXPECT_EQ(directory.best()->validation_loss, 1.9999999999999998);
  EXPECT_EQ(fs::hard_link_count(checkpoints_ / "best.h5"), 2u);
  EXPECT_EQ(files(), (std::set<std::string>{"best.h5", "best.json", "step_00000070.h5"}));
}

TEST_F(CheckpointDirectoryTest, CopiesBestWithoutHardLinks) {
  hard_links_work = false;
  CheckpointDirectory directory(checkpoints_, 1, true);
  for (const std::int64_t step : {1, 2, 3}) {
    write(directory, step);
    directory.committed(step, step == 3 ? 9.0 : 1.0 / static_cast<double>(step));
  }
  hard_links_work = true;
  EXPECT_EQ(files(), (std::set<std::string>{"best.h5", "best.json", "step_00000003.h5"}));
  EXPECT_EQ(fs::hard_link_count(checkpoints_ / "best.h5"), 1u);
  EXPECT_EQ(step_in(checkpoints_ / "best.h5"), 2);
}

TEST_F(CheckpointDirectoryTest, SkipsDamagedCheckpoints) {
  CheckpointDirectory directory(checkpoints_, 5, true);
  for (const std::int64_t step : {1, 2, 3, 4}) {
    write(directory, step);
    directory.committed(step);
  }
  EXPECT_EQ(directory.newest_complete(), directory.path_for(4));
  damage(directory.path_for(4));
  EXPECT_EQ(directory.newest_complete(), directory.path_for(3));
  fs::resize_file(directory.path_for(3), 600);
  EXPECT_EQ(directory.newest_complete(), directory.path_for(2));
  std::ofstream(directory.path_for(2), std::ios::trunc) << "";
  EXPECT_EQ(directory.newest_complete(), directory.path_for(1));
  damage(directory.path_for(1));
  EXPECT_THAT(message_of<UserError>([&] { directory.newest_complete(); }),
              AllOf(HasSubstr("none of the 4 checkpoints"), HasSubstr("step_00000004.h5: damaged"),
                    HasSubstr("--resume never")));
}

TEST_F(CheckpointDirectoryTest, FallsBackToBest) {
  {
    CheckpointDirectory directory(checkpoints_, 1, true);
    write(directory, 1);
    directory.committed(1, 0.5);
    write(directory, 2);
    directory.committed(2, 0.7);
    damage(directory.path_for(2));
  }
  const CheckpointDirectory directory(checkpoints_, 1, true);
  EXPECT_EQ(directory.newest_complete(), checkpoints_ / "best.h5");
}

TEST_F(CheckpointDirectoryTest, SkipsBestOfAnotherStepThanItsRecord) {
  {
    const CheckpointDirectory directory(checkpoints_, 5, true);
    for (const std::int64_t step : {2, 3}) write(directory, step);
  }
  fs::rename(checkpoints_ / "step_00000002.h5", checkpoints_ / "best.h5");
  record(20, 0.5);
  CheckpointDirectory directory(checkpoints_, 5, true);
  const LogCapture log;
  EXPECT_EQ(directory.newest_complete(), directory.path_for(3));
  EXPECT_EQ(newest_complete_checkpoint(checkpoints_), directory.path_for(3));
  EXPECT_THAT(log.text(), HasSubstr("best.h5: contains step 2, but best.json gives step 20"));
  directory.forget_wrong_record(3);
  directory.discard_after(3);
  EXPECT_EQ(files(), (std::set<std::string>{"best.h5", "step_00000003.h5"}));
  record(20, 0.5);
  damage(directory.path_for(3));
  EXPECT_EQ(newest_complete_checkpoint(checkpoints_), checkpoints_ / "best.h5");
}

/// While this object exists, the process can open at most `count` more files.
class FileLimit {
 public:
  explicit FileLimit(int count) {
    const int next = dup(STDIN_FILENO);
    close(next);
    getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit limited{static_cast<rlim_t>(next + count), before_.rlim_max};
    setrlimit(RLIMIT_NOFILE, &limited);
  }
  ~FileLimit() { setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

/// A checkpoint of two ranks, of which one had data to write.
void write_in_shards(const CheckpointDirectory& directory, std::int64_t step) {
  const fs::path path = directory.path_for(step);
  ShardIndex index;
  index.tensors["parameters/a"] = {"float32", {2}};
  for (const int rank : {0, 1}) {
    const fs::path shard = shard_path(path, rank, 2);
    CheckpointWriter writer(shard);
    const std::vector<std::int64_t> shape{2};
    const float values[] = {1, static_cast<float>(step)};
    if (rank == 0) writer.tensor(piece_name("parameters/a", 0), "float32", shape, values);
    writer.finish();
    index.files.push_back({shard.filename().string(), checkpoint_checksum(shard).value()});
  }
  CheckpointWriter writer(path);
  writer.text("shards", index.to_json());
  writer.finish();
}

// A resume from an earlier one would remove them.
TEST_F(CheckpointDirectoryTest, CheckpointsThatCannotBeReadAreNotSkipped) {
  const CheckpointDirectory directory(checkpoints_, 5, true);
  write(directory, 1);
  write_in_shards(directory, 2);
  EXPECT_EQ(directory.newest_complete(), directory.path_for(2));
  for (const int files : {1, 2}) {  // of three: the checkpoint and its shards
    std::exception_ptr failure;     // UndefinedBehaviorSanitizer needs files to check its type
    try {
      const FileLimit limit(files);
      directory.newest_complete();
    } catch (...) {
      failure = std::current_exception();
    }
    ASSERT_TRUE(failure) << files;
    EXPECT_THAT(message_of<MachineError>([&] { std::rethrow_exception(failure); }), HasSubstr("Too many open files"));
  }
  const auto expect_refused = [&](const char* reason) {
    EXPECT_THAT(message_of<UnusableFile>([&] { directory.newest_complete(); }), HasSubstr(reason));
    EXPECT_THAT(message_of<UnusableFile>([&] { newest_complete_checkpoint(checkpoints_); }), HasSubstr(reason));
  };
  write(directory, 3);
  std::fstream newer(directory.path_for(3), std::ios::in | std::ios::out | std::ios::binary);
  newer.seekp(8).put('\x7f');
  newer.close();
  expect_refused("step_00000003.h5: checkpoint format version 127");
  fs::create_symlink("step_00000004.h5", directory.path_for(4));
  expect_refused("step_00000004.h5: cannot open the checkpoint");
}

TEST_F(CheckpointDirectoryTest, KeepsShardsOfBestWithoutReadableRecord) {
  {
    CheckpointDirectory directory(checkpoints_, 1, true);
    for (const std::int64_t step : {1, 2}) {
      write_in_shards(directory, step);
      directory.committed(step, static_cast<double>(step));
    }
    EXPECT_EQ(CheckpointReader::shards_of(checkpoints_ / "best.h5"),
              (std::vector<std::string>{"step_00000001.shard_0_of_2.h5", "step_00000001.shard_1_of_2.h5"}));
  }
  write_file_atomically(checkpoints_ / "best.json", "{");
  CheckpointDirectory directory(checkpoints_, 1, true);
  for (const std::int64_t step : {3, 4}) {
    write_in_shards(directory, step);
    directory.committed(step);
  }
  EXPECT_EQ(CheckpointReader::open(checkpoints_ / "best.h5").tensors().size(), 1u) << "whole";
  EXPECT_FALSE(fs::exists(checkpoints_ / "step_00000003.shard_0_of_2.h5")) << "its checkpoint was removed";
  directory.committed(4, 0.5);
  EXPECT_FALSE(fs::exists(checkpoints_ / "step_00000001.shard_0_of_2.h5")) << "its checkpoint is no longer the best";
}

// Another rank may be ahead and have written its shard of the next checkpoint.
TEST_F(CheckpointDirectoryTest, KeepsShardsOfLaterSteps) {
  CheckpointDirectory directory(checkpoints_, 1, false);
  write_in_shards(directory, 1);
  for (const char* name : {"step_00000000.shard_1_of_2.h5", "step_00000002.shard_1_of_2.h5"})
    std::ofstream(checkpoints_ / name) << "part";
  directory.committed(1);
  EXPECT_FALSE(fs::exists(checkpoints_ / "step_00000000.shard_1_of_2.h5")) << "its checkpoint was never completed";
  EXPECT_TRUE(fs::exists(checkpoints_ / "step_00000002.shard_1_of_2.h5"));
  directory.discard_after(1);
  EXPECT_FALSE(fs::exists(checkpoints_ / "step_00000002.shard_1_of_2.h5")) << "left by a killed run";
  EXPECT_TRUE(fs::exists(checkpoints_ / "step_00000001.shard_1_of_2.h5"));
}

TEST_F(CheckpointDirectoryTest, RemovesInterruptedWritesOnly) {
  fs::create_directories(checkpoints_);
  std::ofstream(partial_path(checkpoints_ / "step_00000009.h5")) << "half";
  std::ofstream(partial_path(checkpoints_ / "best.h5")) << "half";
  std::ofstream(checkpoints_ / "notes.txt") << "mine";
  std::ofstream(checkpoints_ / "notes.partial") << "mine";
  std::ofstream(checkpoints_ / "step_9.h5") << "not our name";
  CheckpointWriter live(checkpoints_ / "step_00000008.h5");
  live.integer("step", 8);
  const CheckpointDirectory directory(checkpoints_, 1, true);
  EXPECT_EQ(directory.newest_complete(), std::nullopt);
  live.finish();
  EXPECT_EQ(files(), (std::set<std::string>{"notes.partial", "notes.txt", "step_00000008.h5", "step_9.h5"}));
  EXPECT_EQ(directory.newest_complete(), directory.path_for(8));
}

TEST_F(CheckpointDirectoryTest, KeepsPartialFilesOnFileSystemsWithoutLocks) {
  fs::create_directories(checkpoints_);
  const std::vector<fs::path> partial{partial_path(checkpoints_ / "step_00000009.h5"),
                                      partial_path(checkpoints_ / "best.h5")};
  for (const fs::path& file : partial) std::ofstream(file) << "perhaps of another process";
  const LogCapture log;
  locks_work = false;
  const CheckpointDirectory directory(checkpoints_, 1, true);
  locks_work = true;
  for (const fs::path& file : partial) EXPECT_TRUE(fs::exists(file));
  EXPECT_THAT(log.text(), HasSubstr(checkpoints_.string() +
                                    ": partial files not removed: 2; it cannot be checked whether a process is "));
  EXPECT_EQ(log.text().find("partial files"), log.text().rfind("partial files")) << "one warning";
}

// A kill between best.json and best.h5: the next run makes them consistent.
TEST_F(CheckpointDirectoryTest, CompletesInterruptedChangeOfBest) {
  {
    CheckpointDirectory directory(checkpoints_, 2, true);
    write(directory, 1);
    record(1, 3.0);  // killed before the first best.h5
  }
  EXPECT_EQ(CheckpointDirectory(checkpoints_, 2, true).best()->step, 1);
  EXPECT_EQ(step_in(checkpoints_ / "best.h5"), 1);
  {
    CheckpointDirectory directory(checkpoints_, 2, true);
    write(directory, 2);
    record(2, 2.0);  // killed before best.h5 moved on
  }
  EXPECT_EQ(CheckpointDirectory(checkpoints_, 2, true).best()->validation_loss, 2.0);
  EXPECT_EQ(step_in(checkpoints_ / "best.h5"), 2);
  for (const char* damaged : {"{\"step\":", R"({"step":-1,"validation_loss":2.0,"file":"best.h5"})"}) {
    write_file_atomically(checkpoints_ / "best.json", damaged);
    EXPECT_FALSE(CheckpointDirectory(checkpoints_, 2, true).best().has_value()) << damaged;
  }
}

TEST_F(CheckpointDirectoryTest, KeepsBestIfTheFileOfItsRecordIsDamagedOrOfAnotherStep) {
  CheckpointDirectory directory(checkpoints_, 2, true);
  leave_other_record(directory, 1, 2);
  damage(directory.path_for(2));
  EXPECT_TRUE(CheckpointDirectory(checkpoints_, 2, true).best().has_value());
  EXPECT_EQ(step_in(checkpoints_ / "best.h5"), 1);
  write(directory, 7);
  fs::rename(directory.path_for(7), directory.path_for(2));
  EXPECT_TRUE(CheckpointDirectory(checkpoints_, 2, true).best().has_value());
  EXPECT_EQ(step_in(checkpoints_ / "best.h5"), 1);
}

// It may be the only checkpoint of that step.
TEST_F(CheckpointDirectoryTest, KeepsBestOfALaterStepThanItsRecord) {
  CheckpointDirectory directory(checkpoints_, 1, true);
  leave_other_record(directory, 6, 4);
  const LogCapture log;
  EXPECT_TRUE(CheckpointDirectory(checkpoints_, 1, true).best().has_value());
  EXPECT_EQ(step_in(checkpoints_ / "best.h5"), 6);
  EXPECT_THAT(log.text(), HasSubstr("best.h5: contains step 6, but best.json gives step 4"));
}

TEST_F(CheckpointDirectoryTest, RejectsFolderAsBestRecord) {
  fs::create_directories(checkpoints_ / "best.json");
  EXPECT_THAT(message_of<UserError>([&] { CheckpointDirectory(checkpoints_, 2, true); }),
              HasSubstr("best.json: cannot read: "));
}

TEST_F(CheckpointDirectoryTest, DiscardsLaterSteps) {
  CheckpointDirectory directory(checkpoints_, 2, true);
  for (const std::int64_t step : {10, 20, 30}) {
    write(directory, step);
    directory.committed(step, 1.0 / static_cast<double>(step));
  }
  write(directory, 10);
  write(directory, 15);
  directory.committed(15);  // 20 and 30 lie ahead: they take no place from 10 and 15
  EXPECT_THAT(directory.steps(), ElementsAre(10, 15, 20, 30));
  directory.discard_after(15);
  EXPECT_THAT(directory.steps(), ElementsAre(10, 15));
  EXPECT_FALSE(directory.best().has_value());
  EXPECT_EQ(files(), (std::set<std::string>{"step_00000010.h5", "step_00000015.h5"}));
  write(directory, 20);
  directory.committed(20, 9.0);
  EXPECT_EQ(directory.best()->step, 20);
  directory.discard_after(20);
  EXPECT_EQ(directory.best()->step, 20);
}

TEST_F(CheckpointDirectoryTest, ForgetsBestWithoutKeepBest) {
  {
    CheckpointDirectory directory(checkpoints_, 1, true);
    write(directory, 10);
    directory.committed(10, 2.0);
  }
  CheckpointDirectory directory(checkpoints_, 1, false);
  EXPECT_EQ(directory.newest_complete(), directory.path_for(10));
  EXPECT_TRUE(fs::exists(checkpoints_ / "best.h5")) << "nothing has replaced it yet";
  write(directory, 20);
  directory.committed(20, 3.0);
  EXPECT_EQ(files(), (std::set<std::string>{"step_00000020.h5"}));
  EXPECT_FALSE(directory.best().has_value());
}

TEST_F(CheckpointDirectoryTest, DiscardsAllBeforeFirstStep) {
  CheckpointDirectory directory(checkpoints_, 1, true);
  write(directory, 10);
  directory.committed(10, 2.0);
  // A best.h5 without a record.
  write_file_atomically(checkpoints_ / "best.json", "{");
  CheckpointDirectory again(checkpoints_, 1, true);
  EXPECT_FALSE(again.best().has_value());
  again.discard_after(-1);
  EXPECT_EQ(files(), std::set<std::string>{});
}

// A finetune run stands for the student of its last stage.
TEST_F(CheckpointDirectoryTest, LastStageRepresentsFinetuneRun) {
  const fs::path run = folder_ / "finetuned";
  fs::create_directories(run);
  EXPECT_EQ(last_stage_of(run), std::nullopt);
  const auto refusal = [&] { return message_of<UserError>([&] { checkpoint_of(run); }); };
  EXPECT_THAT(refusal(), HasSubstr("no checkpoint found"));
  for (const char* file : {"vocab.txt", "model-00001-of-00002.safetensors"}) {
    std::ofstream(run / file) << "x";
    EXPECT_THAT(refusal(),
                HasSubstr(std::string("config.json is missing, which a Hugging Face directory has next to ") + file));
    fs::remove(run / file);
  }
  std::ofstream(run / "config.json") << "{}";
  EXPECT_THAT(refusal(), HasSubstr("a Hugging Face directory; expected a run directory or checkpoint; import it: "));
  fs::remove(run / "config.json");
  std::ofstream(run / "teacher.h5") << "x";
  fs::create_directories(run / "1_attention_transfer" / "checkpoints");
  EXPECT_THAT(refusal(), AllOf(HasSubstr("no stage of this run of furlong finetune has a checkpoint yet"),
                               HasSubstr("teacher.h5")));
  const auto stage = [&](const char* name, std::int64_t step, std::optional<double> loss = std::nullopt) {
    CheckpointDirectory directory(run / name / "checkpoints", 2, true);
    write(directory, step);
    directory.committed(step, loss);
  };
  stage("1_attention_transfer", 7);
  stage("2_distillation", 3, 0.5);
  stage("2_distillation", 4, 0.7);
  fs::create_directories(run / "3_task" / "checkpoints");  // begun, and nothing saved
  fs::create_directories(run / "4_holidays" / "checkpoints");
  EXPECT_EQ(last_stage_of(run), run / "2_distillation");
  EXPECT_EQ(checkpoint_of(run), run / "2_distillation" / "checkpoints" / "best.h5");
  EXPECT_EQ(newest_checkpoint_of(run), run / "2_distillation" / "checkpoints" / "step_00000004.h5");
  EXPECT_EQ(checkpoint_of(run / "1_attention_transfer"),
            run / "1_attention_transfer" / "checkpoints" / "step_00000007.h5");
  stage("10_task", 1);
  EXPECT_EQ(step_in(checkpoint_of(run)), 1);
  stage("10_transfer", 1);
  EXPECT_THAT(refusal(), AllOf(HasSubstr("10_task and 10_transfer"), HasSubstr("pass the directory")));
}

TEST_F(CheckpointDirectoryTest, ReaderFindsNewestDuringRun) {
  EXPECT_EQ(newest_complete_checkpoint(checkpoints_), std::nullopt);
  CheckpointDirectory directory(checkpoints_, 2, true);
  for (const std::int64_t step : {10, 20, 30}) {
    write(directory, step);
    directory.committed(step, step == 10 ? 1.0 : 2.0);
  }
  EXPECT_EQ(newest_complete_checkpoint(checkpoints_), directory.path_for(30)) << "not the best";
  damage(directory.path_for(30));
  damage(directory.path_for(20));
  EXPECT_EQ(newest_complete_checkpoint(checkpoints_), checkpoints_ / "best.h5");
}

}  // namespace
}  // namespace furlong
