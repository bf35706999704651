#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <zlib.h>

#include <thread>

#include <nlohmann/json.hpp>

#include "datasets/prepare/prepare.h"
#include "datasets/tokenized_dataset.h"
#include "framework/core/error.h"
#include "tests/datasets/prepare/compress.h"
#include "tests/datasets/prepare/png_file.h"
#include "tests/temporary_folder.h"

namespace furlong {
namespace {

using ::testing::HasSubstr;
using testing::message_of;

std::string big_endian(std::uint32_t value) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(value >> shift & 255);
  return bytes;
}

/// An IDX file of bytes.
std::string idx(const std::vector<std::uint32_t>& dimensions, const std::string& values) {
  std::string text{'\0', '\0', '\x08', static_cast<char>(dimensions.size())};
  for (const std::uint32_t dimension : dimensions) text += big_endian(dimension);
  return text + values;
}

std::string bytes(std::initializer_list<int> values) {
  std::string text;
  for (const int value : values) text += static_cast<char>(value);
  return text;
}

class PrepareImagesTest : public testing::WithTemporaryFolder {
 protected:
  PrepareOptions options(const std::vector<std::string>& inputs, const std::vector<std::string>& labels = {}) const {
    PrepareOptions made;
    made.format = PrepareOptions::Format::images;
    made.inputs = inputs;
    made.image_labels = labels;
    made.output = path("images.h5");
    made.force = true;
    made.store.split_by = DatasetWriterOptions::SplitBy::document;
    made.store.shares = parse_split_shares("1,0,0");
    return made;
  }
  TokenizedDataset prepared(const PrepareOptions& options) const {
    prepare(options);
    return TokenizedDataset::open(options.output);
  }
  std::string refusal(const PrepareOptions& options) const {
    const std::string message = message_of<UserError>([&] { prepare(options); });
    EXPECT_FALSE(std::filesystem::exists(options.output));
    return message;
  }
  std::vector<std::int32_t> pixels(const TokenizedDataset& data) const {
    return data.read(Split::train, 0, data.n_tokens());
  }
};

using Pixels = std::vector<std::int32_t>;

TEST_F(PrepareImagesTest, IdxFilesBecomeLabeledPixels) {
  const std::string first = idx({2, 2, 3}, bytes({0, 1, 2, 3, 4, 255, 6, 7, 8, 9, 10, 11}));
  const std::string second = idx({1, 2, 3}, bytes({20, 21, 22, 23, 24, 25}));
  const TokenizedDataset data = prepared(
      options({file("a.idx", first), file("b.gz", testing::gzip(second))},
              {file("a.labels", idx({2}, bytes({3, 0}))), file("b.labels.gz", testing::gzip(idx({1}, bytes({1}))))}));
  EXPECT_EQ(pixels(data), (Pixels{0, 1, 2, 3, 4, 255, 6, 7, 8, 9, 10, 11, 20, 21, 22, 23, 24, 25}));
  EXPECT_EQ(data.n_documents(), 3u);
  EXPECT_EQ(data.document(1).begin, 6u);
  EXPECT_EQ(data.labels(), (Pixels{3, 0, 1}));
  EXPECT_EQ(data.vocabulary().labels(), (std::vector<std::string>{"0", "1", "2", "3"}));
  EXPECT_EQ(data.vocabulary().size(), 256);
  const auto provenance = nlohmann::json::parse(data.provenance());
  EXPECT_EQ(provenance["options"]["format"], "images");
  EXPECT_EQ(provenance["sources"].size(), 4u);
}

TEST_F(PrepareImagesTest, LabelsAreOptionalAndCanHaveNames) {
  const std::string images = file("a", idx({2, 1, 2}, bytes({1, 2, 3, 4})));
  EXPECT_EQ(prepared(options({images})).documents_per_label(), 0u);
  PrepareOptions named = options({images}, {file("labels", idx({2}, bytes({1, 0})))});
  named.labeled.labels = {"shoe", "bag", "coat"};
  EXPECT_EQ(prepared(named).vocabulary().labels(), named.labeled.labels);
  named.labeled.labels = {"shoe"};
  std::filesystem::remove(named.output);
  EXPECT_THAT(refusal(named), HasSubstr("image 1 has the label 1, but --labels gives 1 names"));
}

TEST_F(PrepareImagesTest, RejectsLabelsOfUnlabeledAndMixedFiles) {
  const std::string plain = file("a.idx", idx({1, 1, 2}, bytes({1, 2})));
  const std::string picture = file("a.pgm", "P5 2 1 255\n" + bytes({1, 2}));
  PrepareOptions named = options({plain});
  named.labeled.labels = {"cat", "dog"};
  EXPECT_THAT(refusal(named), ::testing::AllOf(HasSubstr("a.idx: --labels"), HasSubstr("--label-file")));
  EXPECT_THAT(refusal(options({picture, plain})), ::testing::AllOf(HasSubstr("a.idx"), HasSubstr("separately")));
  EXPECT_THAT(refusal(options({plain, picture})), ::testing::AllOf(HasSubstr("a.pgm: "), HasSubstr("separately")));
}

TEST_F(PrepareImagesTest, ReadsColorsAndReducesThemToGray) {
  // Luma of red, green and blue: 0.299, 0.587 and 0.114 of 255.
  const std::string rgb = bytes({255, 0, 0, 0, 255, 0, 0, 0, 255, 255, 255, 255});
  PrepareOptions wanted = options({file("a", idx({1, 2, 2, 3}, rgb))});
  EXPECT_EQ(pixels(prepared(wanted)), (Pixels{255, 0, 0, 0, 255, 0, 0, 0, 255, 255, 255, 255}));
  wanted.grayscale = true;
  EXPECT_EQ(pixels(prepared(wanted)), (Pixels{76, 150, 29, 255}));
  std::filesystem::create_directories(path("x"));
  wanted.inputs = {file("x/a.ppm", "P6\n# a comment\n2 2 255\n" + rgb)};
  EXPECT_EQ(pixels(prepared(wanted)), (Pixels{76, 150, 29, 255}));
}

TEST_F(PrepareImagesTest, FoldersLabelPicturesAndValuesAreScaled) {
  std::filesystem::create_directories(path("cat"));
  std::filesystem::create_directories(path("dog"));
  const std::vector<std::string> files{file("dog/1.pgm", "P5 2 1 3\n" + bytes({0, 3})),
                                       file("cat/1.pgm", "P5\n2\t1\r\n# 7\n255\n" + bytes({'#', 10})),
                                       file("dog/2.pgm", "P5 2 1 4 " + bytes({1, 2}))};
  PrepareOptions wanted = options(files);
  const TokenizedDataset data = prepared(wanted);
  EXPECT_EQ(pixels(data), (Pixels{64, 128, '#', 10, 0, 255})) << "in random order";
  EXPECT_EQ(data.labels(), (Pixels{0, 1, 0}));
  EXPECT_EQ(data.vocabulary().labels(), (std::vector<std::string>{"dog", "cat"}));
  wanted.labeled.labels = {"cat", "dog"};
  EXPECT_EQ(prepared(wanted).labels(), (Pixels{1, 0, 1}));
  wanted.labeled.labels = {"cat"};
  std::filesystem::remove(wanted.output);
  EXPECT_THAT(refusal(wanted), HasSubstr("its folder dog is not one of --labels"));
}

TEST_F(PrepareImagesTest, PngGivesThePixelsOfPpm) {
  // 9 x 5 pixels: every pass of an interlaced image has some.
  std::string all, gray;
  testing::PngImage color{.columns = 9, .rows = 5, .color = PNG_COLOR_TYPE_RGB}, plain{.columns = 9, .rows = 5};
  for (int row = 0; row < 5; ++row) {
    color.lines.emplace_back();
    plain.lines.emplace_back();
    for (int i = 0; i < 27; ++i) color.lines.back() += static_cast<char>(row * 50 + i * 7);
    for (int i = 0; i < 9; ++i) plain.lines.back() += static_cast<char>(row * 40 + i * 9);
    all += color.lines.back();
    gray += plain.lines.back();
  }
  std::filesystem::create_directories(path("cat"));
  for (const bool interlaced : {false, true}) {
    color.interlaced = plain.interlaced = interlaced;
    for (const bool grayscale : {false, true}) {
      PrepareOptions wanted = options({file("cat/1.ppm", "P6 9 5 255\n" + all)});
      wanted.grayscale = grayscale;
      const Pixels expected = pixels(prepared(wanted));
      wanted.inputs = {file("cat/1.png", testing::png_file(color))};
      const TokenizedDataset data = prepared(wanted);
      EXPECT_EQ(pixels(data), expected);
      EXPECT_EQ(data.labels(), Pixels{0});
      EXPECT_EQ(data.vocabulary().labels(), std::vector<std::string>{"cat"});
    }
    const Pixels expected = pixels(prepared(options({file("cat/1.pgm", "P5 9 5 255\n" + gray)})));
    EXPECT_EQ(pixels(prepared(options({file("cat/1.png", testing::png_file(plain))}))), expected);
  }
  // Both kinds of pictures in one dataset, compressed.
  EXPECT_EQ(prepared(options({file("cat/1.pgm", "P5 9 5 255\n" + gray),
                              file("cat/2.png.zst", testing::zstd(testing::png_file(plain)))}))
                .n_documents(),
            2u);
}

TEST_F(PrepareImagesTest, PngPalettesAndFewBitsAreExpanded) {
  const auto read = [&](const testing::PngImage& image) {
    return pixels(prepared(options({file("1.png", testing::png_file(image))})));
  };
  EXPECT_EQ(read({.columns = 9, .rows = 1, .bits = 1, .lines = {bytes({0b10110000, 0x80})}}),
            (Pixels{255, 0, 255, 255, 0, 0, 0, 0, 255}));
  EXPECT_EQ(read({.columns = 4, .rows = 1, .bits = 2, .lines = {bytes({0b00011011})}}), (Pixels{0, 85, 170, 255}));
  EXPECT_EQ(read({.columns = 2, .rows = 1, .bits = 4, .lines = {bytes({0x1f})}}), (Pixels{17, 255}));
  testing::PngImage palette{.columns = 2, .rows = 2, .color = PNG_COLOR_TYPE_PALETTE};
  palette.palette = {{1, 2, 3}, {250, 251, 252}};
  palette.lines = {bytes({0, 1}), bytes({1, 1})};
  EXPECT_EQ(read(palette), (Pixels{1, 2, 3, 250, 251, 252, 250, 251, 252, 250, 251, 252}));
}

TEST_F(PrepareImagesTest, RejectsOtherPngFiles) {
  const auto refused = [&](const std::string& text) { return refusal(options({file("bad.png", text)})); };
  const testing::PngImage small{.columns = 2, .rows = 1, .lines = {bytes({1, 2})}};
  const std::string good = testing::png_file(small);
  testing::PngImage other{.columns = 1, .rows = 1, .bits = 16, .lines = {bytes({1, 2})}};
  EXPECT_THAT(refused(testing::png_file(other)), HasSubstr("bad.png: the image has 16 bits for each value"));
  other.bits = 8;
  other.color = PNG_COLOR_TYPE_GRAY_ALPHA;
  EXPECT_THAT(refused(testing::png_file(other)), HasSubstr("bad.png: the image has an alpha channel"));
  other = small;
  other.transparent = true;
  EXPECT_THAT(refused(testing::png_file(other)), HasSubstr("bad.png: cannot read the PNG data: transparent colors"));
  EXPECT_THAT(refused(good + "x"), HasSubstr("bad.png: the file continues after its image"));
  EXPECT_THAT(refused("\x89PNG\r\n\x1a\n" + std::string(30, 'x')), HasSubstr("not that of a PNG file"));
  // Sizes are checked before memory is allocated.
  std::string large = good;
  large.replace(16, 8, "\x7f\xff\xff\xff\x7f\xff\xff\xff");
  EXPECT_THAT(refused(large), HasSubstr("1 byte to 1 GiB"));
  large.replace(16, 8, std::string("\0\0\x40\0\0\0\x40\0", 8));  // 256 MiB
  EXPECT_THAT(refused(large), HasSubstr("bad.png: the file is truncated"));
  large.replace(16, 8, std::string(8, '\0'));
  EXPECT_THAT(refused(large), HasSubstr("0 x 0 x 1; expected at least one image of 1 byte"));
  EXPECT_THAT(
      refusal(options({file("good.png", good),
                       file("bad.png", testing::png_file({.columns = 1, .rows = 2, .lines = {"a", "b"}}))})),
      ::testing::ContainsRegex("png: images of (2 x 1 x 1; expected 1 x 2 x 1|1 x 2 x 1; expected 2 x 1 x 1) as in"));
  EXPECT_THAT(refusal(options({file("good.png", good), file("a.idx", idx({1, 1, 2}, "ab"))})), HasSubstr("separately"));
  for (std::size_t size = 1; size < good.size(); ++size)
    EXPECT_THAT(refused(good.substr(0, size)), HasSubstr("bad.png: the file")) << size;
  // The last four bytes are the checksum of an empty chunk, of which libpng 1.6.48 (Debian 13) only warns.
  for (std::size_t place = 0; place + 4 < good.size(); ++place) {
    std::string damaged = good;
    damaged[place] ^= 0x10;
    EXPECT_NE(refused(damaged), "") << place;
  }
}

// 400 kB of compressed texts, which nothing uses, would take 400 MB.
TEST_F(PrepareImagesTest, PngTextsTakeNoMemory) {
  const std::string spaces(7'000'000, ' ');
  uLongf size = compressBound(spaces.size());
  std::string packed(size, '\0');
  ASSERT_EQ(compress2(reinterpret_cast<Bytef*>(packed.data()), &size, reinterpret_cast<const Bytef*>(spaces.data()),
                      spaces.size(), 9),
            Z_OK);
  const std::string body = "zTXt" + std::string("k\0\0", 3) + packed.substr(0, size);
  const uLong sum = crc32(0, reinterpret_cast<const Bytef*>(body.data()), static_cast<uInt>(body.size()));
  const std::string chunk =
      big_endian(static_cast<std::uint32_t>(body.size() - 4)) + body + big_endian(static_cast<std::uint32_t>(sum));
  std::string text = testing::png_file({.columns = 2, .rows = 1, .lines = {bytes({1, 2})}});
  const std::size_t header = 33;
  for (int i = 0; i < 60; ++i) text.insert(header, chunk);
  const auto peak_kib = [] {
    const std::string status = content("/proc/self/status"), name = "\nVmHWM:";
    return std::stol(status.substr(status.find(name) + name.size()));
  };
  // Forgets the peak of earlier tests (proc(5)).
  if (!(std::ofstream("/proc/self/clear_refs") << 5 << std::flush)) GTEST_SKIP() << "cannot reset the peak of memory";
  const long before = peak_kib();
  EXPECT_EQ(pixels(prepared(options({file("texts.png", text)}))), (Pixels{1, 2}));
  EXPECT_LT(peak_kib() - before, 64 << 10);
}

TEST_F(PrepareImagesTest, EveryTruncationIsOneError) {
  const std::string whole = idx({2, 2, 2}, bytes({1, 2, 3, 4, 5, 6, 7, 8}));
  const std::string labels = idx({2}, bytes({1, 0})), picture = "P5 2 2 255\n" + bytes({1, 2, 3, 4});
  for (std::size_t size = 1; size < whole.size(); ++size)
    EXPECT_THAT(refusal(options({file("cut", whole.substr(0, size))})), HasSubstr("cut: the file")) << size;
  EXPECT_THAT(refusal(options({file("cut", whole.substr(0, 20))})),
              HasSubstr("truncated: it has 1 of 2 images of 2 x 2 x 1"));
  for (std::size_t size = 1; size < picture.size(); ++size)
    EXPECT_THAT(refusal(options({file("cut", picture.substr(0, size))})), HasSubstr("cut: the file")) << size;
  for (std::size_t size = 0; size < labels.size(); ++size)
    EXPECT_THAT(refusal(options({file("whole", whole)}, {file("cut", labels.substr(0, size))})),
                HasSubstr("cut: the file has"))
        << size;
  EXPECT_THAT(refusal(options({file("cut", testing::gzip(whole).substr(0, 30))})), HasSubstr("truncated"));
}

// The released code of Long Range Arena calls TensorFlow's rgb_to_grayscale: float32 in 0 ... 1, weighted, times 255.5,
// truncated.
TEST_F(PrepareImagesTest, GrayIsAtMostOneAboveThatOfTheReleasedCode) {
  std::string colors;
  std::vector<int> released;
  for (int red = 0; red < 256; red += 5) {
    for (int green = 0; green < 256; green += 5) {
      for (int blue = 0; blue < 256; blue += 5) {
        colors += bytes({red, green, blue});
        const auto scaled = [](int value, float weight) { return static_cast<float>(value) * (1 / 255.0F) * weight; };
        const float gray = scaled(red, 0.2989F) + scaled(green, 0.587F) + scaled(blue, 0.114F);
        released.push_back(static_cast<int>(gray * 255.5F));
      }
    }
  }
  PrepareOptions wanted = options({file("colors", idx({1, 52, 52 * 52, 3}, colors))});
  wanted.grayscale = true;
  const Pixels found = pixels(prepared(wanted));
  ASSERT_EQ(found.size(), released.size());
  int equal = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    equal += found[i] == released[i];
    ASSERT_TRUE(found[i] == released[i] || found[i] == released[i] + 1) << i;
  }
  EXPECT_NEAR(equal, 0.74 * static_cast<double>(found.size()), 0.01 * static_cast<double>(found.size()));
}

