// The program when it is killed, when its streams are closed, and with endless files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "communication/job_store/socket.h"
#include "framework/io/atomic_file.h"
#include "tests/cli/program.h"
#include "tests/trainers/training.h"
#include "tests/unread_output.h"

namespace furlong {
namespace {

namespace fs = std::filesystem;
using testing::Finished;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::Program;
using testing::Streams;
using testing::UnreadOutput;

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
  /// Arguments of a training that writes to run/, from the start. It logs each step.
  std::vector<std::string> training(int steps = 40) const {
    fs::remove_all(path("run"));
    testing::write_store(path("tokens.h5"), testing::synthetic_text(4000));
    file("config.yaml", "data: {dataset: " + path("tokens.h5") +
                            ", sequence_length: 32, batch_size: 2}\nmodel: {n_layers: 1, d_model: 16, n_heads: 2}\n"
                            "schedule: {warmup_steps: 2}\nlog: {every: 1}\n");
    return {
        "train", path("config.yaml"), "--run-dir", path("run"), "--set", fmt::format("trainer.max_steps={}", steps)};
  }
  /// Arguments of a training that only a signal ends.
  std::vector<std::string> endless_training() const { return training(100'000'000); }
  std::vector<std::string> launched_training() const {
    return testing::with({"launch", "--processes", "2"}, training());
  }
  /// Waits until a training has written some lines of metrics, stops it, and returns its end.
  Finished stop(Program& program) const {
    program.wait_for_more(path("run/metrics.jsonl"), 2000);
    program.send(SIGTERM);
    return program.end_in_time();
  }
  void expect_whole_metrics(int lines) const {
    std::istringstream metrics(content(path("run/metrics.jsonl")));
    int count = 0;
    for (std::string line; std::getline(metrics, line); ++count)
      EXPECT_TRUE(nlohmann::json::parse(line, nullptr, false).is_object()) << line;
    EXPECT_GE(count, lines);
  }
  void expect_a_whole_run() const {
    EXPECT_EQ(CheckpointReader::open(path("run/checkpoints/step_00000040.h5")).integer("step"), 40);
    expect_whole_metrics(40);
  }
};

/// Output that fails: a pipe whose reader has ended, or a full disk.
class FailingOutput {
 public:
  explicit FailingOutput(bool is_pipe) : full_(open("/dev/full", O_WRONLY | O_CLOEXEC)), is_pipe_(is_pipe) {
    pipe_.close_reader();
  }
  ~FailingOutput() { close(full_); }
  FailingOutput(const FailingOutput&) = delete;
  FailingOutput& operator=(const FailingOutput&) = delete;
  int descriptor() const { return is_pipe_ ? pipe_.writer() : full_; }

 private:
  UnreadOutput pipe_{UnreadOutput::pipe};
  int full_;
  bool is_pipe_;
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

// The model is no checkpoint, which a command would say that reads it first.
TEST_F(FaultsTest, RejectsSecondWriterBeforeReadingTheModel) {
  const std::string text = file("text.txt", "abc\n"), model = file("model.h5", "");
  for (const std::vector<std::string>& command :
       std::vector<std::vector<std::string>>{{"score", model, text, "-o", path("out.tsv")},
                                             {"embed", model, text, "-o", path("out.h5")},
                                             {"predict", model, text, "-o", path("out.jsonl")},
                                             {"logits", model, text, "-o", path("out.h5")},
                                             {"attend", "--input", model, "--output", path("out.h5")},
                                             {"report", model, "-o", path("out.html")},
                                             {"evaluate", model, "--predictions", path("out.jsonl")}}) {
    const AtomicFile first(command.back());
    SCOPED_TRACE(command.front());
    testing::expect_user_error(Program(folder_, command).wait(), {"another process is writing this file"});
  }
}

TEST_F(FaultsTest, FinetuningSurvivesFailingOutput) {
  std::vector<std::string> teacher = training(2);
  ASSERT_EQ(Program(folder_, teacher).wait().status, 0);
  const std::string recipe =
      file("recipe.yaml", "data: {dataset: " + path("tokens.h5") +
                              ", sequence_length: 32, batch_size: 2}\n"
                              "model: {attention: {mechanism: linear, feature_map: elu1}}\n"
                              "finetune: {source: " +
                              path("run") + ", stages: [attention_transfer], attention_transfer: {max_steps: 2}}\n");
  const FailingOutput output(true);
  const Finished done = Program(folder_, {"finetune", recipe, "--run-dir", path("student")},
                                {.out = output.descriptor(), .err = output.descriptor()})
                            .wait();
  EXPECT_EQ(done.status, 0);
  EXPECT_TRUE(fs::exists(path("student/finetune.json")));
}

TEST_F(FaultsTest, SignalLeavesNoFileOfPreparation) {
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR1}) {
    const int pipe = silent_pipe("input" + std::to_string(signal));
    Program program(folder_, {"prepare", "text", path("input" + std::to_string(signal)), "--output", path("out.h5")});
    program.wait_until([&] { return !partial_files(path("out.h5")).empty(); });
    program.send(signal);
    const Finished found = program.wait();
    close(pipe);
    EXPECT_EQ(found.status, 3);
    EXPECT_THAT(found.err, HasSubstr(fmt::format("stopped by SIG{}; no partial file is left", sigabbrev_np(signal))));
    EXPECT_TRUE(partial_files(path("out.h5")).empty());
    EXPECT_FALSE(fs::exists(path("out.h5")));
  }
}

