#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "formats/element_type.h"
#include "framework/core/printable.h"
#include "tests/temporary_folder.h"

namespace furlong::foreign {
namespace {

TEST(Half, ConvertsEveryBitPattern) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const int exponent = static_cast<int>(bits >> 10 & 31), fraction = static_cast<int>(bits & 1023);
    const float value = half_to_float(static_cast<std::uint16_t>(bits));
    if (exponent == 31 && fraction != 0) {
      EXPECT_TRUE(std::isnan(value)) << bits;
      continue;
    }
    double expected = exponent == 31  ? INFINITY
                      : exponent == 0 ? std::ldexp(fraction, -24)
                                      : std::ldexp(1024 + fraction, exponent - 25);
    if (bits >> 15) expected = -expected;
    EXPECT_EQ(value, expected) << bits;
    EXPECT_EQ(std::signbit(value), bits >> 15) << bits;
    EXPECT_EQ(float_to_half(value), bits);
  }
}

TEST(Half, RoundsToNearestEven) {
  // Between neighbors, the midpoint rounds to the even one, other values to the nearer one.
  for (std::uint32_t bits = 0; bits < 0x7bff; ++bits) {
    const double low = half_to_float(static_cast<std::uint16_t>(bits)),
                 high = half_to_float(static_cast<std::uint16_t>(bits + 1));
    const auto middle = static_cast<float>((low + high) / 2);
    EXPECT_EQ(float_to_half(middle), bits + (bits & 1)) << bits;
    EXPECT_EQ(float_to_half(std::nextafter(middle, 0.0f)), bits);
    EXPECT_EQ(float_to_half(std::nextafter(middle, INFINITY)), bits + 1);
    EXPECT_EQ(float_to_half(-middle), 0x8000 + bits + (bits & 1));
  }
  EXPECT_EQ(float_to_half(65519.996f), 0x7bff);
  EXPECT_EQ(float_to_half(65520.0f), 0x7c00);
  EXPECT_EQ(float_to_half(INFINITY), 0x7c00);
  EXPECT_EQ(float_to_half(-3e38f), 0xfc00);
  EXPECT_EQ(float_to_half(1e-30f), 0);
  EXPECT_TRUE(std::isnan(half_to_float(float_to_half(std::bit_cast<float>(0x7f800001u)))));
}

TEST(ForeignNames, RecognizesUtf8) {
  for (const char* valid :
       {"", "plain", "gr\u00fc\u00df", "\u4e2d\u6587", "\U0001f600", "\U0010ffff", "\u0800\ud7ff\ue000"})
    EXPECT_TRUE(is_utf8(valid)) << valid;
  for (const char* invalid : {"\x80", "\xc3", "\xc0\x80", "\xc1\xbf", "\xe0\x9f\xbf", "\xed\xa0\x80",
                              "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xe4\xb8", "a\xff"}) {
    EXPECT_FALSE(is_utf8(invalid)) << printable(invalid);
  }
}

TEST(ForeignNames, AreEscapedInSingleLineMessages) {
  EXPECT_EQ(printable("blocks.0/\u00e4"), "blocks.0/\u00e4");
  EXPECT_EQ(printable(std::string_view("a\nb\x1b[31m'\0\xff", 11)), "a\\x0ab\\x1b[31m\\x27\\x00\\xff");
  EXPECT_EQ(printable("\u2028\u0085"), "\\xe2\\x80\\xa8\\xc2\\x85");
  EXPECT_EQ(printable(std::string(1000, 'x')), std::string(100, 'x') + "...");
  EXPECT_EQ(single_line("f: 'a'\n\x1b[2J\u0085"), "f: 'a'\\x0a\\x1b[2J\\xc2\\x85");
  EXPECT_EQ(single_line(std::string(5000, 'x')), std::string(2000, 'x') + "...");
}

TEST(ForeignNames, ErrorsBecomeSingleLines) {
  EXPECT_EQ(with_single_line_errors([] { return 3; }), 3);
  const auto fail = []() -> int { throw UserError("f: found {}", "a\nb"); };
  EXPECT_EQ(testing::message_of<UserError>([&] { with_single_line_errors(fail); }), "f: found a\\x0ab");
}

}  // namespace
}  // namespace furlong::foreign
