// The parts of tokenizers: characters, patterns, splitting, merging.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>

#include "datasets/tokenizers/added_tokens.h"
#include "datasets/tokenizers/base64.h"
#include "datasets/tokenizers/normalizer.h"
#include "datasets/tokenizers/pattern.h"
#include "datasets/tokenizers/piece_model.h"
#include "datasets/tokenizers/pre_tokenizer.h"
#include "datasets/tokenizers/token_decoder.h"
#include "datasets/tokenizers/unicode.h"
#include "tests/temporary_folder.h"

namespace furlong {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::message_of;

JsonView json_view(const json& value) { return JsonView(value, "f:"); }

std::vector<std::string> pieces_of(const json& pre_tokenizer, std::string_view text) {
  std::vector<std::string> pieces;
  PreTokenizer(json_view(pre_tokenizer)).split({text, true}, [&](TextPiece piece) { pieces.emplace_back(piece.text); });
  return pieces;
}

std::string normalized(const json& normalizer, std::string text) {
  return Normalizer(json_view(normalizer)).apply(std::move(text));
}

json split(const char* regex, const char* behavior, bool invert = false) {
  return {{"type", "Split"}, {"pattern", {{"Regex", regex}}}, {"behavior", behavior}, {"invert", invert}};
}

TEST(Unicode, ValidLengthStopsAtMalformedUtf8) {
  EXPECT_EQ(unicode::valid_length("a\u00e9\u20ac\U0001F600"), 10u);
  const std::vector<std::string> ill_formed{
      "\x80", "\xC0\x80", "\xE0\x80\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xE2\x82", "\xFF"};
  for (const std::string& bytes : ill_formed) {
    EXPECT_EQ(unicode::valid_length("ab" + bytes), 2u) << ::testing::PrintToString(bytes);
    std::string expected = "a";
    for (std::size_t i = 0; i < bytes.size(); ++i) expected += "\uFFFD";
    EXPECT_EQ(unicode::with_replacements("a" + bytes + "b"), expected + "b");
  }
  for (char32_t character : {U'\0', U'\x7f', U'\x80', U'\u07ff', U'\u0800', U'\uffff', U'\U00010000', U'\U0010ffff'}) {
    std::string text;
    unicode::append(text, character);
    std::size_t position = 0;
    EXPECT_EQ(unicode::next(text, position), character);
    EXPECT_EQ(position, text.size());
  }
}

TEST(Unicode, NormalizesFormsAndCase) {
  using unicode::Form;
  EXPECT_EQ(unicode::normalize("\u00e9\uac00", Form::nfd), "e\u0301\u1100\u1161");
  EXPECT_EQ(unicode::normalize("e\u0301\u1100\u1161", Form::nfc), "\u00e9\uac00");
  EXPECT_EQ(unicode::normalize("\ufb01\u00b2\u2167", Form::nfkc), "fi2VIII");
  EXPECT_EQ(unicode::normalize("a\u0301\u0323", Form::nfd), "a\u0323\u0301") << "marks are sorted";
  EXPECT_EQ(unicode::lowercase("ÀΣİẞǅ\U00010400z"), "\u00e0\u03c3i\u0307\u00df\u01c6\U00010428z");
}

// utf8proc_map() differs only in time.
TEST(Unicode, NormalizesEveryCharacterAsUtf8procDoes) {
  std::string text;
  for (char32_t character = 1; character <= 0x10ffff; ++character) {
    if (character >= 0xd800 && character < 0xe000) continue;
    std::string one;
    unicode::append(one, character);
    text += one + "\u0f73\u0301" + one + "\u0323";
    if (character % 65536 != 65535) continue;
    for (const auto& [form, options] : {std::pair<unicode::Form, int>(unicode::Form::nfc, UTF8PROC_COMPOSE),
                                        {unicode::Form::nfd, UTF8PROC_DECOMPOSE},
                                        {unicode::Form::nfkc, UTF8PROC_COMPOSE | UTF8PROC_COMPAT},
                                        {unicode::Form::nfkd, UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT}}) {
      utf8proc_uint8_t* expected = nullptr;
      const utf8proc_ssize_t length =
          utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), std::ssize(text), &expected,
                       static_cast<utf8proc_option_t>(options | UTF8PROC_STABLE));
      ASSERT_GE(length, 0);
      const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(expected, &std::free);
      ASSERT_TRUE(unicode::normalize(text, form) ==
                  std::string_view(reinterpret_cast<const char*>(expected), static_cast<std::size_t>(length)))
          << "up to " << static_cast<std::uint32_t>(character);
    }
    text.clear();
  }
}

