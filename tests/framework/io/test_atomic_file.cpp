#include "framework/io/atomic_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <string>
#include <utility>

#include "framework/core/error.h"
#include "tests/communication/child_processes.h"
#include "tests/temporary_folder.h"

// Override the C library's functions, to simulate faults and network file systems.
static bool directories_flush = true, link_is_repeated = false, rename_is_repeated = false;
static std::function<void()> before_lock, before_failure;  // of a file's lock, a folder's flush; called once
static int interrupted_flushes = 0;
extern "C" int fsync(int descriptor) {
  if (interrupted_flushes > 0) {
    --interrupted_flushes;
    errno = EINTR;
    return -1;
  }
  struct stat status {};
  if (directories_flush || fstat(descriptor, &status) != 0 || !S_ISDIR(status.st_mode))
    return static_cast<int>(syscall(SYS_fsync, descriptor));
  if (before_failure) std::exchange(before_failure, nullptr)();
  errno = EIO;
  return -1;
}
extern "C" int link(const char* from, const char* to) noexcept {
  const int first = static_cast<int>(syscall(SYS_linkat, AT_FDCWD, from, AT_FDCWD, to, 0));
  return link_is_repeated ? static_cast<int>(syscall(SYS_linkat, AT_FDCWD, from, AT_FDCWD, to, 0)) : first;
}
extern "C" int rename(const char* from, const char* to) noexcept {
  const int first = static_cast<int>(syscall(SYS_renameat, AT_FDCWD, from, AT_FDCWD, to));
  return rename_is_repeated ? static_cast<int>(syscall(SYS_renameat, AT_FDCWD, from, AT_FDCWD, to)) : first;
}
extern "C" int flock(int descriptor, int operation) noexcept {
  struct stat status {};
  if (before_lock && fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode)) std::exchange(before_lock, nullptr)();
  return static_cast<int>(syscall(SYS_flock, descriptor, operation));
}

namespace furlong {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class AtomicFileTest : public testing::WithTemporaryFolder {};

// A file size limit simulates a full disk: write() fails partway in the same manner.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    previous_handler_ = signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &previous_);
    rlimit limit = previous_;
    limit.rlim_cur = bytes;
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &previous_);
    signal(SIGXFSZ, previous_handler_);
  }

 private:
  rlimit previous_{};
  void (*previous_handler_)(int) = nullptr;
};

TEST_F(AtomicFileTest, FileAppearsOnlyAtCommit) {
  const fs::path path = folder_ / "out.txt";
  AtomicFile file(path);
  file.write("one ");
  file.write("two");
  EXPECT_FALSE(fs::exists(path));
  EXPECT_EQ(partial_files(path).size(), 1u);
  file.commit();
  EXPECT_EQ(content(path), "one two");
  EXPECT_TRUE(partial_files(path).empty());
}

// Network file systems return EINTR.
TEST_F(AtomicFileTest, SignalsDoNotInterruptFlushes) {
  const fs::path path = folder_ / "out.txt";
  AtomicFile file(path, false);
  file.write("whole");
  interrupted_flushes = 3;
  file.flush();
  interrupted_flushes = 3;
  file.commit();
  EXPECT_EQ(interrupted_flushes, 0);
  EXPECT_EQ(content(path), "whole");
}

TEST_F(AtomicFileTest, OldFileStaysWithoutCommit) {
  const fs::path path = folder_ / "out.txt";
  write_file_atomically(path, "old");
  {
    AtomicFile file(path);
    file.write("new");
  }
  EXPECT_EQ(content(path), "old");
  EXPECT_TRUE(partial_files(path).empty());
  write_file_atomically(path, "new");
  EXPECT_EQ(content(path), "new");
}

TEST_F(AtomicFileTest, KeepsThePermissionsOfTheFileThatItReplaces) {
  const std::string path = file("private.txt", "old");
  ASSERT_EQ(::chmod(path.c_str(), 0600), 0);
  const fs::perms owner = fs::perms::owner_read | fs::perms::owner_write;
  AtomicFile replacing(path);
  EXPECT_EQ(fs::status(partial_files(path).at(0)).permissions(), owner) << "while it is written";
  replacing.write("new");
  replacing.commit();
  EXPECT_EQ(fs::status(path).permissions(), owner);
  EXPECT_EQ(content(path), "new");
}

