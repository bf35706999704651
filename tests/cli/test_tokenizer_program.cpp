// The program with a tokenizer: prepare, train, evaluate, generate.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tests/cli/program.h"
#include "tests/datasets/tokenizers/small_tokenizers.h"

namespace furlong {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;
using testing::Finished;

class TokenizerProgramTest : public testing::WithProgram {
 protected:
  /// Lines of alternating " the" and " in", of different lengths.
  std::string text() const {
    std::string lines;
    for (int i = 0; i < 300; ++i) {
      for (int k = 0; k < 3 + i % 7; ++k) lines += k % 2 == 0 ? " the" : " in";
      lines += "\n";
    }
    return file("text", lines);
  }
  std::string config() const {
    return file("config.yaml", "data:\n  dataset: " + path("store.h5") + R"(
  sampler: documents
  sequence_length: 16
  batch_size: 8
model:
  n_layers: 1
  d_model: 16
  n_heads: 2
optimizer:
  learning_rate: 0.01
schedule:
  warmup_steps: 2
trainer:
  max_steps: 60
  validate_every: 0
)");
  }
};

TEST_F(TokenizerProgramTest, JsonReplacesBytesOfPathsThatAreNotUtf8) {
  const std::string output = path("tokenizer_\xff.json");
  const Finished trained =
      furlong({"prepare", "tokenizer", text(), "-o", output, "--vocabulary-size", "300", "--json"});
  ASSERT_EQ(trained.status, 0) << trained.err;
  EXPECT_THAT(std::string(Json::parse(trained.out)["output"]), ::testing::EndsWith("tokenizer_\xEF\xBF\xBD.json"));
}

TEST_F(TokenizerProgramTest, PrepareTrainEvaluateAndGenerate) {
  const std::vector<std::string> prepare{"prepare",
                                         "text",
                                         text(),
                                         "--document-separator",
                                         "line",
                                         "--tokenizer",
                                         testing::bpe_tokenizer(path("bpe")),
                                         "--output",
                                         path("store.h5"),
                                         "--split-by",
                                         "document",
                                         "--split",
                                         "0.6,0.2,0.2"};
  std::vector<std::string> as_json = prepare;
  as_json.emplace_back("--json");
  const Finished prepared = furlong(as_json);
  ASSERT_EQ(prepared.status, 0) << prepared.err;
  const Json report = Json::parse(prepared.out);
  EXPECT_EQ(report["tokenizer"], "bpe");
  EXPECT_EQ(report["vocabulary_size"], 262);
  EXPECT_EQ(report["documents"], 300);

  const Finished trained = furlong({"train", config(), "--run-dir", path("run")});
  ASSERT_EQ(trained.status, 0) << trained.err;

  const Finished evaluated = furlong({"evaluate", path("run"), "--split", "test", "--json"});
  ASSERT_EQ(evaluated.status, 0) << evaluated.err;
  const Json found = Json::parse(evaluated.out);
  EXPECT_GT(found["accuracy"], found["baseline_accuracy"]);
  EXPECT_LT(found["loss"], found["baseline_loss"]);
  // " the" is one token of four bytes, " in" is two tokens of three bytes, <|endoftext|> has no bytes.
  EXPECT_LT(found["bits_per_byte"].get<double>(), found["bits_per_token"].get<double>());
  const Finished as_text = furlong({"evaluate", path("run"), "--split", "test"});
  EXPECT_THAT(as_text.out, HasSubstr("tokens in documents of at most 16"));
  EXPECT_THAT(as_text.out, HasSubstr("baseline       loss"));
  const Finished windows = furlong({"evaluate", path("run"), "--split", "test", "--sampler", "windows"});
  EXPECT_THAT(windows.out, HasSubstr("tokens in windows of 16")) << windows.err;

  const Finished generated =
      furlong({"generate", path("run"), "--prompt", " the", "--max-tokens", "3", "--temperature", "0", "--json"});
  ASSERT_EQ(generated.status, 0) << generated.err;
  EXPECT_EQ(Json::parse(generated.out)["samples"][0]["text"], " in the");
  EXPECT_EQ(generated.err, "");
  const Finished warned = furlong({"generate", path("run"), "--prompt", " the ", "--max-tokens", "1"});
  EXPECT_THAT(warned.err, HasSubstr("warning: --prompt: the prompt ends with a space, "));

  // The model's tokenizer prepares more data.
  const Finished again = furlong({"prepare", "text", path("text"), "--document-separator", "line", "--tokenizer",
                                  path("run/checkpoints/best.h5"), "--output", path("again.h5"), "--split", "1"});
  ASSERT_EQ(again.status, 0) << again.err;
  EXPECT_EQ(furlong({"evaluate", path("run"), "--data", path("again.h5"), "--split", "train"}).status, 0);

  // A dataset of bytes has another vocabulary.
  ASSERT_EQ(furlong({"prepare", "text", path("text"), "--output", path("bytes.h5"), "--split", "1"}).status, 0);
  const Finished refused = furlong({"evaluate", path("run"), "--data", path("bytes.h5"), "--split", "train"});
  EXPECT_EQ(refused.status, 2);
  EXPECT_THAT(refused.err, HasSubstr("vocabulary (bytes) differs from the model's (bpe tokenizer of 262 tokens, "));
}

TEST_F(TokenizerProgramTest, RejectsIncompatibleOptions) {
  const std::string tokenizer = testing::letters_tokenizer(path("letters"));
  const Finished fasta = furlong({"prepare", "fasta", file("a.fa", ">a\nLAG\n"), "--alphabet", "protein", "--tokenizer",
                                  tokenizer, "-o", path("x.h5")});
  EXPECT_EQ(fasta.status, 2);
  EXPECT_THAT(fasta.err, HasSubstr("--tokenizer excludes --alphabet"));
  const Finished missing =
      furlong({"prepare", "text", file("t", "LAG"), "--tokenizer", path("nowhere"), "-o", path("x.h5")});
  EXPECT_EQ(missing.status, 2);
  EXPECT_THAT(missing.err, HasSubstr("nowhere"));
}

}  // namespace
}  // namespace furlong
