// The program: its output, files and exit status.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "framework/io/checkpoint_file.h"
#include "tests/cli/program.h"
#include "tests/trainers/training.h"

namespace furlong {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Json = nlohmann::ordered_json;
using testing::expect_user_error;
using testing::Finished;
using testing::Program;

class ProgramTest : public testing::WithProgram {
 protected:
  // Writes a dataset of synthetic text, and a config for it.
  void prepare() const {
    file("text.txt", testing::synthetic_text(6000));
    const Finished prepared =
        furlong({"prepare", "text", path("text.txt"), "--output", path("tokens.h5"), "--split", "0.8,0.1,0.1"});
    ASSERT_EQ(prepared.status, 0) << prepared.err;
    file("config.yaml", "data:\n  dataset: " + path("tokens.h5") + R"(
  sequence_length: 32
  batch_size: 2
model:
  n_layers: 2
  d_model: 16
  n_heads: 2
  attention:
    mechanism: linear
optimizer:
  learning_rate: 0.01
schedule:
  name: constant
  warmup_steps: 2
trainer:
  max_steps: 20
  validate_every: 10
  validation_batches: 1000
  sample_tokens: 15
  sample_prompt: abab
checkpoint:
  every: 10
log:
  every: 1
)");
  }
  std::vector<std::string> train_arguments(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> all{"train", path("config.yaml"), "--run-dir", path("run")};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  static std::vector<std::string> set(const std::vector<std::string>& keys) {
    std::vector<std::string> all;
    for (const std::string& key : keys) all.insert(all.end(), {"--set", key});
    return all;
  }
  void flip_bit(const std::string& path, std::int64_t offset) const {
    std::fstream stream(path, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekg(offset);
    const char byte = static_cast<char>(stream.get() ^ 0x10);
    stream.seekp(offset);
    stream.put(byte);
  }
};

TEST_F(ProgramTest, TrainsEvaluatesAndGenerates) {
  prepare();
  const Finished trained = furlong(train_arguments());
  ASSERT_EQ(trained.status, 0) << trained.err;
  EXPECT_THAT(trained.out, HasSubstr("sample at temperature 0.8:\nabab"));
  EXPECT_THAT(trained.out, EndsWith("done at step 20; the run is in " + path("run") + "\n"));
  EXPECT_THAT(trained.err, AllOf(HasSubstr("step 20/20"), HasSubstr("validation loss")));

  const Finished evaluated = furlong({"evaluate", path("run"), "--json"});
  ASSERT_EQ(evaluated.status, 0) << evaluated.err;
  const Json found = Json::parse(evaluated.out);
  const Json best = Json::parse(content(path("run/checkpoints/best.json")));
  EXPECT_EQ(found["step"], best["step"]);
  EXPECT_EQ(found["loss"], best["validation_loss"]) << "the same split, the same bits";
  EXPECT_EQ(found["bits_per_byte"], found["bits_per_token"]);
  EXPECT_EQ(found["tokens"], 599);
  const Finished printed = furlong({"evaluate", path("run"), "--split", "test"});
  EXPECT_EQ(printed.status, 0);
  EXPECT_THAT(printed.out, HasSubstr("test split"));
  EXPECT_THAT(printed.out,
              ::testing::ContainsRegex("\n  loss           [0-9.]+ nats per token\n  perplexity     [0-9.]+\n"
                                       "  bits per byte  [0-9.]+\n  accuracy       [0-9.]+\n"));

  const auto generate = [&](const std::string& seed) {
    const Finished generated =
        furlong({"generate", path("run"), "--prompt", "abc", "--max-tokens", "30", "--seed", seed});
    EXPECT_EQ(generated.status, 0) << generated.err;
    EXPECT_THAT(generated.out, StartsWith("abc"));
    EXPECT_EQ(generated.out.size(), 3u + 30u + 1u);
    return generated.out;
  };
  const std::string text = generate("7");
  EXPECT_EQ(generate("7"), text);
  EXPECT_NE(generate("8"), text);
  const std::vector<std::string> stopped{"generate", path("run"), "--prompt", "abc",   "--max-tokens",
                                         "30",       "--seed",    "7",        "--stop"};
  const auto with = [&](const std::string& token) {
    std::vector<std::string> arguments = stopped;
    arguments.push_back(token);
    return furlong(arguments);
  };
  EXPECT_EQ(with(text.substr(10, 1)).out, text.substr(0, text.find(text[10], 3)) + "\n");
  EXPECT_EQ(with(text.substr(3, 1)).out, "abc\n") << "the prompt alone";
  expect_user_error(with("ab"), {"--stop", "'ab' is not a symbol of the bytes vocabulary"});
  expect_user_error(furlong({"generate", path("run"), "--prompt", "abc", "--parse-special"}),
                    {"--parse-special", "the bytes vocabulary has no special tokens"});
  const Json generated = Json::parse(
      furlong({"generate", path("run"), "--prompt", "abc", "--max-tokens", "30", "--seed", "7", "--json"}).out);
  const Json& tokens = generated["samples"][0]["tokens"];
  EXPECT_EQ(tokens.size(), 30u);
  std::string from_tokens = "abc";
  for (const auto& token : tokens) from_tokens.push_back(static_cast<char>(token.get<int>()));
  EXPECT_EQ(from_tokens + "\n", text);

  std::ofstream(path("prompt.txt")) << "abc";
  const auto from_file = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"generate", path("run"), "--max-tokens", "30", "--seed", "7"});
    return furlong(arguments);
  };
  const std::string three = from_file({"--prompt", "abc", "--samples", "3", "--batch-size", "2"}).out;
  EXPECT_THAT(three, StartsWith("--- sample 1 of 3\n" + text + "--- sample 2 of 3\nabc"));
  const Json of_three = Json::parse(from_file({"--prompt", "abc", "--samples", "3", "--json"}).out);
  EXPECT_EQ(of_three["samples"].size(), 3u);
  EXPECT_EQ(of_three["samples"][0], generated["samples"][0]);
  EXPECT_EQ(from_file({"--prompt-file", path("prompt.txt")}).out, text.substr(3)) << "the prompt itself is not printed";
  const std::string marked = file("marked.txt", "\xef\xbb\xbf" + content(path("prompt.txt")));
  EXPECT_EQ(from_file({"--prompt-file", marked}).out, text.substr(3)) << "a byte order mark is no text";
  const Json object = Json::parse(from_file({"--prompt-file", path("prompt.txt"), "--json"}).out);
  EXPECT_EQ(object["samples"], generated["samples"]);
  EXPECT_EQ(object["prompt_tokens"], 3);
  EXPECT_EQ(object["prompt_file"], path("prompt.txt"));
  expect_user_error(from_file({"--prompt-file", path("missing.txt")}),
                    {"--prompt-file", "missing.txt: does not exist"});
  expect_user_error(from_file({"--prompt-file", path("run")}), {"--prompt-file", "cannot read"});

