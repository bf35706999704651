#include "datasets/prepare/byte_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <xxhash.h>

#include <random>

#include "framework/core/error.h"
#include "tests/datasets/prepare/compress.h"
#include "tests/temporary_folder.h"

namespace furlong {
namespace {

using testing::gzip;
using ::testing::HasSubstr;
using testing::message_of;
using testing::xz;
using testing::zstd;

class ByteSourceTest : public testing::WithTemporaryFolder {
 protected:
  static std::string read_all(const std::string& path, std::size_t block = 10'007) {
    ByteSource source(path);
    std::string all, piece(block, '\0');
    while (const std::size_t count = source.read(piece.data(), block)) all.append(piece, 0, count);
    return all;
  }
  /// Compressible text, larger than any internal buffer.
  static std::string make_text(std::size_t size) {
    std::mt19937_64 random(7);
    std::string text;
    while (text.size() < size) text += "line " + std::to_string(random() % 1000) + "\n";
    return text;
  }
};

TEST_F(ByteSourceTest, ReadsPlainGzipAndXzWithSeveralMembers) {
  const std::string one = make_text(900'000), two = make_text(300'000), both = one + two;
  EXPECT_EQ(read_all(file("plain", both)), both);
  EXPECT_EQ(read_all(file("one.gz", gzip(one))), one);
  EXPECT_EQ(read_all(file("two.gz", gzip(one) + gzip(two))), both);
  EXPECT_EQ(read_all(file("empty_member.gz", gzip("") + gzip(one) + gzip("") + gzip(two))), both);
  EXPECT_EQ(read_all(file("padded.gz", gzip(one) + std::string(1000, '\0') + gzip(two) + std::string(512, '\0'))),
            both);
  EXPECT_EQ(read_all(file("one.xz", xz(one))), one);
  EXPECT_EQ(read_all(file("two.xz", xz(one) + std::string(8, '\0') + xz(two))), both);
  for (const std::size_t block : {std::size_t{1}, std::size_t{3}, std::size_t{1} << 20}) {
    EXPECT_EQ(read_all(file("small.gz", gzip("abc\n") + gzip("def")), block), "abc\ndef");
    EXPECT_EQ(read_all(file("small.xz", xz("abc\n") + xz("def")), block), "abc\ndef");
  }
  EXPECT_EQ(read_all(file("nothing", "")), "");
  EXPECT_EQ(read_all(file("short", "\x1f")), "\x1f");
}

TEST_F(ByteSourceTest, ReadsZstdWithSeveralFrames) {
  const std::string one = make_text(900'000), two = make_text(300'000), both = one + two;
  // A frame that decoders skip, as pzstd writes it at the start.
  const std::string skipped("\x50\x2a\x4d\x18\3\0\0\0abc", 11);
  EXPECT_EQ(read_all(file("one.zst", zstd(one))), one);
  EXPECT_EQ(read_all(file("two.zst", zstd(one) + zstd("") + zstd(two))), both);
  EXPECT_EQ(read_all(file("skipped.zst", skipped + zstd(one) + skipped + zstd(two))), both);
  for (const std::size_t block : {std::size_t{1}, std::size_t{3}, std::size_t{1} << 20})
    EXPECT_EQ(read_all(file("small.zst", zstd("abc\n") + zstd("def")), block), "abc\ndef");
  EXPECT_STREQ(ByteSource(path("one.zst")).compression(), "zstd");
  EXPECT_EQ(without_compression("a/b.txt.zst"), "a/b.txt");
  EXPECT_EQ(without_compression("A/B.TXT.GZ"), "A/B.TXT");
  EXPECT_EQ(extension_of("a.b/C.CSV.Gz"), ".csv");
  EXPECT_EQ(extension_of("a.b/c"), "");
  for (const char* name : {"a.fa", "a.FASTA", "a.fas.gz", "A.FAA.XZ"}) EXPECT_TRUE(is_fasta_name(name)) << name;
  for (const char* name : {"a.csv", "fasta", "a.fa.txt"}) EXPECT_FALSE(is_fasta_name(name)) << name;
  // The window that a frame asks for is limited: 2^31 bytes here, in the descriptor of RFC 8878, 3.1.1.1.2.
  EXPECT_THAT(
      message_of<UserError>([&] { read_all(file("wide.zst", std::string("\x28\xb5\x2f\xfd\0\xa8\1\0\0", 9))); }),
      HasSubstr("wide.zst: decompression needs more than 1024 MiB"));
}

TEST_F(ByteSourceTest, ReportsBytesHashAndCompression) {
  const std::string compressed = gzip(make_text(1'000'000)) + gzip("end");
  ByteSource source(file("a.gz", compressed));
  std::string sink(2'000'000, '\0');
  EXPECT_GT(source.read(sink.data(), sink.size()), 1'000'000u);
  EXPECT_EQ(source.read(sink.data(), sink.size()), 0u);
  EXPECT_EQ(source.file_bytes(), compressed.size());
  EXPECT_EQ(source.file_hash(), XXH3_64bits(compressed.data(), compressed.size()));
  EXPECT_STREQ(source.compression(), "gzip");
}

TEST_F(ByteSourceTest, DetectsEveryTruncation) {
  const std::string text = make_text(3000);
  const std::string compressed_gzip = gzip(text), compressed_xz = xz(text), compressed_zstd = zstd(text);
  for (std::size_t length = 2; length < compressed_gzip.size(); ++length) {
    const std::string name = file("a.gz", compressed_gzip.substr(0, length));
    EXPECT_THAT(message_of<UserError>([&] { read_all(name); }), HasSubstr(name + ": the gzip data end unexpectedly"))
        << length;
  }
  for (std::size_t length = 6; length < compressed_xz.size(); ++length) {
    const std::string name = file("a.xz", compressed_xz.substr(0, length));
    EXPECT_THAT(message_of<UserError>([&] { read_all(name); }), HasSubstr(name + ": the xz data")) << length;
  }
  for (std::size_t length = 4; length < compressed_zstd.size(); ++length) {
    const std::string name = file("a.zst", compressed_zstd.substr(0, length));
    EXPECT_THAT(message_of<UserError>([&] { read_all(name); }), HasSubstr(name + ": the zstd data end unexpectedly"))
        << length;
  }
}

TEST_F(ByteSourceTest, DetectsEveryFlippedBit) {
  const std::string text = make_text(2000);
  for (const bool is_xz : {false, true}) {
    const std::string whole = is_xz ? xz(text) : gzip(text);
    int unseen = 0;
    // The checksum of gzip does not cover its ten header bytes (time, system).
    for (std::size_t position = is_xz ? 6 : 10; position < whole.size(); ++position) {
      std::string damaged = whole;
      damaged[position] ^= 0x10;
      const std::string name = file("damaged", damaged);
      try {
        EXPECT_EQ(read_all(name), text) << (is_xz ? "xz " : "gzip ") << position;
        ++unseen;
      } catch (const UserError&) {
      }
    }
    // A deflate stream is padded to whole bytes, so one bit in its last byte may be unused.
    EXPECT_LE(unseen, is_xz ? 0 : 1);
  }
}

TEST_F(ByteSourceTest, FlippedBitsOfZstdNeverGiveOtherText) {
  const std::string text = make_text(2000), whole = zstd(text);
  std::size_t unseen = 0;
  for (std::size_t position = 4; position < whole.size(); ++position) {
    std::string damaged = whole;
    damaged[position] ^= 0x10;
    const std::string name = file("damaged", damaged);
    try {
      EXPECT_EQ(read_all(name), text) << position;
      ++unseen;
    } catch (const UserError&) {
    }
  }
  EXPECT_LE(unseen, whole.size() / 50) << "some bits have no meaning, such as one of the frame's descriptor";
  EXPECT_THAT(message_of<UserError>([&] { read_all(file("a", whole + "garbage")); }), HasSubstr("zstd data"));
}

// libzstd accepts an empty last block whatever the header says, unless the frame fits in one block of the reader; then
// it accepts every window.
TEST_F(ByteSourceTest, RejectsZstdOfAnotherSizeThanDeclared) {
  const std::string empty_block("\1\0\0", 3);
  const auto frame = [&](std::uint8_t size) { return std::string("\x28\xb5\x2f\xfd\x20") + char(size) + empty_block; };
  for (const std::size_t block : {std::size_t{1}, std::size_t{4096}, std::size_t{1} << 20}) {
    EXPECT_EQ(read_all(file("empty.zst", frame(0)), block), "");
    for (const std::string& after : {std::string(), zstd("abc")})
      EXPECT_THAT(message_of<UserError>([&] { read_all(file("forged.zst", frame(80) + after), block); }),
                  HasSubstr("forged.zst: the zstd data are damaged"));
    const std::string large_window("\x28\xb5\x2f\xfd\x40\xad\x0a\xff", 8);  // 2^31 * 13 / 8 bytes
    EXPECT_THAT(message_of<UserError>([&] { read_all(file("large.zst", large_window + empty_block), block); }),
                HasSubstr("large.zst: decompression needs more than 1024 MiB of memory"));
  }
}

TEST_F(ByteSourceTest, RejectsUnsupportedInputs) {
  EXPECT_THAT(message_of<UserError>([&] { read_all(path("missing")); }),
              HasSubstr("missing: does not exist; expected a file"));
  EXPECT_THAT(message_of<UserError>([&] { read_all(folder_.string()); }), HasSubstr("is a directory"));
  EXPECT_THAT(message_of<UserError>([&] { read_all(file("a", "BZh91AY&SY....")); }), HasSubstr("bzcat"));
  EXPECT_THAT(message_of<UserError>([&] { read_all(file("a", "PK\x03\x04........")); }), HasSubstr("zip archive"));
  EXPECT_THAT(message_of<UserError>([&] { read_all(file("a", gzip("text") + "garbage")); }),
              HasSubstr("other data follow the gzip data"));
  EXPECT_EQ(read_all(file("a", "BZh, said the bee")), "BZh, said the bee");
  EXPECT_EQ(read_all(file("a", gzip("BZh"))), "BZh");
  const auto refused = [&](const std::string& content) {
    return message_of<UserError>([&] { read_all(file("a", content)); });
  };
  const std::string tar = std::string(257, 'x') + "ustar" + std::string(250, '\0');
  EXPECT_THAT(refused(tar), HasSubstr("a: tar archives are not supported; unpack it first"));
  EXPECT_THAT(refused(gzip(tar)), HasSubstr("tar archives"));
  EXPECT_THAT(refused(gzip(gzip("text"))), HasSubstr("a: the compressed file contains a packed one"));
  EXPECT_THAT(refused(gzip(xz("text"))), HasSubstr("contains a packed one"));
  EXPECT_THAT(refused(gzip("BZh11AY&SY....")), HasSubstr("contains a packed one"));
  EXPECT_THAT(refused(gzip("PK\x03\x04....")), HasSubstr("contains a packed one"));
  for (const std::string& text : {std::string("\xff\xfeh\0i\0\r\0\n\0\x3d\xd8\x00\xde", 14),
                                  std::string("\xfe\xff\0h\x4e\xba\xd8\x3d\xde\x00\0\n", 12)})
    EXPECT_THAT(refused(text), HasSubstr("a: the text is UTF-16; convert it to UTF-8: iconv -f utf-16"));
  // Other data can begin with the same two bytes.
  for (const std::string& bytes : {std::string("\xff\xfe"),
                                   std::string("\xff\xfe"
                                               "a"),
                                   std::string("\xff\xfe\0\0\0\0", 6), std::string("\xff\xfe\x00\xdc", 4),
                                   std::string("\xfe\xff\x00\x01\x05\x06", 6)})
    EXPECT_EQ(read_all(file("a", bytes)), bytes);
}

}  // namespace
}  // namespace furlong
