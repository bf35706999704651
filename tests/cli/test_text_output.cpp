#include "cli/text_output.h"

#include <gtest/gtest.h>

namespace furlong::command_line {
namespace {

TEST(TextOutput, EscapesControlCharactersForTerminals) {
  EXPECT_EQ(terminal_text("two\nlines\tand \u00e9\u20ac"), "two\nlines\tand \u00e9\u20ac");
  EXPECT_EQ(terminal_text("\x1b]0;title\x07\r\b\x7f\u009b"), "\\x1b]0;title\\x07\\x0d\\x08\\x7f\\xc2\\x9b");
  EXPECT_EQ(terminal_text("\xff\xe2\x82"), "\\xff\\xe2\\x82");
}

TEST(TextOutput, WritesPipesUnchanged) {
  ::testing::internal::CaptureStdout();
  TextOutput output;
  output.write("\x1b[1m\xe2");
  output.write("\x82\xac\r");
  output.finish();
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "\x1b[1m\xe2\x82\xac\r");
}

}  // namespace
}  // namespace furlong::command_line
