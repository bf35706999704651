#include "formats/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "framework/core/error.h"
#include "tests/formats/foreign_bytes.h"
#include "tests/temporary_folder.h"

namespace furlong {
namespace {

using testing::Bytes;
using ::testing::ElementsAre;
using testing::floats;
using testing::gguf_array;
using testing::gguf_file;
using testing::gguf_pair;
using testing::gguf_text;
using testing::GgufTensor;
using ::testing::HasSubstr;
using testing::message_of;
using testing::packed;
using testing::patched;

class Gguf : public testing::WithTemporaryFolder {
 protected:
  std::unique_ptr<GgufFile> open(const std::string& bytes) { return open_gguf(file("a.gguf", bytes)); }
  std::string failure(const std::string& bytes) {
    const std::string message = message_of<UserError>([&] { open(bytes); });
    EXPECT_TRUE(message.starts_with(path("a.gguf"))) << message;
    return message;
  }
};

template <class T>
std::string pair_of(std::string_view key, std::uint32_t type, T value) {
  return gguf_pair(key, type, Bytes().number(value).all());
}

const GgufTensor two_by_three = {"w", {3, 2}, 0, packed<float>({1, 2, 3, 4, 5, 6})};

TEST_F(Gguf, ReadsMetadataOfEveryType) {
  const auto opened = open(
      gguf_file({pair_of<std::uint8_t>("u8", 0, 200),
                 pair_of<std::int8_t>("i8", 1, -8),
                 pair_of<std::uint16_t>("u16", 2, 65535),
                 pair_of<std::int16_t>("i16", 3, -16),
                 pair_of<std::uint32_t>("u32", 4, 4000000000u),
                 pair_of<std::int32_t>("i32", 5, -32),
                 pair_of<float>("f32", 6, 0.5f),
                 pair_of<std::uint8_t>("yes", 7, 1),
                 gguf_pair("text", 8, gguf_text("gr\u00fc\u00df")),
                 pair_of<std::uint64_t>("u64", 10, 1ull << 62),
                 pair_of<std::int64_t>("i64", 11, -64),
                 pair_of<double>("f64", 12, 0.1),
                 pair_of<std::uint64_t>("beyond", 10, 1ull << 63),
                 gguf_pair("texts", 9, gguf_array(8, 3, gguf_text("a") + gguf_text("") + gguf_text("\xff"))),
                 gguf_pair("integers", 9, gguf_array(5, 2, packed<std::int32_t>({-1, 7}))),
                 gguf_pair("bytes", 9, gguf_array(0, 2, "\x01\xff")),
                 gguf_pair("reals", 9, gguf_array(6, 2, packed<float>({0.25f, -1}))),
                 gguf_pair("truths", 9, gguf_array(7, 2, std::string("\0\1", 2))),
                 gguf_pair("nothing", 9, gguf_array(8, 0, "")),
                 gguf_pair("arrays", 9, gguf_array(9, 2, gguf_array(8, 1, gguf_text("x")) + gguf_array(0, 3, "abc"))),
                 gguf_pair("after", 8, gguf_text("all of it"))},
                {two_by_three}));
  EXPECT_EQ(opened->metadata().size(), 21u);
  EXPECT_EQ(opened->integer("u8"), 200);
  EXPECT_EQ(opened->integer("i8"), -8);
  EXPECT_EQ(opened->integer("u16"), 65535);
  EXPECT_EQ(opened->integer("i16"), -16);
  EXPECT_EQ(opened->integer("u32"), 4000000000);
  EXPECT_EQ(opened->integer("i32"), -32);
  EXPECT_EQ(opened->integer("u64"), 1LL << 62);
  EXPECT_EQ(opened->integer("i64"), -64);
  EXPECT_EQ(opened->real("f32"), 0.5);
  EXPECT_EQ(opened->real("f64"), 0.1);
  EXPECT_EQ(opened->real("i8"), -8.0);
  EXPECT_TRUE(opened->boolean("yes"));
  EXPECT_EQ(opened->text("text"), "gr\u00fc\u00df");
  EXPECT_THAT(opened->texts("texts"), ElementsAre("a", "", "\xff"));
  EXPECT_THAT(opened->integers("integers"), ElementsAre(-1, 7));
  EXPECT_THAT(opened->integers("bytes"), ElementsAre(1, 255));
  EXPECT_THAT(opened->reals("reals"), ElementsAre(0.25, -1));
  EXPECT_THAT(opened->reals("bytes"), ElementsAre(1, 255));
  EXPECT_THAT(opened->booleans("truths"), ElementsAre(false, true));
  EXPECT_TRUE(opened->integers("nothing").empty());
  EXPECT_TRUE(opened->reals("nothing").empty());
  EXPECT_EQ(opened->text("after"), "all of it");
  EXPECT_TRUE(opened->has("arrays"));
  EXPECT_EQ(opened->integer("absent", 5), 5);
  EXPECT_EQ(opened->real("absent", 0.5), 0.5);
  EXPECT_EQ(opened->text("absent", "x"), "x");
  EXPECT_TRUE(opened->boolean("absent", true));
  EXPECT_EQ(opened->integer("i8", 5), -8);
  EXPECT_THAT(message_of<UserError>([&] { opened->integer("absent"); }), HasSubstr("has no metadata key 'absent'"));
  EXPECT_THAT(message_of<UserError>([&] { opened->integer("text", 3); }),
              HasSubstr("'text' has type string, expected integer"));
  EXPECT_THAT(message_of<UserError>([&] { opened->texts("integers"); }),
              HasSubstr("'integers' has type array of integers, expected array of strings"));
  EXPECT_THAT(message_of<UserError>([&] { opened->integer("beyond"); }), HasSubstr("beyond 63 bits"));
  EXPECT_THAT(message_of<UserError>([&] { opened->texts("arrays"); }), HasSubstr("array of arrays"));
}

TEST_F(Gguf, ReadsTensors) {
  for (const std::uint32_t version : {2u, 3u}) {
    const auto opened =
        open_tensor_file(file("m.gguf", gguf_file({pair_of<std::uint32_t>("general.alignment", 4, 64)},
                                                  {two_by_three,
                                                   {"half", {2}, 1, packed<std::uint16_t>({0x3c00, 0xc000})},
                                                   {"brain", {2, 1, 1, 1}, 30, packed<std::uint16_t>({0x3f80, 0xc000})},
                                                   {"double", {1}, 28, packed<double>({0.5})},
                                                   {"ids", {2}, 26, packed<std::int32_t>({-1, 3})},
                                                   {"scalar", {}, 0, packed<float>({9})},
                                                   {"none", {0, 4}, 0, ""},
                                                   {"quants",
                                                    {32, 2},
                                                    8,
                                                    packed<std::uint16_t>({0x3c00}) + std::string(32, '\2') +
                                                        packed<std::uint16_t>({0x4000}) + std::string(32, '\xff')},
                                                   {"odd", {256}, 10, std::string(84, 'x')}},
                                                  version, 64)));
    EXPECT_EQ(opened->find("w")->shape, (Shape{2, 3}));
    EXPECT_EQ(opened->find("quants")->stored_type, "Q8_0");
    EXPECT_EQ(opened->find("quants")->shape, (Shape{2, 32}));
    EXPECT_EQ(opened->find("odd")->stored_type, "Q2_K");
    EXPECT_THAT(floats(*opened, "w"), ElementsAre(1, 2, 3, 4, 5, 6));
    EXPECT_THAT(floats(*opened, "half"), ElementsAre(1, -2));
    EXPECT_THAT(floats(*opened, "brain"), ElementsAre(1, -2));
    EXPECT_THAT(floats(*opened, "double"), ElementsAre(0.5f));
    EXPECT_THAT(floats(*opened, "scalar"), ElementsAre(9));
    EXPECT_TRUE(floats(*opened, "none").empty());
    EXPECT_THAT(opened->read_integers("ids"), ElementsAre(-1, 3));
    std::vector<float> expected(32, 2.0f);
    expected.resize(64, -2.0f);
    EXPECT_EQ(floats(*opened, "quants"), expected);
    EXPECT_THAT(message_of<UserError>([&] { floats(*opened, "odd"); }),
                HasSubstr("tensor 'odd' is quantized as Q2_K, which is not supported; expected F32, F16, BF16, Q4_0"));
    EXPECT_THAT(message_of<UserError>([&] { opened->read_integers("quants"); }),
                HasSubstr("type Q8_0, expected integers"));
  }
}

TEST_F(Gguf, ReadsManyBlocksInPieces) {
  std::string data;
  std::vector<float> expected;
  for (int block = 0; block < 10'000; ++block) {
    data += packed<std::uint16_t>({0x3c00}) + std::string(32, static_cast<char>(block % 100));
    expected.insert(expected.end(), 32, static_cast<float>(block % 100));
  }
  EXPECT_EQ(floats(*open(gguf_file({}, {{"w", {320, 1000}, 8, data}})), "w"), expected);
}

TEST_F(Gguf, OpensDirectoriesWithOneFile) {
  file("only.gguf", gguf_file({}, {two_by_three}));
  EXPECT_THAT(floats(*open_tensor_file(folder_), "w"), ElementsAre(1, 2, 3, 4, 5, 6));
  file("another.gguf", gguf_file({}, {}));
  EXPECT_THAT(message_of<UserError>([&] { open_tensor_file(folder_); }),
              HasSubstr("has 2 GGUF files (another.gguf, only.gguf, ...)"));
}

TEST_F(Gguf, RejectsInvalidFiles) {
  const std::string good =
      gguf_file({pair_of<std::uint32_t>("n", 4, 1)}, {two_by_three, {"v", {8}, 0, std::string(32, 'v')}});
  ASSERT_EQ(open(good)->tensors().size(), 2u);
  const std::size_t pair = 24, type = pair + 8 + 1, first = type + 8, second = first + 8 + 1 + 4 + 16 + 4 + 8;
  const std::size_t extents = first + 8 + 1 + 4, tensor_type = extents + 16, offset = tensor_type + 4,
                    second_offset = second + 8 + 1 + 4 + 8 + 4;
  const auto value = [](std::uint32_t kind, const std::string& bytes) {
    return gguf_file({gguf_pair("key", kind, bytes)}, {});
  };
  const std::vector<std::pair<std::string, std::string>> lies = {
      {"", "'GGUF' is missing"},
      {"GGUF", "'GGUF' is missing"},
      {patched<char>(good, 0, 'g'), "'GGUF' is missing"},
      {patched<std::uint32_t>(good, 4, 1), "GGUF version 1, expected 2 or 3"},
      {patched<std::uint32_t>(good, 4, 4), "GGUF version 4"},
      {patched<std::uint32_t>(good, 4, 3u << 24), "big-endian"},
      {patched<std::uint64_t>(good, 8, ~0ull), "18446744073709551615 tensors"},
      {patched<std::uint64_t>(good, 8, 1'000'000'000'000), "1000000000000 tensors"},
      {patched<std::uint64_t>(good, 16, ~0ull), "states 18446744073709551615 metadata keys"},
      {patched<std::uint64_t>(good, 8, 3), "truncated or damaged: tensor 'v' takes"},
      {patched<std::uint64_t>(good, 16, 2), "bytes are required at byte"},
      {patched<std::uint64_t>(good, pair, ~0ull), "18446744073709551615 bytes are required"},
      {patched<char>(good, pair + 8, '\xff'), "'\\xff' is not UTF-8"},
      {patched<std::uint32_t>(good, type, 13), "has a value of type 13"},
      {patched<std::uint64_t>(good, first, 1ull << 40), "1099511627776 bytes are required"},
      {patched<char>(good, first + 8, '\xff'), "the name of tensor '\\xff' is not UTF-8"},
      {patched<char>(good, second + 8, 'w'), "tensor 'w' is listed twice"},
      {patched<std::uint32_t>(good, first + 9, 5), "has 5 dimensions"},
      {patched<std::uint64_t>(good, extents, ~0ull), "more than 2^63 elements"},
      {patched<std::uint64_t>(good, extents, 1ull << 62), "more than 2^63 elements"},
      {patched<std::uint64_t>(good, extents, 1ull << 61), "cannot have type F32"},
      {patched<std::uint64_t>(good, extents, 1'000'000'000'000), "takes 8000000000000 bytes"},
      {patched<std::uint32_t>(patched<std::uint64_t>(good, extents, 1'000'000'000'000), tensor_type, 77),
       "more elements than"},
      {patched<std::uint32_t>(good, tensor_type, 8), "cannot have type Q8_0, whose blocks have 32 elements"},
      {patched<std::uint64_t>(good, offset, 8), "not a multiple of 32"},
      {patched<std::uint64_t>(good, offset, ~0ull - 31), "takes 24 bytes from byte 18446744073709551584"},
      {patched<std::uint64_t>(good, second_offset, 0), "inside another tensor"},
      {good.substr(0, good.size() - 1), "'v' takes 32 bytes from byte 32 after the header, but the file has 63"},
      {value(7, "\2"), "has the boolean 2"},
      {value(8, packed<std::uint64_t>({1ull << 50})), "bytes are required"},
      {value(9, gguf_array(4, 1'000'000'000'000, "")), "'key' is an array of 1000000000000 values"},
      {value(9, gguf_array(13, 0, "")), "a value of type 13"},
      {value(9, gguf_array(9, 1, gguf_array(9, 1, gguf_array(9, 1, gguf_array(9, 1, gguf_array(0, 0, "")))))),
       "more than 4 deep"},
      {value(9, gguf_array(9, 1, gguf_array(10, ~0ull, ""))), "is an array of 18446744073709551615 values"},
      {value(9, gguf_array(9, 1, gguf_array(8, 1, packed<std::uint64_t>({~0ull})))),
       "18446744073709551615 bytes are required"},
      {gguf_file({pair_of<std::uint32_t>("n", 4, 1), pair_of<std::uint32_t>("n", 4, 1)}, {}), "'n' occurs twice"},
      {gguf_file({pair_of<std::uint32_t>("general.alignment", 4, 0)}, {}), "general.alignment is 0"},
      {gguf_file({pair_of<std::uint32_t>("general.alignment", 4, 48)}, {}), "general.alignment is 48"},
      {gguf_file({pair_of<std::int32_t>("general.alignment", 5, -32)}, {}), "general.alignment is -32"},
      {gguf_file({pair_of<std::uint32_t>("general.alignment", 4, 1u << 31)}, {}), "general.alignment is 2147483648"},
      {gguf_file({gguf_pair("general.alignment", 8, gguf_text("32"))}, {}),
       "'general.alignment' has type string, expected integer"},
      {gguf_file({pair_of<std::uint16_t>("split.count", 2, 3)}, {}), "one of 3 parts"},
  };
  for (const auto& [bytes, expected] : lies) EXPECT_THAT(failure(bytes), HasSubstr(expected));
  for (std::size_t bytes = 0; bytes < good.size(); ++bytes)
    EXPECT_THROW(open(good.substr(0, bytes)), UserError) << bytes;
}

}  // namespace
}  // namespace furlong
