#include "framework/io/hdf5_descriptor.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <new>

#include "framework/core/error.h"
#include "framework/core/file_error.h"
#include "framework/io/hdf5_internal.h"

namespace furlong::hdf5 {

InputFile::InputFile(const std::string& path)
    // O_NONBLOCK: opening a pipe must not wait for a writer.
    : descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
  if (descriptor_ < 0 && errno == ENOENT) throw_missing(path, "an HDF5 file");
  if (descriptor_ < 0) throw_file_error(path, "read", errno);
  struct stat status {};
  const int error = ::fstat(descriptor_, &status) == 0 ? 0 : errno;
  if (error == 0 && S_ISREG(status.st_mode)) return;
  ::close(descriptor_);
  if (error != 0) throw_file_error(path, "read", error);
  throw UserError("{}: is not a regular file, expected an HDF5 file", path);
}

InputFile::~InputFile() { ::close(descriptor_); }

bool DescriptorIo::write_at(std::uint64_t offset, const void* data, std::size_t bytes) noexcept {
  const char* from = static_cast<const char*>(data);
  while (bytes > 0 && error_ == 0) {
    const ssize_t done = ::pwrite(descriptor_, from, bytes, static_cast<off_t>(offset));
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) {
      error_ = done < 0 ? errno : ENOSPC;
      break;
    }
    from += done;
    offset += static_cast<std::uint64_t>(done);
    bytes -= static_cast<std::size_t>(done);
  }
  return error_ == 0;
}

bool DescriptorIo::read_at(std::uint64_t offset, void* destination, std::size_t bytes) noexcept {
  char* to = static_cast<char*>(destination);
  while (bytes > 0) {
    const ssize_t done = ::pread(descriptor_, to, bytes, static_cast<off_t>(offset));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) {
      if (error_ == 0) error_ = errno;
      return false;
    }
    if (done == 0) {
      std::memset(to, 0, bytes);
      return true;
    }
    to += done;
    offset += static_cast<std::uint64_t>(done);
    bytes -= static_cast<std::size_t>(done);
  }
  return true;
}

bool DescriptorIo::resize(std::uint64_t bytes) noexcept {
  if (error_ == 0 && ::ftruncate(descriptor_, static_cast<off_t>(bytes)) != 0) error_ = errno;
  return error_ == 0;
}

void DescriptorIo::abandon() noexcept {
  if (error_ == 0) error_ = ECANCELED;
}

std::uint64_t DescriptorIo::size() noexcept {
  struct stat status {};
  if (::fstat(descriptor_, &status) == 0) return static_cast<std::uint64_t>(status.st_size);
  if (error_ == 0) error_ = errno;
  return 0;
}

namespace {

// An open file for HDF5; as in its own drivers, HDF5's part comes first. `end_of_file` includes dropped writes: after
// an error HDF5 must still find the file consistent.
struct DriverFile {
  H5FD_t base;
  DescriptorIo* io;
  haddr_t end_of_allocation;
  haddr_t end_of_file;
};

struct DriverSettings {
  DescriptorIo* io;
};

DriverFile& own(H5FD_t* file) { return *reinterpret_cast<DriverFile*>(file); }
const DriverFile& own(const H5FD_t* file) { return *reinterpret_cast<const DriverFile*>(file); }

extern "C" {

H5FD_t* furlong_driver_open(const char*, unsigned flags, hid_t access_list, haddr_t) {
  const auto* settings = static_cast<const DriverSettings*>(H5Pget_driver_info(access_list));
  if (settings == nullptr) return nullptr;
  auto* file = new (std::nothrow) DriverFile{};
  if (file == nullptr) return nullptr;
  file->io = settings->io;
  if ((flags & H5F_ACC_TRUNC) != 0) file->io->resize(0);
  file->end_of_file = file->io->size();
  return &file->base;
}

herr_t furlong_driver_close(H5FD_t* file) {
  delete &own(file);
  return 0;
}

herr_t furlong_driver_query(const H5FD_t*, unsigned long* flags) {
  *flags = H5FD_FEAT_AGGREGATE_METADATA | H5FD_FEAT_ACCUMULATE_METADATA | H5FD_FEAT_DATA_SIEVE |
           H5FD_FEAT_AGGREGATE_SMALLDATA;
  return 0;
}

haddr_t furlong_driver_get_eoa(const H5FD_t* file, H5FD_mem_t) { return own(file).end_of_allocation; }

herr_t furlong_driver_set_eoa(H5FD_t* file, H5FD_mem_t, haddr_t address) {
  own(file).end_of_allocation = address;
  return 0;
}

haddr_t furlong_driver_get_eof(const H5FD_t* file, H5FD_mem_t) { return own(file).end_of_file; }

herr_t furlong_driver_read(H5FD_t* file, H5FD_mem_t, hid_t, haddr_t address, size_t size, void* buffer) {
  // In a damaged file, the base address and an address in the file can add up to more than a file can have. That is no
  // failure of the machine.
  constexpr haddr_t most = std::numeric_limits<off_t>::max();
  if (address > most || size > most - address) return -1;
  return own(file).io->read_at(address, buffer, size) ? 0 : -1;
}

herr_t furlong_driver_write(H5FD_t* file, H5FD_mem_t, hid_t, haddr_t address, size_t size, const void* buffer) {
  DriverFile& mine = own(file);
  mine.io->write_at(address, buffer, size);
  mine.end_of_file = std::max(mine.end_of_file, address + size);
  return 0;
}

herr_t furlong_driver_truncate(H5FD_t* file, hid_t, hbool_t) {
  DriverFile& mine = own(file);
  mine.io->resize(mine.end_of_allocation);
  mine.end_of_file = mine.end_of_allocation;
  return 0;
}

}  // extern "C"

hid_t register_driver() {
  H5FD_class_t driver{};
#ifdef H5FD_CLASS_VERSION  // HDF5 1.14
  driver.version = H5FD_CLASS_VERSION;
  driver.value = 0x4675;  // any number from 256 on, which HDF5 leaves to other drivers
#endif
  driver.name = "furlong descriptor";
  driver.maxaddr = static_cast<haddr_t>(std::numeric_limits<off_t>::max());
  driver.fc_degree = H5F_CLOSE_STRONG;
  driver.fapl_size = sizeof(DriverSettings);
  driver.open = furlong_driver_open;
  driver.close = furlong_driver_close;
  driver.query = furlong_driver_query;
  driver.get_eoa = furlong_driver_get_eoa;
  driver.set_eoa = furlong_driver_set_eoa;
  driver.get_eof = furlong_driver_get_eof;
  driver.read = furlong_driver_read;
  driver.write = furlong_driver_write;
  driver.truncate = furlong_driver_truncate;
  constexpr H5FD_mem_t kinds[H5FD_MEM_NTYPES] = H5FD_FLMAP_DICHOTOMY;  // metadata and data in separate blocks
  std::copy(std::begin(kinds), std::end(kinds), std::begin(driver.fl_map));
  return H5FDregister(&driver);
}

}  // namespace

void use_descriptor(std::int64_t access_list, DescriptorIo& io) {
  static const hid_t driver = register_driver();
  const DriverSettings settings{&io};
  if (driver < 0 || H5Pset_driver(access_list, driver, &settings) < 0) {
    throw MachineError("HDF5 refuses the file driver ({})", detail::take_reason().text);
  }
}

}  // namespace furlong::hdf5