TEST_F(FaultsTest, TrainingEndsIfItsRunDirectoryIsMoved) {
  const std::vector<std::string> alone = endless_training();
  for (const auto& arguments : {alone, testing::with({"launch", "--processes", "2"}, alone)}) {
    SCOPED_TRACE(arguments[0]);
    Program program(folder_, arguments);
    program.wait_for_more(path("run/metrics.jsonl"), 2000);
    fs::rename(path("run"), path("moved"));
    fs::create_directory(path("run"));
    program.send(SIGTERM);
    const Finished found = program.end_in_time();
    EXPECT_EQ(found.status, 2);
    EXPECT_THAT(found.err, HasSubstr("run: this run directory was moved or replaced during the training"));
    EXPECT_TRUE(fs::is_empty(path("run")));
    fs::remove_all(path("moved"));
    fs::remove(path("run"));
  }
}

TEST_F(FaultsTest, TrainingSurvivesFailingOutput) {
  for (const bool is_pipe : {true, false}) {
    SCOPED_TRACE(is_pipe ? "closed pipe" : "full disk");
    const FailingOutput output(is_pipe);
    const Finished without_out = Program(folder_, training(), {.out = output.descriptor()}).wait();
    EXPECT_EQ(without_out.status, 0) << without_out.err;
    EXPECT_THAT(without_out.err, ::testing::EndsWith("\nwarning: messages lost: 1; standard output or standard error "
                                                     "was closed, full or not read; files are complete\n"));
    EXPECT_THAT(without_out.err, Not(HasSubstr("error: ")));
    expect_a_whole_run();
    const Finished without_err = Program(folder_, training(), {.err = output.descriptor()}).wait();
    EXPECT_EQ(without_err.status, 0);
    EXPECT_THAT(without_err.out, HasSubstr("done at step 40"));
    expect_a_whole_run();
    EXPECT_EQ(Program(folder_, launched_training(), {.out = output.descriptor(), .err = output.descriptor()})
                  .end_in_time()
                  .status,
              0);
    expect_a_whole_run();
  }
}

TEST_F(FaultsTest, LaunchedTrainingSurvivesReaderThatEnds) {
  UnreadOutput output(UnreadOutput::pipe);
  Program program(folder_, launched_training(), {.out = output.writer(), .err = output.writer()});
  output.close_writer();
  for (char byte = 0; byte != '\n';) ASSERT_EQ(read(output.reader(), &byte, 1), 1);
  output.close_reader();
  EXPECT_EQ(program.end_in_time().status, 0);
  expect_a_whole_run();
}

TEST_F(FaultsTest, StoppedTrainingKeepsItsStatusWithoutOutput) {
  for (const bool is_pipe : {true, false}) {
    const FailingOutput output(is_pipe);
    for (const bool json : {false, true}) {
      std::vector<std::string> arguments = endless_training();
      if (json) arguments.emplace_back("--json");
      Program program(folder_, arguments, {.out = output.descriptor()});
      const Finished found = stop(program);
      EXPECT_EQ(found.status, 3) << found.err;
      EXPECT_EQ(found.err.find("error: cannot write to standard output") != std::string::npos, json) << found.err;
    }
  }
}

// Without a reader, neither a message nor the one at the end may block. Only the first waits, for a second.
TEST_F(FaultsTest, TrainingContinuesWithPausedReader) {
  for (const auto kind : {UnreadOutput::pipe, UnreadOutput::terminal}) {
    SCOPED_TRACE(kind == UnreadOutput::pipe ? "pipe" : "terminal");
    const UnreadOutput output(kind);
    output.fill();
    const Streams streams{.out = output.writer(), .err = output.writer()};
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_EQ(Program(folder_, training(), streams).end_in_time().status, 0);
    EXPECT_LT(testing::seconds_since(begin), 30);
    expect_a_whole_run();
    Program endless(folder_, endless_training(), streams);
    EXPECT_EQ(stop(endless).status, 3);
    EXPECT_FALSE(fs::is_empty(path("run/checkpoints")));
  }
}