/// A record of CIFAR-10: pixel i has the colors (i, 2 i, 3 i) modulo 256, plus `shift`.
std::string cifar_record(int label, int shift) {
  std::string record(1, static_cast<char>(label));
  for (int channel = 1; channel <= 3; ++channel)
    for (int i = 0; i < 1024; ++i) record += static_cast<char>(channel * i + shift);
  return record;
}

TEST_F(PrepareImagesTest, Cifar10RecordsHaveLabelsAndPlanesOfColors) {
  PrepareOptions wanted = options(
      {file("1.bin", cifar_record(6, 0) + cifar_record(9, 1)), file("2.bin.gz", testing::gzip(cifar_record(0, 2)))});
  wanted.cifar10 = true;
  const TokenizedDataset colored = prepared(wanted);
  EXPECT_EQ(colored.n_documents(), 3u);
  EXPECT_EQ(colored.labels(), (Pixels{6, 9, 0}));
  EXPECT_EQ(colored.vocabulary().labels(),
            (std::vector<std::string>{"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"}));
  const Pixels colors = pixels(colored);
  ASSERT_EQ(colors.size(), 3u * 3072);
  EXPECT_EQ(Pixels(colors.begin() + 3, colors.begin() + 9), (Pixels{1, 2, 3, 2, 4, 6}));
  EXPECT_EQ(Pixels(colors.begin() + 3072, colors.begin() + 3078), (Pixels{1, 1, 1, 2, 3, 4}));
  EXPECT_EQ(Pixels(colors.end() - 3, colors.end()), (Pixels{1, 0, 255}));  // 1023, 2046 and 3069, plus 2
  wanted.grayscale = true;
  wanted.labeled.labels = {"airplane", "car", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"};
  const TokenizedDataset gray = prepared(wanted);
  EXPECT_EQ(gray.vocabulary().labels(), wanted.labeled.labels);
  ASSERT_EQ(gray.n_tokens(), 3u * 1024);
  // 0.299 * 1 + 0.587 * 2 + 0.114 * 3 = 1.815, and 0.299 * 100 + 0.587 * 200 + 0.114 * 44 = 152.3.
  EXPECT_EQ(pixels(gray)[1], 2);
  EXPECT_EQ(pixels(gray)[100], 152);
  EXPECT_EQ(nlohmann::json::parse(gray.provenance())["options"]["records"], "cifar10");
}

TEST_F(PrepareImagesTest, RejectsOtherFilesThanCifar10) {
  const std::string good = cifar_record(1, 0);
  const auto refused = [&](const std::string& text) {
    PrepareOptions wanted = options({file("bad.bin", text)});
    wanted.cifar10 = true;
    return refusal(wanted);
  };
  EXPECT_THAT(refused(""), HasSubstr("bad.bin: the file is truncated: its record 1 has 0 of 3073 bytes"));
  EXPECT_THAT(refused(good.substr(0, 3072)), HasSubstr("its record 1 has 3072 of 3073 bytes"));
  EXPECT_THAT(refused(good + good.substr(0, 7)), HasSubstr("its record 2 has 7 of 3073 bytes"));
  EXPECT_THAT(refused(good + cifar_record(10, 0)), HasSubstr("bad.bin: record 2 has the label 10, expected 0 to 9"));
  EXPECT_THAT(refused(idx({4, 50, 50}, std::string(10000, 'x'))), HasSubstr("record 2 has the label 120"));
  PrepareOptions wanted = options({file("a.bin", good)}, {file("labels", idx({1}, bytes({1})))});
  wanted.cifar10 = true;
  EXPECT_THAT(refusal(wanted), HasSubstr("--label-file: records of CIFAR-10 have their labels"));
  wanted = options({file("a.bin", good)});
  wanted.cifar10 = true;
  wanted.labeled.labels = {"airplane"};
  EXPECT_THAT(refusal(wanted), HasSubstr("image 1 has the label 1, but --labels gives 1 names"));
}

TEST_F(PrepareImagesTest, OfficialTestSplitHasItsOwnFiles) {
  PrepareOptions wanted = options({file("a.idx", idx({2, 1, 2}, bytes({1, 2, 3, 4})))},
                                  {file("a.labels", idx({2}, bytes({1, 0}))), file("b.labels", idx({1}, bytes({2})))});
  wanted.test_inputs = {file("b.idx", idx({1, 1, 2}, bytes({5, 6})))};
  const TokenizedDataset data = prepared(wanted);
  EXPECT_EQ(data.read(Split::train, 0, 4), (Pixels{1, 2, 3, 4}));
  EXPECT_EQ(data.read(Split::test, 0, 2), (Pixels{5, 6}));
  EXPECT_EQ(data.labels(), (Pixels{1, 0, 2}));
}

TEST_F(PrepareImagesTest, RejectsNamesThatOccurTwiceAndPicturesWithoutAFolder) {
  const std::string picture = "P5 2 1 255\n" + bytes({1, 2});
  PrepareOptions wanted = options({file("a.pgm", picture)});
  wanted.labeled.labels = {"a", "b", "a"};
  EXPECT_THAT(refusal(wanted), HasSubstr("--labels: 'a' occurs twice"));
  // A pipe can be read once: its first bytes must not be lost.
  ASSERT_EQ(mkfifo(path("pipe").c_str(), 0600), 0);
  const auto with_pipe = [&](const std::string& text, const auto& check) {
    std::thread writer([&] { file("pipe", text); });
    check();
    writer.join();
  };
  with_pipe(picture, [&] {
    EXPECT_THAT(refusal(options({path("pipe")})), HasSubstr("standard input or a pipe is in no folder"));
  });
  with_pipe(idx({1, 1, 2}, bytes({7, 8})), [&] {
    EXPECT_EQ(pixels(prepared(options({path("pipe")}))), (Pixels{7, 8}));
  });
}

TEST_F(PrepareImagesTest, RejectsOtherFilesSizesAndLabels) {
  const std::string good = file("good", idx({1, 1, 2}, bytes({1, 2})));
  const auto refused = [&](const std::string& text) { return refusal(options({file("bad", text)})); };
  EXPECT_THAT(refused("GIF89a..."), HasSubstr("bad: not an image file; expected IDX"));
  EXPECT_THAT(refused(bytes({0, 0, 13, 3}) + std::string(30, 'x')), HasSubstr("type 0x0d; expected unsigned bytes"));
  EXPECT_THAT(refused(idx({4}, "abcd")), HasSubstr("of 1 dimensions; expected 3"));
  EXPECT_THAT(refused(bytes({0, 0, 8, 9}) + std::string(60, 'x')), HasSubstr("of 9 dimensions"));
  EXPECT_THAT(refused(idx({0, 2, 2}, "")), HasSubstr("found 0 images"));
  EXPECT_THAT(refused(idx({1, 0, 2}, "")), HasSubstr("1 image of 0 x 2 x 1"));
  EXPECT_THAT(refused(idx({1, 0xffffffff, 0xffffffff, 0xffffffff}, "abc")), HasSubstr("1 byte to 1 GiB"));
  EXPECT_THAT(refused(idx({1, 1, 2}, "abc")), HasSubstr("continues after its 1 image"));
  EXPECT_THAT(refused("P5 2 x 255\nabcd"), HasSubstr("not that of a PGM or PPM file"));
  EXPECT_THAT(refused("P5 2 99999999999 255\nabcd"), HasSubstr("not that of a PGM or PPM file"));
  EXPECT_THAT(refused("P5 2 2 65535\nabcdabcd"), HasSubstr("the largest value is 65535"));
  EXPECT_THAT(refused("P5 2 2 9\nabcd"), HasSubstr("the value 97 above the largest one of the header, 9"));
  EXPECT_THAT(refused("P5 #" + std::string(5000, 'x')), HasSubstr("more than 4096 bytes"));
  EXPECT_THAT(refusal(options({good, file("bad", idx({1, 2, 2}, "abcd"))})),
              HasSubstr("bad: images of 2 x 2 x 1; expected 1 x 2 x 1 as in"));
  EXPECT_THAT(refusal(options({good}, {file("labels", idx({2}, "ab"))})), HasSubstr("its --label-file has 2 labels"));
  EXPECT_THAT(refusal(options({good}, {file("labels", idx({1}, std::string(200'000, 'a')))})),
              HasSubstr("the file has more labels than the 1 that its header states"));
  EXPECT_THAT(refusal(options({good}, {good})), HasSubstr("of 3 dimensions; expected 1"));
  EXPECT_THAT(refusal(options({good}, {file("labels", "yes\nno\n")})), HasSubstr("labels: not an IDX file"));
  EXPECT_THAT(refusal(options({good, file("other", idx({1, 1, 2}, "ab"))}, {file("labels", idx({1}, "a"))})),
              HasSubstr("found 1 files for 2 inputs"));
  PrepareOptions gray = options({file("two", idx({1, 1, 1, 2}, "ab"))});
  gray.grayscale = true;
  EXPECT_THAT(refusal(gray), HasSubstr("found 2 channels"));
}

}  // namespace
}  // namespace furlong
