#include "framework/io/checkpoint_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hdf5.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <array>
#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <limits>
#include <mutex>
#include <numeric>
#include <random>
#include <thread>

#include "framework/core/error.h"
#include "framework/io/atomic_file.h"
#include "framework/io/hdf5.h"
#include "tests/temporary_folder.h"

namespace furlong {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::message_of;
using ::testing::Not;
using Shape = std::vector<std::int64_t>;

class CheckpointFileTest : public testing::WithTemporaryFolder {
 protected:
  static void put(const fs::path& file, std::string_view bytes) { std::ofstream(file, std::ios::binary) << bytes; }

  // Writes a file whose checksum and length are those of its contents.
  static void put_sealed(const fs::path& file, std::string bytes) {
    const std::uint64_t checksum = XXH3_64bits(bytes.data() + 512, bytes.size() - 512), size = bytes.size();
    std::memcpy(&bytes[16], &checksum, sizeof checksum);
    std::memcpy(&bytes[24], &size, sizeof size);
    put(file, bytes);
  }

  void write_small() const { write_small(path_); }
  static void write_small(const fs::path& file) {
    CheckpointWriter writer(file);
    const std::vector<float> weight = {1.5f, -2.0f, 0.0f, std::nanf(""), 1e-40f, 3.0f};
    writer.tensor("parameters/blocks.0.attention.query.weight", "float32", Shape{2, 3}, weight.data());
    const std::vector<std::uint16_t> halves = {0x3f80, 0xbf80};
    writer.tensor("parameters/embedding.weight", "bfloat16", Shape{2}, halves.data());
    writer.text("config", "model:\n  n_layers: 2\n");
    writer.integer("trainer/step", 1234);
    writer.number("trainer/validation_loss", 0.1);
    writer.finish();
  }
  // Returns the message of the UserError that opening throws. Fails the test if there is none, or if it is not one line
  // that names the file.
  static std::string refusal(const fs::path& file) {
    const std::string message = message_of<UserError>([&] { CheckpointReader::open(file); });
    EXPECT_THAT(message, ::testing::StartsWith(file.string() + ": "));
    return message;
  }
  const fs::path path_ = folder_ / "step_00000001.h5";
};

TEST_F(CheckpointFileTest, RoundTripsAllEntries) {
  const std::vector<double> doubles = {0.1, -std::numeric_limits<double>::infinity()};
  const std::vector<std::int32_t> ints = {-1, 2, std::numeric_limits<std::int32_t>::min()};
  const std::vector<std::int64_t> longs = {std::numeric_limits<std::int64_t>::max()};
  const std::vector<std::uint8_t> bytes = {0, 255, 7, 8};
  const float scalar = -3.25f;
  const std::string binary("\0a\0\n\xff\0", 6);
  {
    CheckpointWriter writer(path_);
    writer.tensor("a/doubles", "float64", Shape{2}, doubles.data());
    writer.tensor("a/ints", "int32", Shape{3, 1}, ints.data());
    writer.tensor("a/b/longs", "int64", Shape{1}, longs.data());
    writer.tensor("bytes", "uint8", Shape{2, 1, 2}, bytes.data());
    writer.tensor("a/scalar", "float32", Shape{}, &scalar);
    writer.tensor("a/empty", "float32", Shape{0, 5}, nullptr);
    writer.text("texts/empty", "");
    writer.text("texts/binary", binary);
    writer.text("texts/long", std::string(300'000, 'x'));
    writer.number("numbers/denormal", 5e-324);
    writer.number("numbers/zero", -0.0);
    writer.integer("numbers/least", std::numeric_limits<std::int64_t>::min());
    EXPECT_FALSE(fs::exists(path_));
    writer.finish();
  }
  EXPECT_TRUE(partial_files(path_).empty());
  const CheckpointReader reader = CheckpointReader::open(path_);
  std::vector<std::string> names;
  for (const TensorInfo& info : reader.tensors()) names.push_back(info.name);
  EXPECT_THAT(names, ElementsAre("a/b/longs", "a/doubles", "a/empty", "a/ints", "a/scalar", "bytes"));
  EXPECT_EQ(reader.tensors("a/b").size(), 1u);
  EXPECT_EQ(reader.tensors("numbers/").size(), 0u);
  EXPECT_EQ(reader.info("a/ints").dtype, "int32");
  EXPECT_THAT(reader.info("a/ints").shape, ElementsAre(3, 1));
  EXPECT_EQ(reader.info("a/ints").bytes, 12u);
  EXPECT_THAT(reader.info("a/empty").shape, ElementsAre(0, 5));

  const auto back = [&]<class T>(const std::string& name, std::vector<T> values) {
    std::fill(values.begin(), values.end(), T{});
    reader.read(name, values.data(), values.size() * sizeof(T));
    return values;
  };
  EXPECT_EQ(back("a/doubles", doubles), doubles);
  EXPECT_EQ(back("a/ints", ints), ints);
  EXPECT_EQ(back("a/b/longs", longs), longs);
  EXPECT_EQ(back("bytes", bytes), bytes);
  EXPECT_EQ(back("a/scalar", std::vector<float>(1)), std::vector<float>{scalar});
  reader.read("a/empty", nullptr, 0);
  EXPECT_EQ(reader.text("texts/empty"), "");
  EXPECT_EQ(reader.text("texts/binary"), binary);
  EXPECT_EQ(reader.text("texts/long"), std::string(300'000, 'x'));
  EXPECT_EQ(reader.number("numbers/denormal"), 5e-324);
  EXPECT_TRUE(std::signbit(reader.number("numbers/zero")));
  EXPECT_EQ(reader.integer("numbers/least"), std::numeric_limits<std::int64_t>::min());
  EXPECT_TRUE(reader.has("numbers/zero"));
  EXPECT_TRUE(reader.has("a/ints"));
  EXPECT_FALSE(reader.has("a"));
  EXPECT_FALSE(reader.has("nothing"));
}

TEST_F(CheckpointFileTest, RoundTripsManyTensorsAndALargeOne) {
  std::vector<float> large(3'000'001);
  std::iota(large.begin(), large.end(), 0.0f);
  {
    CheckpointWriter writer(path_);
    for (int i = 0; i < 1500; ++i) {
      const float value = static_cast<float>(i);
      writer.tensor("moments/" + std::to_string(i), "float32", Shape{1}, &value);
    }
    writer.tensor("large", "float32", Shape{3'000'001}, large.data());
    writer.finish();
  }
  const CheckpointReader reader = CheckpointReader::open(path_);
  EXPECT_EQ(reader.tensors("moments/").size(), 1500u);
  for (int i = 0; i < 1500; ++i) {
    float value = -1;
    reader.read("moments/" + std::to_string(i), &value, sizeof value);
    ASSERT_EQ(value, static_cast<float>(i));
  }
  std::vector<float> back(large.size());
  reader.read("large", "float32", Shape{3'000'001}, back.data());
  EXPECT_EQ(back, large);
}

TEST_F(CheckpointFileTest, EqualContentsGiveEqualBytes) {
  write_small();
  const fs::path other = folder_ / "other.h5";
  usleep(1'100'000);  // HDF5's timestamps have a resolution of one second
  write_small(other);
  EXPECT_EQ(content(path_), content(other));
  EXPECT_EQ(checkpoint_checksum(path_), checkpoint_checksum(other));
  EXPECT_TRUE(checkpoint_checksum(path_).has_value());
  EXPECT_EQ(checkpoint_checksum(folder_ / "missing"), std::nullopt);
}

// As docs/file_formats.md promises, plain HDF5 skips the user block.
TEST_F(CheckpointFileTest, IsReadableByPlainHdf5) {
  write_small();
  const std::lock_guard lock(hdf5::mutex());
  const hid_t file = H5Fopen(path_.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  ASSERT_GE(file, 0);
  const hid_t dataset = H5Dopen2(file, "/parameters/blocks.0.attention.query.weight", H5P_DEFAULT);
  ASSERT_GE(dataset, 0);
  std::array<double, 6> values{};
  EXPECT_GE(H5Dread(dataset, H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()), 0);
  EXPECT_EQ(values[1], -2.0);
  EXPECT_EQ(values[5], 3.0);
  EXPECT_GT(H5Aexists(dataset, "dtype"), 0);
  H5Dclose(dataset);
  H5Fclose(file);
}

TEST_F(CheckpointFileTest, RejectsInvalidNamesAndDtypes) {
  CheckpointWriter writer(path_);
  const float value = 0;
  writer.tensor("a/b", "float32", Shape{1}, &value);
  EXPECT_THROW(writer.tensor("a/b", "float32", Shape{1}, &value), ContractError);
  EXPECT_THROW(writer.number("a", 1), ContractError);
  EXPECT_THROW(writer.number("a/b/c", 1), ContractError);
  for (const char* name : {"", "/", "/a", "c/", "c//d", ".", "c/./d"})
    EXPECT_THROW(writer.number(name, 1), ContractError) << name;
  EXPECT_THROW(writer.tensor("x", "float16", Shape{1}, &value), ContractError);
  EXPECT_THROW(writer.tensor("y", "float32", Shape{-1}, &value), ContractError);
  EXPECT_THROW(writer.tensor("z", "float32", Shape{1LL << 40, 1LL << 40}, &value), ContractError);
  writer.number("d", 4);  // none of these damaged the file
  writer.flush();
  EXPECT_THROW(writer.number("late", 1), ContractError);
  EXPECT_THROW(writer.flush(), ContractError);
  EXPECT_FALSE(fs::exists(path_));
  writer.finish();
  EXPECT_THROW(writer.finish(), ContractError);
  EXPECT_EQ(CheckpointReader::open(path_).number("d"), 4);
}

TEST_F(CheckpointFileTest, UnfinishedWriteKeepsTheOldFile) {
  write_small();
  const std::string before = content(path_);
  {
    CheckpointWriter writer(path_);
    writer.integer("trainer/step", 99);
  }
  EXPECT_EQ(content(path_), before);
  EXPECT_TRUE(partial_files(path_).empty());
}

TEST_F(CheckpointFileTest, ReadErrorsReportTheExistingEntries) {
  write_small();
  const CheckpointReader reader = CheckpointReader::open(path_);
  const std::string weight = "parameters/blocks.0.attention.query.weight";
  std::array<float, 12> values{};
  EXPECT_THAT(message_of<UserError>([&] { reader.read(weight, values.data(), 48); }),
              ::testing::AllOf(HasSubstr(path_.string()), HasSubstr(weight), HasSubstr("float32 [2, 3]"),
                               HasSubstr("expected 48 bytes")));
  EXPECT_THAT(message_of<UserError>([&] {
                reader.read(weight, "float32", Shape{3, 2}, values.data());
              }),
              ::testing::AllOf(HasSubstr("is float32 [2, 3]"), HasSubstr("expected float32 [3, 2]")));
  EXPECT_THAT(message_of<UserError>([&] {
                reader.read(weight, "int32", Shape{2, 3}, values.data());
              }),
              HasSubstr("expected int32 [2, 3]"));
  EXPECT_THAT(message_of<UserError>([&] { reader.info("parameters/missing"); }),
              HasSubstr("2 entries under 'parameters/'"));
  EXPECT_THAT(message_of<UserError>([&] { reader.text("trainer/step"); }), HasSubstr("is an integer, expected a text"));
  EXPECT_THAT(message_of<UserError>([&] { reader.integer("config"); }), HasSubstr("is a text, expected an integer"));
  EXPECT_THAT(message_of<UserError>([&] { reader.number("nothing"); }), HasSubstr("'nothing' is missing"));
}

TEST_F(CheckpointFileTest, RejectsForeignFiles) {
  EXPECT_THAT(refusal(folder_ / "missing.h5"), HasSubstr("missing.h5: does not exist; expected a Furlong checkpoint"));
  EXPECT_THAT(refusal(folder_), HasSubstr("a directory"));
  put(path_, "");
  EXPECT_THAT(refusal(path_), HasSubstr("empty"));
  put(path_, "model:\n  n_layers: 2\n");
  EXPECT_THAT(refusal(path_), HasSubstr("not a Furlong checkpoint"));
  put(path_, std::string(10'000, '\0'));
  EXPECT_THAT(refusal(path_), HasSubstr("not a Furlong checkpoint"));
  fs::remove(path_);
  {
    const std::lock_guard lock(hdf5::mutex());
    H5Fclose(H5Fcreate(path_.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT));
  }
  EXPECT_THAT(refusal(path_), HasSubstr("an HDF5 file but not a Furlong checkpoint"));
  const fs::path pipe = folder_ / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(refusal(pipe), HasSubstr("not a regular file"));

  write_small();
  std::string later = content(path_);
  later[8] = 3;
  put(path_, later);
  EXPECT_THAT(refusal(path_), HasSubstr("format version 3 is not supported, expected 1 to 2"));
}

TEST_F(CheckpointFileTest, RejectsHeadersWithoutChecksums) {
  write_small();
  const std::string user_block = content(path_).substr(0, 512);
  for (const int version : {0, 1}) {
    {
      const std::lock_guard lock(hdf5::mutex());
      const hid_t creation = H5Pcreate(H5P_FILE_CREATE);
      ASSERT_GE(H5Pset_userblock(creation, user_block.size()), 0);
      // The default of this number, 32, is not stored; another one needs superblock 1.
      ASSERT_GE(H5Pset_istore_k(creation, version == 0 ? 32 : 64), 0);
      const hid_t file = H5Fcreate(path_.c_str(), H5F_ACC_TRUNC, creation, H5P_DEFAULT);
      ASSERT_GE(file, 0);
      ASSERT_GE(H5Fclose(file), 0);
      H5Pclose(creation);
    }
    put_sealed(path_, user_block + content(path_).substr(user_block.size()));
    EXPECT_THAT(refusal(path_),
                HasSubstr("headers have no checksums (superblock version " + std::to_string(version) + ")"));
  }
}

TEST_F(CheckpointFileTest, ReadsNamesOfFormatVersionOne) {
  CheckpointWriter file(path_);
  for (const char* name : {"averages/norm.weight", "carried/0/layers.1.sum", "carried/pooler.weight"})
    file.integer(name, 3);
  file.finish();
  std::string version_one = content(path_);
  version_one[8] = 1;
  put(path_, version_one);
  const CheckpointReader reader = CheckpointReader::open(path_);
  for (const char* name : {"ema/norm.weight", "recurrent_state/0/layers.1.sum", "carried/pooler.weight"})
    EXPECT_EQ(reader.integer(name), 3) << name;
}

// Forged entries in a file with a valid checksum: HDF5 would read more than the reader's buffer holds.
TEST_F(CheckpointFileTest, RejectsForgedEntries) {
  const std::string weight = "parameters/blocks.0.attention.query.weight";
  const auto text_of = [](std::size_t bytes) {
    const hid_t type = H5Tcopy(H5T_C_S1);
    H5Tset_size(type, bytes);
    return type;
  };
  const auto many = [](std::vector<hsize_t> extents) {
    return H5Screate_simple(static_cast<int>(extents.size()), extents.data(), nullptr);
  };
  const std::vector<char> letters(1'000'000, 'A');
  const auto replace = [&](hid_t file, const std::string& name, hid_t type, hid_t space, const void* data,
                           hid_t creation = H5P_DEFAULT) {
    H5Ldelete(file, name.c_str(), H5P_DEFAULT);
    const hid_t dataset = H5Dcreate2(file, name.c_str(), type, space, H5P_DEFAULT, creation, H5P_DEFAULT);
    ASSERT_GE(dataset, 0);
    if (data) {
      ASSERT_GE(H5Dwrite(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, data), 0);
    }
    H5Dclose(dataset);
  };
  const auto label = [&](hid_t file, const std::string& name, hid_t type, hid_t space, const void* data) {
    const hid_t dataset = H5Dopen2(file, name.c_str(), H5P_DEFAULT);
    if (H5Aexists(dataset, "dtype") > 0) H5Adelete(dataset, "dtype");
    const hid_t attribute = H5Acreate2(dataset, "dtype", type, space, H5P_DEFAULT, H5P_DEFAULT);
    ASSERT_GE(H5Awrite(attribute, type, data), 0);
    H5Aclose(attribute);
    H5Dclose(dataset);
  };
  const hid_t scalar = H5Screate(H5S_SCALAR), null = H5Screate(H5S_NULL), integer = H5T_STD_I64LE;
  const std::vector<const char*> pointers(3, "text");
  const hid_t chunked = H5Pcreate(H5P_DATASET_CREATE);
  const std::array<hsize_t, 2> chunk = {16, 16};
  H5Pset_chunk(chunked, 2, chunk.data());

  const std::vector<std::pair<std::string, std::function<void(hid_t)>>> forgeries = {
      {"one string", [&](hid_t file) { replace(file, "config", text_of(64), many({10'000}), letters.data()); }},
      {"one string", [&](hid_t file) { replace(file, "config", text_of(H5T_VARIABLE), scalar, pointers.data()); }},
      {"one string", [&](hid_t file) { replace(file, "config", text_of(H5T_VARIABLE), many({3}), pointers.data()); }},
      {"one string", [&](hid_t file) { replace(file, "config", text_of(H5T_VARIABLE), null, nullptr); }},
      {"one contiguous range",
       [&](hid_t file) { replace(file, "config", text_of(std::size_t{1} << 30), scalar, nullptr); }},
      {"not a short text", [&](hid_t file) { label(file, weight, text_of(8), many({4000}), letters.data()); }},
      {"not a short text", [&](hid_t file) { label(file, weight, text_of(H5T_VARIABLE), scalar, pointers.data()); }},
      {"not a short text", [&](hid_t file) { label(file, weight, text_of(16), scalar, letters.data()); }},
      {"not a short text", [&](hid_t file) { label(file, weight, integer, scalar, letters.data()); }},
      {"'float64'", [&](hid_t file) { label(file, weight, text_of(7), scalar, "float64"); }},
      {"'int32'", [&](hid_t file) { label(file, weight, text_of(5), scalar, "int32"); }},
      {"without a shape",
       [&](hid_t file) {
         replace(file, weight, H5T_IEEE_F32LE, null, nullptr);
         label(file, weight, text_of(7), scalar, "float32");
       }},
      {"64 bits",
       [&](hid_t file) {
         replace(file, weight, H5T_IEEE_F32LE, many({hsize_t{1} << 31, hsize_t{1} << 31}), nullptr, chunked);
         label(file, weight, text_of(7), scalar, "float32");
       }},
      {"one contiguous range",
       [&](hid_t file) {
         replace(file, weight, H5T_IEEE_F32LE, many({1 << 15, 1 << 15}), nullptr);
         label(file, weight, text_of(7), scalar, "float32");
       }},
      {"message of type 13", [&](hid_t file) { H5Oset_comment_by_name(file, "config", "a comment", H5P_DEFAULT); }},
      {"message of type 3 with flags 3",
       [&](hid_t file) {
         const hid_t type = text_of(8);
         H5Tcommit2(file, "type", type, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
         replace(file, "config", type, scalar, letters.data());
         H5Tclose(type);  // as long as it is open, the file is
       }},
      {"nested more than 32 deep",
       [&](hid_t file) {
         std::string groups = "g";
         for (int depth = 0; depth < 40; ++depth, groups += "/g")
           H5Gclose(H5Gcreate2(file, groups.c_str(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
       }},
  };
  for (std::size_t i = 0; i < forgeries.size(); ++i) {
    write_small();
    {
      const std::lock_guard lock(hdf5::mutex());
      const hid_t file = H5Fopen(path_.c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
      ASSERT_GE(file, 0);
      forgeries[i].second(file);
      H5Fclose(file);
    }
    put_sealed(path_, content(path_));
    // The checksum is valid, so that it cannot be what rejects the file.
    EXPECT_THAT(refusal(path_), AllOf(HasSubstr(forgeries[i].first), Not(HasSubstr("checksum")))) << "forgery " << i;
  }
}

TEST_F(CheckpointFileTest, RejectsInvalidShardIndexes) {
  const auto refused = [&](const std::string& index) {
    CheckpointWriter writer(path_);
    writer.text("shards", index);
    writer.finish();
    return refusal(path_);
  };
  const std::string nested = std::string(100'000, '[') + std::string(100'000, ']');
  EXPECT_THAT(refused(R"({"files": [{"name": )" + nested + R"(}], "tensors": {}})"),
              HasSubstr("nested more than 64 deep"));
  const std::string shard = R"({"name": "step_00000001.shard_0_of_1.h5", "checksum": "0"})";
  EXPECT_THAT(refused(R"({"files": [)" + shard + ", " + shard + R"(], "tensors": {}})"),
              HasSubstr("lists 'step_00000001.shard_0_of_1.h5' twice"));
}

TEST_F(CheckpointFileTest, RejectsEveryTruncation) {
  write_small();
  const std::string whole = content(path_);
  ASSERT_LT(whole.size(), 20'000u);
  std::vector<std::size_t> lengths = {0, 1, 7, 8, 31, 32, 511, 512, 513, whole.size() - 1};
  for (std::size_t length = 0; length < whole.size(); length += 13) lengths.push_back(length);
  for (const std::size_t length : lengths) {
    put(path_, std::string_view(whole).substr(0, length));
    const std::string message = refusal(path_);
    EXPECT_THAT(message, HasSubstr(length == 0 ? "empty" : length < 8 ? "not a Furlong" : "truncated")) << length;
  }
  put(path_, whole + '\0');
  EXPECT_THAT(refusal(path_), HasSubstr("expected " + std::to_string(whole.size())));
  put(path_, whole);
  EXPECT_EQ(CheckpointReader::open(path_).integer("trainer/step"), 1234);
}

TEST_F(CheckpointFileTest, RejectsEveryBitFlip) {
  write_small();
  const std::string whole = content(path_);
  std::mt19937 random(3);
  std::uniform_int_distribution<std::size_t> anywhere(0, whole.size() * 8 - 1);
  std::vector<std::size_t> bits(600);
  for (std::size_t& bit : bits) bit = anywhere(random);
  for (std::size_t bit = 0; bit < 33 * 8; ++bit) bits.push_back(bit);  // all bits of the header, one byte of the rest
  for (const std::size_t bit : bits) {
    std::string damaged = whole;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
    put(path_, damaged);
    EXPECT_NE(refusal(path_), "") << "bit " << bit;
  }
}

// A disk that fills up at any point, simulated by a file size limit, which makes writes fail in the same way. HDF5 and
// the old file must survive it.
TEST_F(CheckpointFileTest, FullDiskAtAnyPointKeepsTheOldFile) {
  write_small();
  const std::string before = content(path_);
  const auto open_objects = [] {
    const std::lock_guard lock(hdf5::mutex());
    return H5Fget_obj_count(static_cast<hid_t>(H5F_OBJ_ALL), H5F_OBJ_ALL);
  };
  const auto open_before = open_objects();
  const std::vector<float> values(2000, 1.0f);
  const auto write_large = [&] {
    CheckpointWriter writer(path_);
    for (int i = 0; i < 8; ++i) writer.tensor("parameters/" + std::to_string(i), "float32", Shape{2000}, values.data());
    writer.text("config", "text");
    writer.finish();
  };
  const auto previous_handler = signal(SIGXFSZ, SIG_IGN);
  rlimit previous{};
  getrlimit(RLIMIT_FSIZE, &previous);
  int failures = 0;
  for (rlim_t bytes = 0; bytes < 64'000; bytes += 509) {
    rlimit limit = previous;
    limit.rlim_cur = bytes;
    setrlimit(RLIMIT_FSIZE, &limit);
    try {
      write_large();
    } catch (const MachineError& error) {
      ++failures;
      EXPECT_THAT(error.what(), HasSubstr(path_.string()));
      EXPECT_THAT(error.what(), HasSubstr("File too large"));
    }
    setrlimit(RLIMIT_FSIZE, &previous);
    ASSERT_EQ(content(path_), before) << "limit " << bytes;
    ASSERT_TRUE(partial_files(path_).empty());
  }
  signal(SIGXFSZ, previous_handler);
  EXPECT_EQ(failures, 126);                // 8 tensors of 8000 bytes never fit
  EXPECT_EQ(open_objects(), open_before);  // no HDF5 object stays open
}

TEST_F(CheckpointFileTest, ReportsUnusablePathsAsUserErrors) {
  EXPECT_THROW(CheckpointWriter(folder_ / "missing" / "step.h5"), UserError);
  EXPECT_THROW(CheckpointWriter{folder_}, UserError);
}

TEST_F(CheckpointFileTest, ThreadsWriteAndReadConcurrently) {
  write_small();
  std::vector<std::thread> threads;
  std::vector<int> whole(4, 0);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const std::vector<std::int32_t> values(50'000, t);
      for (int round = 0; round < 5; ++round) {
        const fs::path mine = folder_ / (std::to_string(t) + ".h5");
        {
          CheckpointWriter writer(mine);
          for (int i = 0; i < 10; ++i)
            writer.tensor("tensors/" + std::to_string(i), "int32", Shape{50'000}, values.data());
          writer.finish();
        }
        std::vector<std::int32_t> back(values.size());
        const CheckpointReader reader = CheckpointReader::open(mine);
        reader.read("tensors/9", "int32", Shape{50'000}, back.data());
        if (back == values && CheckpointReader::open(path_).integer("trainer/step") == 1234)
          ++whole[static_cast<std::size_t>(t)];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(whole, ::testing::Each(5));
}

TEST_F(CheckpointFileTest, ReaderOutlivesTheFileName) {
  write_small();
  const CheckpointReader reader = CheckpointReader::open(path_);
  fs::remove(path_);
  EXPECT_EQ(reader.text("config"), "model:\n  n_layers: 2\n");
}

}  // namespace
}  // namespace furlong