TEST(Base64, RoundTripsBytesAndRejectsInvalidText) {
  EXPECT_EQ(to_base64("foobar"), "Zm9vYmFy");  // RFC 4648, section 10
  EXPECT_EQ(to_base64("foob"), "Zm9vYg==");
  EXPECT_EQ(to_base64("fooba"), "Zm9vYmE=");
  std::string bytes;
  for (int i = 0; i < 300; ++i) {
    EXPECT_EQ(from_base64(to_base64(bytes)), bytes);
    bytes += static_cast<char>(i * 7);
  }
  for (const char* wrong : {"Zm9", "Zm9v====", "Zg=v", "Z===", "Zm9*", "=m9v", "Zm=v"})
    EXPECT_FALSE(from_base64(wrong)) << wrong;
}

TEST(Pattern, MatchesOnigurumaSemantics) {
  const auto matches = [](const char* expression, std::string_view text) {
    const Pattern pattern(expression, "f");
    std::vector<std::string> found;
    Pattern::Search search(pattern, text);
    while (const auto match = search.next())
      found.emplace_back(text.substr(match->first, match->second - match->first));
    return found;
  };
  EXPECT_THAT(matches(R"(\s+)", "a\u180eb\u00a0\u3000c\x85"), ElementsAre("\u00a0\u3000"))
      << "U+180E is a space only in PCRE2";
  EXPECT_THAT(matches(R"([^\s]+)", "a\u2028b"), ElementsAre("a", "b"));
  EXPECT_THAT(matches(R"(\p{Han}+)", "\u3001\u4eba\u3002"), ElementsAre("\u4eba"))
      << "not the script extensions of Han";
  EXPECT_THAT(matches(R"(\w+)", "\u0915\u094d\u2040x \u2160\u00b2 -"),
              ElementsAre("\u0915\u094d\u2040x", "\u2160\u00b2"));
  EXPECT_THAT(matches(R"([^\w\s]+)", "]\u00bd\u0130"), ElementsAre("]\u00bd")) << "inside a class ½ is no word";
  EXPECT_THAT(matches(R"((?i:'s|'ll))", "it'S 'LL '\u017f"), ElementsAre("'S", "'LL", "'\u017f"));
  EXPECT_THAT(matches(R"(\p{N}{1,3})", "1234567"), ElementsAre("123", "456", "7"));
  EXPECT_THAT(matches(R"(\Aa+)", "aa\naa"), ElementsAre("aa"));
  EXPECT_THAT(matches(R"((b| )+\z)", "b b\nb \n"), ElementsAre()) << "not before a final line end";
  EXPECT_THAT(matches(R"((b| )+\z)", "b b\n bb "), ElementsAre(" bb "));
}

TEST(Pattern, RejectsEngineDependentSyntax) {
  for (const char* expression :
       {R"(\bword)", R"(\h+)", "^a", "a$", "(?i)a", "a{,3}", "a{2}+", "[a&&b]", "[[:alpha:]]", "[^\\S]", R"([\A])",
        R"(\x41)", R"(\p{^L})", R"((?<n>a))", R"(\1)", "(*COMMIT)a", "a\\"}) {
    EXPECT_THAT(message_of<UserError>([&] { Pattern(expression, "f.json: model"); }),
                HasSubstr("f.json: model: the pattern"))
        << expression;
  }
  EXPECT_THAT(message_of<UserError>([] { Pattern("a*", "f"); }), HasSubstr("can match the empty text"));
  EXPECT_THAT(message_of<UserError>([] { Pattern("(a", "f"); }), HasSubstr("is invalid"));
  EXPECT_THAT(message_of<UserError>([] { Pattern("\\p{Klingon}", "f"); }), HasSubstr("is invalid"));
}