TEST_F(AtomicFileTest, RejectsPathsThatNameNoFile) {
  fs::create_directory(path("folder"));
  for (const std::string& name : {std::string(), std::string("/"), path("folder/"), path("new/")})
    EXPECT_THAT(testing::message_of<UserError>([&] { AtomicFile file(name); }), HasSubstr("cannot write: ")) << name;
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  EXPECT_THAT(testing::message_of<UserError>([&] { AtomicFile file(fmt::format("/proc/self/fd/{}", ends[1])); }),
              HasSubstr("it is a device, pipe or socket"));
  for (const int end : ends) ::close(end);
}

TEST_F(AtomicFileTest, WriteAtKeepsTheAppendPosition) {
  const fs::path path = folder_ / "out.txt";
  AtomicFile file(path);
  file.write("....5678");
  file.write_at(0, "1234", 4);
  file.write("9");
  file.commit();
  EXPECT_EQ(content(path), "123456789");
}

TEST_F(AtomicFileTest, RemovesPartialFilesOfKilledWriters) {
  const fs::path path = folder_ / "out.txt";
  std::ofstream(partial_path(path)) << "a much longer leftover of a writer that was killed";
  ASSERT_EQ(partial_files(path).size(), 1u);
  write_file_atomically(path, "short");
  EXPECT_EQ(content(path), "short");
  EXPECT_TRUE(partial_files(path).empty());
}

TEST_F(AtomicFileTest, AbandonedPartialFilesOfAFolderAreThoseWithoutWriter) {
  AtomicFile live(folder_ / "live.txt");
  live.write("complete");
  const fs::path live_partial = partial_files(folder_ / "live.txt").at(0);
  for (const char* name : {"one.txt", "two.txt"}) std::ofstream(partial_path(folder_ / name)) << "killed";
  const std::vector<fs::path> others{folder_ / "notes.partial", folder_ / ".notes.txt.partial",
                                     folder_ / ".notes.0123456789xy.partial", folder_ / "notes.0123456789ab.partial"};
  for (const fs::path& other : others) std::ofstream(other) << "kept";
  remove_abandoned_partial_files(folder_);
  for (const char* name : {"one.txt", "two.txt"}) EXPECT_TRUE(partial_files(folder_ / name).empty()) << name;
  for (const fs::path& other : others) EXPECT_TRUE(fs::exists(other)) << other;
  EXPECT_TRUE(fs::exists(live_partial));
  live.commit();
  EXPECT_EQ(content(folder_ / "live.txt"), "complete");
  EXPECT_THROW(remove_abandoned_partial_files(folder_ / "missing"), UserError);
}

TEST_F(AtomicFileTest, RefusesASecondWriterAndKeepsTheFirst) {
  const fs::path path = folder_ / "out.txt";
  AtomicFile first(path);
  first.write("first");
  EXPECT_THAT([&] { AtomicFile second(path); }, ::testing::Throws<UserError>(::testing::Property(
                                                    &UserError::what, HasSubstr("another process is writing"))));
  fs::create_symlink(path, folder_ / "link.txt");
  EXPECT_THROW(AtomicFile(folder_ / "link.txt"), UserError);
  first.commit();
  EXPECT_EQ(content(path), "first");
  write_file_atomically(path, "second");
  EXPECT_EQ(content(path), "second");
}

