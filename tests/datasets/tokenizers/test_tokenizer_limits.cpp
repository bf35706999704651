// Limits on tokenizer files: time, steps, collisions.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "datasets/tokenizers/normalizer.h"
#include "datasets/tokenizers/pattern.h"
#include "datasets/tokenizers/piece_model.h"
#include "datasets/tokenizers/pre_tokenizer.h"
#include "datasets/tokenizers/token_decoder.h"
#include "datasets/tokenizers/tokenizer.h"
#include "datasets/tokenizers/tokenizer_kinds.h"
#include "datasets/tokenizers/unicode.h"
#include "datasets/vocabulary.h"
#include "tests/temporary_folder.h"

namespace furlong {
namespace {

using nlohmann::json;
using std::chrono::steady_clock;
using ::testing::HasSubstr;
using testing::message_of;

JsonView view_of(const json& value) { return JsonView(value, "f:"); }

double seconds_since(steady_clock::time_point start) {
  return std::chrono::duration<double>(steady_clock::now() - start).count();
}

/// Returns the number of bytes in all matches, which must be in order.
std::size_t matched_bytes(const Pattern& pattern, std::string_view text) {
  Pattern::Search search(pattern, text);
  std::size_t bytes = 0, last_end = 0;
  while (const auto match = search.next()) {
    EXPECT_GE(match->first, last_end);
    last_end = match->second;
    bytes += match->second - match->first;
  }
  return bytes;
}

const std::string_view llama_pattern = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
                                       R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const std::string_view qwen_pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

TEST(PatternLimits, PublishedPatternsAcceptLongTexts) {
  const std::size_t n = 1 << 20;
  const auto repeated = [&](std::string_view part) {
    std::string text;
    while (text.size() < n) text += part;
    return text;
  };
  std::vector<std::string> texts{std::string(16 * n, ' '), std::string(n, ' ') + "a"};
  for (const char* part : {"a", "\u00e9", "7", "!", "\n", "\r\n", " \n", "  a", "'s", "\u3000", "a1 !\n"})
    texts.push_back(repeated(part));
  for (const std::string_view expression : {gpt2_pattern, llama_pattern, qwen_pattern}) {
    const Pattern pattern(expression, "f");
    for (const std::string& text : texts)
      EXPECT_EQ(matched_bytes(pattern, text), text.size()) << expression << " " << text.substr(0, 8);
  }
  // The text between matches is found in parts.
  EXPECT_EQ(matched_bytes(Pattern("\u20ac", "f"), repeated("-") + "\u20ac" + repeated("\u00e9") + "\u20ac"), 6U);
}

// Each space starts a run that is scanned to its end.
TEST(PatternLimits, QuadraticTimeIsUserError) {
  const Pattern pattern(R"((?<= )\s+(?=[bc]))", "f.json: model");
  const std::string text(1 << 19, ' ');
  const auto start = steady_clock::now();
  EXPECT_THAT(
      message_of<UserError>([&] { Pattern::Search(pattern, text).next(); }),
      HasSubstr("f.json: model: the pattern '(?<= )\\s+(?=[bc])' takes more than 4 s for a text of 524288 bytes"));
  EXPECT_GT(seconds_since(start), 3.9);
  EXPECT_LT(seconds_since(start), 60);
}

TEST(TokenizerLimits, LimitsNumberOfSteps) {
  const auto sequence = [](const char* key, const json& step, std::size_t n) {
    return json{{"type", "Sequence"}, {key, std::vector<json>(n, step)}};
  };
  const json lower{{"type", "Lowercase"}}, fuse{{"type", "Fuse"}};
  EXPECT_EQ(Normalizer(view_of(sequence("normalizers", lower, 63))).apply("A"), "a");
  EXPECT_THAT(message_of<UserError>([&] { Normalizer(view_of(sequence("normalizers", lower, 65))); }),
              HasSubstr("f: normalizers[64]: more than 64 normalizers"));
  EXPECT_EQ(TokenDecoder(view_of(sequence("decoders", fuse, 63))).decode({"a", "b"}), "ab");
  EXPECT_THAT(message_of<UserError>([&] { TokenDecoder(view_of(sequence("decoders", fuse, 65))); }),
              HasSubstr("f: decoders[64]: more than 64 decoders"));
  const json words{{"type", "WhitespaceSplit"}};
  std::vector<std::string> pieces;
  PreTokenizer(view_of(sequence("pretokenizers", words, 64))).split({"a b", true}, [&](TextPiece piece) {
    pieces.emplace_back(piece.text);
  });
  EXPECT_THAT(pieces, ::testing::ElementsAre("a", "b"));
  EXPECT_THAT(message_of<UserError>([&] { PreTokenizer(view_of(sequence("pretokenizers", words, 20'000))); }),
              HasSubstr("f: pretokenizers[64]: more than 64 pre_tokenizers"));
  EXPECT_EQ(frame_from_json(view_of({{"front", std::vector(32, 1)}, {"back", std::vector(32, 2)}})).front.size(), 32U);
  EXPECT_THAT(message_of<UserError>([&] {
                frame_from_json(view_of({{"front", std::vector(32, 1)}, {"back", std::vector(33, 2)}}));
              }),
              HasSubstr("more than 64 tokens around a text"));
  const json frame{{"type", "BertProcessing"}, {"cls", {"[CLS]", 1}}, {"sep", {"[SEP]", 2}}};
  EXPECT_EQ(frame_of_processor(view_of(sequence("processors", frame, 32))).front.size(), 32U);
  EXPECT_THAT(message_of<UserError>([&] { frame_of_processor(view_of(sequence("processors", frame, 33))); }),
              HasSubstr("f: processors[32]: more than 64 tokens around a text"));
}

class TokenizerFile : public testing::WithTemporaryFolder {};

// A dataset stores the tokenizer two levels deep.
TEST_F(TokenizerFile, IsNoDeeperThanItsDatasetCanBe) {
  const auto nested = [&](int levels) {
    json file{{"model",
               {{"type", "Unigram"},
                {"unk_id", 0},
                {"vocab", json::array({json::array({"<unk>", 0}), json::array({"a", -1})})}}}};
    json other = json::array();
    for (int level = 2; level < levels; ++level) other = json::array({other});
    file["other"] = other;
    return this->file("tokenizer.json", file.dump());
  };
  const Vocabulary vocabulary = Vocabulary::of_tokenizer(load_tokenizer(nested(62)));
  EXPECT_EQ(Vocabulary::from_json(vocabulary.to_json(), "copy"), vocabulary);
  EXPECT_THAT(message_of<UserError>([&] { load_tokenizer(nested(63)); }), HasSubstr("nested more than 62 deep"));
}

// In quadratic time each of these would take hours.
TEST(TokenizerLimits, LongTokensAreDecodedInLinearTime) {
  std::string marks;
  for (int i = 0; i < 20'000'000; ++i) marks += "\u2581";
  const json metaspace{{"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", "always"}};
  EXPECT_EQ(TokenDecoder(view_of(metaspace)).decode({marks}), std::string(19'999'999, ' '));
  const json strip{{"type", "Strip"}, {"content", "a"}, {"start", 20'000'000}, {"stop", 20'000'000}};
  const std::string letters(20'000'000, 'a');
  EXPECT_EQ(TokenDecoder(view_of(strip)).decode({letters + "b" + letters}), "b");
}

TEST(TokenizerLimits, LongRunsOfMarksAreSortedInLogLinearTime) {
  std::string above, below;
  for (int i = 0; i < 2'000'000; ++i) {
    above += "\u0301";
    below += "\u0323";
  }
  EXPECT_EQ(unicode::normalize("a" + above + below, unicode::Form::nfd), "a" + below + above);
}

TEST(TokenizerLimits, LongWordsAndLongTokensOfWordPieceExcludeEachOther) {
  const auto load = [&](std::int64_t characters, std::size_t longest) {
    const json model{{"type", "WordPiece"},
                     {"unk_token", "[UNK]"},
                     {"max_input_chars_per_word", characters},
                     {"vocab", {{"[UNK]", 0}, {std::string(longest, 'a'), 1}}}};
    return tokenizer_from_json(
        json{{"kind", "wordpiece"}, {"special", json::object()}, {"tokenizer", {{"model", model}}}}.dump(), "f");
  };
  EXPECT_EQ(load(1000, 257)->size(), 2);
  EXPECT_EQ(load(10'000'000'000, 256)->size(), 2) << "as some tokenizers of letters have it";
  EXPECT_THAT(message_of<UserError>([&] { load(1001, 257); }),
              HasSubstr("found 1001, expected at most 1000 with a token of 257 bytes"));
}

// Merges whose left ids differ by multiples of 16: without a seed, their hashes would collide.
TEST(TokenizerLimits, CollidingMergesAreNotSlower) {
  const auto seconds_of = [](std::int32_t stride) {
    constexpr std::int32_t n = 120000;
    TokenTable table;
    table.add("x", 0, "f");
    for (std::int32_t i = 0; i < n; ++i) {
      const std::string name = fmt::format("t{}", i);
      table.add(name, 1 + i * stride, "f");
      table.add(name + "x", 1 + n * 16 + i, "f");
    }
    json model{{"type", "BPE"}, {"vocab", json::object()}, {"merges", json::array()}};
    for (std::int32_t i = 0; i < n; ++i) model["merges"].push_back(fmt::format("t{} x", i));
    const auto start = steady_clock::now();
    make_bpe_model(view_of(model), table, false);
    return seconds_since(start);
  };
  EXPECT_LT(seconds_of(16), 3 * seconds_of(1) + 0.5);
  EXPECT_NE(TextHash()("token"), std::hash<std::string_view>()("token")) << "a file could be written for std::hash";
}

}  // namespace
}  // namespace furlong
