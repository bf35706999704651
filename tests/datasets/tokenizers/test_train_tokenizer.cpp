#include "datasets/tokenizers/train_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "datasets/tokenizers/tokenizer.h"
#include "framework/core/error.h"
#include "tests/temporary_folder.h"

namespace furlong {
namespace {

using ::testing::HasSubstr;
using testing::message_of;

class TrainTokenizerTest : public testing::WithTemporaryFolder {
 protected:
  std::string refusal(const TrainTokenizerOptions& options) const {
    const std::string message = message_of<UserError>([&] { train_tokenizer(options); });
    EXPECT_FALSE(std::filesystem::exists(options.output));
    return message;
  }
  static std::string repeated(std::string_view line, int count) {
    std::string text;
    for (int i = 0; i < count; ++i) text += line;
    return text;
  }

  const std::string model = path("text.model");
};

TEST_F(TrainTokenizerTest, FrequentWordsBecomeTokens) {
  const std::string text = file("a.txt", repeated("in the beginning was the word\n", 50));
  const auto report = train_tokenizer({.inputs = {text}, .output = model, .vocabulary_size = 300});
  EXPECT_EQ(report.vocabulary_size, 300);
  EXPECT_EQ(report.lines, 50U);
  EXPECT_EQ(report.bytes, 50U * 30);
  const auto tokenizer = load_tokenizer(model);
  EXPECT_EQ(tokenizer->size(), 300);
  EXPECT_EQ(tokenizer->encode(" the", SpecialTokenMode::as_text).size(), 1U);
}

TEST_F(TrainTokenizerTest, EveryTextDecodesToItself) {
  const std::string text = file("a.txt", repeated("in the beginning was the word\n", 50));
  train_tokenizer({.inputs = {text}, .output = model, .vocabulary_size = 300});
  const auto tokenizer = load_tokenizer(model);
  for (const std::string_view other : {"  the  word\n\n the", "Ünïcode \xf0\x9f\x99\x82", "\t1234\r\n", " "})
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(other, SpecialTokenMode::as_text)), other);
}

TEST_F(TrainTokenizerTest, SameInputGivesSameModel) {
  const std::string text = file("a.txt", repeated("in the beginning was the word and the word was long\n", 50));
  std::string first;
  for (int repetition = 0; repetition < 2; ++repetition) {
    train_tokenizer({.inputs = {text}, .output = model, .vocabulary_size = 320, .force = true});
    const std::string bytes = content(model);
    EXPECT_TRUE(first.empty() || bytes == first);
    first = bytes;
  }
}