// Whose file this one may read only.
TEST_F(AtomicFileTest, RefusesASecondWriterThatIsAnotherUser) {
  fs::permissions(folder_, fs::perms::all);
  const AtomicFile first(path("out"));
  fs::permissions(partial_files(path("out")).at(0),
                  fs::perms::owner_read | fs::perms::group_read | fs::perms::others_read);
  const pid_t child = testing::fork_without_team();
  if (child == 0) {
    constexpr uid_t nobody = 65534;
    if (geteuid() == 0 && setuid(nobody) != 0) std::_Exit(2);
    try {
      const AtomicFile second(path("out"));
    } catch (const FileInUse&) {
      std::_Exit(1);
    }
    std::_Exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(testing::exit_status(status), 1);
}

TEST_F(AtomicFileTest, WritesFilesWhoseLongNamesDifferAtTheirEnd) {
  const std::string name(230, 'n');
  AtomicFile first(path(name + "1")), second(path(name + "2"));
  EXPECT_THROW(AtomicFile(path(name + "2")), FileInUse);
  first.commit();
  second.commit();
  EXPECT_TRUE(fs::exists(path(name + "1")) && fs::exists(path(name + "2")));
}

// As another process does where the folder cannot be locked.
TEST_F(AtomicFileTest, CreatesPartialFileAgainThatIsLockedOrRemovedBeforeItsLock) {
  const fs::path path = folder_ / "out.txt";
  for (const bool removes : {true, false}) {
    int other = -1;
    before_lock = [&] {
      const fs::path partial = partial_files(path).at(0);
      other = ::open(partial.c_str(), O_RDWR | O_CLOEXEC);
      ASSERT_EQ(syscall(SYS_flock, other, LOCK_EX), 0);
      if (!removes) return;
      fs::remove(partial);
      ::close(other);
    };
    AtomicFile file(path);
    file.write(removes ? "removed" : "locked");
    file.commit();
    EXPECT_EQ(content(path), removes ? "removed" : "locked");
    EXPECT_TRUE(partial_files(path).empty());
    if (!removes) ::close(other);
  }
}

// A repeated call finds the name that the first one has given.
TEST_F(AtomicFileTest, AcceptsItsOwnNameWhoseAnswerNfsHasLost) {
  AtomicFile file(folder_ / "out.txt", false);
  file.write("text");
  link_is_repeated = true;
  file.commit();
  link_is_repeated = false;
  EXPECT_EQ(content(folder_ / "out.txt"), "text");
  EXPECT_TRUE(partial_files(folder_ / "out.txt").empty());
  AtomicFile second(folder_ / "out.txt");
  second.write("other");
  rename_is_repeated = true;
  second.commit();
  rename_is_repeated = false;
  EXPECT_EQ(content(folder_ / "out.txt"), "other");
}

TEST_F(AtomicFileTest, ReplacesNoFileWithoutOverwrite) {
  const fs::path path = folder_ / "out.txt";
  const auto expect_taken = [&](const auto& action) {
    EXPECT_EQ(testing::message_of<UserError>(action),
              path.string() + ": already exists; use --force to replace it, or choose another path");
    EXPECT_EQ(content(path), "first");
    EXPECT_TRUE(partial_files(path).empty());
  };
  AtomicFile first(path, false);
  first.write("first");
  EXPECT_THROW(AtomicFile(path, false), FileInUse);
  first.commit();
  expect_taken([&] { AtomicFile(path, false); });
  fs::remove(path);
  AtomicFile late(path, false);
  late.write("late");
  std::ofstream(path) << "first";  // by another program, or without locks
  expect_taken([&] { late.commit(); });
  EXPECT_THROW(late.commit(), ContractError);
  fs::create_symlink("elsewhere.txt", folder_ / "link.txt");
  AtomicFile linked(folder_ / "link.txt", false);
  linked.write("linked");
  linked.commit();
  EXPECT_EQ(content(folder_ / "elsewhere.txt"), "linked");
  EXPECT_THROW(AtomicFile(folder_ / "link.txt", false), UserError);
}

TEST_F(AtomicFileTest, NewFileDoesNotSurviveAFailedCommit) {
  for (const bool overwrite : {false, true}) {
    AtomicFile file(folder_ / "out.txt", overwrite);
    directories_flush = false;
    EXPECT_THROW(file.commit(), MachineError);
    directories_flush = true;
    EXPECT_EQ(fs::exists(folder_ / "out.txt"), overwrite);
  }
  // Another process has replaced it meanwhile.
  fs::remove(folder_ / "out.txt");
  AtomicFile file(folder_ / "out.txt", false);
  before_failure = [&] {
    std::ofstream(folder_ / "theirs.txt") << "theirs";
    fs::rename(folder_ / "theirs.txt", folder_ / "out.txt");
  };
  directories_flush = false;
  EXPECT_THROW(file.commit(), MachineError);
  directories_flush = true;
  EXPECT_EQ(content(folder_ / "out.txt"), "theirs");
}

TEST_F(AtomicFileTest, LeavesUnrelatedFilesAlone) {
  const fs::path path = folder_ / "out.txt";
  const std::vector<fs::path> others{folder_ / "out.txt.partial", folder_ / ".out.txt.partial",
                                     folder_ / ".out.txt.0.partial"};
  for (const fs::path& other : others) std::ofstream(other) << "kept";
  fs::create_symlink("elsewhere", folder_ / ".out.txt.0123456789ab.partial");
  fs::create_symlink("out.txt.partial", folder_ / ".out.txt.0123456789cd.partial");
  write_file_atomically(path, "text");
  for (const fs::path& other : others) EXPECT_EQ(content(other), "kept");
  EXPECT_TRUE(fs::is_symlink(folder_ / ".out.txt.0123456789ab.partial"));
  EXPECT_TRUE(fs::is_symlink(folder_ / ".out.txt.0123456789cd.partial"));
  EXPECT_FALSE(fs::exists(folder_ / "elsewhere"));
}

TEST_F(AtomicFileTest, FollowsASymbolicLink) {
  fs::create_directory(folder_ / "there");
  write_file_atomically(folder_ / "there" / "file.txt", "old");
  fs::create_symlink("there/file.txt", folder_ / "link.txt");
  fs::create_symlink("there/new.txt", folder_ / "dangling.txt");
  write_file_atomically(folder_ / "link.txt", "new");
  write_file_atomically(folder_ / "dangling.txt", "made");
  EXPECT_TRUE(fs::is_symlink(folder_ / "link.txt"));
  EXPECT_EQ(content(folder_ / "there" / "file.txt"), "new");
  EXPECT_EQ(content(folder_ / "there" / "new.txt"), "made");
}

TEST_F(AtomicFileTest, RefusesDevicesAndPipes) {
  ASSERT_EQ(mkfifo((folder_ / "pipe").c_str(), 0666), 0);
  fs::create_symlink("/dev/null", folder_ / "null");
  for (const fs::path& path : {folder_ / "pipe", folder_ / "null"}) {
    EXPECT_THAT([&] { write_file_atomically(path, "text"); },
                ::testing::Throws<UserError>(
                    ::testing::Property(&UserError::what, HasSubstr("give the path of a regular file"))));
  }
  EXPECT_TRUE(fs::is_fifo(folder_ / "pipe"));
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
}

TEST_F(AtomicFileTest, FullDiskLeavesTheOldFileAndNoPartialFile) {
  const fs::path path = folder_ / "out.txt";
  write_file_atomically(path, "old");
  const std::string large(100'000, 'x');
  {
    FileSizeLimit limit(65'536);
    try {
      write_file_atomically(path, large);
      FAIL() << "wrote past the limit";
    } catch (const MachineError& error) {
      EXPECT_THAT(error.what(), HasSubstr(path.string()));
      EXPECT_EQ(error.exit_status(), 1);
    }
  }
  EXPECT_EQ(content(path), "old");
  EXPECT_TRUE(partial_files(path).empty());
}

TEST_F(AtomicFileTest, ReportsUnusablePathsAsUserErrors) {
  fs::create_directory(folder_ / "directory");
  write_file_atomically(folder_ / "file", "");
  for (const fs::path& path : {folder_ / "missing" / "out.txt", folder_ / "directory", folder_ / "file" / "out.txt",
                               folder_ / std::string(300, 'n')}) {
    EXPECT_THAT(testing::message_of<UserError>([&] { write_file_atomically(path, "text"); }), HasSubstr(path.string()));
  }
}

TEST_F(AtomicFileTest, ThrowsContractErrorAfterCommit) {
  AtomicFile file(folder_ / "out.txt");
  file.commit();
  EXPECT_THROW(file.write("late"), ContractError);
  EXPECT_THROW(file.commit(), ContractError);
  EXPECT_EQ(content(folder_ / "out.txt"), "");
}

}  // namespace
}  // namespace furlong
