#include "framework/io/checkpoint_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hdf5.h>
#include <signal.h>
#include <sys/resource.h>

#include <array>
#include <cstring>
#include <limits>
#include <mutex>
#include <numeric>
#include <thread>

#include "framework/core/error.h"
#include "framework/io/atomic_file.h"
#include "framework/io/hdf5.h"
#include "tests/framework/io/checkpoint_file_testing.h"

namespace furlong {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::message_of;
using testing::Shape;

class CheckpointFileTest : public testing::WithCheckpointFile {};

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
