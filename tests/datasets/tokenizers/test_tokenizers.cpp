// Complete tokenizers, from every kind of file and from their own JSON.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "datasets/tokenizers/base64.h"
#include "datasets/tokenizers/piece_model.h"
#include "datasets/tokenizers/sentencepiece_proto.h"
#include "datasets/tokenizers/tokenizer.h"
#include "datasets/tokenizers/unicode.h"
#include "framework/core/error.h"
#include "tests/formats/foreign_bytes.h"
#include "tests/temporary_folder.h"

namespace furlong {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using testing::gguf_array;
using testing::gguf_text;
using ::testing::HasSubstr;
using testing::message_of;
using testing::packed;
using Ids = std::vector<std::int32_t>;

/// All bytes, two merges that make "he" and "Ġhe", and <|endoftext|>: ids 0-255 in the order of bytes, then 256, 257,
/// 258.
struct ByteLevel {
  json vocabulary = json::object();
  std::vector<std::string> merges{"h e", "\u0120 he"};
  ByteLevel() {
    for (int byte = 0; byte < 256; ++byte) vocabulary[letter(byte)] = byte;
    vocabulary["he"] = 256;
    vocabulary["\u0120he"] = 257;
    vocabulary["<|endoftext|>"] = 258;
  }
  static std::string letter(int byte) {
    std::string text;
    unicode::append(text, letter_of_byte(static_cast<unsigned char>(byte)));
    return text;
  }
  json document() const {
    return {{"version", "1.0"},
            {"truncation", {{"max_length", 2}}},
            {"added_tokens",
             {{{"id", 258}, {"content", "<|endoftext|>"}, {"special", true}},
              {{"id", 259}, {"content", "<tool>"}, {"special", false}}}},
            {"normalizer", nullptr},
            {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
            {"post_processor", {{"type", "ByteLevel"}}},
            {"decoder", {{"type", "ByteLevel"}}},
            {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", merges}}}};
  }
};

const std::vector<std::string> bert_vocabulary{"[PAD]", "[UNK]",  "[CLS]", "[SEP]", "[MASK]", "the", "cafe", "##s",
                                               ",",     "\u4eba", "na",    "##ive", "[",      "]",   "mask"};

std::string lines(const std::vector<std::string>& tokens) {
  std::string text;
  for (const std::string& token : tokens) text += token + "\n";
  return text;
}

SentencePieceProto small_unigram() {
  using Type = SentencePieceProto::Type;
  SentencePieceProto proto;
  proto.pieces = {{"<unk>", 0, Type::unknown},       {"<s>", 0, Type::control},        {"</s>", 0, Type::control},
                  {"\u2581ab", -2.0f, Type::normal}, {"\u2581a", -1.0f, Type::normal}, {"b", -0.5f, Type::normal},
                  {"bc", -1.9f, Type::normal},       {"c", -2.0f, Type::normal},       {"\u2581", -3.0f, Type::normal}};
  proto.beginning = 1;
  proto.end = 2;
  return proto;
}

class TokenizerTest : public testing::WithTemporaryFolder {
 protected:
  std::shared_ptr<const Tokenizer> byte_level(const json& document) const {
    return load_tokenizer(file("tokenizer.json", document.dump()));
  }
  std::string error_of(const json& document) const {
    return message_of<UserError>([&] { byte_level(document); });
  }
  /// Expects the same ids, tokens and special tokens after a round trip through JSON.
  static void expect_same_through_json(const Tokenizer& tokenizer, const std::vector<std::string>& texts) {
    const auto copy = tokenizer_from_json(tokenizer.to_json(), "checkpoint");
    EXPECT_EQ(copy->kind(), tokenizer.kind());
    ASSERT_EQ(copy->size(), tokenizer.size());
    EXPECT_TRUE(copy->special() == tokenizer.special());
    EXPECT_EQ(copy->framed({}), tokenizer.framed({}));
    for (std::int32_t id = 0; id < tokenizer.size(); ++id) EXPECT_EQ(copy->token(id), tokenizer.token(id));
    for (const std::string& text : texts) {
      for (const SpecialTokenMode special : {SpecialTokenMode::as_text, SpecialTokenMode::as_token}) {
        const Ids ids = tokenizer.encode(text, special);
        EXPECT_EQ(copy->encode(text, special), ids);
        EXPECT_EQ(copy->decode(ids), tokenizer.decode(ids));
      }
    }
    EXPECT_EQ(copy->to_json(), tokenizer.to_json());
  }
};

TEST_F(TokenizerTest, ByteLevelRoundTripsArbitraryBytes) {
  const auto tokenizer = byte_level(ByteLevel().document());
  EXPECT_EQ(tokenizer->kind(), "bpe");
  EXPECT_EQ(tokenizer->size(), 260);
  EXPECT_THAT(tokenizer->encode("he the"), ElementsAre(256, ' ', 't', 256));
  EXPECT_THAT(tokenizer->encode("x he\n"), ElementsAre('x', 257, '\n'));
  EXPECT_EQ(tokenizer->token(257), "\u0120he");
  EXPECT_EQ(tokenizer->find("\u0120he"), 257);
  EXPECT_EQ(tokenizer->find("hello"), std::nullopt);
  std::mt19937 random(3);
  for (int i = 0; i < 300; ++i) {
    std::string bytes(random() % 200, ' ');
    for (char& byte : bytes) byte = static_cast<char>(random() % 3 ? "he \u00e9\u4eba"[random() % 8] : random());
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(bytes)), bytes);
  }
  EXPECT_THROW(tokenizer->decode(Ids{260}), ContractError);
  EXPECT_THROW(tokenizer->token(-1), ContractError);
}

TEST_F(TokenizerTest, SpecialTokensAreTextByDefault) {
  const auto tokenizer = byte_level(ByteLevel().document());
  const std::string text = "he<|endoftext|><tool>he";
  const Ids as_text = tokenizer->encode(text);
  EXPECT_EQ(as_text.size(), 1u + 13 + 1 + 1);
  EXPECT_EQ(std::count(as_text.begin(), as_text.end(), 259), 1) << "other added tokens are always matched";
  EXPECT_THAT(tokenizer->encode(text, SpecialTokenMode::as_token), ElementsAre(256, 258, 259, 256));
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(text, SpecialTokenMode::as_token)), text);
  EXPECT_EQ(tokenizer->special().end, 258);
  EXPECT_EQ(tokenizer->special().beginning, 258);
  EXPECT_EQ(tokenizer->special().mask, std::nullopt);
  EXPECT_THAT(tokenizer->framed(Ids{1, 2}), ElementsAre(1, 2));
}

