#include "framework/io/atomic_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <string>

#include "framework/core/error.h"

namespace furlong {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class AtomicFileTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "furlong_atomic_XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder = name;
  }
  void TearDown() override { fs::remove_all(folder); }
  static std::string content(const fs::path& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  fs::path folder;
};

// A limit on file size stands for a full disk: write() fails part of the way in the same manner.
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

TEST_F(AtomicFileTest, TheFileAppearsOnlyAtCommit) {
  const fs::path path = folder / "out.txt";
  AtomicFile file(path);
  file.write("one ");
  file.write("two");
  EXPECT_FALSE(fs::exists(path));
  EXPECT_TRUE(fs::exists(partial_path(path)));
  file.commit();
  EXPECT_EQ(content(path), "one two");
  EXPECT_FALSE(fs::exists(partial_path(path)));
}

TEST_F(AtomicFileTest, WithoutCommitTheOldFileStays) {
  const fs::path path = folder / "out.txt";
  write_file_atomically(path, "old");
  {
    AtomicFile file(path);
    file.write("new");
  }
  EXPECT_EQ(content(path), "old");
  EXPECT_FALSE(fs::exists(partial_path(path)));
  write_file_atomically(path, "new");
  EXPECT_EQ(content(path), "new");
}

TEST_F(AtomicFileTest, WritesAtAnOffsetKeepTheEnd) {
  const fs::path path = folder / "out.txt";
  AtomicFile file(path);
  file.write("....5678");
  file.write_at(0, "1234", 4);
  file.write("9");
  file.commit();
  EXPECT_EQ(content(path), "123456789");
}

TEST_F(AtomicFileTest, LeftoversOfAnEarlierWriterAreReplaced) {
  const fs::path path = folder / "out.txt";
  std::ofstream(partial_path(path)) << "a much longer leftover of a writer that was killed";
  write_file_atomically(path, "short");
  EXPECT_EQ(content(path), "short");
}

TEST_F(AtomicFileTest, AFullDiskLeavesTheOldFileAndNoPartial) {
  const fs::path path = folder / "out.txt";
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
  EXPECT_FALSE(fs::exists(partial_path(path)));
}

TEST_F(AtomicFileTest, AFullDeviceIsAMachineError) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  const fs::path path = folder / "out.txt";
  fs::create_symlink("/dev/full", partial_path(path));
  EXPECT_THROW(write_file_atomically(path, "text"), MachineError);
  EXPECT_FALSE(fs::exists(path));
  EXPECT_FALSE(fs::is_symlink(partial_path(path)));
}

TEST_F(AtomicFileTest, PlacesThatCannotWorkAreTheUsersToMend) {
  fs::create_directory(folder / "directory");
  write_file_atomically(folder / "file", "");
  for (const fs::path& path : {folder / "missing" / "out.txt", folder / "directory", folder / "file" / "out.txt",
                               folder / std::string(300, 'n')}) {
    try {
      write_file_atomically(path, "text");
      FAIL() << path;
    } catch (const UserError& error) {
      EXPECT_THAT(error.what(), HasSubstr(path.string()));
      EXPECT_THAT(error.what(), testing::Not(HasSubstr("\n")));
    }
  }
}

TEST_F(AtomicFileTest, UseAfterCommitIsABug) {
  AtomicFile file(folder / "out.txt");
  file.commit();
  EXPECT_THROW(file.write("late"), ContractError);
  EXPECT_THROW(file.commit(), ContractError);
  EXPECT_EQ(content(folder / "out.txt"), "");
}

}  // namespace
}  // namespace furlong