  // The same command again finds the run finished, and prints JSON.
  const Finished again = furlong(train_arguments({"--json"}));
  EXPECT_EQ(again.status, 0);
  EXPECT_EQ(Json::parse(again.out)["step"], 20);
  EXPECT_THAT(again.err, HasSubstr("already at step 20; trainer.max_steps is 20, nothing to do"));
  EXPECT_TRUE(Json::parse(again.out)["train_loss"].is_null());
}

class StoppingSignals : public ProgramTest, public ::testing::WithParamInterface<int> {};

TEST_P(StoppingSignals, FinishStepSaveAndExitWithStatusThree) {
  prepare();
  const auto endless = set({"trainer.max_steps=10000000", "checkpoint.every=0", "trainer.validate_every=0"});
  Program program(folder_, train_arguments(endless));
  program.wait_for_more(path("run/metrics.jsonl"), 0);
  program.send(GetParam());
  const Finished stopped = program.wait();
  ASSERT_EQ(stopped.status, 3);
  EXPECT_THAT(stopped.out, HasSubstr("stopped by a signal, saved at step "));
  EXPECT_THAT(stopped.out, HasSubstr("run the same command again to resume"));
  std::vector<fs::path> saved;
  for (const auto& entry : fs::directory_iterator(path("run/checkpoints"))) saved.push_back(entry.path());
  ASSERT_EQ(saved.size(), 1u);
  const std::int64_t step = CheckpointReader::open(saved[0]).integer("step");
  EXPECT_GT(step, 0);

  // The same command resumes from there, until it is stopped again.
  const auto lines_before = content(path("run/metrics.jsonl"));
  Program again(folder_, train_arguments(endless));
  again.wait_for_more(path("run/metrics.jsonl"), lines_before.size());
  again.send(GetParam());
  const Finished resumed = again.wait();
  EXPECT_EQ(resumed.status, 3);
  EXPECT_THAT(resumed.err.substr(0, 200), HasSubstr(fmt::format("resuming at step {}", step)));
  EXPECT_THAT(content(path("run/metrics.jsonl")), StartsWith(lines_before));
}

