#pragma once
// Internal to framework/io/checkpoint_*.cpp: the 512-byte user block before the HDF5 data of a checkpoint, with the
// checksum.
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
  std::uint64_t checksum;     ///< 64-bit XXH3 of all bytes from 512 to the end
  std::uint64_t total_bytes;  ///< including the user block
  char padding[user_block_bytes - 32];
};
static_assert(sizeof(CheckpointHeader) == user_block_bytes && std::endian::native == std::endian::little);

/// Returns the header for the current contents of the file behind `io`. Throws MachineError if it cannot be read.
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

/// Reads and verifies the whole file, and returns its format version. Throws UserError that names the damage,
/// MachineError if the file cannot be read.
std::uint32_t verify(const Descriptor& descriptor, hdf5::DescriptorIo& io, const std::filesystem::path& path);

}  // namespace furlong::detail