TEST_F(TokenizerTest, MatchesNormalizedAddedTokensInNormalizedText) {
  json document = ByteLevel().document();
  document["normalizer"] = {{"type", "Lowercase"}};
  document["added_tokens"].push_back({{"id", 260}, {"content", "FURLONG"}, {"normalized", true}});
  document["added_tokens"].push_back({{"id", 261}, {"content", "Mile"}, {"normalized", false}});
  const auto tokenizer = byte_level(document);
  EXPECT_THAT(tokenizer->encode("furLongMilemile"), ElementsAre(260, 261, 'm', 'i', 'l', 'e'));
  EXPECT_THAT(tokenizer->encode("H\xff"), ElementsAre('h', 0xEF, 0xBF, 0xBD)) << "invalid bytes cannot be normalized";
}

TEST_F(TokenizerTest, IsThreadSafe) {
  const auto tokenizer = byte_level(ByteLevel().document());
  std::string text;
  for (int i = 0; i < 20000; ++i) text += " word" + std::to_string(i * 7919 % 5000) + " he";
  const Ids expected = tokenizer->encode(text);
  std::vector<Ids> found(4);
  std::vector<std::thread> threads;
  for (Ids& ids : found) threads.emplace_back([&] { ids = tokenizer->encode(text); });
  for (std::thread& thread : threads) thread.join();
  for (const Ids& ids : found) EXPECT_EQ(ids, expected);
  EXPECT_EQ(tokenizer->decode(expected), text);
}

