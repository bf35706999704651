#include "framework/io/new_directories.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <optional>

#include "framework/core/error.h"
#include "framework/io/atomic_file.h"
#include "framework/io/interrupted_writes.h"
#include "tests/communication/child_processes.h"
#include "tests/temporary_folder.h"

// Overrides the C library's function, to send a signal while a directory is created.
static bool signals_at_mkdir = false;
extern "C" int mkdir(const char* path, mode_t mode) noexcept {
  const int status = static_cast<int>(syscall(SYS_mkdirat, AT_FDCWD, path, mode));
  const int error = errno;
  if (signals_at_mkdir) raise(SIGTERM);
  errno = error;
  return status;
}

namespace furlong {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class NewDirectoriesTest : public testing::WithTemporaryFolder {};

TEST_F(NewDirectoriesTest, RemovesItsEmptyDirectoriesOnly) {
  fs::create_directory(folder_ / "there");
  {
    NewDirectories made;
    made.create(folder_ / "there");
    made.create(folder_ / "there" / "a" / "b" / "");
    made.create(folder_ / "full" / "empty");
    file("full/file.txt", "text");
    EXPECT_TRUE(fs::is_directory(folder_ / "there" / "a" / "b"));
    EXPECT_TRUE(fs::is_directory(folder_ / "full" / "empty"));
  }
  EXPECT_TRUE(fs::is_directory(folder_ / "there"));
  EXPECT_FALSE(fs::exists(folder_ / "there" / "a"));
  EXPECT_FALSE(fs::exists(folder_ / "full" / "empty"));
  EXPECT_EQ(content(path("full/file.txt")), "text");
}

TEST_F(NewDirectoriesTest, ReportsUnusablePathsAsUserErrors) {
  file("file", "text");
  for (const char* name : {"new/file", "file/new", "file"}) {
    NewDirectories made;
    if (std::string(name) == "new/file") {
      made.create(folder_ / "new");
      file("new/file", "text");
    }
    EXPECT_THAT(testing::message_of<UserError>([&] { made.create(path(name)); }),
                HasSubstr("file: cannot create the directory: Not a directory"));
  }
  NewDirectories made;
  EXPECT_THROW(made.create(""), UserError);
}

/// Returns the exit status of a process that runs `action` with the program's handlers of signals.
template <class Action>
int status_of_child(const Action& action) {
  const pid_t child = testing::fork_without_team();
  if (child == 0) {
    for (const int signal : {SIGTERM, SIGPIPE}) std::signal(signal, SIG_DFL);
    end_cleanly_on_signals();
    action();
    std::_Exit(0);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return testing::exit_status(status);
}

TEST_F(NewDirectoriesTest, SignalRemovesItsDirectoriesAndNoFile) {
  file("file", "text");
  for (const char* name : {"file", "new/inner"}) {
    const int status = status_of_child([&] {
      NewDirectories made;
      if (std::string(name) != "file") made.create(folder_ / "new");
      signals_at_mkdir = true;
      made.create(path(name));
    });
    EXPECT_EQ(status, 3) << name;
    EXPECT_FALSE(fs::exists(folder_ / "new"));
  }
  EXPECT_EQ(content(path("file")), "text");
}

TEST_F(NewDirectoriesTest, SignalAfterTheLastOutputEndsInSuccess) {
  for (const bool is_last : {true, false}) {
    const int status = status_of_child([&] {
      AtomicFile output(path("output"));
      if (is_last) {
        output.commit_last();
      } else {
        output.commit();
      }
      std::raise(SIGTERM);
      std::_Exit(1);
    });
    EXPECT_EQ(status, is_last ? 0 : 3);
    EXPECT_TRUE(fs::exists(path("output")));
  }
}

// The reader of its progress, for example; the write fails.
TEST_F(NewDirectoriesTest, LostReaderEndsOnlyProgramsThatWriteNoFile) {
  for (const bool writes : {true, false}) {
    const int status = status_of_child([&] {
      std::optional<AtomicFile> output;
      if (writes) output.emplace(path("output"));
      std::raise(SIGPIPE);
      if (writes) output->commit();
    });
    EXPECT_EQ(status, writes ? 0 : 128 + SIGPIPE);
  }
  EXPECT_TRUE(fs::exists(path("output")));
}

}  // namespace
}  // namespace furlong
