#include "datasets/tokenized_dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hdf5.h>

#include <functional>
#include <random>

#include "datasets/prepare/dataset_writer.h"
#include "framework/core/error.h"
#include "framework/io/atomic_file.h"
#include "framework/io/hdf5.h"
#include "tests/temporary_folder.h"

#ifdef FURLONG_SANITIZED
// HDF5 1.10.8 leaks object headers that it could not read completely; the tests below cause this hundreds of times.
extern "C" const char* __lsan_default_suppressions() { return "leak:libhdf5\n"; }
#endif

namespace furlong {
namespace {

using ::testing::HasSubstr;
using testing::message_of;
using Numbers = std::vector<std::uint64_t>;

/// The parts of a valid dataset; each test changes one.
struct Parts {
  std::string format{tokenized_dataset_format};
  std::int64_t version = tokenized_dataset_version;
  std::string vocabulary = Vocabulary::dna().to_json(), provenance = "{}";
  std::vector<std::uint8_t> tokens = std::vector<std::uint8_t>(100, 1);
  Numbers documents{0, 40, 100};
  Numbers train{0, 40, 60, 80}, validation{40, 60}, test{80, 100};
};

class TokenStoreTest : public testing::WithTemporaryFolder {
 protected:
  std::string make(const Parts& parts) const {
    AtomicFile on_disk(path("store.h5"));
    hdf5::File file = hdf5::File::create(on_disk);
    const hdf5::DatasetOptions checked{.chunk = {32}, .fletcher32 = true, .extendible = true};
    file.write("tokens", hdf5::Type::u8, {parts.tokens.size()}, parts.tokens.data(), checked);
    file.write("documents", hdf5::Type::u64, {parts.documents.size()}, parts.documents.data(), checked);
    const auto split = [&](const std::string& name, const Numbers& ranges) {
      file.write("splits/" + name, hdf5::Type::u64, {ranges.size() / 2, 2}, ranges.data(),
                 {.chunk = {8, 2}, .fletcher32 = true, .extendible = true});
    };
    split("train", parts.train);
    split("validation", parts.validation);
    split("test", parts.test);
    file.set_text("format", parts.format);
    file.set_integer("format_version", parts.version);
    file.set_text("vocabulary", parts.vocabulary);
    file.set_text("provenance", parts.provenance);
    file.close();
    on_disk.commit();
    return path("store.h5");
  }
  std::string refusal(const std::function<void(Parts&)>& change) const {
    Parts parts;
    change(parts);
    const std::string name = make(parts);
    const std::string message = message_of<UserError>([&] { TokenizedDataset::open(name); });
    EXPECT_THAT(message, HasSubstr(name));
    return message;
  }
};

TEST_F(TokenStoreTest, ReadsRangesAsOneSequence) {
  Parts parts;
  for (std::size_t i = 0; i < 100; ++i) parts.tokens[i] = static_cast<std::uint8_t>(i % 16);
  parts.train = {0, 10, 10, 20, 60, 80};
  const TokenizedDataset dataset = TokenizedDataset::open(make(parts));
  EXPECT_EQ(dataset.n_tokens(), 100u);
  EXPECT_EQ(dataset.n_documents(), 2u);
  EXPECT_EQ(dataset.document(1).begin, 40u);
  EXPECT_EQ(dataset.document(1).end, 100u);
  EXPECT_EQ(dataset.ranges(Split::train).size(), 2u);  // [0, 10) and [10, 20) touch
  EXPECT_EQ(dataset.size(Split::train), 40u);
  const auto tokens = dataset.read(Split::train, 15, 10);
  for (std::size_t i = 0; i < 10; ++i) EXPECT_EQ(tokens[i], static_cast<std::int32_t>((i < 5 ? 15 + i : 55 + i) % 16));
  EXPECT_EQ(dataset.breaks(Split::train, 0, 40), Numbers{20});
  EXPECT_EQ(dataset.breaks(Split::train, 19, 2), Numbers{20});
  EXPECT_EQ(dataset.breaks(Split::train, 20, 20), Numbers{});
  EXPECT_EQ(dataset.breaks(Split::train, 0, 20), Numbers{});
  EXPECT_THROW(dataset.read(Split::train, 31, 10), ContractError);
  EXPECT_THROW(dataset.document(2), ContractError);
  EXPECT_TRUE(dataset.read(Split::test, 20, 0).empty());
}

TEST_F(TokenStoreTest, RejectsInconsistentFiles) {
  EXPECT_THAT(refusal([](Parts& parts) { parts.format = "something else"; }), HasSubstr("not a tokenized dataset"));
  EXPECT_THAT(refusal([](Parts& parts) { parts.version = 2; }), HasSubstr("version 2"));
  EXPECT_THAT(refusal([](Parts& parts) { parts.vocabulary = "{}"; }), HasSubstr("vocabulary is damaged"));
  EXPECT_THAT(refusal([](Parts& parts) { parts.documents = {0, 101}; }), HasSubstr("goes from 0 to 101"));
  EXPECT_THAT(refusal([](Parts& parts) { parts.documents = {1, 100}; }), HasSubstr("goes from 1 to 100"));
  EXPECT_THAT(refusal([](Parts& parts) { parts.documents = {0}; }), HasSubstr("1 offsets"));
  EXPECT_THAT(refusal([](Parts& parts) { parts.train = {0, 40, 30, 35}; }), HasSubstr("range 1 of /splits/train"));
  EXPECT_THAT(refusal([](Parts& parts) { parts.train = {10, 10}; }), HasSubstr("range 0"));
  EXPECT_THAT(refusal([](Parts& parts) { parts.test = {80, 101}; }), HasSubstr("an end of at most 100"));
  EXPECT_THAT(refusal([](Parts& parts) { parts.test = {~std::uint64_t{0} - 5, 3}; }), HasSubstr("damaged"));
  EXPECT_THAT(refusal([](Parts& parts) { parts.validation = {39, 60}; }), HasSubstr("overlap at token 39"));
  EXPECT_NO_THROW(TokenizedDataset::open(make({})));
}

// Commands parse it, and a JSON library needs stack for depth and quadratic time for keys in order.
TEST_F(TokenStoreTest, BoundsProvenanceOfOthers) {
  EXPECT_THAT(refusal([](Parts& parts) { parts.provenance = std::string(3'000'000, '['); }),
              HasSubstr("provenance: nested more than 64 deep"));
  EXPECT_THAT(refusal([](Parts& parts) {
                parts.provenance = "{";
                for (int i = 0; i < 60'000; ++i) parts.provenance += "\"k" + std::to_string(i) + "\":0,";
              }),
              HasSubstr("provenance: objects have too many or too long keys"));
}

TEST_F(TokenStoreTest, ChecksOffsetsAndIdsOnRead) {
  Parts parts;
  parts.documents = {0, 70, 60, 100};
  parts.tokens[5] = 16;  // DNA has ids 0 to 15
  const TokenizedDataset dataset = TokenizedDataset::open(make(parts));
  EXPECT_NO_THROW(dataset.document(0));
  EXPECT_THAT(message_of<UserError>([&] { dataset.document(1); }), HasSubstr("document 1 is [70, 60)"));
  EXPECT_NO_THROW(dataset.read(Split::train, 6, 10));
  EXPECT_THAT(message_of<UserError>([&] { dataset.read(Split::train, 0, 10); }), HasSubstr("token 16 occurs"));
}

// A split that fits in memory is loaded when it is first read.
TEST_F(TokenStoreTest, RejectsTokensThatTheFileDoesNotHold) {
  constexpr std::uint64_t n = std::uint64_t{1} << 28;
  Parts parts;
  parts.documents = {0, n};
  parts.train = {0, n};
  parts.validation = parts.test = {};
  const std::string name = make(parts);
  const hid_t file = H5Fopen(name.c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
  const hid_t tokens = H5Dopen2(file, "tokens", H5P_DEFAULT);
  const hsize_t extent = n;
  ASSERT_GE(H5Dset_extent(tokens, &extent), 0);
  H5Dclose(tokens);
  ASSERT_GE(H5Fclose(file), 0);
  const TokenizedDataset dataset = TokenizedDataset::open(name);
  EXPECT_THAT(message_of<UserError>([&] { dataset.read(Split::train, 0, 10); }),
              HasSubstr("/tokens declares 268435456 bytes but holds"));
}

TEST_F(TokenStoreTest, RejectsForeignFiles) {
  AtomicFile on_disk(path("foreign.h5"));
  hdf5::File foreign = hdf5::File::create(on_disk);
  foreign.write("tokens", hdf5::Type::f32, {0, 3}, nullptr);
  foreign.close();
  on_disk.commit();
  EXPECT_THAT(message_of<UserError>([&] { TokenizedDataset::open(path("foreign.h5")); }),
              HasSubstr("foreign.h5: is HDF5 but not a tokenized dataset"));
  EXPECT_THAT(message_of<UserError>([&] { TokenizedDataset::open(file("text.h5", "just text\n")); }),
              HasSubstr("text.h5: is not an HDF5 file; expected a tokenized dataset, which furlong prepare makes"));
  EXPECT_THAT(message_of<UserError>([&] { TokenizedDataset::open(file("empty.h5", "")); }), HasSubstr("empty.h5"));
  EXPECT_THAT(message_of<UserError>([&] { TokenizedDataset::open(path("missing.h5")); }),
              HasSubstr("missing.h5: does not exist"));
  EXPECT_THAT(message_of<UserError>([&] { TokenizedDataset::open(folder_.string()); }),
              HasSubstr("not a regular file"));
}

/// Returns everything that a reader gets from a dataset, as text.
std::string everything(const std::string& path) {
  const TokenizedDataset dataset = TokenizedDataset::open(path);
  std::string all = dataset.vocabulary().to_json() + dataset.provenance();
  for (std::uint64_t i = 0; i < dataset.n_documents(); ++i) all += std::to_string(dataset.document(i).end) + " ";
  for (const Split split : all_splits) {
    for (const auto& range : dataset.ranges(split))
      all += std::to_string(range.begin) + "-" + std::to_string(range.end) + " ";
    all += dataset.vocabulary().decode(dataset.read(split, 0, dataset.size(split)));
  }
  return all;
}

TEST_F(TokenStoreTest, DetectsFlippedBitsAndTruncation) {
  DatasetWriterOptions options;
  options.split_by = DatasetWriterOptions::SplitBy::document;
  options.shares = parse_split_shares("0.6,0.2,0.2");
  DatasetWriter writer(path("store.h5"), Vocabulary::dna(), options);
  std::mt19937_64 random(11);
  for (int document = 0; document < 100; ++document) {
    std::vector<std::uint16_t> ids(1500);
    for (auto& id : ids) id = static_cast<std::uint16_t>(random() % 4);
    writer.append(ids);
    writer.end_document();
  }
  writer.finish(R"({"sources":[]})");
  const std::string whole = everything(path("store.h5")), bytes = content(path("store.h5"));

  int found = 0;
  const int trials = 500;
  for (int trial = 0; trial < trials; ++trial) {
    std::string damaged = bytes;
    const std::size_t position = trial % 2 == 0 ? random() % bytes.size() : random() % 8192;
    damaged[position] ^= static_cast<char>(1 << (random() % 8));
    const std::string name = file("damaged.h5", damaged);
    try {
      EXPECT_EQ(everything(name), whole) << "a bit flipped at " << position << " changed the contents undetected";
    } catch (const UserError& error) {
      ++found;
      EXPECT_THAT(error.what(), HasSubstr(name));
      EXPECT_THAT(error.what(), ::testing::Not(HasSubstr("\n")));
    }
  }
  // Half of the flips are anywhere; nearly all of the file is tokens or offsets.
  EXPECT_GT(found, trials * 2 / 5);
  for (std::size_t length = 0; length < bytes.size(); length += bytes.size() / 200) {
    const std::string name = file("damaged.h5", bytes.substr(0, length));
    EXPECT_THAT(message_of<UserError>([&] { everything(name); }), HasSubstr(name)) << length;
  }
  std::string damaged = bytes;
  damaged[bytes.size() / 2] ^= 1;
  EXPECT_THAT(message_of<UserError>([&] { everything(file("damaged.h5", damaged)); }),
              HasSubstr("a checksum does not match, or a filter fails: the data are damaged"));
}

TEST_F(TokenStoreTest, ReadsWideTokensInManyChunks) {
  DatasetWriterOptions options;
  options.shares = parse_split_shares("0.5,0.25,0.25");
  DatasetWriter writer(path("store.h5"), Vocabulary::bytes(true), options);
  std::vector<std::uint16_t> all;
  std::mt19937_64 random(1);
  for (int document = 0; document < 300; ++document) {
    std::vector<std::uint16_t> ids(1 + random() % 3000);
    for (auto& id : ids) id = static_cast<std::uint16_t>(random() % 256);
    writer.append(ids);
    writer.end_document();
    all.insert(all.end(), ids.begin(), ids.end());
    all.push_back(256);
  }
  const DatasetSummary summary = writer.finish("{}");
  EXPECT_EQ(summary.n_tokens, all.size());
  EXPECT_EQ(summary.counts[256], 300u);
  const TokenizedDataset dataset = TokenizedDataset::open(path("store.h5"));
  std::vector<std::uint16_t> found;
  for (const Split split : all_splits) {
    for (const std::int32_t id : dataset.read(split, 0, dataset.size(split)))
      found.push_back(static_cast<std::uint16_t>(id));
  }
  EXPECT_EQ(found, all);
}

TEST_F(TokenStoreTest, RejectsHeadersWithoutChecksums) {
  const std::string old = path("old.h5");
  for (const hsize_t user_block : std::initializer_list<hsize_t>{0, 512, 2048}) {
    const hid_t creation = H5Pcreate(H5P_FILE_CREATE);
    ASSERT_GE(H5Pset_userblock(creation, user_block), 0);
    const hid_t file = H5Fcreate(old.c_str(), H5F_ACC_TRUNC, creation, H5P_DEFAULT);  // superblock 0
    ASSERT_GE(file, 0);
    ASSERT_GE(H5Fclose(file), 0);
    H5Pclose(creation);
    EXPECT_THAT(message_of<UserError>([&] { TokenizedDataset::open(old); }),
                HasSubstr("not all HDF5 metadata have checksums (superblock version 0)"))
        << "after a user block of " << user_block;
  }
}

}  // namespace
}  // namespace furlong