TEST_F(TokenizerTest, VocabAndMergesMatchTokenizerJson) {
  const ByteLevel parts;
  json document = parts.document();
  document["added_tokens"].erase(1);
  const auto whole = byte_level(document);
  std::filesystem::remove(path("tokenizer.json"));
  file("vocab.json", parts.vocabulary.dump());
  file("merges.txt", "#version: 0.2\n" + lines(parts.merges));
  const auto pair = load_tokenizer(folder_);
  for (const char* text : {"he the he", "don't\n\n  he 12", "<|endoftext|>"}) {
    EXPECT_EQ(pair->encode(text), whole->encode(text));
    EXPECT_EQ(pair->encode(text, SpecialTokenMode::as_token), whole->encode(text, SpecialTokenMode::as_token));
  }
  EXPECT_EQ(load_tokenizer(path("merges.txt"))->encode("he"), pair->encode("he"));
  expect_same_through_json(*pair, {"he the", "a<|endoftext|>b"});
  // Qwen's pattern splits digits, and its normalizer composes text (NFC).
  file("tokenizer_config.json",
       R"({"tokenizer_class": "Qwen2TokenizerFast", "eos_token": {"content": "<|endoftext|>"}, "bos_token": null})");
  EXPECT_EQ(load_tokenizer(folder_)->encode("e\u0301"), pair->encode("\u00e9"));
  file("tokenizer_config.json", R"({"tokenizer_class": "GPT2Tokenizer", "add_bos_token": true, "bos_token": "he"})");
  EXPECT_THAT(load_tokenizer(folder_)->framed(Ids{0}), ElementsAre(256, 0));
  file("tokenizer_config.json", R"({"tokenizer_class": "CLIPTokenizer"})");
  EXPECT_THAT(message_of<UserError>([&] { load_tokenizer(folder_); }),
              HasSubstr("the tokenizer class CLIPTokenizer cannot be read from vocab.json"));
  file("tokenizer_config.json", "{}");
  file("vocab.json", R"({"a": 0})");
  EXPECT_THAT(message_of<UserError>([&] { load_tokenizer(folder_); }), HasSubstr("no token for byte 0"));
}

TEST_F(TokenizerTest, RobertaFramesTextAndReadsConfig) {
  ByteLevel parts;
  for (const char* token : {"<s>", "</s>", "<mask>"}) parts.vocabulary[token] = parts.vocabulary.size();
  file("vocab.json", parts.vocabulary.dump());
  file("merges.txt", lines(parts.merges));
  file("tokenizer_config.json", R"({"tokenizer_class": "RobertaTokenizer", "add_prefix_space": true})");
  const auto tokenizer = load_tokenizer(folder_);
  EXPECT_THAT(tokenizer->framed(tokenizer->encode("he")), ElementsAre(259, 257, 260));
  EXPECT_THAT(tokenizer->encode("he\xff he\xffhe"), ElementsAre(257, 255, 257, 255, 256)) << "no spaces in words";
  EXPECT_THAT(tokenizer->encode("x  <mask>", SpecialTokenMode::as_token), ElementsAre(' ', 'x', 261))
      << "<mask> includes the spaces before it";
  EXPECT_EQ(tokenizer->special().mask, 261);
  // Without that file, the class follows from the model.
  std::filesystem::remove(path("tokenizer_config.json"));
  for (const char* config : {R"({"model_type": "roberta"})", R"({"tokenizer_class": "RobertaTokenizerFast"})"}) {
    file("config.json", config);
    const auto inferred = load_tokenizer(folder_);
    EXPECT_THAT(inferred->framed(Ids{0}), ElementsAre(259, 0, 260)) << config;
    EXPECT_EQ(inferred->special().classify, 259);
    EXPECT_EQ(inferred->special().separator, 260);
  }
  file("config.json", R"({"model_type": "gpt2"})");
  EXPECT_THAT(load_tokenizer(folder_)->framed(Ids{0}), ElementsAre(0));
}

