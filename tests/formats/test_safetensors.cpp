#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "formats/safetensors_writer.h"
#include "formats/tensor_file.h"
#include "framework/core/error.h"
#include "tests/formats/foreign_bytes.h"
#include "tests/temporary_folder.h"

namespace furlong {
namespace {

using testing::Bytes;
using ::testing::ElementsAre;
using testing::floats;
using ::testing::HasSubstr;
using testing::message_of;
using testing::packed;
using testing::safetensors_file;

using Safetensors = testing::WithTemporaryFolder;

TEST_F(Safetensors, ReadsEveryType) {
  const std::string data = packed<double>({0.1, -2}) + packed<std::int64_t>({-1, 1LL << 60}) +
                           packed<float>({1.5f, -0.0f}) + packed<std::int32_t>({-5}) +
                           packed<std::uint32_t>({4000000000u}) + packed<std::uint16_t>({0x3c00, 0x3f80, 65535}) +
                           packed<std::int16_t>({-7}) + packed<std::int8_t>({-8}) + packed<std::uint8_t>({200, 1, 0});
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"f64":{"dtype":"F64","shape":[2],"data_offsets":[0,16]},)"
      R"("i64":{"dtype":"I64","shape":[2,1],"data_offsets":[16,32]},)"
      R"("f32":{"dtype":"F32","shape":[1,2],"data_offsets":[32,40]},)"
      R"("i32":{"dtype":"I32","shape":[],"data_offsets":[40,44]},)"
      R"("u32":{"dtype":"U32","shape":[1],"data_offsets":[44,48]},)"
      R"("f16":{"dtype":"F16","shape":[1],"data_offsets":[48,50]},)"
      R"("bf16":{"dtype":"BF16","shape":[1],"data_offsets":[50,52]},)"
      R"("u16":{"dtype":"U16","shape":[1],"data_offsets":[52,54]},)"
      R"("i16":{"dtype":"I16","shape":[1],"data_offsets":[54,56]},)"
      R"("i8":{"dtype":"I8","shape":[1],"data_offsets":[56,57]},)"
      R"("u8":{"dtype":"U8","shape":[1],"data_offsets":[57,58]},)"
      R"("bool":{"dtype":"BOOL","shape":[2],"data_offsets":[58,60]},)"
      R"("none":{"dtype":"F32","shape":[0,3],"data_offsets":[60,60]}}   )";
  const auto opened = open_tensor_file(file("a.safetensors", safetensors_file(header, data)));
  EXPECT_EQ(opened->path(), path("a.safetensors"));
  std::vector<std::string> names;
  for (const ForeignTensor& tensor : opened->tensors()) names.push_back(tensor.name);
  EXPECT_THAT(names,
              ElementsAre("bf16", "bool", "f16", "f32", "f64", "i16", "i32", "i64", "i8", "none", "u16", "u32", "u8"));
  EXPECT_EQ(opened->find("f32")->shape, (Shape{1, 2}));
  EXPECT_EQ(opened->find("i32")->shape.rank(), 0);
  EXPECT_EQ(opened->find("bf16")->stored_type, "BF16");
  EXPECT_EQ(opened->find("f"), nullptr);
  EXPECT_THAT(floats(*opened, "f64"), ElementsAre(0.1f, -2.0f));
  EXPECT_THAT(floats(*opened, "f32"), ElementsAre(1.5f, -0.0f));
  EXPECT_TRUE(std::signbit(floats(*opened, "f32")[1]));
  EXPECT_THAT(floats(*opened, "f16"), ElementsAre(1.0f));
  EXPECT_THAT(floats(*opened, "bf16"), ElementsAre(1.0f));
  EXPECT_TRUE(floats(*opened, "none").empty());
  EXPECT_THAT(opened->read_integers("i64"), ElementsAre(-1, 1LL << 60));
  EXPECT_THAT(opened->read_integers("i32"), ElementsAre(-5));
  EXPECT_THAT(opened->read_integers("u32"), ElementsAre(4000000000));
  EXPECT_THAT(opened->read_integers("u16"), ElementsAre(65535));
  EXPECT_THAT(opened->read_integers("i16"), ElementsAre(-7));
  EXPECT_THAT(opened->read_integers("i8"), ElementsAre(-8));
  EXPECT_THAT(opened->read_integers("u8"), ElementsAre(200));
  EXPECT_THAT(opened->read_integers("bool"), ElementsAre(1, 0));
}

TEST_F(Safetensors, ReportsInvalidRequestsInOneLine) {
  const auto opened =
      open_tensor_file(file("a", safetensors_file(R"({"weight":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                                                  R"("ids":{"dtype":"I64","shape":[1],"data_offsets":[4,12]},)"
                                                  R"("big":{"dtype":"U64","shape":[1],"data_offsets":[12,20]},)"
                                                  R"("f8":{"dtype":"F8_E4M3","shape":[1],"data_offsets":[20,21]}})",
                                                  packed<float>({1}) + packed<std::uint64_t>({1, ~0ull}) + "x")));
  std::vector<float> one(1), two(2);
  EXPECT_THAT(message_of<UserError>([&] { opened->read("weigth", one); }),
              HasSubstr("has no tensor 'weigth'; did you mean 'weight'?"));
  EXPECT_THAT(message_of<UserError>([&] { opened->read("ids", one); }),
              HasSubstr("'ids' has elements of type I64, expected floating-point"));
  EXPECT_THAT(message_of<UserError>([&] { opened->read("f8", one); }), HasSubstr("F8_E4M3, which is not supported"));
  EXPECT_THAT(message_of<UserError>([&] { opened->read_integers("weight"); }),
              HasSubstr("type F32, expected integers"));
  EXPECT_THAT(message_of<UserError>([&] { opened->read_integers("big"); }), HasSubstr("beyond 2^63 - 1"));
  EXPECT_THROW(opened->read("weight", two), ContractError);
}

TEST_F(Safetensors, RejectsInvalidFiles) {
  const auto entry = [](const std::string& fields) { return "{\"a\":{" + fields + "}}"; };
  const std::string good = R"("dtype":"F32","shape":[2],"data_offsets":[0,8])", eight = "12345678";
  const auto with = [&](std::string_view what, std::string_view by) {
    return safetensors_file(entry(testing::replaced(good, what, by)), eight);
  };
  const std::string two =
      R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})";
  ASSERT_EQ(open_safetensors(file("good", safetensors_file(entry(good), eight)))->tensors().size(), 1u);
  const std::vector<std::pair<std::string, std::string>> lies = {
      {"", "0 bytes, too short"},
      {"1234567", "7 bytes, too short"},
      {"12345678", "not a safetensors file"},
      {Bytes().number<std::uint64_t>(~0ull).text("{").all(), "not a safetensors file"},
      {Bytes().number<std::uint64_t>(99'000'000).text("{}").all(),
       "truncated: the header has 99000000 bytes, but the file ends 2 bytes into it"},
      {Bytes().number<std::uint64_t>(100'000'001).text("{}").all(), "not a safetensors file"},
      {safetensors_file(entry(good), "1234567"), "truncated or damaged: tensor 'a' ends at byte 8"},
      {safetensors_file(entry(good), "123456789"),
       "end at byte 8 after the header, 1 bytes before the end of the file"},
      {safetensors_file(entry(good).substr(0, 30), eight), "JSON is invalid"},
      {safetensors_file(entry(good) + "x", eight), "JSON is invalid"},
      {safetensors_file("{\"\xff\":1}", eight), "JSON is invalid"},
      {safetensors_file(std::string(100000, '['), eight), "not a safetensors file"},
      {safetensors_file("{\"a\":" + std::string(100000, '['), eight), "a list for 'a'"},
      {safetensors_file("{\"a\":{\"x\":" + std::string(100000, '{'), eight), "a field 'x'"},
      {with("\"F32\"", "\"F33\""), "dtype 'F33', which is unknown"},
      {with("\"F32\"", "7"), "a number in 'dtype'"},
      {with("[2]", "[-2]"), "a negative number in 'shape' of 'a'"},
      {with("[2]", "[2.0]"), "a number that is not an integer"},
      {with("[2]", "[99999999999999999999]"), "not an integer or is too large"},
      {with("[2]", "[[2]]"), "a list in 'shape'"},
      {with("[2]", "2"), "a number in 'shape'"},
      {with("[2]", "[3]"), "'a' is F32 [3], which does not match its bytes 0 to 8"},
      {with("[2]", "[1000000000000]"), "'a' is F32 [1000000000000], which does not match its bytes 0 to 8"},
      {with("[2]", "[4294967296,4294967296]"), "more than 2^63 elements"},
      {with("[2]", "[0,4294967296,4294967296]"), "more than 2^63 elements"},
      {with("[2]", "[4611686018427387904]"), "does not match its bytes 0 to 8"},
      {with("[2]", "[1,1,1,1,1,1,2]"), "more than 6 dimensions"},
      {with("[0,8]", "[0,18446744073709551608]"), "bytes 0 to 18446744073709551608"},
      {with("[0,8]", "[8,0]"), "bytes 8 to 0"},
      {with("[0,8]", "[1,9]"), "ends at byte 9"},
      {with("[0,8]", "[0]"), "data_offsets of tensor 'a' has 1 numbers"},
      {with("[0,8]", "[0,8,8]"), "more than 2 numbers"},
      {with(",\"data_offsets\":[0,8]", ""), "no data_offsets for tensor 'a'"},
      {with("\"data_offsets\":[0,8]", "\"dtype\":\"F32\""), "two fields 'dtype'"},
      {with("\"dtype\"", "\"type\""), "a field 'type'"},
      {with("[0,8]", "[0,8],\"more\":1"), "a field 'more'"},
      {safetensors_file("{\"a\":1}", eight), "a number for 'a'"},
      {safetensors_file("{\"a\":null}", eight), "null for 'a'"},
      {safetensors_file(R"({"__metadata__":{"x":1}})", ""), "a number in 'x' of '__metadata__'"},
      {safetensors_file(R"({"__metadata__":{},"__metadata__":{}})", ""), "'__metadata__' twice"},
      {safetensors_file(testing::replaced(two, "\"b\"", "\"a\""), eight), "tensor 'a' is listed twice"},
      {safetensors_file(testing::replaced(two, "[4,8]", "[2,6]"), eight),
       "'b' starts at byte 2 after the header, before byte 4"},
      {safetensors_file(testing::replaced(two, "[4,8]", "[0,4]"), eight),
       "starts at byte 0 after the header, before byte 4"},
      {safetensors_file(testing::replaced(two, "[4,8]", "[5,9]"), eight + "9"),
       "'b' starts at byte 5 after the header, with a gap after byte 4"},
      {safetensors_file(testing::replaced(two, "\"b\"", "\"b\\n\\u0000\""), "1234"), "'b\\x0a\\x00'"},
  };
  for (const auto& [bytes, expected] : lies) {
    const std::string place = file("lie", bytes);
    const std::string message = message_of<UserError>([&] { open_safetensors(place); });
    EXPECT_THAT(message, HasSubstr(expected));
    EXPECT_TRUE(message.starts_with(place)) << message;
  }
  // Truncations at every length.
  const std::string whole = safetensors_file(two, eight);
  for (std::size_t bytes = 0; bytes < whole.size(); ++bytes) {
    const std::string place = file("cut", whole.substr(0, bytes));
    EXPECT_THROW(open_safetensors(place), UserError) << bytes;
  }
}