TEST(Pattern, EndlessBacktrackingIsUserError) {
  const Pattern pattern("(?:a+)+[bc]", "f.json: model");
  const std::string text(64, 'a');
  EXPECT_THAT(message_of<UserError>([&] { Pattern::Search(pattern, text).next(); }),
              HasSubstr("f.json: model: the pattern '(?:a+)+[bc]' takes more than 10000000 steps"));
}

TEST(Pattern, MatchesLongRunsWithoutDeepStack) {
  const std::string spaces(3'000'000, ' ');
  const Pattern pattern(gpt2_pattern, "f");
  Pattern::Search search(pattern, spaces);
  EXPECT_EQ(search.next(), std::pair(std::size_t{0}, spaces.size()));
  EXPECT_FALSE(search.next());
}

TEST(PreTokenizer, SplitsLikeGpt2AndVariants) {
  const json gpt2{{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}};
  EXPECT_THAT(pieces_of(gpt2, "Hello  world's 1234\n\n x!?"),
              ElementsAre("Hello", " ", " world", "'s", " 1234", "\n\n", " x", "!?"));
  EXPECT_THAT(pieces_of({{"type", "ByteLevel"}}, "a b"), ElementsAre(" a", " b")) << "add_prefix_space is the default";
  const json smollm{{"type", "Sequence"}, {"pretokenizers", {{{"type", "Digits"}, {"individual_digits", true}}, gpt2}}};
  EXPECT_THAT(pieces_of(smollm, "in 1969\u0663."), ElementsAre("in", " ", "1", "9", "6", "9", "\u0663", "."));
  EXPECT_THAT(pieces_of({{"type", "Digits"}}, "a12b"), ElementsAre("a", "12", "b"));
}

TEST(PreTokenizer, Splitting) {
  EXPECT_THAT(pieces_of(split("-", "Isolated"), "a--b-"), ElementsAre("a", "-", "-", "b", "-"));
  EXPECT_THAT(pieces_of(split("-", "Removed"), "a--b-"), ElementsAre("a", "b"));
  EXPECT_THAT(pieces_of(split("-", "MergedWithPrevious"), "a--b-"), ElementsAre("a-", "-", "b-"));
  EXPECT_THAT(pieces_of(split("-", "MergedWithNext"), "a--b-"), ElementsAre("a", "-", "-b", "-"));
  EXPECT_THAT(pieces_of(split("-", "Contiguous"), "a--b-"), ElementsAre("a", "--", "b", "-"));
  EXPECT_THAT(pieces_of(split("-", "Removed", true), "a--b-"), ElementsAre("-", "-", "-"));
  EXPECT_THAT(pieces_of({{"type", "BertPreTokenizer"}}, "a,\u3000b\u2019 c$"),
              ElementsAre("a", ",", "b", "\u2019", "c", "$"));
  EXPECT_THAT(pieces_of({{"type", "Whitespace"}}, "a_b, c!!"), ElementsAre("a_b", ",", "c", "!!"));
  EXPECT_THAT(pieces_of({{"type", "Whitespace"}}, " \u0645\u06cc\u200c\u062e x\u00b2\t\u24b6b "),
              ElementsAre("\u0645\u06cc\u200c\u062e", "x", "\u00b2", "\u24b6b"));
  EXPECT_THAT(pieces_of({{"type", "Metaspace"}}, "a  b"), ElementsAre("\u2581a", "\u2581", "\u2581b"));
  EXPECT_THAT(pieces_of({{"type", "Metaspace"}, {"prepend_scheme", "never"}, {"split", false}}, "a b"),
              ElementsAre("a\u2581b"));
  EXPECT_THAT(pieces_of({{"type", "Metaspace"}}, " a"), ElementsAre("\u2581a"))
      << "a mark is only added if there is none";
}