TEST_F(TokenizerTest, WordPiece) {
  const auto tokenizer = load_tokenizer(file("vocab.txt", lines(bert_vocabulary)));
  EXPECT_EQ(tokenizer->kind(), "wordpiece");
  EXPECT_THAT(tokenizer->encode("The CAF\u00c9s,na\u00efve\u4eba xyz"), ElementsAre(5, 6, 7, 8, 10, 11, 9, 1));
  EXPECT_THAT(tokenizer->encode("[MASK]"), ElementsAre(12, 14, 13));
  EXPECT_THAT(tokenizer->encode("the [MASK]", SpecialTokenMode::as_token), ElementsAre(5, 4));
  EXPECT_THAT(tokenizer->encode("th\xff"
                                "e"),
              ElementsAre(5))
      << "U+FFFD is dropped";
  EXPECT_THAT(tokenizer->framed(Ids{5}), ElementsAre(2, 5, 3));
  EXPECT_EQ(tokenizer->decode(Ids{5, 6, 7, 8, 9}), "the cafes, \u4eba");
  EXPECT_EQ(tokenizer->special().unknown, 1);
  EXPECT_EQ(tokenizer->special().classify, 2);
  EXPECT_EQ(tokenizer->special().separator, 3);
  EXPECT_EQ(tokenizer->special().padding, 0);
  expect_same_through_json(*tokenizer, {"The caf\u00e9s [MASK]", ""});
}

TEST_F(TokenizerTest, WordPieceWithCapitals) {
  std::vector<std::string> cased = bert_vocabulary;
  cased.push_back("The");
  file("vocab.txt", lines(cased));
  EXPECT_THAT(load_tokenizer(folder_)->encode("The the"), ElementsAre(15, 5))
      << "a vocabulary with capitals is not lower-cased";
  file("tokenizer_config.json", R"({"do_lower_case": true})");
  EXPECT_THAT(load_tokenizer(folder_)->encode("The the"), ElementsAre(5, 5));
  file("tokenizer_config.json", R"({"do_lower_case": true, "strip_accents": false})");
  EXPECT_THAT(load_tokenizer(folder_)->encode("caf\u00e9"), ElementsAre(1));
  file("tokenizer_config.json", R"({"do_lower_case": "yes"})");
  EXPECT_THAT(message_of<UserError>([&] { load_tokenizer(folder_); }),
              HasSubstr("tokenizer_config.json: do_lower_case: expected true or false, found string"));
  file("tokenizer_config.json", R"({"tokenizer_class": "BertJapaneseTokenizer"})");
  EXPECT_THAT(message_of<UserError>([&] { load_tokenizer(folder_); }), HasSubstr("BertJapaneseTokenizer"));
  file("tokenizer_config.json", R"({"word_tokenizer_type": "mecab"})");
  EXPECT_THAT(message_of<UserError>([&] { load_tokenizer(folder_); }), HasSubstr("word_tokenizer_type: mecab"));
}

