// Conversions stopped by a signal or a limit leave no files behind.
#include <gmock/gmock.h>
#include <sys/resource.h>

#include <csignal>

#include "conversion/export.h"
#include "framework/io/atomic_file.h"
#include "tests/cli/program.h"
#include "tests/conversion/tiny_models.h"
#include "trainers/train/signals.h"

namespace furlong {
namespace {

using namespace furlong::testing;
using ::testing::HasSubstr;

class Interrupted : public WithTemporaryFolder {
 protected:
  /// A checkpoint of 57 MB, large enough to interrupt its writing.
  std::string large_checkpoint() {
    Settings settings;
    settings.model.n_layers = 2;
    settings.model.d_model = 768;
    settings.model.attention.n_heads = 8;
    settings.data.sequence_length = 8;
    const Model model = make_model(resolve(settings), Vocabulary::bytes(true), Device{}, DType::float32, all_frozen);
    write_model(model, std::nullopt, path("large.h5"));
    return path("large.h5");
  }
  bool exists(const char* name) const { return std::filesystem::exists(path(name)); }
  bool is_partly_there(const char* name) const { return !partial_files(path(name)).empty(); }
};

TEST_F(Interrupted, SignalLeavesNoPartialFile) {
  const std::string source = large_checkpoint();
  Program program(folder_, {"convert", source, path("out.h5"), "--threads", "1"});
  program.wait_until([&] { return is_partly_there("out.h5"); });
  program.send(SIGTERM);
  const Finished found = program.wait();
  EXPECT_FALSE(is_partly_there("out.h5"));
  if (found.status != 0) {  // otherwise the writing finished first
    EXPECT_EQ(found.status, 3);
    EXPECT_EQ(found.err, "error: " + path("out.h5") + ": not written: stopped by signal 15\n");
  }
  EXPECT_EQ(exists("out.h5"), found.status == 0);
}

TEST_F(Interrupted, FileSizeLimitLeavesNoPartialFile) {
  const std::string source = large_checkpoint();
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit limit{1 << 20, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);  // inherited by the program
  Program program(folder_, {"convert", source, path("out.h5"), "--threads", "1"});
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  const Finished found = program.wait();
  EXPECT_EQ(found.status, 1);
  EXPECT_THAT(found.err, HasSubstr("out.h5: cannot write: File too large; raise the file size limit (ulimit -f)"));
  EXPECT_FALSE(is_partly_there("out.h5"));
  EXPECT_FALSE(exists("out.h5"));
}

TEST_F(Interrupted, WritersCheckSignals) {
  SourceModel model = open_source_model(tiny_gpt2().write(folder_ / "source"));
  const StopRequests stop_requests;
  ASSERT_EQ(std::raise(SIGTERM), 0);
  EXPECT_THAT(message_of<StoppedBySignal>([&] { write_model(model.model, model.origin, path("out.h5")); }),
              HasSubstr("stopped by signal 15"));
  EXPECT_THAT(message_of<StoppedBySignal>([&] { export_model(model, path("out"), {}); }),
              HasSubstr("model.safetensors: not written"));
  for (const char* name : {"out.h5", "out/model.safetensors", "out/config.json"}) {
    EXPECT_FALSE(exists(name)) << name;
    EXPECT_FALSE(is_partly_there(name)) << name;
  }
}

}  // namespace
}  // namespace furlong