TEST_F(Safetensors, RejectsPathsWithoutWeights) {
  EXPECT_THAT(message_of<UserError>([&] { open_tensor_file(path("absent")); }), HasSubstr("absent: does not exist"));
  EXPECT_THAT(message_of<UserError>([&] { open_tensor_file(folder_); }),
              HasSubstr("has no weights; expected model.safetensors"));
  EXPECT_THAT(message_of<UserError>([&] { open_safetensors(folder_); }),
              HasSubstr("has neither model.safetensors nor model.safetensors.index.json"));
  EXPECT_THAT(message_of<UserError>([&] { open_tensor_file(std::string(5000, 'x')); }), HasSubstr("cannot read"));
  EXPECT_THAT(message_of<UserError>([&] { open_tensor_file("/dev/null"); }), HasSubstr("not a regular file"));
}

TEST_F(Safetensors, RoundTripsWrittenTensors) {
  const std::vector<float> values = {1.0f, -0.0f, 65504.0f, 1e-8f, 3.14159265f, std::numeric_limits<float>::infinity()};
  const std::vector<std::int64_t> integers = {0, 1, 1};
  const auto declare = [](const char* name, const char* type, Shape shape) { return ForeignTensor{name, shape, type}; };
  {
    SafetensorsWriter writer(path("w.safetensors"),
                             {declare("b", "F32", {2, 3}), declare("a.\"quoted\"", "F32", {6}),
                              declare("half", "F16", {3, 2}), declare("brain", "BF16", {6}), declare("ids", "I64", {3}),
                              declare("i32", "I32", {3}), declare("u8", "U8", {3}), declare("mask", "BOOL", {3}),
                              declare("none", "F32", {0}), declare("one", "F32", {})});
    writer.write("half", values);
    writer.write("b", values);
    writer.write("a.\"quoted\"", values);
    writer.write("brain", values);
    for (const char* name : {"ids", "i32", "u8", "mask"}) writer.write_integers(name, integers);
    writer.write("none", {});
    EXPECT_FALSE(std::filesystem::exists(path("w.safetensors")));
    writer.write("one", std::vector<float>{7});
    writer.finish();
  }
  const auto opened = open_tensor_file(path("w.safetensors"));
  EXPECT_EQ(opened->tensors().size(), 10u);
  EXPECT_EQ(floats(*opened, "b"), values);
  EXPECT_EQ(floats(*opened, "a.\"quoted\""), values);
  EXPECT_THAT(floats(*opened, "half"),
              ElementsAre(1.0f, -0.0f, 65504.0f, 0.0f, 3.140625f, std::numeric_limits<float>::infinity()));
  EXPECT_THAT(floats(*opened, "brain"), ElementsAre(1.0f, -0.0f, 65536.0f, std::bit_cast<float>(0x322c0000u), 3.140625f,
                                                    std::numeric_limits<float>::infinity()));
  for (const char* name : {"ids", "i32", "u8", "mask"}) EXPECT_EQ(opened->read_integers(name), integers) << name;
  EXPECT_THAT(floats(*opened, "one"), ElementsAre(7.0f));
  // The reference library's order and padding: wide types first; elements start at a multiple of eight bytes.
  const std::string text = content(path("w.safetensors"));
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, text.data(), 8);
  EXPECT_EQ(header_bytes % 8, 0u);
  EXPECT_THAT(text.substr(8),
              ::testing::StartsWith(
                  R"({"__metadata__":{"format":"pt"},"ids":{"dtype":"I64","shape":[3],"data_offsets":[0,24]},)"
                  R"("a.\"quoted\"":{"dtype":"F32","shape":[6],"data_offsets":[24,48]},)"));
}

