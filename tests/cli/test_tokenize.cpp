// The program furlong tokenize.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cli/program.h"

namespace furlong {
namespace {

using ::testing::AllOf;
using testing::Finished;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class TokenizeCommandTest : public testing::WithProgram {
 protected:
  TokenizeCommandTest() { file("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nA\nC\nG\n"); }
  Finished tokenize(const std::string& text, const std::vector<std::string>& options) const {
    std::vector<std::string> all{"tokenize", path("vocab.txt"), file("in.txt", text)};
    all.insert(all.end(), options.begin(), options.end());
    return furlong(all);
  }
};

TEST_F(TokenizeCommandTest, PrintsOneLinePerLine) {
  EXPECT_EQ(tokenize("ACG\n\nA[MASK]", {}).out, "5 6 7\n\n5 1 1 5 1 1 1\n");
  EXPECT_EQ(tokenize("ACG\nA[MASK]\n", {"--parse-special", "--add-special-tokens"}).out, "2 5 6 7 3\n2 5 4 3\n");
  EXPECT_EQ(tokenize("AXG\n", {"--tokens"}).out, "A [UNK] G\n");
  EXPECT_EQ(tokenize("2 5,6\t3\n\n", {"--decode"}).out, "[CLS]AC[SEP]\n\n");
  EXPECT_THAT(tokenize("ACG\nAX\n", {"--count"}).out,
              StartsWith("letters (8 ids): 2 lines, 7 bytes, 5 tokens, 1 unknown; 1.000 bytes per token; "));
  const std::string lines(300'000, 'A');  // longer than one read
  EXPECT_EQ(tokenize(lines + lines + lines + lines + "\nC\n", {"--count"}).out.substr(0, 61),
            "letters (8 ids): 2 lines, 1200003 bytes, 1200001 tokens, 0 un");
}

TEST_F(TokenizeCommandTest, ErrorsNameLineAndValue) {
  for (const auto& [text, message] :
       std::vector<std::pair<std::string, std::string>>{{"5\n5 8\n", "line 2: '8' is not a token id; expected 0 to 7"},
                                                        {"-1", "line 1: '-1' is not a token id"},
                                                        {"5x", "line 1: '5x' is not a token id"}}) {
    const Finished found = tokenize(text, {"--decode"});
    EXPECT_EQ(found.status, 2);
    EXPECT_THAT(found.err, AllOf(StartsWith("error: "), HasSubstr(message)));
  }
  EXPECT_EQ(tokenize("A", {"--ids", "--decode"}).status, 2);
  EXPECT_THAT(furlong({"tokenize", path("nothing")}).err,
              HasSubstr("nothing: does not exist; expected a tokenizer file"));
}

}  // namespace
}  // namespace furlong
