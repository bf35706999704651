#pragma once
// Zip archives as torch.save writes them (APPNOTE.TXT 6.3.10): stored or deflated entries and zip64; no encryption, no
// multi-part archives.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "formats/byte_file.h"

namespace furlong::foreign {

struct ZipEntry {
  std::string name;
  bool deflated = false;
  std::uint32_t checksum = 0;      ///< CRC-32 of the uncompressed contents
  std::uint64_t stored_bytes = 0;  ///< in the archive
  std::uint64_t bytes = 0;         ///< uncompressed
  std::uint64_t offset = 0;        ///< of the stored bytes, from the start of the file
};

/// A validated archive: the directory agrees with the local headers; entries lie inside the file without overlap and
/// state plausible sizes. Throws UserError otherwise.
class ZipFile {
 public:
  /// `file` must outlive the archive.
  explicit ZipFile(const ByteFile& file);

  /// Returns the entries, sorted by name; names are unique.
  const std::vector<ZipEntry>& entries() const { return entries_; }
  /// Returns the entry with this name; nullptr if there is none.
  const ZipEntry* find(std::string_view name) const;
  /// Returns the contents of an entry. Throws UserError if checksum or size differ from the stated ones.
  std::vector<std::byte> extract(const ZipEntry& entry) const;
  /// Throws as extract() does, but holds only deflated entries in memory.
  void verify(const ZipEntry& entry) const;

 private:
  const ByteFile& file_;
  std::vector<ZipEntry> entries_;
};

}  // namespace furlong::foreign