TEST_F(FaultsTest, SignalEndsProgramWithPausedReader) {
  const UnreadOutput output(UnreadOutput::pipe);
  output.fill();
  const int input = silent_pipe("input");
  Program program(folder_, {"prepare", "text", path("input"), "--output", path("out.h5")}, {.err = output.writer()});
  program.wait_until([&] { return !partial_files(path("out.h5")).empty(); });
  program.send(SIGTERM);
  EXPECT_EQ(program.end_in_time().status, 3);
  close(input);
}

// Otherwise the next try would refuse to replace the output.
TEST_F(FaultsTest, SignalAfterTheOutputIsCompleteIsNoFailure) {
  EXPECT_EQ(furlong(training()).status, 0);
  const std::vector<std::vector<std::string>> commands{
      {"prepare", "text", file("input.txt", testing::synthetic_text(4000)), "--output", path("out.h5")},
      {"prepare", "listops", "--samples", "8,2,2", "--output", path("listops.h5")},
      {"convert", path("run"), path("converted.h5")},
      {"export", path("run"), path("model/config.json")}};
  for (std::vector<std::string> arguments : commands) {
    SCOPED_TRACE(arguments.front());
    const std::string last_file = arguments.back();
    if (arguments.front() == "export") arguments.back() = path("model");
    const UnreadOutput output(UnreadOutput::pipe);
    output.fill();
    Program program(folder_, arguments, {.out = output.writer()});
    program.wait_until([&] { return fs::exists(last_file); });
    program.wait_until([&] {
      program.send(SIGTERM);
      return program.has_ended();
    });
    const Finished found = program.end_in_time();
    EXPECT_EQ(found.status, 0);
    EXPECT_THAT(found.err, HasSubstr("warning: stopped by SIGTERM; the output is complete\n"));
    EXPECT_TRUE(fs::exists(last_file));
    EXPECT_TRUE(partial_files(last_file).empty());
  }
}

// Unlike those of training, these results are nowhere else.
TEST_F(FaultsTest, LostResultsOnStandardOutputAreErrors) {
  EXPECT_EQ(furlong(training()).status, 0);
  const FailingOutput closed(true), full(false);
  const std::vector<std::string> evaluate{"evaluate", path("run"), "--json"};
  const std::vector<std::string> finished_training{"train", path("config.yaml"),   "--run-dir", path("run"), "--json",
                                                   "--set", "trainer.max_steps=40"};
  for (const auto& arguments : {evaluate, finished_training}) {
    const Finished found = Program(folder_, arguments, {.out = full.descriptor()}).wait();
    EXPECT_EQ(found.status, 1);
    EXPECT_THAT(found.err, HasSubstr("error: cannot write to standard output: No space left on device\n"));
  }
  EXPECT_EQ(Program(folder_, evaluate, {.out = closed.descriptor()}).wait().status, 128 + SIGPIPE);
  const Finished without = Program(folder_, evaluate, {.out = Streams::closed}).wait();
  EXPECT_EQ(without.status, 1);
  EXPECT_THAT(without.err, HasSubstr("error: cannot write to standard output: Bad file descriptor\n"));
  EXPECT_EQ(Program(folder_, finished_training, {.out = closed.descriptor()}).wait().status, 1);
}

// The same command would refuse to replace the file.
TEST_F(FaultsTest, LostReportOfACompleteFileIsNamed) {
  EXPECT_EQ(furlong(training()).status, 0);
  const std::string text = file("input.txt", testing::synthetic_text(4000));
  const FailingOutput closed(true), full(false);
  for (const FailingOutput* output : {&closed, &full}) {
    const std::string reason = output == &full ? "No space left on device" : "Broken pipe";
    for (const std::vector<std::string>& command :
         std::vector<std::vector<std::string>>{{"prepare", "text", text, "--output", path("out.h5")},
                                               {"convert", path("run"), path("converted.h5")},
                                               {"export", path("run"), path("model")}}) {
      SCOPED_TRACE(command.front() + ": " + reason);
      fs::remove_all(command.back());
      const Finished found = Program(folder_, command, {.out = output->descriptor()}).wait();
      EXPECT_EQ(found.status, 1);
      EXPECT_THAT(found.err,
                  HasSubstr("error: cannot write to standard output: " + reason + "; the output is complete\n"));
      EXPECT_TRUE(fs::exists(command.back()));
    }
  }
}

