// SentencePiece models as tokenizer.json; tests/parity/exported_tokenizers.py reads such files with transformers.
#include "conversion/sentencepiece_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "conversion/tokenizer_export.h"
#include "datasets/tokenizers/tokenizer.h"
#include "datasets/tokenizers/train_tokenizer.h"
#include "framework/core/error.h"
#include "tests/conversion/tiny_models.h"
#include "tests/temporary_folder.h"

namespace furlong {
namespace {

using namespace furlong::testing;
using ::testing::HasSubstr;
using PieceType = SentencePieceProto::Type;

const std::vector<std::string> texts{"in the beginning",
                                     " leading",
                                     "trailing  ",
                                     "  two  and   three    ",
                                     "a\n\nb\n",
                                     "\tx\ty",
                                     "",
                                     "   ",
                                     "\u2581 a\u2581",
                                     "\u00e9\u4e2d \U0001f600",
                                     "aaaaaaa aaa aa",
                                     "abababab aba",
                                     "the<s>word</s>  of",
                                     "<unk> <0x41>",
                                     "1234.5"};

/// A BPE model that merges runs of "a" and of spaces, without bytes.
SentencePieceProto merging() {
  SentencePieceProto proto;
  proto.bpe = true;
  proto.pieces = {{"<unk>", 0, PieceType::unknown}, {"<s>", 0, PieceType::control}, {"</s>", 0, PieceType::control}};
  float score = 0;
  for (const char* piece : {"aa", "ab", "\u2581\u2581", "aaa", "\u2581a", "aaaa", "aba", "abab", "\u2581\u2581\u2581",
                            "ba", "a", "b", "\u2581", "c"})
    proto.pieces.push_back({piece, --score});
  proto.beginning = 1;
  proto.end = 2;
  return proto;
}

SentencePieceProto unigram() {
  SentencePieceProto proto = merging();
  proto.bpe = false;
  return proto;
}

class SentencePieceExport : public WithTemporaryFolder {
 protected:
  std::shared_ptr<const Tokenizer> of(const SentencePieceProto& proto) const {
    return load_tokenizer(file("source.model", proto.serialized()));
  }
  static SequenceFrame own_frame(const Vocabulary& vocabulary) {
    return {vocabulary.frame_front(), vocabulary.frame_back()};
  }
  /// Writes the files to a folder, and returns the tokenizer of its tokenizer.json.
  std::shared_ptr<const Tokenizer> written(const Vocabulary& vocabulary, const SequenceFrame& frame) const {
    const TokenizerExport result = export_tokenizer(vocabulary, frame);
    EXPECT_EQ(result.obstacle, "");
    for (const auto& [name, text] : result.files) write_file(folder_ / "out" / name, text);
    return load_tokenizer(path("out/tokenizer.json"));
  }
  void expect_same_ids(const std::shared_ptr<const Tokenizer>& original) const {
    const Vocabulary vocabulary = Vocabulary::of_tokenizer(original);
    const auto copy = written(vocabulary, own_frame(vocabulary));
    EXPECT_EQ(copy->size(), original->size());
    for (const std::string& text : texts) {
      if (text.find("<unk>") != std::string::npos) continue;  // a token, as everywhere in transformers
      SCOPED_TRACE(text);
      const auto ids = original->encode(text, SpecialTokenMode::as_token);
      EXPECT_EQ(copy->encode(text, SpecialTokenMode::as_token), ids);
      EXPECT_EQ(copy->framed(ids), original->framed(ids));
    }
  }
  std::string obstacle(const SentencePieceProto& proto) const {
    const Vocabulary vocabulary = Vocabulary::of_tokenizer(of(proto));
    const TokenizerExport result = export_tokenizer(vocabulary, own_frame(vocabulary));
    EXPECT_EQ(result.files.size(), 1U);
    EXPECT_EQ(result.files.front().first, "tokenizer.model");
    EXPECT_EQ(result.files.front().second, proto.serialized());
    return result.obstacle;
  }
};

TEST_F(SentencePieceExport, TrainedTokenizerGivesTheSameIds) {
  std::string text;
  for (int i = 0; i < 50; ++i) text += "in the beginning was the word, and the word was of 220 yards\n";
  train_tokenizer({.inputs = {file("a.txt", text)}, .output = path("text.model"), .vocabulary_size = 320});
  const auto original = load_tokenizer(path("text.model"));
  expect_same_ids(original);
  const auto copy = load_tokenizer(path("out/tokenizer.json"));
  EXPECT_EQ(copy->kind(), "bpe");
  for (const std::string& one : texts)
    EXPECT_EQ(copy->decode(original->encode(one)), original->decode(original->encode(one)));
  EXPECT_EQ(content(path("out/tokenizer.model")), content(path("text.model")));
  const Json config = Json::parse(content(path("out/tokenizer_config.json")));
  EXPECT_EQ(config.at("tokenizer_class"), "PreTrainedTokenizerFast");
  EXPECT_EQ(config.at("bos_token"), "<s>");
  EXPECT_EQ(config.at("eos_token"), "</s>");
  EXPECT_EQ(config.at("pad_token"), "</s>") << "the model has no padding token";
}

TEST_F(SentencePieceExport, EveryTreatmentOfSpacesGivesTheSameIds) {
  for (SentencePieceProto proto : {merging(), unigram()}) {
    for (const bool prefix : {false, true}) {
      for (const bool removes : {false, true}) {
        SCOPED_TRACE(fmt::format("{} {} {}", proto.bpe, prefix, removes));
        proto.add_dummy_prefix = prefix;
        proto.remove_extra_whitespaces = removes;
        expect_same_ids(of(proto));
      }
    }
  }
}

// SentencePiece merges the leftmost of pairs that become the same piece; in "ab a ba" that is (ab, a).
TEST_F(SentencePieceExport, OverlappingMergesAreRankedFromTheLeft) {
  const Json merges = sentencepiece_json(merging(), Json::array()).at("model").at("merges");
  const auto rank = [&](const char* merge) { return std::find(merges.begin(), merges.end(), merge) - merges.begin(); };
  EXPECT_LT(rank("ab a"), rank("a ba"));
  EXPECT_LT(rank("aa a"), rank("a aa"));
  EXPECT_LT(rank("a ba"), std::ssize(merges));
  EXPECT_LT(rank("a aa"), std::ssize(merges));
  EXPECT_LT(rank("a a"), rank("a b")) << "higher scores first";
}

TEST_F(SentencePieceExport, AddsEncoderTokensAndFrame) {
  const Vocabulary vocabulary = Vocabulary::of_tokenizer(of(merging())).with_encoder_tokens();
  const std::int32_t mask = *vocabulary.mask_id(), first = *vocabulary.class_id();
  ASSERT_EQ(mask, vocabulary.tokenizer()->size());
  const auto copy = written(vocabulary, {{first, 1}, {2}});
  EXPECT_EQ(copy->framed({}), (std::vector<std::int32_t>{first, 1, 2}));
  EXPECT_EQ(copy->find("<mask>"), mask);
  EXPECT_EQ(copy->find("<class>"), first);
  const auto ids = copy->encode("a <mask>b", SpecialTokenMode::as_token);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), mask), 1);
  const Json config = Json::parse(content(path("out/tokenizer_config.json")));
  EXPECT_EQ(config.at("mask_token"), "<mask>");
  EXPECT_EQ(config.at("cls_token"), "<class>");
  // The other kinds of tokenizers get them too.
  const Vocabulary bytes =
      Vocabulary::of_tokenizer(load_tokenizer(bpe_tokenizer(folder_ / "bpe"))).with_encoder_tokens();
  const std::int32_t end = *bytes.document_id(), class_of_bytes = *bytes.class_id();
  const auto copy_of_bytes = written(bytes, {{class_of_bytes}, {end}});
  EXPECT_EQ(copy_of_bytes->framed({}), (std::vector<std::int32_t>{class_of_bytes, end}));
  EXPECT_EQ(copy_of_bytes->find("<mask>"), bytes.mask_id());
  EXPECT_EQ(copy_of_bytes->encode("in the"), bytes.encode("in the"));
}

