// The program when it is killed, when its streams are closed, and with endless files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <nlohmann/json.hpp>

#include "framework/io/atomic_file.h"
#include "tests/cli/program.h"
#include "tests/trainers/training.h"

namespace furlong {
namespace {

namespace fs = std::filesystem;
using testing::Finished;
using ::testing::HasSubstr;
using testing::Program;

class FaultsTest : public testing::WithProgram {
 protected:
  /// A pipe without a writer, kept open so that its reader waits.
  int silent_pipe(const std::string& name) const {
    EXPECT_EQ(mkfifo(path(name).c_str(), 0666), 0);
    return open(path(name).c_str(), O_RDWR | O_CLOEXEC);
  }
  fs::path second_folder() const {
    fs::create_directories(path("second"));
    return path("second");
  }
  /// Arguments of a short training that writes to run/.
  std::string training() const {
    testing::write_store(path("tokens.h5"), testing::synthetic_text(4000));
    file("config.yaml", "data: {dataset: " + path("tokens.h5") +
                            ", sequence_length: 32, batch_size: 2}\nmodel: {n_layers: 1, d_model: 16, n_heads: 2}\n"
                            "schedule: {warmup_steps: 2}\ntrainer: {max_steps: 40}\nlog: {every: 1}\n");
    return testing::program_under_test() + " train " + path("config.yaml") + " --run-dir " + path("run");
  }
  void expect_a_whole_run() const {
    EXPECT_EQ(CheckpointReader::open(path("run/checkpoints/step_00000040.h5")).integer("step"), 40);
    std::istringstream lines(content(path("run/metrics.jsonl")));
    int count = 0;
    for (std::string line; std::getline(lines, line); ++count)
      EXPECT_TRUE(nlohmann::json::parse(line, nullptr, false).is_object()) << line;
    EXPECT_GE(count, 40);
  }
};

TEST_F(FaultsTest, RejectsSecondWriterBeforeReading) {
  const int pipe = silent_pipe("input");
  const std::vector<std::string> prepare{"prepare", "text", path("input"), "--output", path("out.h5")};
  Program first(folder_, prepare);
  first.wait_until([&] { return !partial_files(path("out.h5")).empty(); });
  const Finished second = Program(second_folder(), prepare).wait();
  EXPECT_EQ(second.status, 2);
  EXPECT_THAT(second.err, HasSubstr("out.h5: another process is writing this file"));
  const std::string text = testing::synthetic_text(4000);
  ASSERT_EQ(write(pipe, text.data(), text.size()), static_cast<ssize_t>(text.size()));
  close(pipe);
  const Finished found = first.wait();
  EXPECT_EQ(found.status, 0) << found.err;
  EXPECT_TRUE(fs::exists(path("out.h5")));
}

TEST_F(FaultsTest, SignalLeavesNoFileOfPreparation) {
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) {
    const int pipe = silent_pipe("input" + std::to_string(signal));
    Program program(folder_, {"prepare", "text", path("input" + std::to_string(signal)), "--output", path("out.h5")});
    program.wait_until([&] { return !partial_files(path("out.h5")).empty(); });
    program.send(signal);
    const Finished found = program.wait();
    close(pipe);
    EXPECT_EQ(found.status, 3);
    EXPECT_THAT(found.err,
                HasSubstr(fmt::format("stopped by SIG{}; no partial file is left", sigabbrev_np(signal))));
    EXPECT_TRUE(partial_files(path("out.h5")).empty());
    EXPECT_FALSE(fs::exists(path("out.h5")));
  }
}

TEST_F(FaultsTest, TrainingSurvivesClosedLogPipe) {
  const std::string command = "{ " + training() + " 2>&1 >/dev/null; echo $? >" + path("status") + "; } | head -n 1";
  ASSERT_EQ(std::system((command + " >/dev/null").c_str()), 0);
  EXPECT_EQ(content(path("status")), "0\n");
  expect_a_whole_run();
}

TEST_F(FaultsTest, TrainingSurvivesFullDiskOfLog) {
  ASSERT_EQ(std::system((training() + " 2>/dev/full >/dev/null").c_str()), 0);
  expect_a_whole_run();
}

TEST_F(FaultsTest, ClosedStandardStreamsAreNotReused) {
  ASSERT_EQ(std::system((training() + " 0<&- 1>&- 2>&-").c_str()), 0);
  expect_a_whole_run();
}

TEST_F(FaultsTest, RejectsEndlessFiles) {
  const int tokenizer = silent_pipe("tokenizer.json"), metrics = silent_pipe("metrics.jsonl");
  file("text.txt", "some text");
  const Finished prepared =
      furlong({"prepare", "text", path("text.txt"), "--tokenizer", path("tokenizer.json"), "--output", path("out.h5")});
  EXPECT_EQ(prepared.status, 2);
  EXPECT_THAT(prepared.err, HasSubstr("tokenizer.json: "));
  fs::create_directories(path("model"));
  fs::rename(path("tokenizer.json"), path("model/config.json"));
  const Finished converted = furlong({"convert", path("model"), path("out.h5")});
  EXPECT_EQ(converted.status, 2);
  EXPECT_THAT(converted.err, HasSubstr("config.json: cannot read: it is a device, pipe or socket"));
  const Finished to_device = furlong({"prepare", "text", path("text.txt"), "--force", "--output", "/dev/null"});
  EXPECT_EQ(to_device.status, 2);
  EXPECT_THAT(to_device.err, HasSubstr("/dev/null: cannot write"));
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
  const Finished trained = furlong({"train", "/dev/zero"});
  EXPECT_EQ(trained.status, 2);
  EXPECT_THAT(trained.err, HasSubstr("/dev/zero: found more than 16777216 bytes; expected a YAML file"));
  close(tokenizer);
  close(metrics);
}

TEST_F(FaultsTest, LinkLoopsAndLongNamesAreUserErrors) {
  fs::create_symlink("loop", path("loop"));
  for (const std::string& refused : {path("loop"), path(std::string(300, 'x'))}) {
    const Finished found = furlong({"convert", refused, path("out.h5")});
    EXPECT_EQ(found.status, 2);
    EXPECT_THAT(found.err, HasSubstr("error: " + refused + ": cannot access: "));
  }
}

TEST_F(FaultsTest, MessagesEscapeControlCharacters) {
  file("labels.csv", "text,label\nsome,tea\nmore,\x1b[31mred\n");
  const Finished found = furlong({"prepare", "labeled", path("labels.csv"), "--text-field", "text", "--label-field",
                                  "label", "--labels", "tea", "--output", path("out.h5")});
  EXPECT_EQ(found.status, 2);
  EXPECT_THAT(found.err, HasSubstr("\\x1b[31mred"));
  EXPECT_EQ(found.err.find('\x1b'), std::string::npos) << found.err;
}

TEST_F(FaultsTest, LabelThatIsNotUtf8IsUserError) {
  file("labels.csv", "text,label\nsome,caf\xe9\nmore,tea\n");
  const Finished found = furlong({"prepare", "labeled", path("labels.csv"), "--text-field", "text", "--label-field",
                                  "label", "--output", path("out.h5")});
  EXPECT_EQ(found.status, 2);
  EXPECT_THAT(found.err, HasSubstr("the label 'caf\\xe9' is not valid UTF-8"));
}

TEST_F(FaultsTest, RejectsJsonRecordsAbove64Mebibytes) {
  const std::string text(std::size_t{1} << 26, 'a');
  file("long.jsonl", "{\"text\": \"b\", \"label\": \"c\"}\n{\"text\": \"" + text + "\", \"label\": \"c\"}\n");
  const Finished found = furlong({"prepare", "labeled", path("long.jsonl"), "--output", path("out.h5")});
  testing::expect_user_error(found, {"long.jsonl:2: the record is larger than 64 MiB"});
}

// Without translation, libgomp and oneDNN would abort with their own messages.
TEST_F(FaultsTest, ReportsSystemLimitsInOneLine) {
  const auto limited = [&](const std::string& limit, const std::string& command) {
    Finished found;
    found.status =
        testing::exit_status(std::system(fmt::format("{}; exec {} {} > {} 2> {}", limit, testing::program_under_test(),
                                                     command, path("out"), path("err"))
                                             .c_str()));
    found.out = content(path("out"));
    found.err = content(path("err"));
    return found;
  };
  const std::string attend = fmt::format("attend --input {} --output {}", path("in.h5"), path("out.h5"));
  const Finished threads = limited("ulimit -v 1000000", attend + " --threads 1000");
  EXPECT_EQ(threads.status, 1);
  EXPECT_THAT(threads.err, ::testing::StartsWith("error: cannot start 1000 threads: "));
  EXPECT_EQ(std::count(threads.err.begin(), threads.err.end(), '\n'), 1) << threads.err;

  const Finished doctor = limited("ulimit -v 400000; export OMP_NUM_THREADS=1000", "doctor");
  EXPECT_THAT(doctor.out, AllOf(HasSubstr("oneDNN"), HasSubstr("cannot start 1000 threads: ")));
  EXPECT_EQ(doctor.err, "");

  file("vocab.txt", "[UNK]\n[CLS]\n[SEP]\n[PAD]\n[MASK]\na\n");
  file("long.txt", std::string(150'000'000, 'a'));
  const Finished memory =
      limited("ulimit -v 300000", fmt::format("tokenize {} {}", path("vocab.txt"), path("long.txt")));
  EXPECT_EQ(memory.status, 1);
  EXPECT_EQ(memory.err, "error: out of memory; free memory, raise the limit (ulimit -v), or choose smaller sizes\n");
}

// script(1) gives the program a terminal.
TEST_F(FaultsTest, EscapesControlCharactersOnTerminals) {
  file("vocab.txt", "[UNK]\n[CLS]\n[SEP]\n[PAD]\n[MASK]\na\n\x1b[31mred\n\u00e9\n##a\n");
  file("ids.txt", "5 6 7\n");
  const std::string command =
      fmt::format("{} tokenize {} {} --decode", testing::program_under_test(), path("vocab.txt"), path("ids.txt"));
  ASSERT_EQ(std::system(fmt::format("{} > {}", command, path("pipe")).c_str()), 0);
  EXPECT_EQ(content(path("pipe")), "a \x1b[31mred \u00e9\n");
  ASSERT_EQ(std::system(fmt::format("script -qec '{}' {} > {}", command, path("typescript"), path("terminal")).c_str()),
            0);
  EXPECT_EQ(content(path("terminal")), "a \\x1b[31mred \u00e9\r\n");
}

}  // namespace
}  // namespace furlong
