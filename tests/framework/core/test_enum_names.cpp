#include "framework/core/enum_names.h"

#include <gtest/gtest.h>

#include <array>

namespace furlong::testing {
namespace {

enum class Shade : std::uint8_t { light, dark };
constexpr auto names_of(Shade) { return std::array{"light", "dark"}; }

TEST(EnumNames, ConvertBetweenNamesAndValues) {
  static_assert(std::string_view(name_of(Shade::dark)) == "dark");
  EXPECT_EQ(names_of_all<Shade>(), (std::vector<std::string>{"light", "dark"}));
  for (const Shade shade : all_values<Shade>()) EXPECT_EQ(value_named<Shade>(name_of(shade), "shade"), shade);
}

TEST(EnumNames, RejectUnknownNamesAndListKnownOnes) {
  try {
    value_named<Shade>("grey", "shade");
    FAIL() << "accepted";
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(), "shade 'grey' is unknown; expected one of light, dark");
  }
}

}  // namespace
}  // namespace furlong::testing