TEST(Normalizer, Bert) {
  const json uncased{{"type", "BertNormalizer"}};
  EXPECT_EQ(normalized(uncased, "Na\u00efve\tCAF\u00c9"), "naive cafe");
  EXPECT_EQ(normalized(uncased, std::string("a\0b\x7f\u200b\ufffd", 9) + "c\u2028d"), "abc d");
  EXPECT_EQ(normalized(uncased, "x\u4eba\u5de5y\uac00"), "x \u4eba  \u5de5 y\u1100\u1161")
      << "Hangul is decomposed and not composed again";
  EXPECT_EQ(normalized({{"type", "BertNormalizer"}, {"lowercase", false}}, "\u00c9a\u0301"), "\u00c9a\u0301");
  EXPECT_EQ(normalized({{"type", "BertNormalizer"}, {"lowercase", false}, {"strip_accents", true}}, "\u00c9"), "E");
}

TEST(Normalizer, Steps) {
  EXPECT_EQ(normalized({{"type", "Strip"}, {"strip_left", false}, {"strip_right", true}}, " a b \u3000"), " a b");
  EXPECT_EQ(normalized({{"type", "Strip"}}, " \t "), "");
  EXPECT_EQ(normalized({{"type", "Replace"}, {"pattern", {{"String", "aa"}}}, {"content", "b"}}, "aaaaa"), "bba");
  EXPECT_EQ(normalized({{"type", "Replace"}, {"pattern", {{"Regex", " {2,}"}}}, {"content", "_"}}, "a   b c"), "a_b c");
  EXPECT_EQ(normalized({{"type", "Sequence"},
                        {"normalizers", {{{"type", "NFD"}}, {{"type", "StripAccents"}}, {{"type", "Lowercase"}}}}},
                       "\u00c9\u093e"),
            "e");
  EXPECT_EQ(normalized({{"type", "Prepend"}, {"prepend", "_"}}, ""), "");
}

