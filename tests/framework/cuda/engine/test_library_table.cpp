#include "framework/cuda/engine/library_table.h"

#include <cstdlib>
#include <optional>

#include "framework/cuda/engine/nccl.h"
#include "tests/temporary_folder.h"

namespace furlong {
namespace {

/// Sets or unsets an environment variable for a scope.
class WithEnvironment {
 public:
  WithEnvironment(const char* name, const std::optional<std::string>& value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    set(value);
  }
  ~WithEnvironment() { set(before_); }
  WithEnvironment(const WithEnvironment&) = delete;
  WithEnvironment& operator=(const WithEnvironment&) = delete;

 private:
  void set(const std::optional<std::string>& value) const {
    if (value) {
      setenv(name_, value->c_str(), 1);
    } else {
      unsetenv(name_);
    }
  }
  const char* name_;
  std::optional<std::string> before_;
};

/// The table of a library that exists only in these tests.
struct Table {
  LibraryFunction<int(int)> twice{"furlong_test_twice"};
  LibraryFunction<const char*()> name{"furlong_test_name"};
  Library library;

  Table() {
    library = load_table({"Doubler", {"libdoubler.so.3", "libdoubler.so.2"}, {"nvidia/doubler/lib"}, {}}, twice, name);
  }
};

class LibraryTable : public testing::WithTemporaryFolder {
 protected:
  void SetUp() override {
    if (std::system("command -v c++ >/dev/null 2>&1") != 0)
      GTEST_SKIP() << "no compiler is available to build a library";
  }
  /// Builds a shared library at `place` below the test's folder from `source`.
  void build(const std::string& place, const std::string& source) const {
    const std::filesystem::path target = folder_ / place;
    std::filesystem::create_directories(target.parent_path());
    const std::string command = "c++ -shared -fPIC -o '" + target.string() + "' '" +
                                file("source.cpp", "extern \"C\" {\n" + source + "\n}\n") + "'";
    ASSERT_EQ(std::system(command.c_str()), 0) << command;
  }
  static std::string doubler(const std::string& name) {
    return "int furlong_test_twice(int x) { return 2 * x; }\nconst char* furlong_test_name() { return \"" + name +
           "\"; }";
  }

  WithEnvironment folder_unset_{"FURLONG_CUDA_LIBDIR", std::nullopt}, environment_unset_{"VIRTUAL_ENV", std::nullopt};
};

TEST_F(LibraryTable, LoadsLibraryFromEnvironmentFolder) {
  build("libs/libdoubler.so.3", doubler("third"));
  const WithEnvironment folder("FURLONG_CUDA_LIBDIR", path("libs"));
  const Table table;
  ASSERT_NE(table.library.handle, nullptr) << table.library.problem;
  EXPECT_EQ(table.library.path, path("libs/libdoubler.so.3"));
  EXPECT_EQ(table.library.problem, "");
  EXPECT_EQ(table.twice(21), 42);
  EXPECT_STREQ(table.name(), "third");
}

TEST_F(LibraryTable, TriesFileNamesInOrder) {
  build("both/libdoubler.so.2", doubler("second"));
  {
    const WithEnvironment folder("FURLONG_CUDA_LIBDIR", path("both"));
    EXPECT_STREQ(Table().name(), "second");
  }
  build("all/libdoubler.so.2", doubler("second"));
  build("all/libdoubler.so.3", doubler("third"));
  const WithEnvironment folder("FURLONG_CUDA_LIBDIR", path("all"));
  EXPECT_STREQ(Table().name(), "third");
}

TEST_F(LibraryTable, NamesMissingFunctionAndTriesNextLibrary) {
  build("libs/libdoubler.so.3", "int furlong_test_twice(int x) { return 2 * x; }");
  const WithEnvironment folder("FURLONG_CUDA_LIBDIR", path("libs"));
  {
    const Table table;
    EXPECT_EQ(table.library.handle, nullptr);
    EXPECT_EQ(table.twice.pointer, nullptr);
    EXPECT_NE(table.library.problem.find(path("libs/libdoubler.so.3") + " lacks furlong_test_name"), std::string::npos)
        << table.library.problem;
    EXPECT_EQ(table.library.problem.find("furlong_test_twice"), std::string::npos) << "that function exists";
  }
  build("libs/libdoubler.so.2", doubler("second"));
  const Table table;
  ASSERT_NE(table.library.handle, nullptr) << table.library.problem;
  EXPECT_STREQ(table.name(), "second");
}

TEST_F(LibraryTable, SkipsInvalidFileAndReportsLoaderError) {
  file("libdoubler.so.3", "no library");
  const WithEnvironment folder("FURLONG_CUDA_LIBDIR", folder_.string());
  const Table table;
  EXPECT_EQ(table.library.handle, nullptr);
  EXPECT_NE(table.library.problem.find(path("libdoubler.so.3") + ": file too short"), std::string::npos)
      << table.library.problem;
}

TEST_F(LibraryTable, SearchesPipPackages) {
  build("environment/lib/python3.11/site-packages/nvidia/doubler/lib/libdoubler.so.2", doubler("pip"));
  const WithEnvironment environment("VIRTUAL_ENV", path("environment"));
  const Table table;
  ASSERT_NE(table.library.handle, nullptr) << table.library.problem;
  EXPECT_STREQ(table.name(), "pip");
}

TEST_F(LibraryTable, ListsSearchedPlacesInOneLine) {
  const Table table;
  ASSERT_EQ(table.library.handle, nullptr);
  const std::string& problem = table.library.problem;
  EXPECT_EQ(problem.rfind("Doubler cannot be loaded: libdoubler.so.3, libdoubler.so.2 were searched for in ", 0), 0u)
      << problem;
  for (const char* place : {"/lib, ", "the loader's search path", "set FURLONG_CUDA_LIBDIR"}) {
    EXPECT_NE(problem.find(place), std::string::npos) << place << " in " << problem;
  }
  EXPECT_EQ(problem.find('\n'), std::string::npos);
  EXPECT_EQ(problem.find("cannot open"), std::string::npos) << "a missing file is not a fault: " << problem;
}

TEST(Nccl, IsLoadedOrReportsWhyNot) {
  const nccl::Table& table = nccl::table();
  EXPECT_NE(table.loaded(), table.version().empty());
  EXPECT_EQ(table.loaded(), table.library.problem.empty());
  if (!table.loaded()) {
    EXPECT_EQ(table.library.problem.rfind("NCCL cannot be loaded: libnccl.so.2 was searched for in ", 0), 0u)
        << table.library.problem;
    GTEST_SKIP() << table.library.problem;
  }
  EXPECT_EQ(table.version().rfind("2.", 0), 0u) << table.version();
  EXPECT_STREQ(table.get_error_string(0), "no error");
}

}  // namespace
}  // namespace furlong
