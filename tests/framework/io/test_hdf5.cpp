#include "framework/io/hdf5.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hdf5.h>
#include <sys/resource.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <functional>
#include <numeric>
#include <random>
#include <thread>

#include "framework/core/error.h"
#include "framework/io/atomic_file.h"
#include "tests/temporary_folder.h"

#ifdef FURLONG_SANITIZED
// HDF5 1.10.8 leaks object headers that it could not read completely; the tests below trigger this hundreds of times.
extern "C" const char* __lsan_default_suppressions() { return "leak:libhdf5\n"; }
#endif

extern "C" std::uint32_t H5_checksum_metadata(const void* bytes, std::size_t size, std::uint32_t start);  // of libhdf5

namespace furlong::hdf5 {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using testing::message_of;

class Hdf5Test : public testing::WithTemporaryFolder {};

template <class T>
std::vector<T> ramp(std::size_t size) {
  std::vector<T> values(size);
  for (std::size_t i = 0; i < size; ++i) values[i] = static_cast<T>(3 * i + 1);
  return values;
}

template <class T>
void expect_round_trip(const std::string& path, Type type) {
  const auto values = ramp<T>(60);
  {
    AtomicFile file_on_disk(path);
    File file = File::create(file_on_disk);
    file.write("group/values", type, {3, 4, 5}, values.data());
    file.close();
    file_on_disk.commit();
  }
  const File file = File::open(path);
  const Dataset dataset = file.dataset("group/values");
  EXPECT_EQ(dataset.type(), type);
  EXPECT_EQ(dataset.shape(), (Shape{3, 4, 5}));
  EXPECT_EQ(dataset.bytes(), 60 * sizeof(T));
  std::vector<T> found(60);
  dataset.read(found.data(), found.size() * sizeof(T));
  EXPECT_EQ(found, values);
}

TEST_F(Hdf5Test, RoundTripsEveryType) {
  expect_round_trip<std::uint8_t>(path("a.h5"), Type::u8);
  expect_round_trip<std::uint16_t>(path("a.h5"), Type::u16);
  expect_round_trip<std::uint32_t>(path("a.h5"), Type::u32);
  expect_round_trip<std::uint64_t>(path("a.h5"), Type::u64);
  expect_round_trip<std::int32_t>(path("a.h5"), Type::i32);
  expect_round_trip<std::int64_t>(path("a.h5"), Type::i64);
  expect_round_trip<float>(path("a.h5"), Type::f32);
  expect_round_trip<double>(path("a.h5"), Type::f64);
  expect_round_trip<std::uint16_t>(path("a.h5"), Type::bf16);
}

TEST_F(Hdf5Test, RoundTripsScalarsAndEmptyDatasets) {
  const double value = 2.5;
  AtomicFile created_on_disk(path("a.h5"));
  File created = File::create(created_on_disk);
  created.write("scalar", Type::f64, {}, &value);
  created.write("empty", Type::u64, {0, 2}, nullptr);
  created.close();
  created_on_disk.commit();
  const File opened = File::open(path("a.h5"));
  double found = 0;
  opened.dataset("scalar").read(&found, sizeof found);
  EXPECT_EQ(found, value);
  EXPECT_EQ(opened.dataset("empty").shape(), (Shape{0, 2}));
  EXPECT_NO_THROW(opened.dataset("empty").read(nullptr, 0));
}

TEST_F(Hdf5Test, RoundTripsAttributesOfEveryKind) {
  const std::string large(200'000, 'x');  // larger than the 64 KiB of an object header
  {
    AtomicFile created_on_disk(path("a.h5"));
    File created = File::create(created_on_disk);
    created.set_text("title", "Zürich\n\"quoted\"");
    created.set_text("empty", "");
    created.set_text("large", large);
    created.set_integer("step", -123456789012345);
    created.set_number("loss", 0.1);
    created.set_text("title", "again");
    created.create_dataset("g/x", Type::i32, {1});
    created.group("g").set_integer("k", 7);
    created.close();
    created_on_disk.commit();
  }
  const File opened = File::open(path("a.h5"));
  EXPECT_EQ(opened.text("title"), "again");
  EXPECT_EQ(opened.text("empty"), "");
  EXPECT_EQ(opened.text("large"), large);
  EXPECT_EQ(opened.integer("step"), -123456789012345);
  EXPECT_EQ(opened.number("loss"), 0.1);
  EXPECT_EQ(opened.group("g").integer("k"), 7);
  EXPECT_TRUE(opened.has_attribute("loss"));
  EXPECT_FALSE(opened.has_attribute("missing"));
  EXPECT_THROW(opened.text("missing"), UserError);
  EXPECT_THROW(opened.text("step"), UserError);
  EXPECT_THROW(opened.integer("loss"), UserError);
}

TEST_F(Hdf5Test, AppendsRowsAndReadsRanges) {
  AtomicFile created_on_disk(path("a.h5"));
  File created = File::create(created_on_disk);
  Dataset rows =
      created.create_dataset("rows", Type::u32, {0, 2}, {.chunk = {16, 2}, .fletcher32 = true, .extendible = true});
  const auto values = ramp<std::uint32_t>(2 * 100);
  for (std::size_t row = 0; row < 100; row += 10) rows.append(values.data() + 2 * row, 10);
  EXPECT_EQ(rows.shape(), (Shape{100, 2}));
  created.close();
  created_on_disk.commit();

  const File opened = File::open(path("a.h5"));
  const Dataset dataset = opened.dataset("rows");
  std::vector<std::uint32_t> found(2 * 30);
  dataset.read_rows(13, 43, found.data(), found.size() * 4);
  EXPECT_TRUE(std::equal(found.begin(), found.end(), values.begin() + 26));
  std::vector<std::uint32_t> column(100);
  dataset.read_block({0, 1}, {100, 1}, column.data(), 400);
  for (std::size_t row = 0; row < 100; ++row) EXPECT_EQ(column[row], values[2 * row + 1]);
  EXPECT_THROW(dataset.read_rows(90, 101, found.data(), 88), ContractError);
  EXPECT_THROW(dataset.read_rows(0, 30, found.data(), 100), ContractError);
  EXPECT_THROW(dataset.read_block({0, 2}, {1, 1}, found.data(), 4), ContractError);
  EXPECT_EQ(dataset.storage_bytes(), 7u * (16 * 2 * sizeof(std::uint32_t) + 4)) << "chunks and their checksums";
}

TEST_F(Hdf5Test, LoadsNoPlugins) {
  mutex();
  unsigned plugins = ~0U;
  ASSERT_GE(H5PLget_loading_state(&plugins), 0);
  EXPECT_EQ(plugins, 0u);
}

/// Files with structures that Furlong does not write.
class OlderHdf5Test : public Hdf5Test {
 protected:
  /// Creates a file of the format between `low` and 1.10, with whatever `fill` puts into it.
  std::string created(const std::string& name, H5F_libver_t low, const std::function<void(hid_t)>& fill) const {
    const hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    H5Pset_libver_bounds(access, low, H5F_LIBVER_V110);
    const hid_t file = H5Fcreate(path(name).c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access);
    EXPECT_GE(file, 0);
    fill(file);
    EXPECT_GE(H5Fclose(file), 0);
    H5Pclose(access);
    return path(name);
  }
  /// Adds a dataset x of eight bytes.
  static void add_dataset(hid_t file, hid_t creation) {
    const hsize_t extent = 8;
    const hid_t space = H5Screate_simple(1, &extent, nullptr);
    const hid_t dataset = H5Dcreate2(file, "x", H5T_STD_U8LE, space, H5P_DEFAULT, creation, H5P_DEFAULT);
    EXPECT_GE(H5Dwrite(dataset, H5T_NATIVE_UINT8, H5S_ALL, H5S_ALL, H5P_DEFAULT, "elements"), 0);
    H5Dclose(dataset);
    H5Sclose(space);
  }
  static std::string elements(const File& file) {
    std::string found(8, '\0');
    file.dataset("x").read(found.data(), found.size());
    return found;
  }
};

TEST_F(OlderHdf5Test, ChecksummedFilesHaveTheNewSuperblock) {
  const std::string older = created("old.h5", H5F_LIBVER_V18, [](hid_t file) { add_dataset(file, H5P_DEFAULT); });
  EXPECT_EQ(elements(File::open(older)), "elements");
  EXPECT_THAT(message_of<UserError>([&] { File::open_checksummed(older); }), HasSubstr("superblock version 2"));
}

TEST_F(OlderHdf5Test, ChecksummedFilesHaveNoHeadersOfVersionOne) {
  H5O_info_t info{};
  const std::string older = created("old.h5", H5F_LIBVER_EARLIEST, [&](hid_t file) {
    const hid_t creation = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_layout(creation, H5D_COMPACT);  // the elements are in the header
    add_dataset(file, creation);
    H5Pclose(creation);
    H5Oget_info_by_name2(file, "x", &info, H5O_INFO_BASIC | H5O_INFO_HDR, H5P_DEFAULT);
  });
  const std::string header = content(older).substr(info.addr, info.hdr.space.total);
  const std::string newer = created("new.h5", H5F_LIBVER_V110, [](hid_t file) { add_dataset(file, H5P_DEFAULT); });
  EXPECT_EQ(elements(File::open_checksummed(newer)), "elements");

  // The link to x gets the address of the other header. The forged file has valid checksums.
  H5L_info_t link{};
  const hid_t file = H5Fopen(newer.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  H5Lget_info(file, "x", &link, H5P_DEFAULT);
  H5Fclose(file);
  std::string bytes = content(newer);
  const auto put = [&](std::size_t place, auto value) { std::memcpy(&bytes[place], &value, sizeof value); };
  const auto sum = [&](std::size_t begin, std::size_t end) {
    put(end, H5_checksum_metadata(&bytes[begin], end - begin, 0));
  };
  const std::size_t root = 48, root_messages = root + 23;  // its header has times, and one byte for the size
  const std::size_t root_end = root_messages + static_cast<unsigned char>(bytes[root_messages - 1]);
  const std::string address(reinterpret_cast<const char*>(&link.u.address), sizeof link.u.address);
  const std::size_t place = bytes.find(address, root_messages);
  ASSERT_LT(place, root_end);
  put(place, std::uint64_t{bytes.size()});
  sum(root, root_end);
  put(28, std::uint64_t{bytes.size() + header.size()});  // the end of the file
  sum(0, 44);
  const std::string forged = Hdf5Test::file("forged.h5", bytes + header);
  EXPECT_EQ(elements(File::open(forged)), "elements") << "libhdf5 reads it";
  const File opened = File::open_checksummed(forged);
  EXPECT_THAT(message_of<UserError>([&] { opened.dataset("x"); }), HasSubstr("has no checksum"));
  EXPECT_THAT(message_of<UserError>([&] { opened.members(); }), HasSubstr("has no checksum"));
}

// Before memory is allocated for a dataset, its size is compared with what is stored.
TEST_F(OlderHdf5Test, StorageIsNoLargerThanTheFile) {
  haddr_t end = 0;
  const std::string whole = created("large.h5", H5F_LIBVER_V110, [&](hid_t file) {
    const hsize_t extent = 1 << 20;
    const hid_t creation = H5Pcreate(H5P_DATASET_CREATE), space = H5Screate_simple(1, &extent, nullptr);
    H5Pset_alloc_time(creation, H5D_ALLOC_TIME_EARLY);
    const hid_t dataset = H5Dcreate2(file, "x", H5T_STD_U8LE, space, H5P_DEFAULT, creation, H5P_DEFAULT);
    end = H5Dget_offset(dataset);
    H5Dclose(dataset);
    H5Sclose(space);
    H5Pclose(creation);
  });
  std::string cut = content(whole).substr(0, end);
  const std::uint64_t size = cut.size();
  std::memcpy(&cut[28], &size, sizeof size);  // the superblock's end of the file
  const std::uint32_t sum = H5_checksum_metadata(cut.data(), 44, 0);
  std::memcpy(&cut[44], &sum, sizeof sum);
  const File opened = File::open_checksummed(Hdf5Test::file("cut.h5", cut));
  EXPECT_EQ(opened.dataset("x").bytes(), 1U << 20);
  EXPECT_EQ(opened.dataset("x").storage_bytes(), size);
}

TEST_F(OlderHdf5Test, ChecksummedFilesHaveNoVirtualDatasets) {
  const std::string merged = created("merged.h5", H5F_LIBVER_V110, [](hid_t file) {
    const hsize_t extent = 8;
    const hid_t creation = H5Pcreate(H5P_DATASET_CREATE), space = H5Screate_simple(1, &extent, nullptr);
    H5Pset_virtual(creation, space, "other.h5", "x", space);
    H5Dclose(H5Dcreate2(file, "x", H5T_STD_U8LE, space, H5P_DEFAULT, creation, H5P_DEFAULT));
    H5Sclose(space);
    H5Pclose(creation);
  });
  EXPECT_THAT(message_of<UserError>([&] { File::open(merged).dataset("x"); }), HasSubstr("in other files"));
  EXPECT_THAT(message_of<UserError>([&] { File::open_checksummed(merged).dataset("x"); }),
              HasSubstr("a layout of version 4 and class 3"));
}

TEST_F(OlderHdf5Test, ChecksummedFilesHaveNoCompressedData) {
  const std::string packed = created("packed.h5", H5F_LIBVER_V110, [](hid_t file) {
    const hsize_t chunk = 4;
    const hid_t creation = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_chunk(creation, 1, &chunk);
    H5Pset_deflate(creation, 6);
    add_dataset(file, creation);
    H5Pclose(creation);
  });
  EXPECT_EQ(elements(File::open(packed)), "elements");
  EXPECT_THAT(message_of<UserError>([&] { File::open_checksummed(packed).dataset("x"); }), HasSubstr("has filter 1"));
}

TEST_F(OlderHdf5Test, ChecksummedFilesHaveNoNamedTypes) {
  const std::string named = created("named.h5", H5F_LIBVER_V110, [](hid_t file) {
    add_dataset(file, H5P_DEFAULT);
    const hid_t type = H5Tcopy(H5T_STD_U8LE), space = H5Screate(H5S_SCALAR);
    EXPECT_GE(H5Tcommit2(file, "type", type, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT), 0);
    const hid_t attribute = H5Acreate_by_name(file, "x", "note", type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    EXPECT_GE(attribute, 0);
    H5Aclose(attribute);
    H5Sclose(space);
    H5Tclose(type);
  });
  EXPECT_EQ(elements(File::open(named)), "elements");
  const File opened = File::open_checksummed(named);
  EXPECT_THAT(message_of<UserError>([&] { opened.dataset("x"); }), HasSubstr("an attribute has a named type"));
}

TEST_F(OlderHdf5Test, ChecksummedFilesMayHaveASecondLink) {
  const std::string linked = created("linked.h5", H5F_LIBVER_V110, [](hid_t file) {
    add_dataset(file, H5P_DEFAULT);
    EXPECT_GE(H5Lcreate_hard(file, "x", file, "y", H5P_DEFAULT, H5P_DEFAULT), 0);
  });
  EXPECT_EQ(elements(File::open_checksummed(linked)), "elements");
}

TEST_F(OlderHdf5Test, ChecksummedFilesHaveNoTextOfVariableLength) {
  const std::string variable = created("variable.h5", H5F_LIBVER_V110, [](hid_t file) {
    const hid_t type = H5Tcopy(H5T_C_S1), space = H5Screate(H5S_SCALAR);
    H5Tset_size(type, H5T_VARIABLE);
    const hid_t attribute = H5Acreate2(file, "title", type, space, H5P_DEFAULT, H5P_DEFAULT);
    const char* text = "text";
    EXPECT_GE(H5Awrite(attribute, type, &text), 0);
    H5Aclose(attribute);
    H5Sclose(space);
    H5Tclose(type);
  });
  EXPECT_EQ(File::open(variable).text("title"), "text");
  EXPECT_THAT(message_of<UserError>([&] { File::open_checksummed(variable).text("title"); }),
              HasSubstr("attribute 'title' of / is text of variable length, expected fixed length"));
}

TEST_F(Hdf5Test, ListsMembersAndDatasets) {
  AtomicFile disk(path("a.h5"));
  File tree = File::create(disk);
  const std::uint8_t byte = 1;
  tree.write("b/c/d", Type::u8, {1}, &byte);
  tree.write("b/a", Type::u8, {1}, &byte);
  tree.write("z", Type::u8, {1}, &byte);
  EXPECT_EQ(tree.datasets(), (std::vector<std::string>{"b/a", "b/c/d", "z"}));
  EXPECT_EQ(tree.group("b").datasets(), (std::vector<std::string>{"a", "c/d"}));
  const auto members = tree.members();
  ASSERT_EQ(members.size(), 2u);
  EXPECT_EQ(members[0].name, "b");
  EXPECT_EQ(members[0].kind, Kind::group);
  EXPECT_EQ(members[1].kind, Kind::dataset);
  EXPECT_TRUE(tree.has("b/c/d"));
  EXPECT_FALSE(tree.has("b/c/e"));
  EXPECT_FALSE(tree.has("b/a/d"));  // a dataset has no members
  EXPECT_THROW(tree.dataset("b/c"), UserError);
  EXPECT_THROW(tree.group("b/a"), UserError);
  EXPECT_THROW(tree.dataset("nothing"), UserError);
}

TEST_F(Hdf5Test, RejectsFilesThatCannotBeOpened) {
  file("empty.h5", "");
  file("text.h5", std::string(5000, 't'));
  const auto contains = [](const std::string& message, const std::string& part) {
    return message.find(part) != std::string::npos;
  };
  for (const std::string name : {"missing.h5", "empty.h5", "text.h5"}) {
    const std::string message = message_of<UserError>([&] { File::open(path(name)); });
    EXPECT_TRUE(contains(message, path(name))) << message;
  }
  EXPECT_TRUE(contains(message_of<UserError>([&] { File::open(path("missing.h5")); }),
                       "missing.h5: does not exist; expected an HDF5 file"));
  EXPECT_TRUE(contains(message_of<UserError>([&] { File::open(path("text.h5")); }), "signature"));
  EXPECT_TRUE(contains(message_of<UserError>([&] { File::open(folder_.string()); }), "not a regular file"));
}

/// Reads everything in a file of a few datasets and the text "vocabulary".
std::vector<std::uint8_t> read_everything(const std::string& path) {
  const File opened = File::open(path);
  std::vector<std::uint8_t> all;
  for (const std::string& name : opened.datasets()) {
    const Dataset dataset = opened.dataset(name);
    if (dataset.bytes() > 1 << 20) throw UserError("{}: {} has grown", path, name);
    std::vector<std::uint8_t> bytes(dataset.bytes());
    dataset.read(bytes.data(), bytes.size());
    all.insert(all.end(), bytes.begin(), bytes.end());
  }
  const std::string text = opened.text("vocabulary");
  all.insert(all.end(), text.begin(), text.end());
  return all;
}

TEST_F(Hdf5Test, DetectsDamageOrReadsUndamagedData) {
  const auto tokens = ramp<std::uint8_t>(20'000);
  AtomicFile made_on_disk(path("a.h5"));
  File made = File::create(made_on_disk);
  made.write("tokens", Type::u8, {20'000}, tokens.data(), {.chunk = {4096}, .fletcher32 = true, .extendible = true});
  made.write("splits/train", Type::u8, {100}, tokens.data(), {.chunk = {64}, .fletcher32 = true});
  made.set_text("vocabulary", std::string(300, 'v'));
  made.close();
  made_on_disk.commit();
  const auto whole = read_everything(path("a.h5"));
  const std::string bytes = content(path("a.h5"));
  std::mt19937_64 random(1);
  int found = 0;
  const int trials = 600;
  for (int trial = 0; trial < trials; ++trial) {
    std::string damaged = bytes;
    // Metadata is at the start and the end of the file; half of the trials change it.
    const std::size_t position = trial % 2 == 0   ? random() % bytes.size()
                                 : trial % 4 == 1 ? random() % 4096
                                                  : bytes.size() - 1 - random() % 2048;
    damaged[position] ^= static_cast<char>(1 << (random() % 8));
    file("b.h5", damaged);
    try {
      EXPECT_EQ(read_everything(path("b.h5")), whole) << "undetected bit flip at " << position;
    } catch (const UserError& error) {
      ++found;
      EXPECT_NE(std::string(error.what()).find(path("b.h5")), std::string::npos) << error.what();
    }
  }
  // About four fifths of the file are data and live metadata; the rest is unused space.
  EXPECT_GT(found, trials / 2);
  for (std::size_t length = 0; length < bytes.size(); length += 97) {
    file("b.h5", bytes.substr(0, length));
    EXPECT_THROW(read_everything(path("b.h5")), UserError) << "truncated to " << length;
  }
}

TEST_F(Hdf5Test, ThrowsMachineErrorForAFailedWrite) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit limited{64 * 1024, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limited), 0);
  const std::vector<std::uint8_t> values(1 << 20, 1);
  const std::string message = message_of<MachineError>([&] {
    AtomicFile made_on_disk(path("a.h5"));
    File made = File::create(made_on_disk);
    Dataset dataset =
        made.create_dataset("values", Type::u8, {0}, {.chunk = {1 << 16}, .fletcher32 = true, .extendible = true});
    for (int i = 0; i < 16; ++i) dataset.append(values.data(), values.size());
    made.close();
    made_on_disk.commit();
  });
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_NE(message.find("a.h5"), std::string::npos) << message;
  EXPECT_NE(message.find("File too large"), std::string::npos) << message;
  // The library still works afterwards.
  expect_round_trip<float>(path("b.h5"), Type::f32);
}

TEST_F(Hdf5Test, ClosingAFileClosesItsObjects) {
  AtomicFile made_on_disk(path("a.h5"));
  File made = File::create(made_on_disk);
  const std::uint8_t byte = 1;
  Dataset dataset = made.write("x", Type::u8, {1}, &byte);
  made.close();
  made_on_disk.commit();
  fs::rename(path("a.h5"), path("b.h5"));
  std::uint8_t found = 0;
  EXPECT_THROW(dataset.read(&found, 1), Error);
  EXPECT_NO_THROW(File::open(path("b.h5")).dataset("x").read(&found, 1));
  EXPECT_EQ(found, 1);
}

TEST_F(Hdf5Test, ManyThreadsReadConcurrently) {
  const auto values = ramp<std::uint32_t>(100'000);
  AtomicFile made_on_disk(path("a.h5"));
  File made = File::create(made_on_disk);
  made.write("values", Type::u32, {values.size()}, values.data(), {.chunk = {1024}, .fletcher32 = true});
  made.close();
  made_on_disk.commit();
  const File opened = File::open(path("a.h5"));
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (std::size_t thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      const Dataset dataset = opened.dataset("values");
      std::vector<std::uint32_t> found(500);
      for (std::size_t i = 0; i < 200; ++i) {
        const std::size_t begin = (i * 7919 + thread * 104729) % (values.size() - 500);
        dataset.read_rows(begin, begin + 500, found.data(), 2000);
        if (!std::equal(found.begin(), found.end(), values.begin() + static_cast<std::ptrdiff_t>(begin)))
          ++wrong[thread];
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

}  // namespace
}  // namespace furlong::hdf5