TEST_F(Safetensors, MisusedWriterLeavesNoFile) {
  const std::vector<float> two = {1, 2};
  const auto writer = [&] {
    return std::make_unique<SafetensorsWriter>(path("w"),
                                               std::vector<ForeignTensor>{{"a", {2}, "F32"}, {"i", {1}, "U8"}});
  };
  EXPECT_THROW(writer()->write("x", two), ContractError);
  EXPECT_THROW(writer()->write("a", std::span(two).first(1)), ContractError);
  EXPECT_THROW(writer()->write("i", std::span(two).first(1)), ContractError);
  EXPECT_THROW(writer()->write_integers("i", std::vector<std::int64_t>{256}), ContractError);
  EXPECT_THROW(writer()->finish(), ContractError);
  {
    const auto twice = writer();
    twice->write("a", two);
    EXPECT_THROW(twice->write("a", two), ContractError);
  }
  EXPECT_THROW(SafetensorsWriter(path("w"), {{"a", {2}, "F32"}, {"a", {2}, "F32"}}), ContractError);
  EXPECT_THROW(SafetensorsWriter(path("w"), {{"a", {2}, "Q4_0"}}), ContractError);
  EXPECT_THROW(SafetensorsWriter(path("w"), {{"a\xff", {2}, "F32"}}), ContractError);
  EXPECT_THROW(SafetensorsWriter(path("absent/w"), {}), UserError);
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

/// A directory with two shards.
class Shards : public Safetensors {
 protected:
  void SetUp() override {
    shard("one.safetensors", "a", 1);
    shard("two.safetensors", "b", 2);
  }
  void shard(const std::string& name, const std::string& tensor, float value) {
    file(name, safetensors_file("{\"" + tensor + "\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
                                packed<float>({value})));
  }
  std::string failure(const std::string& index) {
    file("model.safetensors.index.json", index);
    return message_of<UserError>([&] { open_tensor_file(folder_); });
  }
};

TEST_F(Shards, OpenAsOneCheckpoint) {
  file("model.safetensors.index.json", R"({"metadata":{"total_size":8,"list":[{"weight_map":1}]},)"
                                       R"("weight_map":{"a":"one.safetensors","b":"two.safetensors"}})");
  const auto opened = open_tensor_file(folder_);
  EXPECT_EQ(opened->path(), folder_.string());
  EXPECT_EQ(opened->tensors().size(), 2u);
  EXPECT_THAT(floats(*opened, "a"), ElementsAre(1.0f));
  EXPECT_THAT(floats(*opened, "b"), ElementsAre(2.0f));
  EXPECT_THAT(message_of<UserError>([&] { opened->read_integers("c"); }), HasSubstr("has no tensor 'c'"));
}

TEST_F(Shards, RejectMismatchedIndex) {
  const auto map = [](const std::string& entries) { return "{\"weight_map\":{" + entries + "}}"; };
  const std::string a = R"("a":"one.safetensors")", b = R"("b":"two.safetensors")";
  EXPECT_THAT(failure(map(a + "," + b + R"(,"c":"two.safetensors")")),
              HasSubstr("lists tensor 'c' in two.safetensors, which does not contain it"));
  EXPECT_THAT(failure(map(a + "," + b + "," + b)), HasSubstr("lists tensor 'b' twice"));
  EXPECT_THAT(failure(map(a + R"(,"c":"two.safetensors")")),
              HasSubstr("does not list tensor 'b', which two.safetensors contains"));
  EXPECT_THAT(failure(map(a + R"(,"b":"one.safetensors")")),
              HasSubstr("lists tensor 'b' in one.safetensors, which does not contain it"));
  EXPECT_THAT(failure(map(a + R"(,"b":"three.safetensors")")), HasSubstr("three.safetensors: does not exist"));
  for (const char* outside :
       {"../one.safetensors", "/etc/passwd", "sub/one.safetensors", "..", "", "a\\\\b", "a\\u0000b"}) {
    EXPECT_THAT(failure(map(std::string(R"("a":")") + outside + "\"")),
                HasSubstr("expected a file in the same directory"))
        << outside;
  }
  EXPECT_THAT(failure("{}"), HasSubstr("has no 'weight_map'"));
  EXPECT_THAT(failure("[]"), HasSubstr("is a list"));
  EXPECT_THAT(failure("3"), HasSubstr("is a number"));
  EXPECT_THAT(failure(map(R"("a":1)")), HasSubstr("'weight_map' has a number"));
  EXPECT_THAT(failure(map(R"("a":{})")), HasSubstr("'weight_map' has an object"));
  EXPECT_THAT(failure(map(R"("a":["one.safetensors"])")), HasSubstr("'weight_map' has a list"));
  EXPECT_THAT(failure(R"({"weight_map":[]})"), HasSubstr("'weight_map' has a list"));
  EXPECT_THAT(failure(R"({"weight_map":{},"weight_map":{}})"), HasSubstr("'weight_map' twice"));
  EXPECT_THAT(failure(R"({"weight_map":{)"), HasSubstr("JSON is invalid"));
  shard("two.safetensors", "a", 2);
  EXPECT_THAT(failure(map(a + R"(,"b":"two.safetensors")")),
              HasSubstr("lists tensor 'a' in one.safetensors, but two.safetensors also contains it"));
}

}  // namespace
}  // namespace furlong