TEST_F(SentencePieceExport, RefusesWhatNoTokenizerJsonExpresses) {
  SentencePieceProto proto = merging();
  proto.pieces.push_back({"new", 0, PieceType::user_defined});
  EXPECT_THAT(obstacle(proto), HasSubstr("user-defined tokens, such as 'new'"));
  proto.add_dummy_prefix = proto.remove_extra_whitespaces = false;
  expect_same_ids(of(proto));
  proto.bpe = false;
  EXPECT_THAT(obstacle(proto), HasSubstr("user-defined"));
  proto = merging();
  proto.pieces.back().type = PieceType::unused;
  EXPECT_THAT(obstacle(proto), HasSubstr("unused tokens, such as 'c'"));
  proto = merging();
  proto.pieces[3].score = proto.pieces[4].score;
  EXPECT_THAT(obstacle(proto), HasSubstr("'aa' and 'ab' have the same score"));
  proto = merging();
  proto.pieces.push_back({"ax", -20});
  EXPECT_THAT(obstacle(proto), HasSubstr("it has 'ax', but no token 'x'"));
  proto = merging();
  proto.pieces.push_back({std::string(4097, 'a'), -20});
  EXPECT_THAT(obstacle(proto), HasSubstr("it has a token of 4097 bytes, more than 4096"));
  proto = merging();  // whose merges grow with the third power of the longest piece
  for (std::size_t length = 5; length < 620; ++length)
    proto.pieces.push_back({std::string(length, 'a'), -100.0F - static_cast<float>(length)});
  EXPECT_THAT(obstacle(proto), HasSubstr("its merges would have more than 64 MiB"));
}

TEST_F(SentencePieceExport, ParsesWhatItSerializes) {
  SentencePieceProto proto = merging();
  proto.byte_fallback = true;
  proto.add_dummy_prefix = false;
  proto.normalization_map = std::string("a\0b", 3);
  const SentencePieceProto parsed = SentencePieceProto::parsed(proto.serialized(), "f");
  EXPECT_EQ(parsed.serialized(), proto.serialized());
  EXPECT_EQ(parsed.padding, -1);
  EXPECT_FALSE(parsed.other_algorithm || parsed.whitespace_as_suffix || parsed.keeps_spaces);
  EXPECT_THAT(message_of<UserError>([&] { SentencePieceProto::parsed("\x0a\x7f", "f"); }), HasSubstr("f: not a"));
}

}  // namespace
}  // namespace furlong