INSTANTIATE_TEST_SUITE_P(Program, StoppingSignals, ::testing::Values(SIGTERM, SIGINT, SIGUSR1), [](const auto& info) {
  return std::string(info.param == SIGTERM ? "SIGTERM" : info.param == SIGINT ? "SIGINT" : "SIGUSR1");
});

TEST_F(ProgramTest, StoppedRunIsResumedWithoutResumeOption) {
  prepare();
  std::vector<std::string> endless = set({"trainer.max_steps=10000000", "checkpoint.every=0"});
  endless.insert(endless.end(), {"--resume", "never"});
  Program program(folder_, train_arguments(endless));
  program.wait_for_more(path("run/metrics.jsonl"), 0);
  program.send(SIGTERM);
  const Finished stopped = program.wait();
  EXPECT_EQ(stopped.status, 3) << stopped.err;
  EXPECT_THAT(stopped.out, ::testing::EndsWith("to resume, run the command again without --resume\n"));
}

TEST_F(ProgramTest, ReportsDamagedCheckpointInOneLine) {
  prepare();
  ASSERT_EQ(
      furlong(train_arguments(set({"trainer.max_steps=4", "trainer.sample_tokens=0", "trainer.sample_prompt=null"})))
          .status,
      0);
  const std::string whole = path("run/checkpoints/step_00000004.h5"), broken = path("broken.h5");
  const auto damaged = [&](const std::vector<std::string>& parts) {
    expect_user_error(furlong({"evaluate", broken}), parts);
    expect_user_error(furlong({"generate", broken, "--prompt", "a"}), parts);
    auto arguments = train_arguments({"--resume", broken});
    arguments[3] = path("another_run");
    expect_user_error(furlong(arguments), parts);
  };
  fs::copy_file(whole, broken);
  fs::resize_file(broken, fs::file_size(broken) / 2);
  damaged({broken, "truncated"});
  for (const double place : {0.3, 0.999}) {
    fs::copy_file(whole, broken, fs::copy_options::overwrite_existing);
    flip_bit(broken, static_cast<std::int64_t>(place * static_cast<double>(fs::file_size(broken))));
    damaged({broken, "checksum"});
  }
  fs::copy_file(path("tokens.h5"), broken, fs::copy_options::overwrite_existing);
  damaged({broken, "not a Furlong checkpoint"});
  fs::copy_file(path("text.txt"), broken, fs::copy_options::overwrite_existing);
  damaged({broken, "not a Furlong checkpoint"});
  fs::remove(broken);
  damaged({broken + ": does not exist", "expected a run directory or a checkpoint; check the path"});
}

TEST_F(ProgramTest, RejectsImportedModelAsNewestCheckpoint) {
  prepare();
  const auto train = [&](const char* steps) {
    return furlong(train_arguments(set({std::string("trainer.max_steps=") + steps, "trainer.sample_tokens=0",
                                        "trainer.sample_prompt=null", "log.progress=none"})));
  };
  ASSERT_EQ(train("4").status, 0);
  const std::string trained = path("run/checkpoints/step_00000004.h5"),
                    imported = path("run/checkpoints/step_00000009.h5");
  const std::string before = content(trained);
  ASSERT_EQ(furlong({"convert", trained, imported}).status, 0);
  expect_user_error(train("5"), {imported + ": cannot resume: it contains a model without training state, as furlong "
                                            "convert writes it; set model.weights to start from it, or move it away"});
  EXPECT_EQ(content(trained), before);
  EXPECT_TRUE(fs::exists(imported));
  fs::rename(imported, path("imported.h5"));
  EXPECT_EQ(train("5").status, 0);
}

