// tokenizer.json with a Unigram model.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "datasets/tokenizers/sentencepiece_proto.h"
#include "datasets/tokenizers/tokenizer.h"
#include "datasets/vocabulary.h"
#include "framework/core/error.h"
#include "tests/temporary_folder.h"

namespace furlong {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::message_of;

class UnigramTest : public testing::WithTemporaryFolder {
 protected:
  json document = {
      {"added_tokens",
       {{{"id", 1}, {"content", "<s>"}, {"special", true}}, {{"id", 10}, {"content", "<mask>"}, {"special", true}}}},
      {"normalizer", {{"type", "Lowercase"}}},
      {"pre_tokenizer", {{"type", "Metaspace"}}},
      {"decoder", {{"type", "Metaspace"}}},
      {"model",
       {{"type", "Unigram"},
        {"unk_id", 0},
        {"vocab", json::parse(R"([["<unk>", 0], ["<s>", 0], ["</s>", 0], ["\u2581ab", -2], ["\u2581a", -1], ["b", -0.5],
                                  ["bc", -1.9], ["c", -2], ["\u2581", -3], ["{", -4]])")}}}};

  std::shared_ptr<const Tokenizer> load(const json& wanted) const {
    return load_tokenizer(file("tokenizer.json", wanted.dump()));
  }
};

// As in transformers, where a text's first piece begins at position 0 before the normalizer.
TEST_F(UnigramTest, FirstPieceBeginsTheTextBeforeTheNormalizer) {
  document["pre_tokenizer"]["prepend_scheme"] = "first";
  const auto first = [&](const json& normalizer, std::string_view text) {
    document["normalizer"] = normalizer;
    const auto tokenizer = load(document);
    return tokenizer->token(tokenizer->encode(text).front());
  };
  const json strip{{"type", "Strip"}, {"strip_left", true}, {"strip_right", true}};
  EXPECT_EQ(first(strip, "ab"), "\u2581a");
  EXPECT_EQ(first(strip, "  bc"), "bc");
  EXPECT_EQ(first({{"type", "StripAccents"}}, "\u0301bc"), "bc");
  EXPECT_EQ(first({{"type", "Lowercase"}}, "Ab"), "\u2581a");
  EXPECT_EQ(first({{"type", "NFC"}}, "  b"), "\u2581");
  const json right{{"type", "Strip"}, {"strip_left", false}, {"strip_right", true}};
  EXPECT_EQ(first(right, "\tb "), "\u2581") << "the start is no end of the text";
}

TEST_F(UnigramTest, PicksTheLargestSumOfScores) {
  const auto tokenizer = load(document);
  EXPECT_EQ(tokenizer->kind(), "unigram");
  EXPECT_EQ(tokenizer->size(), 11);
  EXPECT_THAT(tokenizer->encode("ABC"), ElementsAre(4, 6)) << "▁a bc: -2.9; ▁ab c: -4; ▁a b c: -3.5";
  EXPECT_THAT(tokenizer->encode("ab"), ElementsAre(4, 5));
  EXPECT_THAT(tokenizer->encode("a  c "), ElementsAre(4, 8, 8, 7, 8));
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("abc  b")), "abc  b");
  const auto copy = tokenizer_from_json(tokenizer->to_json(), "checkpoint");
  EXPECT_EQ(copy->kind(), "unigram");
  EXPECT_EQ(copy->encode("a  c "), tokenizer->encode("a  c "));
}

TEST_F(UnigramTest, SpecialTokensAreTextByDefault) {
  const auto tokenizer = load(document);
  EXPECT_THAT(tokenizer->encode("<s>a<mask>", SpecialTokenMode::as_token), ElementsAre(1, 4, 10));
  EXPECT_THAT(tokenizer->encode("<s>"), ElementsAre(8, 0)) << "a run of unknown characters is one token";
  EXPECT_EQ(tokenizer->special().unknown, 0);
}

TEST_F(UnigramTest, UnknownTokensHaveNoNumberOfBytes) {
  document["normalizer"] = nullptr;
  document["pre_tokenizer"]["prepend_scheme"] = "never";
  document["decoder"]["prepend_scheme"] = "never";
  document["added_tokens"] = json::array();
  document["model"]["vocab"] =
      json::parse(R"([["<unk>", 0], ["a", -1], ["b", -1], ["\n", -1], ["\u2581", -1], ["\u2581ab", -1]])");
  const auto tokenizer = load(document);
  EXPECT_EQ(tokenizer->text_bytes(1), 1U);
  EXPECT_EQ(tokenizer->text_bytes(5), 3U) << "the mark is one space";
  EXPECT_EQ(tokenizer->text_bytes(0), std::nullopt);
}

TEST_F(UnigramTest, KindOfEarlierVersionsHasAHint) {
  SentencePieceProto proto;
  proto.pieces = {{"<unk>", 0, SentencePieceProto::Type::unknown}, {"a", -1}};
  const Vocabulary before = Vocabulary::of_tokenizer(load_tokenizer(file("a.model", proto.serialized()))),
                   now = Vocabulary::of_tokenizer(load(document));
  EXPECT_THAT(difference_hint(before, now), HasSubstr("prepare the dataset again"));
  EXPECT_EQ(difference_hint(now, before), difference_hint(before, now));
  EXPECT_EQ(difference_hint(now, now), "");
  EXPECT_EQ(difference_hint(Vocabulary::dna(), now), "");
}

TEST_F(UnigramTest, EveryAddedTokenSplitsTheText) {
  document["added_tokens"].push_back({{"id", 9}, {"content", "{"}, {"special", false}, {"normalized", false}});
  EXPECT_THAT(load(document)->encode("b {c"), ElementsAre(8, 5, 8, 9, 8, 7)) << "each part gets a mark";
  document["pre_tokenizer"]["prepend_scheme"] = "first";
  EXPECT_THAT(load(document)->encode("b {c"), ElementsAre(8, 5, 8, 9, 7));
  document["added_tokens"].back()["lstrip"] = true;
  EXPECT_THAT(load(document)->encode("b {c"), ElementsAre(8, 5, 9, 7));
}

TEST_F(UnigramTest, UnknownCharactersBecomeBytes) {
  document["model"]["byte_fallback"] = true;
  for (int byte = 0; byte < 256; ++byte)
    document["model"]["vocab"].push_back(json::array({fmt::format("<0x{:02X}>", byte), 0}));
  document["added_tokens"].erase(1);
  EXPECT_THAT(load(document)->encode("b\u00e9"), ElementsAre(8, 5, 10 + 0xc3, 10 + 0xa9));
}

TEST_F(UnigramTest, RejectsUnknownTokensOutsideTheVocabulary) {
  document["model"]["unk_id"] = 10;
  EXPECT_THAT(message_of<UserError>([&] { load(document); }), HasSubstr("10 is not a token id; there are 10 tokens"));
  document["model"]["vocab"] = json::array();
  EXPECT_THAT(message_of<UserError>([&] { load(document); }), HasSubstr("there are 0 tokens"));
}

}  // namespace
}  // namespace furlong