TEST_F(TokenizerTest, ProteinLettersAreTokens) {
  std::vector<std::string> tokens{"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};
  for (const char letter : std::string("ACDEFGHIKLMNPQRSTVWY")) tokens.emplace_back(1, letter);
  const auto tokenizer = load_tokenizer(file("vocab.txt", lines(tokens)));
  EXPECT_EQ(tokenizer->kind(), "letters");
  EXPECT_EQ(tokenizer->size(), 25);
  EXPECT_THAT(tokenizer->encode("AC XxY\n"), ElementsAre(5, 6, 1, 1, 24));
  EXPECT_THAT(tokenizer->encode("A[MASK]C", SpecialTokenMode::as_token), ElementsAre(5, 4, 6));
  EXPECT_THAT(tokenizer->framed(tokenizer->encode("Y")), ElementsAre(2, 24, 3));
  EXPECT_EQ(tokenizer->decode(Ids{2, 5, 24, 3}), "[CLS]AY[SEP]");
  expect_same_through_json(*tokenizer, {"ACDX", "A[MASK]"});
}

TEST_F(TokenizerTest, EsmJoinsUnknownLetters) {
  file("vocab.txt", "<cls>\n<pad>\n<eos>\n<unk>\nL\nA\n-\n<null_1>\n<mask>");
  file("tokenizer_config.json", R"({"tokenizer_class": "EsmTokenizer"})");
  const auto tokenizer = load_tokenizer(folder_);
  EXPECT_THAT(tokenizer->encode("LxyA x x-"), ElementsAre(4, 3, 5, 3, 3, 6)) << "a run of unknown letters is one token";
  EXPECT_THAT(tokenizer->framed(Ids{4}), ElementsAre(0, 4, 2));
  EXPECT_EQ(tokenizer->special().end, 2);
  EXPECT_EQ(tokenizer->special().mask, 8);
  expect_same_through_json(*tokenizer, {"LxyA x x-"});
}

TEST_F(TokenizerTest, SplitsSmiles) {
  const auto tokenizer =
      load_tokenizer(file("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nC\nc\nCl\nBr\n(\n)\n1\n=\nO\n[nH]\n%10\n"));
  EXPECT_THAT(tokenizer->encode("ClC(=O)c1[nH]%10[Xe]Br!"), ElementsAre(7, 5, 9, 12, 13, 10, 6, 11, 14, 15, 1, 8));
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("ClC(=O)c1[nH]")), "ClC(=O)c1[nH]");
  expect_same_through_json(*tokenizer, {"ClC(=O)", "[MASK]C"});
  EXPECT_THAT(message_of<UserError>([&] { load_tokenizer(file("vocab.txt", "[UNK]\nab\ncd\n")); }),
              HasSubstr("not WordPiece"));
}

TEST_F(TokenizerTest, SentencePieceUnigramPicksMostLikelySegmentation) {
  const auto tokenizer = load_tokenizer(file("tokenizer.model", small_unigram().serialized()));
  EXPECT_EQ(tokenizer->kind(), "sentencepiece");
  EXPECT_THAT(tokenizer->encode("ab"), ElementsAre(4, 5)) << "-1 - 0.5 beats -2";
  EXPECT_THAT(tokenizer->encode("abc"), ElementsAre(4, 6)) << "-1 - 1.9 beats -1 - 0.5 - 2";
  EXPECT_THAT(tokenizer->encode(" ab  xyc "), ElementsAre(4, 5, 8, 0, 7));
  EXPECT_THAT(tokenizer->encode("<s>ab"), ::testing::Not(::testing::Contains(1)));
  EXPECT_THAT(tokenizer->encode("<s>ab</s>", SpecialTokenMode::as_token), ElementsAre(1, 4, 5, 2));
  EXPECT_THAT(tokenizer->framed(tokenizer->encode("ab")), ElementsAre(1, 4, 5));
  EXPECT_EQ(tokenizer->decode(Ids{1, 4, 5, 4, 2}), "<s>ab a</s>");
  EXPECT_EQ(tokenizer->find("\u2581ab"), 3);
  EXPECT_EQ(tokenizer->find("zzz"), std::nullopt);
  EXPECT_EQ(tokenizer->special().unknown, 0);
  EXPECT_EQ(tokenizer->special().end, 2);
  EXPECT_THROW(tokenizer->decode(Ids{9}), ContractError);
  expect_same_through_json(*tokenizer, {"ab  abc", "<s>ab", "\xff"});
}

