#pragma once
// An HDF5 file driver for our own file descriptors. HDF5 1.10 does not survive a full disk: if the last metadata cannot
// be written, closing the file fails, leaves it half torn down, and the process crashes at exit. This driver stores the
// first failed write and drops all later ones, so HDF5 shuts down in good order. The caller checks error() before the
// file is renamed to its final name and throws with the system's reason.
#include <cstddef>
#include <cstdint>
#include <string>

namespace furlong::hdf5 {

/// A regular file open for reading.
class InputFile {
 public:
  /// Throws UserError or MachineError.
  explicit InputFile(const std::string& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;
  int number() const { return descriptor_; }

 private:
  int descriptor_;
};

/// Reads and writes at offsets of a descriptor that the caller owns. Not thread-safe.
class DescriptorIo {
 public:
  explicit DescriptorIo(int descriptor) : descriptor_(descriptor) {}

  /// Writes all bytes or stores the error; after an error, writes do nothing. Returns error() == 0.
  bool write_at(std::uint64_t offset, const void* data, std::size_t bytes) noexcept;
  /// Reads all bytes; bytes beyond the end of the file read as zero. Returns false with error() set if the system call
  /// fails.
  bool read_at(std::uint64_t offset, void* destination, std::size_t bytes) noexcept;
  /// Truncates or extends the file; does nothing after an error.
  bool resize(std::uint64_t bytes) noexcept;
  /// Disables all further writes: for a file that is discarded.
  void abandon() noexcept;

  /// Returns the errno of the first failed call; 0 if there was none.
  int error() const { return error_; }
  /// Returns the bytes in the file. If the system call fails, sets error() and returns 0.
  std::uint64_t size() noexcept;

 private:
  int descriptor_;
  int error_ = 0;
};

/// Makes files created or opened with the HDF5 file access list `access_list` use `io`, which must outlive them. The
/// name given to HDF5 then serves only its messages. Call with hdf5::mutex() held. Throws MachineError if HDF5 refuses
/// the driver.
void use_descriptor(std::int64_t access_list, DescriptorIo& io);

}  // namespace furlong::hdf5
