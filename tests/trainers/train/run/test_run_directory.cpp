// The run directory of several ranks.
#include "trainers/train/run/run_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <optional>
#include <thread>

#include "framework/core/log.h"
#include "tests/temporary_folder.h"
#include "tests/trainers/parallel_testing.h"

namespace furlong {
namespace {

using namespace std::chrono_literals;
using parallel_testing::Report;
using parallel_testing::World;
using ::testing::HasSubstr;
using ::testing::Not;

class RunDirectoryTest : public testing::WithTemporaryFolder {
 protected:
  /// Opens a run directory with two ranks. Rank 1 has a copy of it, in which rank 0's file appears after `delay`,
  /// or never. Returns the log and the error of rank 1.
  std::string open(std::optional<std::chrono::milliseconds> delay, std::chrono::seconds patience) const {
    World world(2, [&](ProcessGroup& group, const Report& report) {
      if (group.is_first()) {
        const RunDirectory directory(path("run"), group, patience);
        return;
      }
      std::filesystem::create_directories(path("copy"));
      std::thread network([&] {
        if (!delay) return;
        while (!std::filesystem::exists(path("run/.shared"))) std::this_thread::sleep_for(5ms);
        std::this_thread::sleep_for(*delay);
        std::filesystem::copy_file(path("run/.shared"), path("copy/.shared"));
      });
      const LogCapture captured;
      try {
        const RunDirectory directory(path("copy"), group, patience);
      } catch (const UserError& error) {
        report.say(error.what());
        group.barrier();  // that of rank 0's constructor
      }
      network.join();
      report.say(captured.text());
    });
    EXPECT_EQ(world.wait(), (std::vector<int>{0, 0})) << world.errors();
    EXPECT_FALSE(std::filesystem::exists(path("run/.shared")));
    std::filesystem::remove_all(path("copy"));
    return world[1].words();
  }
};

TEST_F(RunDirectoryTest, WaitsForASlowFileSystem) {
  EXPECT_THAT(open(500ms, 60s), Not(HasSubstr("not the directory")));
  const std::string log = open(4s, 60s);
  EXPECT_THAT(log,
              HasSubstr("copy/.shared: rank 0 has written this file, but this rank does not see it yet; waiting up "
                        "to 60 s for the file system"));
  EXPECT_THAT(log, Not(HasSubstr("not the directory")));
}

TEST_F(RunDirectoryTest, RejectsAnotherDirectory) {
  EXPECT_THAT(open(std::nullopt, 1s), HasSubstr("not the directory that rank 0 uses"));
}

TEST_F(RunDirectoryTest, RejectsALinkAsLockFileAndKeepsItsTarget) {
  write_file_atomically(path("mine.txt"), "mine\n");
  std::filesystem::create_directories(path("run"));
  std::filesystem::create_symlink(path("mine.txt"), path("run/.lock"));
  EXPECT_THAT(testing::message_of<UserError>([&] { RunLock(path("run")); }), HasSubstr("run/.lock: is not a regular"));
  EXPECT_EQ(std::filesystem::file_size(path("mine.txt")), 5u);
  std::filesystem::remove(path("run/.lock"));
  ASSERT_EQ(mkfifo(path("run/.lock").c_str(), 0600), 0);
  EXPECT_THAT(testing::message_of<UserError>([&] { RunLock(path("run")); }), HasSubstr("run/.lock: is not a regular"));
}

TEST_F(RunDirectoryTest, KnowsThatItWasMoved) {
  namespace fs = std::filesystem;
  parallel_testing::run_world(1, [&](ProcessGroup& group, const Report&) {
    fs::create_directory(path("run"));
    fs::create_directory_symlink("run", path("link"));
    const RunDirectory directory(path("link"), group);
    const auto moved = [&] {
      EXPECT_THAT(testing::message_of<UserError>([&] { directory.check_in_place(); }),
                  HasSubstr("link: this run directory was moved or replaced during the training"));
    };
    directory.check_in_place();
    fs::remove(path("link/.lock"));  // by hand
    directory.check_in_place();
    fs::rename(path("run"), path("moved"));
    moved();
    fs::create_directory(path("run"));
    moved();
    fs::remove(path("run"));
    fs::create_directory_symlink("moved", path("run"));
    directory.check_in_place();
  });
}

TEST_F(RunDirectoryTest, EveryRankKnowsThatItWasMoved) {
  namespace fs = std::filesystem;
  parallel_testing::run_world(2, [&](ProcessGroup& group, const Report&) {
    const RunDirectory directory(path("run"), group);
    directory.check_in_place(group);
    if (group.is_first()) fs::rename(path("run"), path("moved"));
    EXPECT_THAT(testing::message_of<UserError>([&] { directory.check_in_place(group); }), HasSubstr("was moved"));
  });
}

}  // namespace
}  // namespace furlong