TEST_F(TokenizerTest, SentencePieceReadsAccompanyingFiles) {
  file("spiece.model", small_unigram().serialized());
  file("tokenizer_config.json", R"({"tokenizer_class": "T5Tokenizer", "eos_token": "</s>", "added_tokens_decoder":
    {"2": {"content": "</s>", "special": true}, "11": {"content": "<extra_id_0>", "lstrip": true}}})");
  const auto tokenizer = load_tokenizer(folder_);
  EXPECT_EQ(tokenizer->size(), 12);
  EXPECT_EQ(tokenizer->token(10), "");
  EXPECT_THAT(tokenizer->framed(tokenizer->encode("ab<extra_id_0>", SpecialTokenMode::as_token)),
              ElementsAre(4, 5, 11, 2));
  EXPECT_EQ(tokenizer->decode(Ids{4, 10, 11}), "a<extra_id_0>");
  expect_same_through_json(*tokenizer, {"ab  <extra_id_0>ab"});
  file("tokenizer_config.json", R"({"tokenizer_class": "XLMRobertaTokenizer"})");
  EXPECT_THAT(message_of<UserError>([&] { load_tokenizer(folder_); }),
              HasSubstr("XLMRobertaTokenizer does more than its SentencePiece model describes"));
  file("tokenizer_config.json", R"({"added_tokens_decoder": {"3": {"content": "<x>"}}})");
  EXPECT_THAT(message_of<UserError>([&] { load_tokenizer(folder_); }), HasSubstr("'<x>' has the id 3"));
  file("tokenizer_config.json", "{}");
  file("config.json", R"({"model_type": "deberta-v2"})");
  EXPECT_THAT(message_of<UserError>([&] { load_tokenizer(folder_); }), HasSubstr("DebertaV2Tokenizer does more"));
  file("config.json", R"({"model_type": "umt5"})");
  EXPECT_THAT(load_tokenizer(folder_)->framed(Ids{4}), ElementsAre(4, 2)) << "as T5";
  file("spiece.model", "not a model");
  EXPECT_THAT(message_of<UserError>([&] { load_tokenizer(folder_); }),
              HasSubstr("spiece.model: not a SentencePiece model"));
  // normalizer_spec with a precompiled_charsmap that states a larger trie than it has
  file("spiece.model", small_unigram().serialized() + std::string("\x1a\x06\x12\x04\xff\xff\xff\x7f", 8));
  EXPECT_THAT(message_of<UserError>([&] { load_tokenizer(folder_); }),
              HasSubstr("spiece.model: not a SentencePiece model (its precompiled_charsmap is damaged)"));
}

/// A GGUF file without tensors.
class Gguf {
 public:
  Gguf& text(const std::string& key, const std::string& value) { return pair(key, 8, gguf_text(value)); }
  Gguf& integer(const std::string& key, std::uint32_t value) { return pair(key, 4, packed(std::vector{value})); }
  Gguf& boolean(const std::string& key, bool value) { return pair(key, 7, packed(std::vector<std::uint8_t>{value})); }
  Gguf& texts(const std::string& key, const std::vector<std::string>& values) {
    std::string all;
    for (const std::string& value : values) all += gguf_text(value);
    return pair(key, 9, gguf_array(8, values.size(), all));
  }
  Gguf& integers(const std::string& key, const std::vector<std::uint32_t>& values) {
    return pair(key, 9, gguf_array(5, values.size(), packed(values)));
  }
  Gguf& reals(const std::string& key, const std::vector<float>& values) {
    return pair(key, 9, gguf_array(6, values.size(), packed(values)));
  }
  std::string bytes() const { return testing::gguf_file(pairs_, {}); }

 private:
  Gguf& pair(const std::string& key, std::uint32_t type, const std::string& value) {
    pairs_.push_back(testing::gguf_pair(key, type, value));
    return *this;
  }
  std::vector<std::string> pairs_;
};

Gguf byte_level_gguf(const std::string& pre) {
  const ByteLevel parts;
  std::vector<std::string> tokens(parts.vocabulary.size());
  for (const auto& [token, id] : parts.vocabulary.items()) tokens[id.get<std::size_t>()] = token;
  std::vector<std::uint32_t> types(tokens.size(), 1);
  types.back() = 3;
  Gguf file;
  file.text("tokenizer.ggml.model", "gpt2")
      .text("tokenizer.ggml.pre", pre)
      .texts("tokenizer.ggml.tokens", tokens)
      .integers("tokenizer.ggml.token_type", types);
  return file.texts("tokenizer.ggml.merges", parts.merges)
      .integer("tokenizer.ggml.bos_token_id", 258)
      .integer("tokenizer.ggml.eos_token_id", 258);
}