// One line of 1 MB, and inputs that end without a line end.
TEST_F(TrainTokenizerTest, ReadsLongLinesAndSeveralInputs) {
  const std::string words = file("long.txt", repeated("alpha beta gamma ", 60'000));
  const std::string letters = file("solid.txt", repeated("\xc3\xa4", 5'000));
  const auto report = train_tokenizer({.inputs = {words, letters}, .output = model, .vocabulary_size = 290});
  EXPECT_EQ(report.bytes, 60'000U * 17 + 10'000);
  EXPECT_GE(report.lines, 60'000U * 17 / 1024 + 10);
  const auto tokenizer = load_tokenizer(model);
  EXPECT_EQ(tokenizer->encode(" gamma", SpecialTokenMode::as_text).size(), 1U);
  EXPECT_TRUE(tokenizer->find("\xc3\xa4").has_value()) << "no character is cut into two lines";
}

TEST_F(TrainTokenizerTest, RejectsUnusableInputs) {
  const std::string text = file("a.txt", repeated("abcdefghijklmnopqrstuvwxyz0123456789 ABCDEFGHIJKLMNOPQR\n", 5));
  EXPECT_THAT(refusal({.inputs = {file("empty.txt", "\n\n")}, .output = model}), HasSubstr("contains no text"));
  EXPECT_THAT(refusal({.inputs = {path("none")}, .output = model}), HasSubstr("does not exist"));
  // 55 characters, 256 bytes and 3 special tokens.
  EXPECT_THAT(refusal({.inputs = {text}, .output = model, .vocabulary_size = 300}),
              HasSubstr("300 tokens is too small for this text; expected at least 314"));
  EXPECT_THAT(refusal({.inputs = {"-", "-"}, .output = model}), HasSubstr("more than once"));
}

TEST_F(TrainTokenizerTest, KnowsTheBytesOfTokens) {
  const std::string text = file("a.txt", repeated("in the beginning was the word\n", 50));
  train_tokenizer({.inputs = {text}, .output = model, .vocabulary_size = 300});
  const auto tokenizer = load_tokenizer(model);
  const std::string other = "  the word\n\xc3\xa4 in  the beginning ";
  std::size_t bytes = 0;
  for (const std::int32_t id : tokenizer->encode(other)) bytes += tokenizer->text_bytes(id).value();
  EXPECT_EQ(bytes, other.size());
  EXPECT_FALSE(tokenizer->text_bytes(*tokenizer->special().beginning).has_value());
}

TEST_F(TrainTokenizerTest, NeverReplacesItsInput) {
  const std::string text = file("a.txt", repeated("in the beginning was the word\n", 50));
  const auto action = [&] {
    train_tokenizer({.inputs = {text}, .output = text, .vocabulary_size = 300, .force = true});
  };
  EXPECT_THAT(message_of<UserError>(action), HasSubstr("both input and output"));
  EXPECT_EQ(std::filesystem::file_size(text), 50U * 30);
}

TEST_F(TrainTokenizerTest, KeepsExistingOutput) {
  const std::string text = file("a.txt", repeated("in the beginning was the word\n", 50));
  file("text.model", "mine");
  EXPECT_THROW(train_tokenizer({.inputs = {text}, .output = model, .vocabulary_size = 300}), UserError);
  EXPECT_EQ(std::filesystem::file_size(model), 4U);
}

TEST(Tokenizer, DoesNotKnowBytesThatDependOnThePlaceInTheText) {
  using nlohmann::json;
  const auto of = [](const json& normalizer, const json& pre_tokenizer, const json& decoder) {
    const json vocabulary{{"▁", 0}, {"a", 1}, {"▁a", 2}, {"b", 3}, {"\n", 4}, {"Ġ", 5}, {"Ċ", 6}};
    const json model{{"type", "BPE"}, {"vocab", vocabulary}, {"merges", {"▁ a"}}};
    const json all{
        {"model", model}, {"normalizer", normalizer}, {"pre_tokenizer", pre_tokenizer}, {"decoder", decoder}};
    return tokenizer_from_json(json{{"kind", "bpe"}, {"special", json::object()}, {"tokenizer", all}}.dump(), "test");
  };
  const json mark{{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "▁"}};
  const json unmark{{"type", "Replace"}, {"pattern", {{"String", "▁"}}}, {"content", " "}};
  const json strip{{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}};
  // Llama 2 puts a space in front of a text and removes it again.
  const auto llama = of({{"type", "Sequence"}, {"normalizers", {{{"type", "Prepend"}, {"prepend", "▁"}}, mark}}},
                        nullptr, {{"type", "Sequence"}, {"decoders", {unmark, {{"type", "Fuse"}}, strip}}});
  EXPECT_EQ(llama->decode(llama->encode("a a")), "a a");
  EXPECT_FALSE(llama->text_bytes(2).has_value());
  const auto metaspace = of(nullptr, {{"type", "Metaspace"}}, {{"type", "Metaspace"}});
  EXPECT_FALSE(metaspace->text_bytes(2).has_value());
  // Gemma keeps the text.
  const auto gemma = of(mark, nullptr, unmark);
  EXPECT_EQ(gemma->text_bytes(2), 2U);
  // A space in front of each text, which decoding keeps.
  json prefix{{"type", "ByteLevel"}, {"add_prefix_space", true}};
  EXPECT_FALSE(of(nullptr, prefix, {{"type", "ByteLevel"}})->text_bytes(1).has_value());
  // Spaces are dropped.
  EXPECT_FALSE(of(nullptr, {{"type", "WhitespaceSplit"}}, {{"type", "Fuse"}})->text_bytes(1).has_value());
  prefix["add_prefix_space"] = false;
  EXPECT_EQ(of(nullptr, prefix, {{"type", "ByteLevel"}})->text_bytes(1), 1U);
}

}  // namespace
}  // namespace furlong