TEST_F(ProgramTest, ReportsValuesThatAreNotFinite) {
  prepare();
  ASSERT_EQ(
      furlong(train_arguments(set({"trainer.max_steps=2", "trainer.sample_tokens=0", "trainer.sample_prompt=null"})))
          .status,
      0);
  const std::string first = "parameters/blocks.1.feedforward.output.weight", gain = "parameters/final_norm.gain",
                    broken = path("broken.h5"), overflowing = path("overflowing.h5");
  for (const bool breaks : {true, false}) {
    const CheckpointReader whole = CheckpointReader::open(path("run/checkpoints/step_00000002.h5"));
    CheckpointWriter writer(breaks ? broken : overflowing);
    for (const TensorInfo& info : whole.tensors("parameters/")) {
      std::vector<float> values(info.bytes / sizeof(float));
      whole.read(info.name, values.data(), info.bytes);
      if (breaks && (info.name == first || info.name == gain)) values.back() = std::nanf("");
      if (!breaks && info.name == gain) std::fill(values.begin(), values.end(), 3e38f);
      writer.tensor(info.name, info.dtype, info.shape, values.data());
    }
    for (const char* name : {"config", "vocabulary"}) writer.text(name, whole.text(name));
    writer.integer("step", whole.integer("step"));
    writer.finish();
  }
  const std::vector<std::string> parts{broken + ": tensor " + first + " has 1 values that are NaN or infinite"};
  expect_user_error(furlong({"evaluate", broken}), parts);
  expect_user_error(furlong({"generate", broken, "--prompt", "a"}), parts);
  expect_user_error(furlong({"export", broken, path("exported")}), parts);
  EXPECT_FALSE(fs::exists(path("exported")));
  const Finished evaluated = furlong({"evaluate", overflowing, "--json"});
  EXPECT_EQ(evaluated.status, 1);
  EXPECT_THAT(evaluated.err, HasSubstr(overflowing + ": a loss is not finite"));
  EXPECT_THAT(evaluated.out, HasSubstr("\"loss\": null"));
  const std::string text = file("sequences.txt", "abab\nbaba\n");
  EXPECT_THAT(furlong({"score", overflowing, text}).err, HasSubstr("results of 2 of 2 sequences are not finite"));
  EXPECT_THAT(furlong({"embed", overflowing, text, "-o", path("vectors.tsv")}).err,
              HasSubstr("results of 2 of 2 sequences are not finite"));
  EXPECT_THAT(furlong({"logits", overflowing, file("ids.txt", "1 2\n"), "-o", path("logits.h5")}).err,
              HasSubstr("some logits are not finite"));
}

TEST_F(ProgramTest, ReportsDamagedDatasetInOneLine) {
  prepare();
  const std::string whole = path("tokens.h5"), broken = path("broken.h5");
  const auto train = [&] {
    return furlong(train_arguments(set({"data.dataset=" + broken, "log.progress=none", "log.level=error"})));
  };
  fs::copy_file(whole, broken);
  fs::resize_file(broken, fs::file_size(broken) / 2);
  expect_user_error(train(), {broken, "truncated"});
  // One bit of the tokens: their checksum (Fletcher32) does not match.
  fs::copy_file(whole, broken, fs::copy_options::overwrite_existing);
  const std::string bytes = content(whole), beginning = testing::synthetic_text(100);
  const std::size_t tokens = bytes.find(beginning);
  ASSERT_NE(tokens, std::string::npos);
  flip_bit(broken, static_cast<std::int64_t>(tokens) + 1000);
  expect_user_error(train(), {broken});
  ASSERT_EQ(
      furlong(train_arguments(set({"trainer.max_steps=4", "trainer.sample_tokens=0", "trainer.sample_prompt=null"})))
          .status,
      0);
  fs::copy_file(path("run/checkpoints/step_00000004.h5"), broken, fs::copy_options::overwrite_existing);
  fs::remove_all(path("run"));
  expect_user_error(train(), {broken, "not a tokenized dataset"});
  fs::copy_file(path("text.txt"), broken, fs::copy_options::overwrite_existing);
  expect_user_error(train(), {broken, "HDF5"});
  fs::remove(broken);
  expect_user_error(train(), {"data.dataset: " + broken + ": does not exist; expected a tokenized dataset"});
}

TEST_F(ProgramTest, PrepareNamesDatasetAfterInput) {
  const std::string text = file("verse.txt", "in the beginning was the word\n");
  EXPECT_EQ(furlong({"prepare", "text", text}).status, 0);
  EXPECT_TRUE(std::filesystem::exists(path("verse.h5")));
  expect_user_error(furlong({"prepare", "text", text, text}), {"--output is missing", "several inputs"});
}

