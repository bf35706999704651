#pragma once
// For framework/io/checkpoint_*.cpp only: the 512 bytes before HDF5's own in a checkpoint, and the checksum that they
// hold.
#include <bit>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string_view>

#include "framework/io/hdf5_descriptor.h"

namespace furlong::detail {

inline constexpr std::size_t user_block_bytes = 512;
inline constexpr std::string_view checkpoint_magic = "FURLONG1";

/// The user block, little-endian.
struct CheckpointHeader {
  char magic[8];
  std::uint32_t version;
  std::uint32_t reserved;
  std::uint64_t checksum;     ///< XXH3, 64 bits, of all bytes from 512 to the end
  std::uint64_t total_bytes;  ///< user block included
  char padding[user_block_bytes - 32];
};
static_assert(sizeof(CheckpointHeader) == user_block_bytes && std::endian::native == std::endian::little);

/// The header that belongs to the file behind `io` as it stands. Throws MachineError when it cannot be read.
CheckpointHeader make_header(hdf5::DescriptorIo& io, const std::filesystem::path& path);

/// A file open for reading.
class Descriptor {
 public:
  /// Throws UserError or MachineError.
  explicit Descriptor(const std::filesystem::path& path);
  ~Descriptor();
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int number() const { return descriptor_; }

 private:
  int descriptor_;
};

/// Reads the whole file. Throws UserError that says what is wrong with it, MachineError when it cannot be read.
void verify(const Descriptor& descriptor, hdf5::DescriptorIo& io, const std::filesystem::path& path);

}  // namespace furlong::detail
