#include "framework/config/reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "framework/config/scalar.h"
#include "framework/config/writer.h"
#include "framework/core/error.h"
#include "framework/core/printable.h"
#include "tests/temporary_folder.h"

namespace furlong::config {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::message_of;

enum class Flour : std::uint8_t { wheat, rye };
constexpr auto names_of(Flour) { return std::array{"wheat", "rye"}; }

struct Bakery {
  std::int64_t loaves = 12;
  double oven_hours = 1.5;
  bool open = true;
  Flour flour = Flour::wheat;
  std::string motto;
  std::filesystem::path shop = "shop.db";
  std::vector<std::string> guests;
  std::int64_t rye_days = 0;
};

Table bakery_table(Bakery& b) {
  Table t;
  t.key("loaves", &b.loaves, "loaves", "how many").within(1, 1e15).elsewhere({"breads"});
  t.section("kitchen", "where it is made");
  t.key("kitchen.oven_hours", &b.oven_hours, "hours", "time in the oven").above(0).below(24);
  t.key("kitchen.open", &b.open, "", "whether guests may look");
  t.section("kitchen.store", "what it is made of");
  t.key("kitchen.store.flour", &b.flour, "", "grain");
  t.key("kitchen.store.rye_days", &b.rye_days, "days", "souring")
      .within(2, 9)
      .zero_means("none")
      .only_with("kitchen.store.flour", {"rye"});
  t.section("shop", "where it is sold");
  t.key("shop.motto", &b.motto, "", "above the door");
  t.key("shop.path", &b.shop, "", "database");
  t.key("shop.guests", &b.guests, "", "names");
  return t;
}

struct Read {
  Bakery bakery;
  Reading reading;
};

Read read_text(const std::string& text, const std::vector<std::string>& overrides = {}) {
  Read result;
  result.reading = read_settings_text(bakery_table(result.bakery), text, "text", overrides);
  return result;
}

std::string error_of(const std::string& text, const std::vector<std::string>& overrides = {}) {
  return message_of<UserError>([&] { read_text(text, overrides); });
}

class ReaderFiles : public testing::WithTemporaryFolder {
 protected:
  ReaderFiles() { std::filesystem::create_directories(folder_ / "parts"); }