TEST_F(FaultsTest, ClosedStandardStreamsAreNotReused) {
  Program program(folder_, endless_training(), {.in = Streams::closed, .out = Streams::closed, .err = Streams::closed});
  program.wait_for_more(path("run/metrics.jsonl"), 2000);
  for (const int stream : {0, 1, 2})
    EXPECT_EQ(fs::read_symlink(fmt::format("/proc/{}/fd/{}", program.process(), stream)), "/dev/null") << stream;
  EXPECT_EQ(content(path("run/.lock")), host_name() + "\n");
  EXPECT_EQ(stop(program).status, 3);
  expect_whole_metrics(5);
  int event_files = 0;
  for (const auto& events : fs::directory_iterator(path("run/tensorboard"))) {
    EXPECT_THAT(content(events.path()), Not(HasSubstr("tokens/s"))) << events.path();
    ++event_files;
  }
  EXPECT_EQ(event_files, 1);
}

// The same size and ends: only the hash of the source tells.
TEST_F(FaultsTest, TrainingNoticesTextThatChangedInTheMiddle) {
  const std::vector<std::string> arguments = training(2);
  std::string text = testing::synthetic_text(6000);
  const auto prepare = [&] {
    EXPECT_EQ(furlong({"prepare", "text", file("text.txt", text), "-o", path("tokens.h5"), "--force"}).status, 0);
  };
  prepare();
  EXPECT_EQ(furlong(arguments).status, 0);
  text[3000] = text[3000] == 'a' ? 'b' : 'a';
  prepare();
  testing::expect_user_error(furlong(testing::with(arguments, {"--set", "trainer.max_steps=4"})),
                             {"was trained on other data"});
}

TEST_F(FaultsTest, TrainingNoticesMissingCheckpoints) {
  const std::vector<std::string> arguments = testing::with(training(), {"--set", "checkpoint.every=10"});
  EXPECT_EQ(furlong(arguments).status, 0);
  fs::rename(path("run/checkpoints"), path("elsewhere"));
  const std::string metrics = content(path("run/metrics.jsonl"));
  testing::expect_user_error(furlong(arguments), {"contains no checkpoint, but metrics.jsonl has 40 steps",
                                                  "move them back", "--resume never"});
  EXPECT_EQ(content(path("run/metrics.jsonl")), metrics);
  EXPECT_EQ(furlong(testing::with(arguments, {"--resume", "never"})).status, 0);
  EXPECT_EQ(furlong(testing::with(arguments, {"--set", "checkpoint.every=20", "--resume", "never"})).status, 0);
  fs::remove_all(path("run/checkpoints"));
  // A run can end while it waits for its first checkpoint, at the latest after two intervals of that run.
  EXPECT_EQ(furlong(arguments).status, 0);
  expect_whole_metrics(40);
}

TEST_F(FaultsTest, RejectsPipeInPlaceOfMetrics) {
  EXPECT_EQ(furlong(training()).status, 0);
  fs::create_directories(path("other"));
  fs::rename(path("run/metrics.jsonl"), path("other/metrics.jsonl"));
  const int pipe = silent_pipe("run/metrics.jsonl");
  const Finished listed = Program(folder_, {"runs", path("")}).end_in_time();
  EXPECT_EQ(listed.status, 0);
  EXPECT_THAT(listed.out, AllOf(HasSubstr("\nother "), Not(HasSubstr("\nrun "))));
  EXPECT_THAT(listed.err, HasSubstr("warning: " + path("run/metrics.jsonl") + ": cannot read: it is a device, pipe"));
  const std::vector<std::vector<std::string>> refused{
      {"report", path("run"), "-o", path("report.html")},
      {"train", path("config.yaml"), "--run-dir", path("run"), "--set", "trainer.max_steps=50"},
      {"train", path("config.yaml"), "--run-dir", path("run"), "--resume", "never"}};
  for (const std::vector<std::string>& arguments : refused) {
    SCOPED_TRACE(::testing::PrintToString(arguments));
    const Finished found = Program(folder_, arguments).end_in_time();
    EXPECT_EQ(found.status, 2);
    EXPECT_THAT(found.err, HasSubstr("error: " + path("run/metrics.jsonl") + ": "));
  }
  close(pipe);
}

TEST_F(FaultsTest, RejectsEndlessFiles) {
  const int tokenizer = silent_pipe("tokenizer.json");
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
#ifdef FURLONG_SANITIZED
  GTEST_SKIP() << "sanitizers reserve more address space than these limits allow";
#endif
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
  for (const char* limit : {"ulimit -v 1000000", "ulimit -d 600000"})
    EXPECT_EQ(limited(limit, "analyze attention --lengths 16 --head-dim 8 --draws 1 --threads 2").status, 0)
        << limit << content(path("err"));
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
