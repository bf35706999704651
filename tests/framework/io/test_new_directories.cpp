#include "framework/io/new_directories.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "framework/core/error.h"
#include "tests/temporary_folder.h"

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

}  // namespace
}  // namespace furlong
