// The script of furlong completion, in bash.
#include <gmock/gmock.h>

#include <cstdio>

#include "tests/cli/program.h"

namespace furlong {
namespace {

using testing::Finished;
using ::testing::HasSubstr;
using ::testing::Not;

class CompletionTest : public testing::WithProgram {
 protected:
  void SetUp() override {
    const Finished printed = furlong({"completion", "bash"});
    ASSERT_EQ(printed.status, 0) << printed.err;
    script_ = file("completion.sh", printed.out);
    file("book.txt", "text");
  }
  /// The completions of a line, separated by spaces. The last word is being typed.
  std::string completed(const std::string& line) const {
    const std::string command = "cd '" + folder_.string() + "'; source '" + script_ + "'; COMP_WORDS=(" + line +
                                "); COMP_CWORD=$(( ${#COMP_WORDS[@]} - 1 )); _furlong; echo \"${COMPREPLY[*]}\"";
    std::FILE* const pipe = popen(("bash -c '" + escaped(command) + "' 2>&1").c_str(), "r");
    std::string found(1 << 16, '\0');
    found.resize(std::fread(found.data(), 1, found.size(), pipe));
    EXPECT_EQ(pclose(pipe), 0) << found;
    while (found.ends_with('\n')) found.pop_back();
    return found;
  }

 private:
  static std::string escaped(const std::string& text) {
    std::string result;
    for (const char c : text) result += c == '\'' ? "'\\''" : std::string(1, c);
    return result;
  }
  std::string script_;
};

TEST_F(CompletionTest, CompletesCommandsOptionsValuesKeysAndFiles) {
  EXPECT_EQ(completed("furlong tok"), "tokenize");
  EXPECT_EQ(completed("furlong bench att"), "attention");
  EXPECT_EQ(completed("furlong train --trac"), "--trace --trace-steps");
  EXPECT_EQ(completed("furlong evaluate run --weights r"), "raw");
  EXPECT_EQ(completed("furlong prepare text boo"), "book.txt");
  EXPECT_EQ(completed("furlong generate --prompt-file boo"), "book.txt");
  EXPECT_EQ(completed("furlong train --set trainer.max_s"), "trainer.max_steps=");
  EXPECT_EQ(completed("furlong train --resume n"), "never");
  EXPECT_EQ(completed("furlong train --resume boo"), "book.txt");
  EXPECT_EQ(completed("furlong train --resume P"), "");
  EXPECT_EQ(completed("furlong completion z"), "zsh");
  EXPECT_EQ(completed("furlong runs --sort va"), "validation");
  EXPECT_THAT(completed("furlong prepare ''"), ::testing::AllOf(HasSubstr("fasta"), Not(HasSubstr("book.txt"))));
  EXPECT_THAT(completed("furlong prepare ''"), Not(HasSubstr("--")));
  EXPECT_EQ(completed("furlong prepare boo"), "");
  EXPECT_EQ(completed("furlong xyz"), "");
}

TEST_F(CompletionTest, RejectsOtherShells) {
  testing::expect_user_error(furlong({"completion", "fish"}), {"fish"});
  EXPECT_THAT(furlong({"completion", "zsh"}).out, HasSubstr("bashcompinit"));
}

}  // namespace
}  // namespace furlong
