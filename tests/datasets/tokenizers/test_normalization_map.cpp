#include "datasets/tokenizers/normalization_map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdint>
#include <string>
#include <vector>

#include "datasets/tokenizers/base64.h"
#include "datasets/tokenizers/normalizer.h"
#include "datasets/tokenizers/sentencepiece_checks.h"
#include "datasets/tokenizers/sentencepiece_proto.h"
#include "datasets/tokenizers/tokenizer.h"
#include "framework/core/error.h"
#include "tests/temporary_folder.h"

namespace furlong {
namespace {

/// A trie with the single key "a": the root's children are units 256 to 511.
struct Map {
  std::vector<std::uint32_t> units = std::vector<std::uint32_t>(512, 0);
  std::uint32_t trie_bytes = 0;  ///< 0: the size of the units
  std::string texts = std::string("b\0", 2);

  Map() {
    units[0] = offset(256);
    units[256 ^ 'a'] = offset(1) | 1 << 8 | 'a';  // has a leaf
    units[256 ^ 'a' ^ 1] = 0x80000000;            // whose text starts at 0
  }
  static std::uint32_t offset(std::uint32_t value) { return value << 10; }

  std::string bytes() const {
    std::string map = little_endian(trie_bytes ? trie_bytes : static_cast<std::uint32_t>(4 * units.size()));
    for (const std::uint32_t unit : units) map += little_endian(unit);
    return map + texts;
  }
  std::string serialized() const { return field(3, field(2, bytes())); }
  static std::string little_endian(std::uint32_t value) {
    std::string bytes;
    for (int shift = 0; shift < 32; shift += 8) bytes += static_cast<char>(value >> shift & 255);
    return bytes;
  }
  static std::string field(int number, const std::string& value) {
    std::string bytes(1, static_cast<char>(number << 3 | 2));
    std::size_t size = value.size();
    for (; size >= 128; size >>= 7) bytes += static_cast<char>(128 | (size & 127));
    return bytes + static_cast<char>(size) + value;
  }
};

void check(const Map& map) { check_sentencepiece_model(map.serialized(), "m.model"); }

TEST(NormalizationMap, AcceptsClosedTrie) {
  EXPECT_NO_THROW(check(Map()));
  EXPECT_NO_THROW(check_sentencepiece_model("", "m.model"));
  EXPECT_NO_THROW(check_sentencepiece_model(Map::field(3, ""), "m.model"));
}

TEST(NormalizationMap, FindsTheShortestPrefix) {
  const auto map = NormalizationMap::parse(Map().bytes());
  ASSERT_TRUE(map);
  EXPECT_TRUE(map->is_utf8());
  EXPECT_EQ(map->find("a"), "b");
  EXPECT_EQ(map->find("ab"), "b");
  EXPECT_EQ(map->find("b"), std::nullopt);
  EXPECT_EQ(map->find(""), std::nullopt);
  Map invalid;
  invalid.texts = std::string("\xc3\0", 2);
  EXPECT_FALSE(NormalizationMap::parse(invalid.bytes())->is_utf8());
  EXPECT_FALSE(NormalizationMap::parse(""));
}

// The reference implementation of tokenizer.json takes short clusters of characters as wholes.
TEST(NormalizationMap, PrecompiledStepReplacesClustersAndCharacters) {
  const nlohmann::json step{{"type", "Precompiled"}, {"precompiled_charsmap", to_base64(Map().bytes())}};
  const Normalizer normalizer(JsonView(step, "f:"));
  EXPECT_EQ(normalizer.apply("xaya"), "xbyb");
  EXPECT_EQ(normalizer.apply("xa\u0301y"), "xby");
  EXPECT_EQ(normalizer.apply("a\u0301\u0301\u0301"), "b\u0301\u0301\u0301");
  const nlohmann::json damaged{{"type", "Precompiled"}, {"precompiled_charsmap", "AAAA"}};
  EXPECT_THROW(Normalizer(JsonView(damaged, "f:")), UserError);
}

// One cluster of 8 kB would become 1 GiB.
TEST(NormalizationMap, PrecompiledStepEndsInsideAClusterThatGrowsTooMuch) {
  Map map;  // U+0301 becomes 256 KiB
  map.units.resize(1024, 0);
  map.units[256 ^ 0xCC] = Map::offset(256 ^ 0xCC ^ 512) | 0xCC;
  map.units[512 ^ 0x81] = Map::offset(512 ^ 0x81 ^ 768) | 1 << 8 | 0x81;
  map.units[768] = 0x80000000 | 2;
  map.texts += std::string(std::size_t{256} << 10, 'c') + std::string(1, '\0');
  const nlohmann::json step{{"type", "Precompiled"}, {"precompiled_charsmap", to_base64(map.bytes())}};
  const Normalizer normalizer(JsonView(step, "f:"));
  EXPECT_EQ(normalizer.apply(std::string(8192, ' ') + "x\u0301").size(), 8193U + (256U << 10));
  std::string cluster = "x";
  for (int i = 0; i < 4096; ++i) cluster += "\u0301";
  const auto peak_kib = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;
  };
  const auto before = peak_kib();
  EXPECT_THROW(normalizer.apply(cluster), UserError);
  EXPECT_LT(peak_kib() - before, 64 << 10);
}

TEST(NormalizationMap, RejectsSearchesOutsideTheTrie) {
  Map root;
  root.units[0] = Map::offset(1 << 20);
  EXPECT_THROW(check(root), UserError);
  Map child;
  child.units[256 ^ 'a'] = Map::offset(512) | 'a';
  EXPECT_THROW(check(child), UserError);
  Map scaled;  // bit 9 multiplies the offset by 256
  scaled.units[256 ^ 'a'] = Map::offset(2) | 1 << 9 | 'a';
  EXPECT_THROW(check(scaled), UserError);
  Map cut;  // the root's children would be beyond the array
  cut.units.resize(400);
  EXPECT_THROW(check(cut), UserError);
}

// SentencePiece stores 32 entries at one place of a text.
TEST(NormalizationMap, RejectsMoreEntriesThanTheLibraryHasRoomFor) {
  Map endless;  // a, aa, aaa and so on
  endless.units[256 ^ 'a'] = Map::offset('a') | 1 << 8 | 'a';
  EXPECT_THROW(check(endless), UserError);
  for (const std::uint32_t length : {32u, 33u}) {
    Map chain;
    chain.units.assign(256 * (length + 2), 0);
    chain.units[0] = Map::offset(256);
    for (std::uint32_t node = 1; node <= length; ++node) {
      const std::uint32_t child = 256 * node ^ 'a', next = 256 * (node + 1);
      chain.units[child] = Map::offset(child ^ next) | 1 << 8 | 'a';
      chain.units[next] = 0x80000000;
    }
    if (length > 32)
      EXPECT_THROW(check(chain), UserError);
    else
      EXPECT_NO_THROW(check(chain));
  }
}

TEST(NormalizationMap, RejectsTextsOutsideTheMap) {
  Map leaf;
  leaf.units[256 ^ 'a' ^ 1] = 0x80000000 | 2;
  EXPECT_THROW(check(leaf), UserError);
  Map endless;
  endless.texts = "b";
  EXPECT_THROW(check(endless), UserError);
  Map without;
  without.texts = "";
  EXPECT_THROW(check(without), UserError);
}

class SentencePieceFile : public testing::WithTemporaryFolder {};

TEST_F(SentencePieceFile, WithADamagedMapIsRejected) {
  SentencePieceProto proto;
  proto.pieces = {{"<unk>", 0, SentencePieceProto::Type::unknown}, {"a", -1}, {"b", -1}};
  Map damaged;
  damaged.units[0] = Map::offset(1 << 20);
  proto.normalization_map = damaged.bytes();
  EXPECT_THAT(testing::message_of<UserError>([&] { load_tokenizer(file("bad.model", proto.serialized())); }),
              ::testing::HasSubstr("its precompiled_charsmap is damaged"));
  // The same fields, whose keys have bits that SentencePiece ignores.
  const std::string map = damaged.bytes();
  const auto field = [](std::uint64_t key, const std::string& content) {
    std::string bytes;
    for (std::uint64_t number : {key | std::uint64_t{1} << 32, std::uint64_t{content.size()}}) {
      for (; number > 127; number >>= 7) bytes += static_cast<char>(number | 128);
      bytes += static_cast<char>(number);
    }
    return bytes + content;
  };
  proto.normalization_map.clear();
  const std::string hidden = proto.serialized() + field(3 << 3 | 2, field(2 << 3 | 2, map));
  EXPECT_THAT(testing::message_of<UserError>([&] { load_tokenizer(file("hidden.model", hidden)); }),
              ::testing::HasSubstr("a field is damaged"));
  Map long_text;
  long_text.texts = std::string(65, 'b') + std::string(1, '\0');
  proto.normalization_map = long_text.bytes();
  EXPECT_THAT(testing::message_of<UserError>([&] { load_tokenizer(file("long.model", proto.serialized())); }),
              ::testing::HasSubstr("replaces a character by more than 64 bytes"));
  long_text.texts.erase(0, 1);
  proto.normalization_map = long_text.bytes();
  EXPECT_EQ(load_tokenizer(file("good.model", proto.serialized()))->size(), 3);
}

// SentencePiece stores 64 of them at one place of a text.
TEST_F(SentencePieceFile, WithManyUserDefinedPrefixesIsRejected) {
  for (const std::size_t count : {64u, 65u}) {
    SentencePieceProto proto;
    proto.pieces = {{"<unk>", 0, SentencePieceProto::Type::unknown}, {"b", -1}};
    for (std::size_t length = count; length > 0; --length)
      proto.pieces.push_back({std::string(length, 'a'), 0, SentencePieceProto::Type::user_defined});
    const std::string path = file("prefixes.model", proto.serialized());
    if (count > 64)
      EXPECT_THAT(testing::message_of<UserError>([&] { load_tokenizer(path); }),
                  ::testing::HasSubstr("more than 64 user-defined pieces"));
    else
      EXPECT_EQ(load_tokenizer(path)->encode(std::string(200, 'a')).size(), 5);  // a space, and 3 * 64 + 8
  }
}

// A test of the library takes hundreds of times the memory of its text, and prints it.
TEST_F(SentencePieceFile, SelfTestsDoNotRun) {
  SentencePieceProto proto;
  proto.pieces = {{"<unk>", 0, SentencePieceProto::Type::unknown}, {"a", -1}, {"b", -1}};
  const std::string sample = Map::field(1, "a") + Map::field(2, "wrong");
  const std::string model = proto.serialized() + Map::field(4, Map::field(1, sample));
  EXPECT_EQ(load_tokenizer(file("tested.model", model))->size(), 3);
  EXPECT_EQ(without_self_tests(model, ""), proto.serialized());
}

// As protocol buffers' parser, which ignores it.
TEST(SentencePieceProto, FieldOfAnotherKindIsUnknown) {
  SentencePieceProto proto;
  proto.pieces = {{"<unk>", 0, SentencePieceProto::Type::unknown}, {"a", -1}, {"b", -1}};
  const auto parsed = SentencePieceProto::parsed(std::string("\x08\0\x08\0", 4) + proto.serialized(), "");
  EXPECT_EQ(parsed.pieces.size(), 3);
}

TEST(NormalizationMap, RejectsInconsistentSizes) {
  for (const std::uint32_t bytes : {1u, 3u, 2047u, 4096u, 0xFFFFFFFFu}) {
    Map map;
    map.trie_bytes = bytes;
    EXPECT_THROW(check(map), UserError) << bytes;
  }
  const std::string whole = Map().serialized();
  for (const std::size_t size : {std::size_t{1}, std::size_t{2}, whole.size() - 1})
    EXPECT_THROW(check_sentencepiece_model(whole.substr(0, size), "m.model"), UserError) << size;
}

}  // namespace
}  // namespace furlong