  Read read(const std::string& name, const std::vector<std::string>& overrides = {}) {
    Read result;
    result.reading = read_settings(bakery_table(result.bakery), folder_ / name, overrides);
    return result;
  }
};

TEST(Reader, ReadsEveryTypeWithItsPlace) {
  const auto [bakery, reading] = read_text(
      "loaves: 30\nkitchen:\n  oven_hours: 2\n  open: false\n  store: {flour: rye, rye_days: 3}\n"
      "shop:\n  motto: 42\n  path: a b/c.db\n  guests:\n    - N\n    - \"null\"\n");
  EXPECT_EQ(bakery.loaves, 30);
  EXPECT_EQ(bakery.oven_hours, 2.0);
  EXPECT_FALSE(bakery.open);
  EXPECT_EQ(bakery.flour, Flour::rye);
  EXPECT_EQ(bakery.rye_days, 3);
  EXPECT_EQ(bakery.motto, "42");
  EXPECT_EQ(bakery.shop, "a b/c.db");
  EXPECT_THAT(bakery.guests, ElementsAre("N", "null"));
  EXPECT_EQ(reading.origins.size(), 8u);
  EXPECT_EQ(reading.origins.at("kitchen.store.rye_days").text(), "text:5:33");
}

TEST(Reader, EmptyTextAndEmptySectionsGiveDefaults) {
  for (const char* text : {"", "# nothing\n", "---\n", "kitchen:\nshop:\n", "{}"}) {
    const auto [bakery, reading] = read_text(text);
    EXPECT_EQ(bakery.loaves, 12) << text;
    EXPECT_TRUE(reading.origins.empty()) << text;
  }
}

TEST(Reader, AcceptsDecimalNumbersOnly) {
  for (const auto& [text, value] : std::map<std::string, std::int64_t>{
           {"7", 7}, {"+7", 7}, {"1e6", 1000000}, {"2.5e3", 2500}, {"4.0", 4}, {"1E2", 100}})
    EXPECT_EQ(read_text("loaves: " + text).bakery.loaves, value) << text;
  for (const char* text : {"1.5",  "1e-3",  "1_000", "1,000", "0x10", "0o7", "010", ".inf", ".nan",
                           "ten",  "\"7\"", "'7'",   "1e",    "e1",   "--1", "1 2", "1e16", "9223372036854775808",
                           "true", "0"})
    EXPECT_THAT(error_of(std::string("loaves: ") + text), HasSubstr("text:1:9: loaves: found ")) << text;
  for (const auto& [text, value] : std::map<std::string, double>{
           {"3", 3}, {"1e-3", 1e-3}, {"0.1", 0.1}, {".5", 0.5}, {"+.5", 0.5}, {"2.", 2}, {"2.5E0", 2.5}})
    EXPECT_EQ(read_text("kitchen: {oven_hours: " + text + "}").bakery.oven_hours, value) << text;
  for (const char* text :
       {"0", "24", "-1", ".inf", "-.inf", ".nan", "nan", "inf", "1e400", "1d3", "0,5", "0x1p3", "50%", "01.5"})
    EXPECT_THAT(error_of(std::string("kitchen:\n  oven_hours: ") + text),
                HasSubstr("text:2:15: kitchen.oven_hours: found "))
        << text;
}

TEST(Reader, AcceptsTrueAndFalseOnly) {
  EXPECT_TRUE(read_text("kitchen: {open: true}").bakery.open);
  EXPECT_FALSE(read_text("kitchen: {open: false}").bakery.open);
  for (const char* text : {"yes", "no", "on", "off", "True", "FALSE", "y", "1", "\"true\""})
    EXPECT_THAT(error_of(std::string("kitchen: {open: ") + text + "}"), HasSubstr("expected true or false")) << text;
}

TEST(Reader, FollowsAnchorsAndRejectsCycles) {
  EXPECT_EQ(read_text("kitchen: {oven_hours: &three 3}\nloaves: *three\n").bakery.loaves, 3);
  EXPECT_EQ(error_of("kitchen: &k\n  store: *k\n"),
            "text:2:3: unknown key kitchen.store.store; kitchen.store has flour, rye_days");
  EXPECT_THAT(error_of("shop:\n  guests: &g [*g]\n"), HasSubstr("expected text as an item of the list"));
}

TEST(Reader, SurvivesDeepNesting) {
  EXPECT_THAT(error_of("loaves: " + std::string(100000, '[')), HasSubstr("text:1:"));
  EXPECT_THAT(error_of("loaves: " + std::string(100000, '{')), HasSubstr("text:1:"));
}

TEST(Reader, SurvivesLongTexts) {
  const std::string text(1 << 20, 'a');
  const std::string path = "${FURLONG_TEST_UNSET:-" + text + "}";
  EXPECT_EQ(expand_path(path, "here"), text);
  for (const char* key : {"loaves", "kitchen.open", "kitchen.oven_hours", "kitchen.store.flour"})
    EXPECT_LT(error_of("", {key + ("=" + text)}).size(), (2u << 20));
  EXPECT_LT(error_of(text + ": 1").size(), 300u);
  const Bakery bakery = read_text("", {"shop.motto=" + text}).bakery;
  Bakery copy = bakery;
  EXPECT_EQ(read_text(to_yaml(bakery_table(copy))).bakery.motto, text);
}

TEST(Reader, TruncatesAndEscapesFoundValues) {
  const std::string error = error_of("loaves: \"" + std::string(500, 'x') + "\\n\"");
  EXPECT_LT(error.size(), 250u);
  EXPECT_EQ(error_of("loaves: \"1\\n2\""),
            "text:1:9: loaves: found the text \"1\\n2\"; expected an integer from 1 to 1e15");
  EXPECT_EQ(error_of("\"a\\nb\": 1").find('\n'), std::string::npos);
}

TEST_F(ReaderFiles, MergesIncludesFileAndOverridesKeyByKey) {
  file("parts/a.yaml", "loaves: 1\nkitchen:\n  oven_hours: 1\n  open: false\nshop: {guests: [a, b], motto: one}\n");
  file("parts/b.yaml", "loaves: 2\nkitchen:\n  oven_hours: 2\n");
  file("main.yaml", "include: [parts/a.yaml, parts/b.yaml]\nloaves: 3\nshop: {guests: [c]}\n");
  const auto [plain, reading] = read("main.yaml");
  EXPECT_EQ(plain.loaves, 3);
  EXPECT_EQ(plain.oven_hours, 2);
  EXPECT_FALSE(plain.open);
  EXPECT_EQ(plain.motto, "one");
  EXPECT_THAT(plain.guests, ElementsAre("c"));
  EXPECT_THAT(reading.files, ElementsAre(folder_ / "main.yaml", folder_ / "parts/a.yaml", folder_ / "parts/b.yaml"));
  EXPECT_EQ(reading.origins.at("kitchen.oven_hours").text(), (folder_ / "parts/b.yaml").string() + ":3:15");

  const auto [overridden, reading_2] =
      read("main.yaml", {"loaves=4", "loaves=5", "shop.guests=[]", "shop.motto=two words"});
  EXPECT_EQ(overridden.loaves, 5);
  EXPECT_TRUE(overridden.guests.empty());
  EXPECT_EQ(overridden.motto, "two words");
  EXPECT_EQ(reading_2.origins.at("loaves").text(), "--set loaves=5");
}

TEST_F(ReaderFiles, NullRestoresTheDefault) {
  file("parts/a.yaml", "loaves: 1\nshop: {motto: one}\n");
  file("main.yaml", "include: parts/a.yaml\nloaves: null\nkitchen: {open: false}\n");
  const auto [bakery, reading] = read("main.yaml", {"kitchen.open=null", "shop.motto=~"});
  EXPECT_EQ(bakery.loaves, 12);
  EXPECT_TRUE(bakery.open);
  EXPECT_EQ(bakery.motto, "");
  EXPECT_TRUE(reading.origins.empty());
}

TEST_F(ReaderFiles, ResolvesRelativeIncludesAndRejectsCycles) {
  file("parts/inner.yaml", "loaves: 7\n");
  file("parts/a.yaml", "include: inner.yaml\n");
  file("parts/b.yaml", "include: ./inner.yaml\n");
  file("main.yaml", "include: [parts/a.yaml, parts/b.yaml]\n");  // a diamond is not a cycle
  EXPECT_EQ(read("main.yaml").bakery.loaves, 7);
  file("parts/inner.yaml", "include: ../main.yaml\n");
  EXPECT_THROW(read("main.yaml"), UserError);
}

// Each file includes the next one twice, so that the last of eight would be read 128 times.
TEST_F(ReaderFiles, LimitsIncludedFiles) {
  for (int i = 1; i < 8; ++i) file(fmt::format("{}.yaml", i), fmt::format("include: [{0}.yaml, {0}.yaml]\n", i + 1));
  file("8.yaml", "loaves: 7\n");
  const auto [bakery, reading] = read("3.yaml");
  EXPECT_EQ(bakery.loaves, 7);
  EXPECT_EQ(reading.files.size(), 63u);
  EXPECT_THAT(message_of<UserError>([&] { read("1.yaml"); }), HasSubstr("more than 64 files are included"));
}

TEST_F(ReaderFiles, ExpandsEnvironmentVariablesInIncludes) {
  ::setenv("FURLONG_TEST_PARTS", (folder_ / "parts").c_str(), 1);
  file("parts/a.yaml", "loaves: 9\n");
  file("main.yaml", "include: ${FURLONG_TEST_PARTS}/a.yaml\n");
  EXPECT_EQ(read("main.yaml").bakery.loaves, 9);
  ::unsetenv("FURLONG_TEST_PARTS");
}

TEST_F(ReaderFiles, RejectsFilesThatAreNotConfigs) {
  std::filesystem::resize_file(file("large.yaml", "x"), 17 << 20);
  EXPECT_THROW(read("large.yaml"), UserError);
  EXPECT_THROW(read("parts"), UserError);
  EXPECT_THROW(read("none.yaml"), UserError);
}

TEST(Reader, ExpandsOnlyPaths) {
  ::setenv("FURLONG_TEST_FULL", "/full", 1);
  ::setenv("FURLONG_TEST_EMPTY", "", 1);
  ::setenv("HOME", "/home/baker", 1);
  const auto path = [](const std::string& text) { return expand_path(text, "here"); };
  EXPECT_EQ(path("${FURLONG_TEST_FULL}/a"), "/full/a");
  EXPECT_EQ(path("a/${FURLONG_TEST_FULL:-x}${FURLONG_TEST_EMPTY:-y}${FURLONG_TEST_UNSET:-}"), "a//fully");
  EXPECT_EQ(path("~/a"), "/home/baker/a");
  EXPECT_EQ(path("a~/b"), "a~/b");
  EXPECT_EQ(path("${FURLONG_TEST_UNSET:-a~b}"), "a~b");
  EXPECT_EQ(path("$$HOME $${HOME}"), "$HOME ${HOME}");
  for (const char* wrong : {"${FURLONG_TEST_UNSET}", "${FURLONG_TEST_EMPTY}", "$HOME", "${HOME", "${}", "${1A}", "a$",
                            "${FURLONG_TEST_UNSET:-${HOME}/a}", "${FURLONG_TEST_UNSET:-~/a}"})
    EXPECT_THROW(path(wrong), UserError) << wrong;
  EXPECT_EQ(read_text("shop: {motto: \"${HOME}\", path: \"${HOME}/x\"}").bakery.motto, "${HOME}");
  EXPECT_EQ(read_text("", {"shop.path=${HOME}/x"}).bakery.shop, "/home/baker/x");
  EXPECT_EQ(read_text("shop: {path: \"${FURLONG_TEST_UNSET}\"}", {"shop.path=b"}).bakery.shop,
            "b");  // overridden values are not expanded
}

TEST(Reader, CutsUnknownKeysBetweenCharacters) {
  for (std::size_t letters = 50; letters < 105; ++letters) {
    const std::string error = error_of(std::string(letters, 'a') + "äöü: 1");
    EXPECT_THAT(error, HasSubstr("unknown key " + std::string(50, 'a')));
    EXPECT_TRUE(foreign::is_utf8(error)) << error;
  }
}

TEST(Reader, RejectsEscapesThatGiveNoUtf8) {
  EXPECT_THAT(error_of("shop: {motto: \"a\\N\"}"), HasSubstr("text:1:15: the text has an escape"));
  EXPECT_THAT(error_of("\"\\_\": 1"), HasSubstr("the text has an escape"));
  EXPECT_THAT(error_of("\"\\N\""), HasSubstr("expected keys and values"));
}

TEST(Writer, RejectsPathsThatAreNotUtf8) {
  Bakery bakery;
  bakery.shop = "shops/\xff.db";
  EXPECT_EQ(message_of<UserError>([&] { to_yaml(bakery_table(bakery)); }),
            "'shops/\\xff.db' is not UTF-8 text, as a config must be; rename the file or folder");
}

TEST(Reader, OverrideErrorsNameKeyAndHint) {
  EXPECT_EQ(error_of("", {"loaves"}), "--set loaves: expected KEY=VALUE, such as --set trainer.max_steps=1000");
  // What YAML would read as less than the text.
  for (const char* text : {"shop.motto=a # b", "shop.motto=|", "shop.motto=&a b", "shop.motto=!t b"})
    EXPECT_THAT(error_of("", {text}), HasSubstr("put it in quotes")) << text;
  EXPECT_EQ(read_text("", {"shop.motto='a # b'"}).bakery.motto, "a # b");
  EXPECT_EQ(read_text("", {"shop.motto= it's a&b#1 "}).bakery.motto, "it's a&b#1");
  EXPECT_EQ(error_of("", {"=3"}), "--set =3: expected KEY=VALUE, such as --set trainer.max_steps=1000");
  EXPECT_EQ(error_of("", {"loavs=3"}), "--set loavs=3: unknown key loavs; did you mean loaves?");
  EXPECT_EQ(error_of("", {"breads=3"}), "--set breads=3: unknown key breads; did you mean loaves?");
  EXPECT_EQ(error_of("", {"kitchen=3"}),
            "--set kitchen=3: kitchen is a section; set one of its keys: oven_hours, open, store");
  EXPECT_EQ(error_of("", {"kitchen.opne=true"}),
            "--set kitchen.opne=true: unknown key kitchen.opne; did you mean kitchen.open?");
  // Keys of --set are given by their whole paths.
  EXPECT_EQ(error_of("", {"flour=rye"}), "--set flour=rye: unknown key flour; did you mean kitchen.store.flour?");
  EXPECT_EQ(error_of("", {"store.flour=rye"}),
            "--set store.flour=rye: unknown key store.flour; did you mean kitchen.store.flour?");
  EXPECT_EQ(error_of("", {"kichen.oven_hours=2"}),
            "--set kichen.oven_hours=2: unknown key kichen.oven_hours; did you mean kitchen.oven_hours?");
  EXPECT_EQ(error_of("", {"shop.loaves=2"}), "--set shop.loaves=2: unknown key shop.loaves; did you mean loaves?");
  EXPECT_EQ(error_of("", {"shop.xyzzy=2"}), "--set shop.xyzzy=2: unknown key shop.xyzzy; shop has motto, path, guests");
  EXPECT_EQ(error_of("", {"loaves=x=1"}), "--set loaves=x=1: loaves: found x=1; expected an integer from 1 to 1e15");
  EXPECT_EQ(error_of("", {"loaves="}),
            "--set loaves=: loaves: found no value; expected an integer from 1 to 1e15; write null to use the default");
  EXPECT_EQ(error_of("", {"shop.motto=a: b"}),
            "--set shop.motto=a: b: shop.motto: found a section (key: value); expected text");
  EXPECT_EQ(error_of("", {"shop.guests=[a"}), "--set shop.guests=[a: a '[' is not closed by a ']'");
  EXPECT_EQ(error_of("", {"include=a.yaml"}),
            "--set include=a.yaml: include works in files only; expected a key such as trainer.max_steps");
  EXPECT_EQ(error_of("include: a.yaml\n"), "text:1:10: include works in files only; expected the settings themselves");
}

TEST(Writer, RoundTripsSettings) {
  Bakery odd;
  odd.oven_hours = 0.1 + 0.2;
  odd.motto = "it's \"5: #1\"\n\ttab \\ é ${HOME} \x01";
  odd.shop = "a $b/${HOME} c: d";
  odd.guests = {"yes", "null", "~", "", "- x", "*", "#", "3", " padded ", "plain"};
  odd.flour = Flour::rye;
  odd.rye_days = 4;
  const std::string text = to_yaml(bakery_table(odd), true);
  const Bakery again = read_text(text).bakery;
  EXPECT_EQ(again.oven_hours, odd.oven_hours) << text;
  EXPECT_EQ(again.motto, odd.motto) << text;
  EXPECT_EQ(again.shop, odd.shop) << text;
  EXPECT_EQ(again.guests, odd.guests) << text;
  EXPECT_EQ(again.rye_days, 4);
  const auto json = to_json(bakery_table(odd));
  EXPECT_EQ(json["shop"]["path"], odd.shop.string()) << "not escaped: other programs read it";
  odd.shop = "a b";
  const Bakery from_json = read_text(to_json(bakery_table(odd)).dump()).bakery;  // JSON is valid YAML
  EXPECT_EQ(from_json.motto, odd.motto);
  EXPECT_EQ(from_json.shop, odd.shop);
  EXPECT_EQ(from_json.guests, odd.guests);
}

TEST(Writer, WritesKeysWithoutEffectAsComments) {
  Bakery bakery;
  const auto table = bakery_table(bakery);
  EXPECT_THAT(to_yaml(table), HasSubstr("    # rye_days: 0  # requires kitchen.store.flour: rye\n"));
  EXPECT_FALSE(to_json(table)["kitchen"]["store"].contains("rye_days"));
  bakery.flour = Flour::rye;
  EXPECT_THAT(to_yaml(table), HasSubstr("    rye_days: 0\n"));
}

TEST(Table, RejectsSetOrChangedKeysWithoutEffect) {
  Bakery bakery, defaults;
  const auto table = bakery_table(bakery), default_table = bakery_table(defaults);
  EXPECT_NO_THROW(table.check_effects(default_table, {}));
  EXPECT_NO_THROW(table.check_effects(default_table, {{"kitchen.store.rye_days", {"x.yaml", 1, 1}}})) << "0: none";
  bakery.rye_days = 3;
  EXPECT_THROW(table.check_effects(default_table, {{"kitchen.store.rye_days", {"x.yaml", 1, 1}}}), UserError);
  EXPECT_THROW(table.check_effects(default_table, {}), UserError);
  EXPECT_THAT(table.check_effects(default_table, {{"kitchen.store.rye_days", {"x.yaml", 1, 1}},
                                                  {"kitchen.store.flour", {"--set kitchen.store.flour=wheat", 0, 0}}}),
              ElementsAre("x.yaml:1:1: kitchen.store.rye_days has no effect with kitchen.store.flour: wheat (--set "
                          "kitchen.store.flour=wheat)"));
  bakery.flour = Flour::rye;
  EXPECT_THAT(table.check_effects(default_table, {}), ::testing::IsEmpty());
}

TEST(Table, AcceptsSwitchingOffWhatHasNoEffect) {
  struct Oven {
    double hours = 0;
    bool steam = false;
  };
  const auto table_of = [](Oven& oven) {
    Table table;
    table.key("hours", &oven.hours, "h", "");
    table.key("steam", &oven.steam, "", "").only_with("hours");
    return table;
  };
  Oven oven, defaults;
  const Origins given{{"steam", {"x.yaml", 1, 1}}};
  EXPECT_THAT(table_of(oven).check_effects(table_of(defaults), given), ::testing::IsEmpty());
  oven.steam = true;
  EXPECT_THROW(table_of(oven).check_effects(table_of(defaults), given), UserError);
}

TEST(Table, RejectsInvalidDeclarations) {
  std::int64_t x = 0;
  Table table;
  table.key("x", &x, "", "");
  EXPECT_THROW(table.key("x", &x, "", ""), ContractError);
  EXPECT_THROW(table.key("a.x", &x, "", ""), ContractError);
  EXPECT_THROW(table.keys().front().set(Value(1.5)), ContractError);
}

TEST(Table, IgnoresRemovedKeysWithTheirNeutralValue) {
  Bakery bakery;
  auto table = bakery_table(bakery);
  table.removed("kitchen.gas", "none", "bake with electricity");
  const auto message = [&](const std::string& text, const std::vector<std::string>& overrides = {}) -> std::string {
    try {
      read_settings_text(table, text, "x", overrides);
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(message("kitchen: {gas: none}"), "");
  EXPECT_EQ(message("kitchen: {gas: town}"),
            "x:1:11: kitchen.gas: found town, but this key was removed; bake with electricity");
  EXPECT_EQ(message("", {"kitchen.gas=none"}),
            "--set kitchen.gas=none: kitchen.gas was removed; bake with electricity");
}

TEST(Table, ReadsOldNamesAsPresentOnes) {
  Bakery bakery;
  auto table = bakery_table(bakery);
  table.renamed("kitchen.hours", "kitchen.oven_hours");
  table.renamed("kitchen.store.flour", "kitchen.store.flour", {{"spelt", "wheat"}, {"roggen", "rye"}});
  table.renamed("pantry.days", "kitchen.store.rye_days", {{"true", "3"}});
  table.renamed("shop.guests", "shop.guests", {{"Smith", "Schmidt"}});
  const std::string text =
      "kitchen:\n  hours: 2\n  store: {flour: roggen}\npantry:\n  days: true\nshop: {guests: [Ann, Smith]}\n";
  const Reading reading = read_settings_text(table, text, "x");
  EXPECT_EQ(bakery.oven_hours, 2);
  EXPECT_EQ(bakery.flour, Flour::rye);
  EXPECT_EQ(bakery.rye_days, 3);
  EXPECT_THAT(bakery.guests, ElementsAre("Ann", "Schmidt"));
  EXPECT_THAT(reading.renamed, ElementsAre("x:2:3: kitchen.hours is now kitchen.oven_hours",
                                           "x:3:11: kitchen.store.flour: roggen is now kitchen.store.flour: rye",
                                           "x:5:3: pantry.days: true is now kitchen.store.rye_days: 3",
                                           "x:6:8: shop.guests: Smith is now shop.guests: Schmidt"));
  EXPECT_EQ(reading.origins.at("kitchen.store.flour").column, 18);
  EXPECT_NO_THROW(read_settings_text(table, "pantry:\n  # days: true\n", "x")) << "an old section without keys";
  const auto message = [&](const std::string& wrong, const std::vector<std::string>& overrides = {}) {
    return message_of<UserError>([&] { read_settings_text(table, wrong, "x", overrides); });
  };
  EXPECT_THAT(message("kitchen: {oven_hours: 2, hours: 3}"),
              ::testing::AllOf(HasSubstr("x:1:26: kitchen.oven_hours"), HasSubstr("x:1:23")));
  EXPECT_THAT(message("kitchen: {hours: 99}"), HasSubstr("x:1:18: kitchen.oven_hours: found 99"));
  EXPECT_THAT(message("", {"kitchen.hours=99"}), HasSubstr("kitchen.oven_hours: found 99"));
  EXPECT_THROW(table.renamed("oven", "no.such.key"), ContractError);
  EXPECT_THROW(table.renamed("loaves", "kitchen.oven_hours"), ContractError);
}

TEST(Schema, DescribesTheTable) {
  Bakery bakery;
  const auto schema = json_schema(bakery_table(bakery), "Bakery");
  const auto& kitchen = schema["properties"]["kitchen"];
  EXPECT_EQ(kitchen["additionalProperties"], false);
  const auto& hours = kitchen["properties"]["oven_hours"];
  EXPECT_EQ(hours["type"], "number");
  EXPECT_EQ(hours["exclusiveMinimum"], 0.0);
  EXPECT_EQ(hours["exclusiveMaximum"], 24.0);
  EXPECT_EQ(hours["default"], 1.5);
  const auto& store = kitchen["properties"]["store"]["properties"];
  EXPECT_EQ(store["flour"]["enum"], (nlohmann::ordered_json{"wheat", "rye"}));
  EXPECT_EQ(store["rye_days"]["anyOf"][0]["const"], 0);
  EXPECT_EQ(store["rye_days"]["anyOf"][1]["minimum"], 2);
  EXPECT_EQ(schema["properties"]["shop"]["properties"]["guests"]["items"]["type"],
            (nlohmann::ordered_json{"string", "number"}));
}

}  // namespace
}  // namespace furlong::config