/// A sequence of steps, each of which doubles its input.
json doubling(int times, const char* list) {
  json steps = json::array();
  for (int i = 0; i < times; ++i)
    steps.push_back({{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aa"}});
  return {{"type", "Sequence"}, {list, steps}};
}

// Forty doublings would make a terabyte; so would one step with a long content on a long line.
TEST(Normalizer, LimitsTextGrowth) {
  EXPECT_EQ(normalized(doubling(5, "normalizers"), "ab").size(), 33U);
  EXPECT_EQ(message_of<UserError>([] { normalized(doubling(40, "normalizers"), "ab"); }),
            "f: produces more than 1152 bytes from a text of 2 bytes (64 times its length plus 1,024); the file may be "
            "damaged");
  const json regex{{"type", "Replace"}, {"pattern", {{"Regex", "a"}}}, {"content", std::string(1 << 20, 'a')}};
  EXPECT_THAT(message_of<UserError>([&] { normalized(regex, std::string(1 << 20, 'a')); }),
              HasSubstr("from a text of 1048576"));
  const json front{{"type", "Prepend"}, {"prepend", std::string(10'000, 'a')}};
  EXPECT_THAT(message_of<UserError>([&] { normalized(front, "a"); }), HasSubstr("produces more than 1088 bytes"));
  // Published tokenizers stay far below the limit.
  EXPECT_EQ(normalized({{"type", "NFKC"}}, "\uFDFA").size(), 33U);
}

// Each pair of steps puts sixteen marks before each piece and makes each mark a piece of its own.
TEST(PreTokenizer, LimitsTextGrowth) {
  const auto multiplying = [](int pairs) {
    json steps = json::array();
    for (int i = 0; i < pairs; ++i) {
      const char mark = i % 2 == 0 ? 'a' : 'b';
      steps.push_back({{"type", "Metaspace"}, {"replacement", std::string(16, mark)}, {"split", false}});
      steps.push_back({{"type", "Metaspace"}, {"replacement", std::string(1, mark)}, {"prepend_scheme", "never"}});
    }
    return json{{"type", "Sequence"}, {"pretokenizers", steps}};
  };
  EXPECT_EQ(pieces_of(multiplying(1), "x").size(), 16U);
  EXPECT_THAT(message_of<UserError>([&] { pieces_of(multiplying(3), "x"); }),
              HasSubstr("f: produces more than 1088 bytes from a text of 1 bytes"));
}

// A mark with a space would be replaced again by the next Metaspace.
TEST(PreTokenizer, RejectsMarksWithSpaces) {
  for (const std::string& mark : {std::string("  "), std::string("\u2581 "), std::string(), std::string(17, '_')})
    EXPECT_EQ(message_of<UserError>([&] {
                pieces_of({{"type", "Metaspace"}, {"replacement", mark}}, "");
              }),
              "f: the replacement is '" + mark + "', expected 1 to 16 bytes without spaces");
}

TEST(TokenDecoder, LimitsTextGrowth) {
  EXPECT_EQ(TokenDecoder(json_view(doubling(5, "decoders"))).decode({"a", "b"}).size(), 33U);
  EXPECT_THAT(message_of<UserError>([] {
                TokenDecoder(json_view(doubling(40, "decoders"))).decode({"a", "b"});
              }),
              HasSubstr("f: produces more than 1280 bytes"));
}

TEST(Normalizer, UnsupportedStepTypesAreNamed) {
  EXPECT_THAT(message_of<UserError>([] {
                normalized({{"type", "Nmt"}}, "");
              }),
              HasSubstr("the normalizer 'Nmt' is not supported"));
  EXPECT_THAT(message_of<UserError>([] {
                pieces_of({{"type", "UnicodeScripts"}}, "");
              }),
              HasSubstr("the pre_tokenizer 'UnicodeScripts' is not supported"));
  EXPECT_THAT(message_of<UserError>([] {
                TokenDecoder(json_view({{"type", "CTC"}}));
              }),
              HasSubstr("the decoder 'CTC' is not supported"));
  const json after_byte_level{{"type", "Sequence"}, {"pretokenizers", {{{"type", "ByteLevel"}}, {{"type", "Digits"}}}}};
  EXPECT_THAT(message_of<UserError>([&] { pieces_of(after_byte_level, ""); }),
              HasSubstr("f: pretokenizers[1]: 'Digits' after ByteLevel"));
}

TEST(AddedTokens, MatchesLongestFirstAndHonorsOptions) {
  const AddedTokens tokens({{.content = "<a>", .id = 1, .special = true},
                            {.content = "<a><b>", .id = 2},
                            {.content = "cat", .id = 3, .single_word = true},
                            {.content = "<m>", .id = 4, .lstrip = true, .rstrip = true}});
  const auto parts = [&](std::string_view text, SpecialTokenMode special) {
    std::string all;
    tokens.split(text, special, [&](std::string_view part, std::optional<std::int32_t> id) {
      all += id ? fmt::format("({})", *id) : fmt::format("[{}]", part);
    });
    return all;
  };
  EXPECT_EQ(parts("x<a>y<a><b>", SpecialTokenMode::as_token), "[x](1)[y](2)");
  EXPECT_EQ(parts("x<a>y<a><b>", SpecialTokenMode::as_text), "[x<a>y](2)");
  EXPECT_EQ(parts("cat concat cats \u00e9cat cat", SpecialTokenMode::as_text), "(3)[ concat cats \u00e9cat ](3)");
  EXPECT_EQ(parts("a \u3000<m>\t<m> b", SpecialTokenMode::as_text), "[a](4)(4)[b]");
  EXPECT_EQ(parts("", SpecialTokenMode::as_token), "");
}

/// Byte-pair encoding by its definition: find the best pair, merge it, repeat.
std::vector<std::string> merged_by_definition(std::vector<std::string> symbols,
                                              const std::vector<std::pair<std::string, std::string>>& merges) {
  for (;;) {
    std::size_t best = merges.size(), place = 0;
    for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto found = std::find(merges.begin(), merges.end(), std::pair(symbols[i], symbols[i + 1]));
      const auto rank = static_cast<std::size_t>(found - merges.begin());
      if (rank < best) {
        best = rank;
        place = i;
      }
    }
    if (best == merges.size()) return symbols;
    symbols[place] += symbols[place + 1];
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(place) + 1);
  }
}

TEST(BpeModel, MatchesReferenceMergeOrder) {
  std::mt19937 random(1);
  for (int round = 0; round < 30; ++round) {
    std::vector<std::string> tokens{"a", "b", "c"};
    std::vector<std::pair<std::string, std::string>> merges;
    while (merges.size() < 25) {
      const std::pair pair(tokens[random() % tokens.size()], tokens[random() % tokens.size()]);
      const std::string both = pair.first + pair.second;
      // Each token has one pair that merges to it, as in trained models.
      if (both.size() > 6 || std::find(tokens.begin(), tokens.end(), both) != tokens.end()) continue;
      merges.push_back(pair);
      tokens.push_back(both);
    }
    json model{{"type", "BPE"}, {"vocab", json::object()}, {"merges", json::array()}};
    TokenTable table;
    for (std::size_t id = 0; id < tokens.size(); ++id) table.add(tokens[id], static_cast<std::int32_t>(id), "f");
    for (const auto& [left, right] : merges)
      model["merges"].push_back(random() % 2 ? json(left + " " + right) : json{left, right});
    const auto bpe = make_bpe_model(json_view(model), table, false);
    for (int i = 0; i < 60; ++i) {
      std::vector<std::string> letters(random() % 40);
      std::string word;
      for (std::string& letter : letters) word += letter = std::string(1, static_cast<char>('a' + random() % 3));
      std::vector<std::int32_t> ids;
      bpe->encode(word, ids);
      std::vector<std::string> found;
      for (const std::int32_t id : ids) found.push_back(table.token(id));
      EXPECT_EQ(found, merged_by_definition(letters, merges)) << word;
    }
  }
}

TEST(BpeModel, HandlesUnknownLetters) {
  TokenTable table;
  const std::vector<std::string> tokens{"<unk>", "a", "b", "ab", "<0xC3>", "<0xA9>"};
  for (std::size_t id = 0; id < tokens.size(); ++id) table.add(tokens[id], static_cast<std::int32_t>(id), "f");
  std::uint64_t skipped = 0;
  const auto encode = [&](json more, std::string_view text) {
    json model{{"type", "BPE"}, {"merges", {"a b"}}};
    model.update(more);
    std::vector<std::int32_t> ids;
    const auto bpe = make_bpe_model(json_view(model), table, false);
    bpe->encode(text, ids);
    skipped = bpe->skips() ? bpe->count_skipped(text) : 0;
    return ids;
  };
  EXPECT_THAT(encode(json::object(), "axyb\u00e9"), ElementsAre(3))
      << "without an unknown token letters are dropped, and their neighbors merge";
  EXPECT_EQ(skipped, 3u);
  EXPECT_THAT(encode({{"byte_fallback", true}}, "ab\u00e9\u20ac"), ElementsAre(3, 4, 5));
  EXPECT_EQ(skipped, 1u);
  EXPECT_THAT(encode({{"unk_token", "<unk>"}}, "axyb"), ElementsAre(1, 0, 0, 2));
  EXPECT_EQ(skipped, 0u);
  EXPECT_THAT(encode({{"unk_token", "<unk>"}, {"fuse_unk", true}}, "axybz"), ElementsAre(1, 0, 2, 0));
  EXPECT_THAT(encode({{"unk_token", "<unk>"}, {"byte_fallback", true}}, "ab\u00e9\u20ac"), ElementsAre(3, 4, 5, 0));
  EXPECT_THAT(encode({{"ignore_merges", true}, {"merges", json::array()}}, "ab"), ElementsAre(3));
  EXPECT_THAT(message_of<UserError>([&] {
                encode({{"merges", {"a c"}}}, "");
              }),
              HasSubstr("merges[0]: 'c' is not in the vocabulary"));
  EXPECT_THAT(message_of<UserError>([&] { encode({{"merges", {"a b c"}}}, ""); }), HasSubstr("is not a merge"));
  EXPECT_THAT(message_of<UserError>([&] { encode({{"dropout", 0.1}}, ""); }), HasSubstr("dropout"));
  EXPECT_THAT(message_of<UserError>([&] {
                encode({{"end_of_word_suffix", "</w>"}}, "");
              }),
              HasSubstr("'</w>', which is not supported"));
}

TEST(BpeModel, MapsBytesToPrintableLetters) {
  std::set<char32_t> letters;
  for (int byte = 0; byte < 256; ++byte) {
    const char32_t letter = letter_of_byte(static_cast<unsigned char>(byte));
    letters.insert(letter);
    std::string text;
    unicode::append(text, letter);
    EXPECT_EQ(bytes_of_token(text), std::string(1, static_cast<char>(byte)));
  }
  EXPECT_EQ(letters.size(), 256u);
  EXPECT_EQ(letter_of_byte(' '), U'\u0120');
  EXPECT_EQ(letter_of_byte('\n'), U'\u010a');
  EXPECT_EQ(letter_of_byte(0xAD), U'\u0143');
  EXPECT_FALSE(bytes_of_token("a\u4eba"));
}

TEST(WordPieceModel, MatchesLongestTokenFromTheLeft) {
  TokenTable table;
  const std::vector<std::string> tokens{"[UNK]", "un", "unaff", "##able", "##aff", "##a", "##b", "##\u00e9", "a"};
  for (std::size_t id = 0; id < tokens.size(); ++id) table.add(tokens[id], static_cast<std::int32_t>(id), "f");
  const json json_model{{"type", "WordPiece"}, {"max_input_chars_per_word", 12}};
  const auto model = make_wordpiece_model(json_view(json_model), table);
  const auto encode = [&](std::string_view word) {
    std::vector<std::int32_t> ids;
    model->encode(word, ids);
    return ids;
  };
  EXPECT_THAT(encode("unaffable"), ElementsAre(2, 3));
  EXPECT_THAT(encode("unafa"), ElementsAre(0)) << "a word with one unknown part is unknown as a whole";
  EXPECT_THAT(encode("a\u00e9\u00e9b"), ElementsAre(8, 7, 7, 6));
  EXPECT_THAT(encode("abbbbbbbbbbb"), ElementsAre(8, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6));
  EXPECT_THAT(encode("abbbbbbbbbbbb"), ElementsAre(0)) << "longer than the limit";
  EXPECT_THAT(encode("a\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9"), ::testing::SizeIs(12))
      << "characters count, not bytes";
}

TEST(TokenTable, RejectsDuplicateAndHugeIds) {
  TokenTable table;
  table.add("a", 3, "f");
  table.add("a", 3, "f");
  EXPECT_EQ(table.size(), 4);
  EXPECT_FALSE(table.has(2));
  EXPECT_THAT(message_of<UserError>([&] { table.add("a", 1, "f"); }),
              HasSubstr("f: the token 'a' has two ids, 3 and 1"));
  EXPECT_THAT(message_of<UserError>([&] { table.add("b", 3, "f"); }),
              HasSubstr("f: the id 3 belongs to two tokens, 'a' and 'b'"));
  EXPECT_THAT(message_of<UserError>([&] { table.add("c", 2'000'000'000, "f"); }), HasSubstr("expected 0 to"));
}

}  // namespace
}  // namespace furlong
