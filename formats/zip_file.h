#pragma once
// Zip archives as torch.save writes them (APPNOTE.TXT 6.3.10): entries stored or deflated, zip64, nothing encrypted or
// in several parts.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "formats/byte_file.h"

namespace furlong::foreign {

struct ZipEntry {
  std::string name;
  bool deflated = false;
  std::uint32_t checksum = 0;      ///< CRC-32 of the contents
  std::uint64_t stored_bytes = 0;  ///< in the archive
  std::uint64_t bytes = 0;         ///< of the contents
  std::uint64_t offset = 0;        ///< of the stored bytes, from the beginning of the file
};

/// An archive whose directory agrees with what stands before each entry, whose entries lie apart from each other inside
/// the file, and state sizes that they can have. Throws UserError otherwise.
class ZipFile {
 public:
  /// `file` outlives the archive.
  explicit ZipFile(const ByteFile& file);

  /// Sorted by name, each name once.
  const std::vector<ZipEntry>& entries() const { return entries_; }
  /// nullptr where there is none.
  const ZipEntry* find(std::string_view name) const;
  /// The contents of an entry, once they have the checksum and size stated; otherwise UserError.
  std::vector<std::byte> extract(const ZipEntry& entry) const;
  /// Throws what extract() would, without holding the contents of an entry that is not deflated.
  void verify(const ZipEntry& entry) const;

 private:
  const ByteFile& file_;
  std::vector<ZipEntry> entries_;
};

}  // namespace furlong::foreign
