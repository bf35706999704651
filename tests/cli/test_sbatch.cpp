// scripts/slurm/train.sbatch with replacements of srun and scontrol that behave like Slurm's: when the job is requeued.
#include <gmock/gmock.h>

#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>

#include "tests/places.h"
#include "tests/temporary_folder.h"

namespace furlong {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

struct Outcome {
  int status = -1;
  std::string log;       ///< what the script and the step wrote
  std::string requeued;  ///< what scontrol was called with
};

class TrainSbatch : public testing::WithTemporaryFolder {
 protected:
  void SetUp() override {
    script_ = testing::source_directory() / "scripts/slurm/train.sbatch";
    if (!std::filesystem::exists(script_)) GTEST_SKIP() << script_ << " is not in this bundle";
    // Slurm ends the shell of a job that is requeued.
    program("scontrol", "echo \"$@\" >> " + path("requeued") + "; kill -TERM $PPID; sleep 5");
    for (const char* name : {"chosen", "furlong"}) program(name, "exit 99");  // the second is the one in PATH
  }

  void program(const std::string& name, const std::string& body) const {
    file(name, "#!/bin/bash\n" + body + "\n");
    std::filesystem::permissions(path(name), std::filesystem::perms::owner_all);
  }

  /// Runs the script as job 42. `step` is the script of srun; `meanwhile` runs at the same time, with the shell's
  /// process in $shell.
  Outcome submit(const std::string& step, const std::string& arguments = "c.yaml",
                 const std::string& meanwhile = "") const {
    program("srun", step);
    std::filesystem::remove(path("requeued"));
    std::filesystem::remove(path("begun"));
    const std::string command = "cd " + path(".") + " && export PATH=" + path("") + ":$PATH FURLONG=" + path("chosen") +
                                " SLURM_JOB_ID=42 SLURM_CPUS_PER_TASK=8 OMP_NUM_THREADS=1; bash " + script_.string() +
                                " " + arguments + " > log 2>&1 & shell=$!; " + meanwhile + " wait $shell; exit $?";
    file("submit", command);
    const int status = std::system(("bash " + path("submit") + " 2> /dev/null").c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, content(path("log")),
            std::filesystem::exists(path("requeued")) ? content(path("requeued")) : ""};
  }

  std::filesystem::path script_;
};

TEST_F(TrainSbatch, StartsTrainingWithArguments) {
  const Outcome done = submit(R"(echo "$@"; echo "secret $FURLONG_JOB_SECRET, $OMP_NUM_THREADS threads")",
                              "c.yaml --set 'data.text=a b'");
  EXPECT_EQ(done.status, 0);
  EXPECT_THAT(done.log, HasSubstr("--export=ALL --kill-on-bad-exit=0 --wait=60 " + path("chosen") +
                                  " train c.yaml --set data.text=a b\n"));
  EXPECT_THAT(done.log, ::testing::ContainsRegex("secret [0-9a-f]{32}, 8 threads\n"));
  EXPECT_EQ(done.requeued, "");
}

TEST_F(TrainSbatch, ArrayTaskTrainsOneRunOfASweep) {
  setenv("SLURM_ARRAY_TASK_ID", "3", 1);
  const Outcome done = submit(R"(echo "$@")", "sweep.yaml --set seed=1");
  unsetenv("SLURM_ARRAY_TASK_ID");
  EXPECT_EQ(done.status, 0);
  EXPECT_THAT(done.log, HasSubstr(path("chosen") + " sweep sweep.yaml --set seed=1 --index 3\n"));
}

TEST_F(TrainSbatch, RequeuesStoppedJob) {
  const Outcome stopped = submit("exit 3");
  EXPECT_EQ(stopped.requeued, "requeue 42\n");
  EXPECT_EQ(stopped.status, 128 + SIGTERM) << "Slurm's";
  EXPECT_THAT(stopped.log, EndsWith("train.sbatch: stopped: requeueing the job\n"));
}

TEST_F(TrainSbatch, DoesNotRequeueFailedJob) {
  for (const int status : {1, 2, 137, 143}) {
    const Outcome failed = submit("exit " + std::to_string(status));
    EXPECT_EQ(failed.status, status);
    EXPECT_EQ(failed.requeued, "");
  }
}

TEST_F(TrainSbatch, WaitsForSaveWhenCanceled) {
  const Outcome canceled =
      submit("touch begun; while [ ! -e signaled ]; do sleep 0.02; done; sleep 0.3; echo saved; exit 3", "c.yaml",
             "while [ ! -e " + path("begun") + " ]; do sleep 0.02; done; kill -TERM $shell; sleep 0.1; touch " +
                 path("signaled") + ";");
  EXPECT_EQ(canceled.status, 3);
  EXPECT_EQ(canceled.log, "train.sbatch: SIGTERM: waiting for the ranks to save\nsaved\n");
  EXPECT_EQ(canceled.requeued, "");
}

TEST_F(TrainSbatch, ReportsErrorsInOneLine) {
  const Outcome none = submit("exit 0", "");
  EXPECT_EQ(none.status, 2);
  EXPECT_THAT(none.log, HasSubstr("no config; expected sbatch train.sbatch CONFIG"));
  std::filesystem::remove(path("chosen"));  // then the one in PATH is not used
  const Outcome missing = submit("exit 0");
  EXPECT_EQ(missing.status, 2);
  EXPECT_THAT(missing.log, HasSubstr(path("chosen") + " is not an executable"));
}

TEST_F(TrainSbatch, StartsOfAJobHaveAnIdInCommon) {
  const auto id = [&] { return submit(R"(echo "id $FURLONG_RESUME_ID")").log; };
  EXPECT_THAT(id(), HasSubstr("id 42\n"));
  setenv("SLURM_RESTART_COUNT", "1", 1);
  EXPECT_THAT(id(), HasSubstr("id 42\n"));
  setenv("SLURM_ARRAY_JOB_ID", "40", 1);
  setenv("SLURM_ARRAY_TASK_ID", "3", 1);
  EXPECT_THAT(id(), HasSubstr("id 40_3\n"));
  for (const char* name : {"SLURM_RESTART_COUNT", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID"}) unsetenv(name);
}

}  // namespace
}  // namespace furlong
