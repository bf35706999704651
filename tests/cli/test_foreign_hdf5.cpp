// Foreign HDF5 files as inputs: h5py's default format (superblock 0), intact, mutated at random, and inconsistent.
#include <hdf5.h>

#include <random>

#include "framework/io/hdf5.h"
#include "tests/cli/program.h"

namespace furlong {
namespace {

using testing::expect_user_error;
using testing::Finished;
using ::testing::HasSubstr;

constexpr std::size_t n_values = 2 * 3 * 20 * 8;

class ForeignHdf5Test : public testing::WithProgram {
 protected:
  /// query, key and value [2, 3, 20, 8] as h5py writes them; `n` tokens are stated, and written where `written`.
  void write_input(bool compressed, hsize_t n = 20, bool written = true) const {
    const hid_t file = H5Fcreate(path("in.h5").c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    ASSERT_GE(file, 0);
    for (const char* name : {"query", "key", "value"}) {
      const hsize_t shape[4] = {2, 3, n, 8}, chunk[4] = {1, 3, 10, 8};
      const hid_t space = H5Screate_simple(4, shape, nullptr), creation = H5Pcreate(H5P_DATASET_CREATE);
      if (compressed) {
        H5Pset_chunk(creation, 4, chunk);
        H5Pset_shuffle(creation);
        H5Pset_deflate(creation, 4);
      }
      const hid_t dataset = H5Dcreate2(file, name, H5T_IEEE_F32LE, space, H5P_DEFAULT, creation, H5P_DEFAULT);
      std::vector<float> values(n_values);
      for (std::size_t i = 0; i < n_values; ++i) values[i] = 0.125f * static_cast<float>(i % 17) - 1;
      if (written) {
        EXPECT_GE(H5Dwrite(dataset, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()), 0);
      }
      H5Dclose(dataset);
      H5Pclose(creation);
      H5Sclose(space);
    }
    ASSERT_GE(H5Fclose(file), 0);
  }
  std::string bytes_of(const std::string& name) const {
    std::ifstream stream(path(name), std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }
  void write_bytes(const std::string& name, const std::string& bytes) const {
    std::ofstream(path(name), std::ios::binary) << bytes;
  }
  Finished attend() const {
    return furlong({"attend", "--input", path("in.h5"), "--output", path("out.h5"), "--mechanism", "softmax",
                    "--causal", "--threads", "1"});
  }
  /// Reads the mutated file. For any content, the program prints at most one line of error.
  void expect_no_crash(const std::string& what) const {
    const Finished found = attend();
    EXPECT_TRUE(found.status == 0 || found.status == 2) << what << ": " << found.status << " " << found.err;
    if (found.status == 0) return;
    EXPECT_THAT(found.err, ::testing::StartsWith("error: "));
    EXPECT_EQ(std::count(found.err.begin(), found.err.end(), '\n'), 1) << found.err;
    for (const char letter : found.err)
      EXPECT_TRUE(letter == '\n' || static_cast<unsigned char>(letter) >= 0x20) << found.err;
  }
};

TEST_F(ForeignHdf5Test, ReadsDefaultFormatExactly) {
  for (const bool compressed : {false, true}) {
    write_input(compressed);
    ASSERT_EQ(bytes_of("in.h5")[8], 0) << "the superblock's version";
    const Finished done = attend();
    ASSERT_EQ(done.status, 0) << done.err;
    const hdf5::File file = hdf5::File::open(path("out.h5"));
    std::vector<float> output(n_values);
    file.dataset("output").read(output.data(), output.size() * sizeof(float));
    // Of the first token causal attention is its value.
    for (std::size_t head = 0; head < 6; ++head) {
      for (std::size_t i = 160 * head; i < 160 * head + 8; ++i)
        EXPECT_EQ(output[i], 0.125f * static_cast<float>(i % 17) - 1) << i;
    }
  }
}

TEST_F(ForeignHdf5Test, ChangedFilesDoNotCrash) {
  std::mt19937 random(20);
  for (const bool compressed : {false, true}) {
    write_input(compressed);
    const std::string whole = bytes_of("in.h5");
    std::vector<std::size_t> used;  // bytes of headers, trees and heaps that are not zero
    for (std::size_t i = 0; i < std::min<std::size_t>(whole.size(), 4096); ++i) {
      if (whole[i] != 0) used.push_back(i);
    }
    for (int mutation = 0; mutation < 60; ++mutation) {
      std::string changed = whole;
      for (int change = 0; change <= mutation % 4; ++change)
        changed[used[random() % used.size()]] = static_cast<char>(mutation % 2 == 0 ? 0xff : random());
      if (mutation % 10 == 9) changed.resize(random() % changed.size());
      write_bytes("in.h5", changed);
      expect_no_crash(fmt::format("{} {}", compressed, mutation));
    }
  }
}

// The layout message declares chunks, but the address and size of contiguous data follow: libhdf5 1.10.8 reads invalid
// memory.
TEST_F(ForeignHdf5Test, CrashOfLibraryIsUserError) {
  write_input(false);
  std::string bytes = bytes_of("in.h5");
  const std::size_t layout = bytes.find(std::string_view("\x08\0\x18\0\0\0\0\0\x03\x01", 10));
  ASSERT_NE(layout, std::string::npos);
  bytes[layout + 9] = 2;
  write_bytes("in.h5", bytes);
  expect_user_error(attend(), {path("in.h5")});
}

TEST_F(ForeignHdf5Test, RejectsMoreElementsThanFileHolds) {
  for (const bool compressed : {false, true}) {
    write_input(compressed, hsize_t{1} << 36, false);
    expect_user_error(attend(),
                      {path("in.h5"), "dataset /query states 13194139533312 bytes of elements; the file of "});
  }
}

}  // namespace
}  // namespace furlong
