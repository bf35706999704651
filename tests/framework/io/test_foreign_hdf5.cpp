// Limits of HDF5 files from other programs. tests/cli/test_foreign_hdf5.cpp reads damaged ones.
#include "framework/io/foreign_hdf5.h"

#include <gmock/gmock.h>
#include <hdf5.h>

#include <filesystem>

#include "framework/core/error.h"
#include "framework/core/machine.h"
#include "tests/temporary_folder.h"

namespace furlong::hdf5 {
namespace {

using ::testing::HasSubstr;

class ForeignHdf5 : public furlong::testing::WithTemporaryFolder {
 protected:
  /// A file with room for `bytes` bytes of elements, none of which is written.
  std::string sparse_file(std::uint64_t bytes) const {
    const std::string name = path("in.h5");
    const hid_t file = H5Fcreate(name.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    const hsize_t extent = bytes;
    const hid_t space = H5Screate_simple(1, &extent, nullptr);
    const hid_t dataset = H5Dcreate2(file, "x", H5T_STD_U8LE, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    EXPECT_GE(dataset, 0);
    H5Dclose(dataset);
    H5Sclose(space);
    H5Fclose(file);
    std::filesystem::resize_file(name, bytes);
    return name;
  }
};

// The process that reads and the one that asks hold one copy each.
TEST_F(ForeignHdf5, RejectsElementsThatFitIntoMemoryOnlyOnce) {
  const std::uint64_t memory = read_machine().memory.usable();
  ASSERT_GT(memory, 0u);
  EXPECT_EQ(ForeignFile::open(sparse_file(memory / 10 * 4))->dataset("x").shape(), Shape{memory / 10 * 4});
  const auto file = ForeignFile::open(sparse_file(memory / 10 * 6));
  EXPECT_THAT(furlong::testing::message_of<UserError>([&] { file->dataset("x"); }),
              HasSubstr(fmt::format("HDF5 dataset /x has {} bytes of elements; reading it takes two copies, and this "
                                    "machine has {} bytes of memory",
                                    memory / 10 * 6, memory)));
}

}  // namespace
}  // namespace furlong::hdf5
