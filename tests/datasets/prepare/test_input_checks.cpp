#include "datasets/prepare/input_checks.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace furlong {
namespace {

using ::testing::HasSubstr;
using Rows = std::vector<std::vector<std::string>>;

/// The warning for tables whose text is column 0.
std::string warning(const std::vector<Rows>& tables) {
  HeaderCheck check;
  int number = 0;
  for (const Rows& rows : tables) {
    check.begin_input(fmt::format("{}.csv", ++number));
    for (const auto& row : rows) check.add(row, row[0], -1);
  }
  return check.warning({});
}

TEST(HeaderCheck, WordAboveNumbersIsAHeader) {
  EXPECT_EQ(warning({{{"chain", "tm"}, {"A", "1.5"}, {"C", "-2e1"}}}),
            "1.csv: the first record has 'tm' in a column of numbers; if that line is a header, give --text-field by "
            "name: chain");
  EXPECT_THAT(warning({{{"chain", "tm"}, {"A", ""}, {"C", "2"}, {"C", "2"}}}), HasSubstr("'tm'"));
  EXPECT_THAT(warning({{{"A", "1"}, {"C", "2"}, {"G", "3"}}, {{"chain", "tm"}, {"A", "1"}, {"C", "2"}}}),
              HasSubstr("2.csv: the first record has 'tm'"));
  EXPECT_THAT(warning({{{"chain", "tm"}, {"A", "1"}, {"C", "2"}}, {{"A", "1"}, {"C", "2"}, {"G", "3"}}}),
              HasSubstr("1.csv: the first record has 'tm'"));
  for (const char* first : {"", "NA", "nan", "?", "7"})
    EXPECT_EQ(warning({{{"A", first}, {"C", "1"}, {"G", "2"}}}), "") << first;
  EXPECT_EQ(warning({{{"A", "high"}, {"C", "1"}, {"G", "2"}, {"T", "low"}}}), "") << "words occur below, too";
  EXPECT_EQ(warning({{{"A", "high"}, {"C", "1"}}}), "") << "one number is too little";
}

TEST(HeaderCheck, UsualNameOfATextIsAHeader) {
  EXPECT_THAT(warning({{{"Sequence"}, {"ACD"}}}), HasSubstr("the text of the first record is 'Sequence'"));
  EXPECT_EQ(warning({{{"ACD"}, {"Sequence"}}}), "");
  EXPECT_EQ(warning({{{"text"}}}), "");
}

TEST(RepeatedNames, RemembersAtMostAMillionNames) {
  RepeatedNames names;
  constexpr int limit = 1 << 20;
  for (int i = 0; i < limit - 1; ++i) names.add(fmt::format("{}", i), "a.fa", 1);
  EXPECT_EQ(names.warning(), "");
  names.add("7", "a.fa", 5);
  EXPECT_EQ(names.warning(),
            "1 record has the name of an earlier record of the same file, the first of them '7' at a.fa:5; "
            "check for duplicates");
  names.add("last", "a.fa", 6);
  for (int repeat = 0; repeat < 2; ++repeat) names.add("beyond the limit", "a.fa", 7);
  names.add("last", "a.fa", 8);
  EXPECT_THAT(names.warning(), HasSubstr("at least 2 records have"));
}

}  // namespace
}  // namespace furlong
