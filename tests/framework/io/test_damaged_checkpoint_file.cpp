#include "framework/io/checkpoint_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hdf5.h>
#include <sys/stat.h>

#include <array>
#include <cstring>
#include <functional>
#include <mutex>
#include <random>

#include "framework/io/hdf5.h"
#include "tests/framework/io/checkpoint_file_testing.h"

extern "C" std::uint32_t H5_checksum_metadata(const void* bytes, std::size_t size, std::uint32_t start);  // of libhdf5

namespace furlong {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class DamagedCheckpointFile : public testing::WithCheckpointFile {};

TEST_F(DamagedCheckpointFile, RejectsForeignFiles) {
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

TEST_F(DamagedCheckpointFile, RejectsHeadersWithoutChecksums) {
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
                HasSubstr("metadata have checksums (superblock version " + std::to_string(version) + ")"));
  }
}

// Otherwise a model could be larger than its file. The second text has no bytes of its own: its header gets the
// address of the first one's, and a valid checksum.
TEST_F(DamagedCheckpointFile, RejectsEntriesThatShareBytes) {
  write_small();
  constexpr haddr_t base = 512;  // of addresses in the file, after Furlong's header
  haddr_t elements = 0;
  H5O_info_t info{};
  {
    const std::lock_guard lock(hdf5::mutex());
    const hid_t file = H5Fopen(path_.c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
    const std::string letters(1 << 20, 'a');
    const hid_t scalar = H5Screate(H5S_SCALAR), text = H5Tcopy(H5T_C_S1);
    H5Tset_size(text, letters.size());
    for (const char* name : {"a", "b"}) {
      const hid_t dataset = H5Dcreate2(file, name, text, scalar, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
      if (elements == 0) {
        H5Dwrite(dataset, text, H5S_ALL, H5S_ALL, H5P_DEFAULT, letters.data());
        elements = H5Dget_offset(dataset) - base;
      }
      H5Dclose(dataset);
    }
    H5Oget_info_by_name2(file, "b", &info, H5O_INFO_BASIC | H5O_INFO_HDR, H5P_DEFAULT);
    H5Fclose(file);
  }
  std::string bytes = content(path_);
  const std::size_t header = base + info.addr;
  const auto flags = static_cast<unsigned char>(bytes[header + 5]);
  const std::size_t width = std::size_t{1} << (flags & 3), place_of_size = header + 6 + (flags & 32 ? 16 : 0);
  std::uint64_t chunk = 0;  // bytes of the header's messages
  std::memcpy(&chunk, &bytes[place_of_size], width);
  const std::size_t end = place_of_size + width + chunk;
  const std::size_t address = bytes.find(std::string(8, '\xff'), place_of_size + width);
  ASSERT_LT(address, end);
  std::memcpy(&bytes[address], &elements, sizeof elements);
  const std::uint32_t sum = H5_checksum_metadata(&bytes[header], end - header, 0);
  std::memcpy(&bytes[end], &sum, sizeof sum);
  put_sealed(path_, bytes);
  EXPECT_THAT(refusal(path_), HasSubstr("'b' shares bytes with other entries"));
}

// Forged entries in a file with a valid checksum: HDF5 would read more than the reader's buffer holds.
TEST_F(DamagedCheckpointFile, RejectsForgedEntries) {
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
      {"an object has two names",
       [&](hid_t file) { H5Lcreate_hard(file, "config", file, "another", H5P_DEFAULT, H5P_DEFAULT); }},
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

TEST_F(DamagedCheckpointFile, RejectsInvalidShardIndexes) {
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

TEST_F(DamagedCheckpointFile, RejectsEveryTruncation) {
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

TEST_F(DamagedCheckpointFile, RejectsEveryBitFlip) {
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

}  // namespace
}  // namespace furlong
