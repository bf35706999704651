#include "framework/core/enum_names.h"

#include <gtest/gtest.h>

#include <array>

#include "tests/temporary_folder.h"

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
  EXPECT_EQ(message_of<UserError>([] { value_named<Shade>("grey", "shade"); }),
            "shade 'grey' is unknown; expected one of light, dark");
}

}  // namespace
}  // namespace furlong::testing