TEST_F(TokenizerTest, ReadsByteLevelGguf) {
  const auto load = [&](Gguf gguf) { return load_tokenizer(file("model.gguf", gguf.bytes())); };
  const auto smollm = load(byte_level_gguf("smollm"));
  EXPECT_EQ(smollm->kind(), "bpe");
  EXPECT_THAT(smollm->encode("x he 12"), ElementsAre('x', 257, ' ', '1', '2'));
  EXPECT_THAT(smollm->encode("<|endoftext|>", SpecialTokenMode::as_token), ElementsAre(258));
  EXPECT_EQ(smollm->framed({}), Ids());
  EXPECT_EQ(smollm->special().end, 258);
  EXPECT_EQ(smollm->special().padding, std::nullopt);
  expect_same_through_json(*smollm, {"x he 12", "he<|endoftext|>"});
  EXPECT_EQ(load(byte_level_gguf("llama-bpe"))->framed({}), Ids{258})
      << "Llama 3 starts with its beginning token by default";
  EXPECT_EQ(load(byte_level_gguf("llama-bpe").boolean("tokenizer.ggml.add_bos_token", false))->framed({}), Ids());
  EXPECT_EQ(load_tokenizer(folder_)->encode("he"), Ids{256}) << "the only GGUF file of a directory";
  EXPECT_THAT(message_of<UserError>([&] { load(byte_level_gguf("tekken")); }),
              HasSubstr("tokenizer.ggml.pre 'tekken' is not supported"));
  EXPECT_THAT(
      message_of<UserError>([&] { load(byte_level_gguf("gpt-2").integer("tokenizer.ggml.padding_token_id", 999)); }),
      HasSubstr("tokenizer.ggml.padding_token_id is 999, but there are 259 tokens"));
  EXPECT_THAT(message_of<UserError>([&] { load(Gguf().text("tokenizer.ggml.model", "bert")); }),
              HasSubstr("tokenizer.ggml.model 'bert' is not supported"));
}

TEST_F(TokenizerTest, ReadsSentencePieceGguf) {
  // The score of a BPE token is minus the rank of its merge.
  std::vector<std::string> tokens{"<unk>", "<s>", "</s>", "\u2581", "a", "b", "ab", "\u2581ab"};
  std::vector<float> scores{0, 0, 0, -9, -9, -9, -1, -2};
  std::vector<std::uint32_t> types{2, 3, 3, 1, 1, 1, 1, 1};
  for (int byte = 0; byte < 256; ++byte) {
    tokens.push_back(fmt::format("<0x{:02X}>", byte));
    scores.push_back(0);
    types.push_back(6);
  }
  Gguf gguf;
  gguf.text("tokenizer.ggml.model", "llama")
      .texts("tokenizer.ggml.tokens", tokens)
      .reals("tokenizer.ggml.scores", scores);
  gguf.integers("tokenizer.ggml.token_type", types)
      .integer("tokenizer.ggml.bos_token_id", 1)
      .integer("tokenizer.ggml.eos_token_id", 2);
  const auto tokenizer = load_tokenizer(file("model.gguf", gguf.bytes()));
  EXPECT_EQ(tokenizer->kind(), "sentencepiece");
  EXPECT_THAT(tokenizer->encode("ab  ab"), ElementsAre(7, 3, 7)) << "spaces are kept";
  EXPECT_THAT(tokenizer->encode("a\u00e9"), ElementsAre(3, 4, 8 + 0xC3, 8 + 0xA9));
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("a\u00e9 ab")), "a\u00e9 ab");
  EXPECT_THAT(tokenizer->framed(Ids{7}), ElementsAre(1, 7));
  expect_same_through_json(*tokenizer, {"ab a\u00e9", "ab</s>"});
}

