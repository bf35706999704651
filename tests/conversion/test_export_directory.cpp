// The files of furlong export appear together, and replace others only if asked.
#include "conversion/export_directory.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <map>

#include "conversion/export.h"
#include "tests/communication/child_processes.h"
#include "tests/conversion/tiny_models.h"
#include "tests/temporary_folder.h"
#include "trainers/train/signals.h"

// Override the C library's functions, to send signals while a file gets its name, and to fail once.
static int signals_at_rename = 0, links_before_failure = -1;
extern "C" int rename(const char* from, const char* to) noexcept {
  for (int i = 0; i < signals_at_rename; ++i) raise(SIGINT);
  return static_cast<int>(syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}
extern "C" int link(const char* from, const char* to) noexcept {
  if (links_before_failure-- != 0) return static_cast<int>(syscall(SYS_linkat, AT_FDCWD, from, AT_FDCWD, to, 0));
  errno = EIO;
  return -1;
}

namespace furlong {
namespace {

namespace fs = std::filesystem;
using namespace furlong::testing;
using ::testing::HasSubstr;

class ExportDirectoryTest : public WithTemporaryFolder {
 protected:
  SourceModel imported(const TinyModel& model) const { return open_source_model(model.write(folder_ / "source")); }
  void exported(const TinyModel& model, bool overwrite = false) const {
    SourceModel source = imported(model);
    ExportOptions options;
    options.overwrite = overwrite;
    export_model(source, path("out"), options);
  }
  /// Writes the files of a model without tensors, all of them before commit().
  static void fill(ExportDirectory& directory) {
    directory.add_weights({}).flush();
    directory.add("vocab.txt", "new");
    directory.add_config("{}");
  }
  std::map<std::string, std::string> files() const {
    std::map<std::string, std::string> found;
    for (const auto& entry : fs::directory_iterator(path("out")))
      if (entry.is_regular_file()) found[entry.path().filename().string()] = content(entry.path().string());
    return found;
  }
};

TEST_F(ExportDirectoryTest, RefusesASecondExport) {
  {
    const ExportDirectory first(path("new/out"), false);
    for (const bool overwrite : {false, true})
      EXPECT_THAT(message_of<FileInUse>([&] { ExportDirectory(path("new/out"), overwrite); }),
                  HasSubstr("new/out/config.json: another process is writing this file"));
  }
  EXPECT_FALSE(fs::exists(path("new")));
}

TEST_F(ExportDirectoryTest, RemovesEverythingWithoutCommit) {
  {
    ExportDirectory directory(path("new/out"), false);
    directory.add("1_Pooling/config.json", "{}");
    directory.add_config("{}");
    EXPECT_FALSE(fs::exists(path("new/out/config.json")));
  }
  EXPECT_FALSE(fs::exists(path("new")));
}

TEST_F(ExportDirectoryTest, ReplacesNoFileWithoutOverwrite) {
  fs::create_directory(path("out"));
  file("out/vocab.txt", "mine");
  EXPECT_THAT(message_of<UserError>([&] { exported(tiny_bert()); }),
              HasSubstr("out/vocab.txt: already exists; use --force"));
  EXPECT_EQ(content(path("out/vocab.txt")), "mine");
  EXPECT_EQ(files().size(), 1u);
  fs::remove(path("out/vocab.txt"));
  file("out/model.safetensors.index.json", "mine");
  EXPECT_THAT(message_of<UserError>([&] { exported(tiny_bert()); }),
              HasSubstr("out/model.safetensors.index.json: already exists; use --force"));
  EXPECT_EQ(files().size(), 1u);
}

TEST_F(ExportDirectoryTest, FailedCommitWithoutOverwriteIsRepeatable) {
  const auto commit = [&] {
    ExportDirectory directory(path("new/out"), false);
    fill(directory);
    directory.commit();
  };
  for (const int links : {0, 1, 2}) {
    links_before_failure = links;
    EXPECT_THROW(commit(), MachineError);
    EXPECT_FALSE(fs::exists(path("new"))) << links;
  }
  commit();
  EXPECT_EQ(content(path("new/out/config.json")), "{}");
}

TEST_F(ExportDirectoryTest, FailureKeepsTheEarlierModel) {
  exported(tiny_gpt2());
  fs::remove(path("out/vocab.txt"));
  fs::create_directory(path("out/vocab.txt"));
  file("out/vocab.txt/notes", "not a file of a tokenizer");
  const auto earlier = files();
  EXPECT_THAT(message_of<UserError>([&] { exported(tiny_bert(), true); }), HasSubstr("out/vocab.txt: cannot write"));
  EXPECT_TRUE(files() == earlier);
}

TEST_F(ExportDirectoryTest, KeepsFoldersWithNamesOfModelFiles) {
  exported(tiny_gpt2());
  fs::remove(path("out/merges.txt"));
  fs::create_directory(path("out/merges.txt"));
  file("out/merges.txt/notes", "not a file of a tokenizer");
  fs::create_directory(path("out/spiece.model"));
  exported(tiny_bert(), true);
  EXPECT_EQ(Json::parse(content(path("out/config.json"))).at("model_type"), "bert");
  EXPECT_TRUE(fs::exists(path("out/merges.txt/notes")));
  EXPECT_TRUE(fs::is_directory(path("out/spiece.model")));
}

TEST_F(ExportDirectoryTest, FollowsASymbolicLinkOfTheConfig) {
  exported(tiny_gpt2());
  fs::create_directory(path("elsewhere"));
  fs::rename(path("out/config.json"), path("elsewhere/config.json"));
  fs::create_symlink("../elsewhere/config.json", path("out/config.json"));
  exported(tiny_bert(), true);
  EXPECT_EQ(Json::parse(content(path("out/config.json"))).at("model_type"), "bert");
  EXPECT_TRUE(fs::is_symlink(path("out/config.json")));
}

TEST_F(ExportDirectoryTest, KeepsNewFilesThatLinksGiveAnEarlierName) {
  exported(tiny_gpt2());
  const fs::path shard = path("out/model-00001-of-00001.safetensors");
  fs::rename(path("out/model.safetensors"), shard);
  fs::create_symlink(shard.filename(), path("out/model.safetensors"));
  file("out/merges.txt", "of the earlier model");
  fs::remove(path("out/vocab.txt"));
  fs::create_symlink("merges.txt", path("out/vocab.txt"));
  file("out/model-00001-of-00002.safetensors", "of the earlier model");
  {
    ExportDirectory directory(path("out"), true);
    fill(directory);
    EXPECT_THAT(directory.commit(), ::testing::Contains("model-00001-of-00002.safetensors"));
  }
  EXPECT_TRUE(fs::is_symlink(path("out/model.safetensors")));
  ASSERT_TRUE(fs::exists(shard));
  EXPECT_EQ(content(path("out/vocab.txt")), "new");
  EXPECT_FALSE(fs::exists(path("out/model-00001-of-00002.safetensors")));
}

TEST_F(ExportDirectoryTest, SecondInterruptWaitsForCommit) {
  exported(tiny_gpt2());
  const pid_t child = fork_without_team();
  if (child == 0) {
    std::signal(SIGINT, SIG_DFL);
    ExportDirectory directory(path("out"), true);
    fill(directory);
    const StopRequests stop_requests;
    signals_at_rename = 2;
    directory.commit();
    std::_Exit(stop_requests.received() ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(exit_status(status), 0);
  EXPECT_EQ(content(path("out/config.json")), "{}");
  EXPECT_EQ(content(path("out/vocab.txt")), "new");
}

}  // namespace
}  // namespace furlong
