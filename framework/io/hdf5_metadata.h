#pragma once
// Checks headers of an HDF5 file before libhdf5 parses them. Files that Furlong writes have the 1.10 format, in which
// all metadata have checksums. libhdf5 also reads older structures without checksums, with which damage alone can
// corrupt the memory of libhdf5 1.10. They are refused here. libhdf5 itself verifies the checksums of the others.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace furlong::hdf5 {

class DescriptorIo;

class MetadataCheck {
 public:
  /// Checks the superblock, where libhdf5 finds it, and the header of the root group. `io` must outlive this object.
  /// Throws UserError if they have another form than those that Furlong writes.
  MetadataCheck(DescriptorIo& io, std::string path);
  /// Checks the header of the object at `address`, as H5Lget_info() returns it: version 2, only messages that Furlong
  /// writes, chunks in an index of the 1.10 format. Throws UserError otherwise. Attributes in dense storage (more than
  /// eight of an object) are not checked.
  void check_object(std::uint64_t address) const;

 private:
  /// A part of a header that has messages.
  struct Block {
    std::uint64_t begin, bytes;
  };
  [[noreturn]] void refuse(std::string_view what) const;
  /// Returns the number in `bytes` bytes.
  std::uint64_t number(std::uint64_t place, std::size_t bytes) const;
  Block first_block(std::uint64_t header) const;
  Block continued_block(std::uint64_t message, std::uint64_t bytes) const;
  void check_message(std::uint64_t type, std::uint64_t flags, std::uint64_t place) const;

  DescriptorIo* io_;
  std::string path_;
  std::uint64_t size_, base_ = 0;
};

}  // namespace furlong::hdf5