TEST_F(TokenizerTest, RejectsUnreadableFilesWithReason) {
  const json good = ByteLevel().document();
  const auto with = [&](const char* pointer, const json& value) {
    json changed = good;
    changed[json::json_pointer(pointer)] = value;
    return changed;
  };
  EXPECT_THAT(error_of(with("/model/type", "WordLevel")),
              HasSubstr("tokenizer.json: model: the model 'WordLevel' is not supported"));
  EXPECT_THAT(error_of(with("/model/vocab", json::array())), HasSubstr("model.vocab: expected an object"));
  EXPECT_THAT(error_of(with("/model/vocab/he", "x")), HasSubstr("expected an integer, found string"));
  EXPECT_THAT(error_of(with("/model/vocab/he", -1)), HasSubstr("-1 is not a token id"));
  EXPECT_THAT(error_of(with("/model/vocab/he", 12)), HasSubstr("the id 12 belongs to two tokens"));
  EXPECT_THAT(error_of(with("/normalizer", {{"type", "Nmt"}})),
              HasSubstr("tokenizer.json: normalizer: the normalizer 'Nmt'"));
  EXPECT_THAT(error_of(with("/post_processor", {{"type", "Other"}})), HasSubstr("the post_processor 'Other'"));
  EXPECT_THAT(error_of(with("/added_tokens/0/id", 7)), HasSubstr("'<|endoftext|>' has the id 7"));
  EXPECT_THAT(error_of(with("/post_processor", {{"type", "BertProcessing"}, {"cls", {"x", 900}}, {"sep", {"x", 1}}})),
              HasSubstr("post_processor: the special token 900"));
  EXPECT_THAT(message_of<UserError>([&] { load_tokenizer(file("tokenizer.json", "{\"model\": ")); }),
              HasSubstr("tokenizer.json: is not valid JSON"));
  EXPECT_THAT(message_of<UserError>([&] { load_tokenizer(file("tokenizer.json", std::string(100000, '['))); }),
              HasSubstr("nested more than 64 deep"));
  // Text from a file is printed without control characters, and truncated.
  const std::string shown = error_of(with("/normalizer", {{"type", "\x1b[2J\n" + std::string(100'000, 'x')}}));
  EXPECT_THAT(shown, HasSubstr("the normalizer '\\x1b[2J\\x0axxx"));
  EXPECT_LT(shown.size(), 2100U);
  EXPECT_THAT(message_of<UserError>([&] { load_tokenizer(path("missing")); }), HasSubstr("missing: does not exist"));
  EXPECT_THAT(message_of<UserError>([&] { load_tokenizer(file("weights.bin", "x")); }),
              HasSubstr("not a tokenizer file"));
  std::filesystem::create_directory(path("empty"));
  EXPECT_THAT(message_of<UserError>([&] { load_tokenizer(path("empty")); }),
              HasSubstr("no tokenizer found; expected tokenizer.json"));
  EXPECT_THAT(message_of<UserError>([&] { tokenizer_from_json("{\"kind\": \"runes\", \"special\": {}}", "run.h5"); }),
              HasSubstr("run.h5: kind: unknown tokenizer 'runes'"));
  EXPECT_THAT(
      message_of<UserError>([&] {
        tokenizer_from_json(
            R"({"kind":"letters","special":{"unknown":9},"letters":["A"],"units":"letters","joins_unknown":false,)"
            R"("frame":{"front":[],"back":[]}})",
            "run.h5");
      }),
      HasSubstr("special.unknown: token 9 does not exist"));
}

/// Any file gives either a tokenizer or one error.
TEST_F(TokenizerTest, DamagedJsonNeverCrashes) {
  file("vocab.txt", lines(bert_vocabulary));
  const std::vector<std::string> documents{byte_level(ByteLevel().document())->to_json(),
                                           load_tokenizer(path("vocab.txt"))->to_json(),
                                           load_tokenizer(file("m.model", small_unigram().serialized()))->to_json()};
  std::mt19937 random(5);
  int refused = 0;
  for (int round = 0; round < 600; ++round) {
    std::string damaged = documents[static_cast<std::size_t>(round) % documents.size()];
    for (int change = 0; change < 3; ++change) {
      const std::size_t at = random() % damaged.size();
      const std::string_view letters = "0129-\"{}[],:xnt\\";
      random() % 2 ? damaged.erase(at, 1 + random() % 8) : (damaged[at] = letters[random() % letters.size()], damaged);
    }
    try {
      const auto tokenizer = tokenizer_from_json(damaged, "f");
      tokenizer->decode(tokenizer->framed(tokenizer->encode("he the ab<s>[MASK]", SpecialTokenMode::as_token)));
    } catch (const UserError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 300);
}

}  // namespace
}  // namespace furlong
