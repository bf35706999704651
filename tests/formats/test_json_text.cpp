// JSON beyond the limits of depth and width is rejected by every reader.
#include "formats/json_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/json_header.h"
#include "framework/core/error.h"
#include "tests/temporary_folder.h"

namespace furlong::foreign {
namespace {

using furlong::testing::message_of;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string nested(int depth, const std::string& inner = "1") {
  return std::string(static_cast<std::size_t>(depth), '[') + inner + std::string(static_cast<std::size_t>(depth), ']');
}

TEST(JsonText, LimitsDepth) {
  EXPECT_EQ(parse_json(nested(64), "f").size(), 1U);
  for (const int depth : {65, 100'000, 1'000'000})
    EXPECT_EQ(message_of<UserError>([&] { parse_ordered_json(nested(depth), "f"); }), "f: nested more than 64 deep");
  EXPECT_EQ(message_of<UserError>([] { parse_json(std::string(100'000, '{'), "f"); }), "f: nested more than 64 deep");
  // Brackets inside strings do not count.
  const std::string brackets(1000, '[');
  EXPECT_EQ(parse_json("[\"" + brackets + "\\\"" + brackets + "\"]", "f")[0], brackets + "\"" + brackets);
}

TEST(JsonText, LimitsKeysOfOrderedObjects) {
  const auto object = [](int keys) {
    std::string text = "{";
    for (int i = 0; i < keys; ++i) text += (i ? ",\"" : "\"") + std::to_string(i) + "\":\"a:b\"";
    return text + "}";
  };
  EXPECT_EQ(parse_ordered_json(object(30'000), "f").size(), 30'000U);
  EXPECT_EQ(parse_json(object(70'000), "f").size(), 70'000U);
  EXPECT_EQ(message_of<UserError>([&] { parse_ordered_json(object(70'000), "f"); }),
            "f: objects have too many or too long keys; expected at most 32,768 in one object, fewer in several");
}

TEST(JsonText, ReportsInvalidJsonInOneLine) {
  EXPECT_THAT(message_of<UserError>([] { parse_json("{\"a\": \x1b[31m\n", "f"); }),
              AllOf(HasSubstr("f: is not valid JSON"), Not(HasSubstr("\x1b"))));
  EXPECT_THAT(message_of<UserError>([] { parse_ordered_json("\"\xff\"", "f"); }), HasSubstr("f: is not valid JSON"));
  const auto ordered = parse_ordered_json(R"({"b": 1, "a": 2})", "f");
  EXPECT_EQ(ordered.begin().key(), "b");
}

TEST(JsonText, StreamedHeadersAndIndexesAllowAnyDepth) {
  EXPECT_THAT(message_of<UserError>([] { parse_safetensors_header("f", "{\"a\":" + nested(100'000) + "}"); }),
              HasSubstr("f: damaged"));
  EXPECT_THAT(message_of<UserError>([] { parse_weight_map("f", "{\"weight_map\":" + nested(100'000) + "}"); }),
              HasSubstr("f: damaged"));
  EXPECT_EQ(parse_weight_map("f", "{\"metadata\":" + nested(100'000) + R"(,"weight_map":{"a":"b"}})").size(), 1U);
}

}  // namespace
}  // namespace furlong::foreign
