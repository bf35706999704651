#include "framework/io/checkpoint_header.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "framework/core/error.h"
#include "framework/io/atomic_file.h"
#include "framework/io/checkpoint_file.h"

namespace furlong {

namespace fs = std::filesystem;
using hdf5::DescriptorIo;

namespace detail {

namespace {

constexpr std::string_view hdf5_signature = "\x89HDF\r\n\x1a\n";

std::uint64_t hash_from_user_block_on(DescriptorIo& io, const fs::path& path, std::uint64_t total_bytes) {
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(), XXH3_freeState);
  if (state == nullptr) throw MachineError("{}: out of memory while computing its checksum", path.string());
  XXH3_64bits_reset(state.get());
  std::vector<char> block(std::size_t{1} << 20);
  for (std::uint64_t at = user_block_bytes; at < total_bytes;) {
    const std::size_t bytes = static_cast<std::size_t>(std::min<std::uint64_t>(block.size(), total_bytes - at));
    if (!io.read_at(at, block.data(), bytes)) throw_file_error(path, "read", io.error());
    XXH3_64bits_update(state.get(), block.data(), bytes);
    at += bytes;
  }
  return XXH3_64bits_digest(state.get());
}

}  // namespace

CheckpointHeader make_header(DescriptorIo& io, const fs::path& path) {
  CheckpointHeader header{};
  std::memcpy(header.magic, checkpoint_magic.data(), checkpoint_magic.size());
  header.version = checkpoint_format_version;
  header.total_bytes = io.size();
  header.checksum = hash_from_user_block_on(io, path, header.total_bytes);
  return header;
}

// O_NONBLOCK: opening a pipe must not wait for a writer.
Descriptor::Descriptor(const fs::path& path) : descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
  if (descriptor_ < 0 && errno == ENOENT) throw_missing(path, "a Furlong checkpoint");
  if (descriptor_ < 0) throw_file_error(path, "open the checkpoint", errno);
}

Descriptor::~Descriptor() { ::close(descriptor_); }

std::uint32_t verify(const Descriptor& descriptor, DescriptorIo& io, const fs::path& path) {
  struct stat status {};
  if (::fstat(descriptor.number(), &status) != 0) throw_file_error(path, "read", errno);
  if (S_ISDIR(status.st_mode))
    throw UserError("{}: is a directory, expected a checkpoint file; give one of the files in it", path.string());
  if (!S_ISREG(status.st_mode)) throw UserError("{}: is not a regular file, expected a checkpoint file", path.string());
  const auto found_bytes = static_cast<std::uint64_t>(status.st_size);
  if (found_bytes == 0)
    throw UserError("{}: the file is empty, expected a checkpoint; use an earlier one", path.string());

  CheckpointHeader header{};
  if (!io.read_at(0, &header, sizeof header)) throw_file_error(path, "read", io.error());
  const std::string_view start(header.magic, sizeof header.magic);
  if (start == hdf5_signature) {
    throw UserError(
        "{}: is an HDF5 file but not a Furlong checkpoint ('{}' is missing at its start); give a checkpoint that "
        "Furlong wrote",
        path.string(), checkpoint_magic);
  }
  if (start != checkpoint_magic)
    throw UserError("{}: is not a Furlong checkpoint ('{}' is missing at its start)", path.string(), checkpoint_magic);
  constexpr const char* hint = "use an earlier checkpoint";
  if (found_bytes < sizeof header) {
    throw UserError("{}: truncated: found {} bytes, expected at least {}; {}", path.string(), found_bytes,
                    sizeof header, hint);
  }
  if (header.version < 1 || header.version > checkpoint_format_version) {
    throw UnusableFile(
        "{}: checkpoint format version {} is not supported, expected 1 to {}; use the Furlong version that wrote it",
        path.string(), header.version, checkpoint_format_version);
  }
  if (header.total_bytes != found_bytes) {
    throw UserError("{}: {}: found {} bytes, expected {}; {}", path.string(),
                    found_bytes < header.total_bytes ? "truncated" : "damaged", found_bytes, header.total_bytes, hint);
  }
  const bool clean = header.reserved == 0 &&
                     std::all_of(std::begin(header.padding), std::end(header.padding), [](char c) { return c == 0; });
  if (!clean)
    throw UserError("{}: damaged: its first {} bytes are not a valid header; {}", path.string(), sizeof header, hint);
  const std::uint64_t checksum = hash_from_user_block_on(io, path, found_bytes);
  if (checksum != header.checksum) {
    throw UserError("{}: damaged: its contents have checksum {:016x}, expected {:016x}; {}", path.string(), checksum,
                    header.checksum, hint);
  }
  return header.version;
}

}  // namespace detail

std::optional<std::uint64_t> checkpoint_checksum(const fs::path& path) noexcept {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return std::nullopt;
  detail::CheckpointHeader header{};
  const bool read = ::pread(descriptor, &header, sizeof header, 0) == static_cast<ssize_t>(sizeof header);
  ::close(descriptor);
  if (!read || std::string_view(header.magic, sizeof header.magic) != detail::checkpoint_magic) return std::nullopt;
  return header.checksum;
}

}  // namespace furlong
