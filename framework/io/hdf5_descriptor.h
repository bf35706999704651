#pragma once
// HDF5 on a file descriptor of ours, in place of its own file driver. HDF5 1.10 does not survive a full disk: the close
// of a file whose last metadata cannot be written fails, leaves the file half torn down, and the process crashes when
// it ends. Through this driver a failed write is remembered and all later ones are dropped, HDF5 takes itself down in
// good order, and the caller, who asks error() before the file gets its name, throws with the system's own reason.
#include <cstddef>
#include <cstdint>
#include <string>

namespace furlong::hdf5 {

/// Throws UserError where the first superblock behind `descriptor`, wherever libhdf5 would find it, has version 0 or 1:
/// such headers have no checksums, and a damaged one can corrupt the memory of libhdf5 1.10.
void require_checksummed_headers(int descriptor, const std::string& path);

/// Reads and writes at offsets of a descriptor that somebody else owns and closes later. Not for two threads at once.
class DescriptorIo {
 public:
  explicit DescriptorIo(int descriptor) : descriptor_(descriptor) {}

  /// Writes all bytes, or remembers the error; after an error writes do nothing. Returns error() == 0.
  bool write_at(std::uint64_t offset, const void* data, std::size_t bytes) noexcept;
  /// Reads all bytes; those behind the end of the file read as zero. False, with error() set, where the system fails.
  bool read_at(std::uint64_t offset, void* destination, std::size_t bytes) noexcept;
  /// Cuts or extends the file; does nothing after an error.
  bool resize(std::uint64_t bytes) noexcept;
  /// From here on nothing is written any more: for a file that is given up.
  void abandon() noexcept;

  /// The errno of the first failed call, 0 while there was none.
  int error() const { return error_; }
  /// Bytes in the file. Sets error() and returns 0 where the system cannot tell.
  std::uint64_t size() noexcept;

 private:
  int descriptor_;
  int error_ = 0;
};

/// Makes files that are created or opened with the HDF5 file access list `access_list` go through `io`, which has to
/// outlive them. The name given to HDF5 then only serves its messages. Call with hdf5::mutex() held. Throws
/// MachineError where HDF5 refuses the driver.
void use_descriptor(std::int64_t access_list, DescriptorIo& io);

}  // namespace furlong::hdf5
