// Conversions stopped by a signal or a limit leave no files behind.
#include <gmock/gmock.h>
#include <sys/resource.h>

#include <csignal>
#include <cstring>
#include <map>

#include "conversion/export.h"
#include "framework/io/atomic_file.h"
#include "framework/io/checkpoint_header.h"
#include "tests/cli/program.h"
#include "tests/conversion/tiny_models.h"
#include "trainers/train/signals.h"

namespace furlong {
namespace {

using namespace furlong::testing;
using ::testing::HasSubstr;

namespace fs = std::filesystem;

/// A command, its output, the file that gets its name last, and that of the weights.
struct Output {
  const char *command, *output, *last, *weights;
};
constexpr Output outputs[] = {{"convert", "out.h5", "out.h5", "out.h5"},
                              {"export", "out", "out/config.json", "out/model.safetensors"}};
using Files = std::map<std::string, std::string>;

class Interrupted : public WithProgram {
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
  /// A checkpoint of 1 TiB without content. Reading it takes minutes.
  std::string endless_checkpoint() const {
    detail::CheckpointHeader header{};
    std::memcpy(header.magic, detail::checkpoint_magic.data(), sizeof header.magic);
    header.version = checkpoint_format_version;
    header.total_bytes = std::uint64_t{1} << 40;
    const std::string made = file("endless.h5", {reinterpret_cast<const char*>(&header), sizeof header});
    fs::resize_file(made, header.total_bytes);
    return made;
  }
  bool exists(const std::string& name) const { return fs::exists(path(name)); }
  bool is_partly_there(const std::string& name) const { return !partial_files(path(name)).empty(); }
  /// Returns the size of the partial file, 0 without one.
  std::uintmax_t bytes_written(const std::string& name) const {
    for (const fs::path& partial : partial_files(path(name))) {
      std::error_code missing;
      const std::uintmax_t bytes = fs::file_size(partial, missing);
      if (!missing) return bytes;
    }
    return 0;
  }
  /// Returns all files of an output, partial ones included.
  Files files_of(const Output& output) const {
    Files files;
    const auto add = [&](const fs::path& file) { files[file.filename().string()] = content(file.string()); };
    if (fs::is_directory(path(output.output))) {
      for (const auto& entry : fs::directory_iterator(path(output.output))) add(entry.path());
      return files;
    }
    if (exists(output.output)) add(path(output.output));
    for (const fs::path& partial : partial_files(path(output.output))) add(partial);
    return files;
  }
  /// Starts a command again, over an earlier output or none, and sends SIGTERM when `bytes` of the weights are written.
  /// Returns whether the signal has stopped it.
  bool expect_old_or_new(const Output& output, const std::string& source, const Files& whole, std::uintmax_t bytes) {
    const Files before = files_of(output);
    Program program(folder_, {output.command, source, path(output.output), "--force"});
    program.wait_until([&] { return bytes_written(output.weights) > bytes || program.has_ended(); });
    const bool stops = program.pause() && is_partly_there(output.last);
    const bool writes =
        stops && bytes_written(output.weights) < whole.at(fs::path(output.weights).filename().string()).size();
    if (stops) program.send(SIGTERM);
    program.send(SIGCONT);
    const Finished found = program.wait();
    if (writes || found.status != 0) {  // otherwise the writing finished first
      EXPECT_EQ(found.status, 3);
      EXPECT_EQ(found.err, "error: " + path(output.output) + ": not written: stopped by signal 15\n");
      EXPECT_EQ(exists(output.output), !before.empty());
    }
    EXPECT_TRUE(files_of(output) == (found.status == 0 ? whole : before)) << "status " << found.status;
    return found.status == 3;
  }
};

TEST_F(Interrupted, RejectsSecondWriterBeforeReading) {
  const std::string source = endless_checkpoint();
  fs::create_directories(path("second"));
  for (const Output& output : outputs) {
    SCOPED_TRACE(output.command);
    const std::vector<std::string> arguments{output.command, source, path(output.output)};
    Program first(folder_, arguments);
    first.wait_until([&] { return is_partly_there(output.last); });
    expect_user_error(Program(path("second"), arguments).wait(),
                      {path(output.last) + ": another process is writing this file"});
    first.send(SIGTERM);
    const Finished found = first.wait();
    EXPECT_EQ(found.status, 3);
    EXPECT_EQ(found.err, "error: stopped by SIGTERM; no partial file is left\n");
    EXPECT_FALSE(exists(output.output));
    EXPECT_FALSE(is_partly_there(output.last));
  }
}

TEST_F(Interrupted, SignalLeavesOldOrNewOutput) {
  const std::string source = large_checkpoint();
  SourceModel earlier = open_source_model(tiny_gpt2().write(folder_ / "source"));
  for (const Output& output : outputs) {
    SCOPED_TRACE(output.command);
    ASSERT_EQ(furlong({output.command, source, path(output.output)}).status, 0);
    const Files whole = files_of(output);
    int stopped = 0;
    for (const std::uintmax_t bytes : {0UL, 30'000'000UL}) {
      fs::remove_all(path(output.output));
      stopped += expect_old_or_new(output, source, whole, bytes);
      fs::remove_all(path(output.output));
      if (std::string_view(output.command) == "convert")
        write_model(earlier.model, earlier.origin, path(output.output));
      else
        export_model(earlier, path(output.output), {});
      stopped += expect_old_or_new(output, source, whole, bytes);
    }
    // A fast disk can write everything between two looks at the file.
    for (int tries = 0; stopped == 0 && tries < 20; ++tries) stopped += expect_old_or_new(output, source, whole, 0);
    EXPECT_GT(stopped, 0) << "no try was interrupted";
  }
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
              HasSubstr("out: not written: stopped by signal 15"));
  EXPECT_FALSE(exists("out.h5"));
  EXPECT_FALSE(is_partly_there("out.h5"));
  EXPECT_FALSE(exists("out"));
}

}  // namespace
}  // namespace furlong