TEST_F(ProgramTest, PrepareRejectsASeedOfSpans) {
  const std::string text = file("verse.txt", "in the beginning was the word\n");
  const auto prepare = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all{"prepare", "text", text, "--seed", "2", "--split", "1", "--force"};
    all.insert(all.end(), more.begin(), more.end());
    return furlong(all);
  };
  expect_user_error(prepare({}), {"--seed has no effect with --split-by span; remove it"});
  EXPECT_EQ(prepare({"--split-by", "document"}).status, 0);
}

TEST_F(ProgramTest, GenerateRejectsOptionsOfSamplingAtTemperatureZero) {
  for (const std::string option : {"--top-k", "--top-p"})
    expect_user_error(furlong({"generate", path("run"), "--temperature", "0", option, "1"}),
                      {option + " has no effect with --temperature 0"});
}

TEST_F(ProgramTest, UserErrorIsOneLineWithStatusTwo) {
  prepare();
  expect_user_error(furlong(train_arguments(set({"device=cuda"}))), {"device: 'cuda' is not available: "});
  expect_user_error(furlong(train_arguments(set({"data.batch_size=100000", "data.sequence_length=4000"}))),
                    {"GiB for tensors, but", "GiB are available"});
  expect_user_error(furlong(train_arguments(set({"trainer.max_step=5"}))), {"--set", "trainer.max_step", "max_steps"});
  expect_user_error(furlong(train_arguments({"--resume", path("nowhere")})), {path("nowhere") + ": does not exist"});
  expect_user_error(furlong({"train", path("nowhere.yaml")}),
                    {path("nowhere.yaml") + ": does not exist; expected a YAML file"});
  file("typo.yaml", "");
  expect_user_error(furlong({"train", path("nope.yaml")}), {"expected a YAML file; check the path"});
  expect_user_error(furlong({"train", path("typ.yml")}), {"expected a YAML file, perhaps " + path("typo.yaml")});
  expect_user_error(furlong({"evaluate", path("nowhere")}), {path("nowhere") + ": does not exist"});
  file("broken.yaml", "model:\n  n_layer: 3\n");
  expect_user_error(furlong({"config", "check", path("broken.yaml")}), {path("broken.yaml") + ":2:3", "n_layers"});
  file("not_a_folder", "");
  auto arguments = train_arguments();
  arguments[3] = path("not_a_folder/run");
  expect_user_error(furlong(arguments), {path("not_a_folder/run")});
  EXPECT_FALSE(fs::exists(path("run"))) << "user errors leave no files";
}

TEST_F(ProgramTest, InvalidArgumentsExitWithStatusTwo) {
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{},
                                             {"trian"},
                                             {"train"},
                                             {"train", "a.yaml", "--nonsense"},
                                             {"generate", "run", "--top-p", "2"},
                                             {"generate", "run", "--max-tokens", "many"},
                                             {"prepare"}}) {
    const Finished found = furlong(arguments);
    EXPECT_EQ(found.status, 2) << ::testing::PrintToString(arguments);
    EXPECT_EQ(found.out, "");
    EXPECT_NE(found.err, "");
  }
  EXPECT_THAT(furlong({"trian"}).err, AllOf(HasSubstr("trian"), HasSubstr("train")));
}

TEST_F(ProgramTest, DivergenceExitsWithStatusOne) {
  prepare();
  const Finished found = furlong(train_arguments(
      set({"optimizer.learning_rate=90", "optimizer.weight_decay=0.9", "log.progress=none", "log.level=error"})));
  EXPECT_EQ(found.status, 1);
  EXPECT_THAT(found.err, StartsWith("error: step "));
  EXPECT_EQ(std::count(found.err.begin(), found.err.end(), '\n'), 1) << found.err;
}

TEST_F(ProgramTest, ConfigAndDoctorPrintReports) {
  prepare();
  EXPECT_EQ(furlong({"config", "check", path("config.yaml")}).status, 0);
  const Finished shown = furlong({"config", "show", path("config.yaml")});
  EXPECT_EQ(shown.status, 0);
  EXPECT_THAT(shown.out, HasSubstr("weight_decay: 0.1"));
  EXPECT_EQ(Json::parse(furlong({"config", "schema"}).out)["type"], "object");
  EXPECT_EQ(furlong({"config", "reference"}).out, content((testing::source_directory() / "docs/config.md").string()));
  EXPECT_LE(furlong({"doctor"}).status, 1);
  EXPECT_TRUE(Json::accept(furlong({"doctor", "--json"}).out));
}

}  // namespace
}  // namespace furlong
