#include "formats/zip_file.h"

#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "framework/core/printable.h"

namespace furlong::foreign {

namespace {

constexpr std::uint32_t end_mark = 0x06054b50, zip64_end_mark = 0x06064b50, zip64_locator_mark = 0x07064b50;
constexpr std::uint32_t central_mark = 0x02014b50, local_mark = 0x04034b50;
constexpr std::uint64_t end_bytes = 22, zip64_locator_bytes = 20, central_bytes = 46, local_bytes = 30;
constexpr std::uint16_t flag_encrypted = 1 << 0, flag_sizes_follow = 1 << 3;
constexpr std::uint16_t elsewhere16 = 0xffff;
constexpr std::uint32_t elsewhere32 = 0xffffffff;  // the value is in the zip64 field
constexpr std::uint64_t max_deflate_ratio = 1032;  // a match of 258 bytes takes at least two bits

template <class... Args>
[[noreturn]] void refuse(const ByteFile& file, fmt::format_string<Args...> format, Args&&... args) {
  throw UserError("{}: truncated or damaged zip archive: {}; download or copy it again", file.path(),
                  fmt::format(format, std::forward<Args>(args)...));
}

struct Directory {
  std::uint64_t n_entries = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

/// Returns the offset of the record that ends an archive. A comment of at most 65,535 bytes, whose length the record
/// states, may follow it.
std::uint64_t find_end(const ByteFile& file) {
  const std::uint64_t tail_bytes = std::min<std::uint64_t>(file.size(), end_bytes + 0xffff);
  std::vector<std::byte> tail(tail_bytes);
  file.read_at(file.size() - tail_bytes, tail);
  for (std::uint64_t at = tail_bytes < end_bytes ? 0 : tail_bytes - end_bytes + 1; at-- > 0;) {
    std::uint32_t mark = 0;
    std::uint16_t comment_bytes = 0;
    std::memcpy(&mark, tail.data() + at, sizeof mark);
    std::memcpy(&comment_bytes, tail.data() + at + 20, sizeof comment_bytes);
    if (mark == end_mark && at + end_bytes + comment_bytes == tail_bytes) return file.size() - tail_bytes + at;
  }
  refuse(file, "its end record is missing; download it again");
}

/// Returns the zip64 record and its offset; nothing if no zip64 locator precedes the end record.
std::optional<std::pair<Directory, std::uint64_t>> read_zip64_end(const ByteFile& file, std::uint64_t end) {
  if (end < zip64_locator_bytes) return std::nullopt;
  ByteCursor locator(file, end - zip64_locator_bytes, end, file.path());
  if (locator.take<std::uint32_t>() != zip64_locator_mark) return std::nullopt;
  const auto disk = locator.take<std::uint32_t>();
  const auto begin = locator.take<std::uint64_t>();
  const auto n_disks = locator.take<std::uint32_t>();
  if (disk != 0 || n_disks > 1) refuse(file, "it is one part of a multi-part archive");
  if (!within(begin, 56, end - zip64_locator_bytes))
    refuse(file, "its zip64 record is stated at byte {}, outside the file", begin);
  ByteCursor record(file, begin, end - zip64_locator_bytes, file.path());
  if (record.take<std::uint32_t>() != zip64_end_mark) refuse(file, "there is no zip64 record at byte {}", begin);
  if (record.take<std::uint64_t>() != end - zip64_locator_bytes - begin - 12)
    refuse(file, "its zip64 record has a wrong length");
  record.skip(4);  // versions
  const auto this_disk = record.take<std::uint32_t>(), directory_disk = record.take<std::uint32_t>();
  const auto n_here = record.take<std::uint64_t>();
  Directory directory;
  directory.n_entries = record.take<std::uint64_t>();
  directory.bytes = record.take<std::uint64_t>();
  directory.offset = record.take<std::uint64_t>();
  if (this_disk != 0 || directory_disk != 0 || n_here != directory.n_entries)
    refuse(file, "it is one part of a multi-part archive");
  return std::pair(directory, begin);
}

Directory find_directory(const ByteFile& file) {
  const std::uint64_t end = find_end(file);
  ByteCursor record(file, end + 4, end + end_bytes, file.path());
  const auto disk = record.take<std::uint16_t>(), directory_disk = record.take<std::uint16_t>();
  const auto n_here = record.take<std::uint16_t>(), n_entries = record.take<std::uint16_t>();
  const auto bytes = record.take<std::uint32_t>(), offset = record.take<std::uint32_t>();
  Directory directory{n_entries, offset, bytes};
  std::uint64_t directory_end = end;
  if (const auto wide = read_zip64_end(file, end)) {
    const auto differs = [](auto narrow, std::uint64_t value, auto elsewhere) {
      return narrow != elsewhere && narrow != value;
    };
    if (differs(n_entries, wide->first.n_entries, elsewhere16) || differs(bytes, wide->first.bytes, elsewhere32) ||
        differs(offset, wide->first.offset, elsewhere32)) {
      refuse(file, "its zip64 record contradicts its end record");
    }
    directory = wide->first;
    directory_end = wide->second;
  } else if ((disk != 0 && disk != elsewhere16) || (directory_disk != 0 && directory_disk != elsewhere16) ||
             n_here != n_entries) {
    refuse(file, "it is one part of a multi-part archive");
  }
  if (!within(directory.offset, directory.bytes, directory_end) ||
      directory.offset + directory.bytes != directory_end) {
    refuse(file, "its directory is stated at bytes {} to {}, expected to end at {}", directory.offset,
           directory.offset + directory.bytes, directory_end);
  }
  if (directory.n_entries > directory.bytes / central_bytes) {
    refuse(file, "its directory of {} bytes cannot list {} entries", directory.bytes, directory.n_entries);
  }
  return directory;
}

/// Replaces the `fields` that have the marker value by those of the zip64 extra field, in order.
void resolve_zip64(const ByteFile& file, const std::string& extra, std::initializer_list<std::uint64_t*> fields) {
  const bool wanted =
      std::any_of(fields.begin(), fields.end(), [](const std::uint64_t* field) { return *field == elsewhere32; });
  if (!wanted) return;
  ByteCursor cursor(std::as_bytes(std::span(extra)), file.path());
  while (cursor.remaining() >= 4) {
    const auto id = cursor.take<std::uint16_t>();
    const auto bytes = cursor.take<std::uint16_t>();
    if (bytes > cursor.remaining()) break;
    if (id != 1) {
      cursor.skip(bytes);
      continue;
    }
    std::uint16_t left = bytes;
    for (std::uint64_t* field : fields) {
      if (*field != elsewhere32) continue;
      if (left < 8) refuse(file, "a zip64 field is too short");
      *field = cursor.take<std::uint64_t>();
      left = static_cast<std::uint16_t>(left - 8);
    }
    return;
  }
  refuse(file, "a zip64 field is missing");
}

struct CentralEntry {
  ZipEntry entry;  ///< `offset` is that of the local header
  std::uint16_t flags = 0, method = 0;
};

CentralEntry read_central(const ByteFile& file, ByteCursor& cursor) {
  CentralEntry central;
  ZipEntry& entry = central.entry;
  if (cursor.take<std::uint32_t>() != central_mark)
    refuse(file, "its directory has an invalid entry at byte {}", cursor.position() - 4);
  cursor.skip(4);  // versions
  central.flags = cursor.take<std::uint16_t>();
  central.method = cursor.take<std::uint16_t>();
  cursor.skip(4);  // time
  entry.checksum = cursor.take<std::uint32_t>();
  entry.stored_bytes = cursor.take<std::uint32_t>();
  entry.bytes = cursor.take<std::uint32_t>();
  const auto name_bytes = cursor.take<std::uint16_t>(), extra_bytes = cursor.take<std::uint16_t>(),
             comment_bytes = cursor.take<std::uint16_t>();
  cursor.skip(8);  // disk, attributes
  entry.offset = cursor.take<std::uint32_t>();
  entry.name = cursor.take_text(name_bytes);
  const std::string extra = cursor.take_text(extra_bytes);
  cursor.skip(comment_bytes);
  resolve_zip64(file, extra, {&entry.bytes, &entry.stored_bytes, &entry.offset});
  if (!is_utf8(entry.name)) refuse(file, "an entry's name is not UTF-8");
  const std::string name = printable(entry.name);
  if ((central.flags & flag_encrypted) != 0)
    throw UserError("{}: entry '{}' is encrypted, which is not supported", file.path(), name);
  if (central.method != 0 && central.method != Z_DEFLATED) {
    throw UserError("{}: entry '{}' has compression method {}, expected none or deflate", file.path(), name,
                    central.method);
  }
  entry.deflated = central.method == Z_DEFLATED;
  if (entry.deflated ? entry.bytes / max_deflate_ratio > entry.stored_bytes : entry.bytes != entry.stored_bytes) {
    refuse(file, "entry '{}' states {} bytes, which {} stored bytes cannot hold", name, entry.bytes,
           entry.stored_bytes);
  }
  return central;
}

/// Compares the local header with the directory and moves `offset` past it to the stored bytes, which must end before
/// `limit`.
void pass_local_header(const ByteFile& file, CentralEntry& central, std::uint64_t limit) {
  ZipEntry& entry = central.entry;
  const std::string name = printable(entry.name);
  if (!within(entry.offset, local_bytes, limit))
    refuse(file, "entry '{}' is stated at byte {}, outside its range", name, entry.offset);
  ByteCursor cursor(file, entry.offset, limit, file.path());
  const auto mark = cursor.take<std::uint32_t>();
  cursor.skip(2);  // version
  const auto flags = cursor.take<std::uint16_t>(), method = cursor.take<std::uint16_t>();
  cursor.skip(4);  // time
  const auto checksum = cursor.take<std::uint32_t>();
  std::uint64_t stored_bytes = cursor.take<std::uint32_t>(), bytes = cursor.take<std::uint32_t>();
  const auto name_bytes = cursor.take<std::uint16_t>(), extra_bytes = cursor.take<std::uint16_t>();
  const std::string local_name = cursor.take_text(name_bytes);
  const std::string extra = cursor.take_text(extra_bytes);
  if (mark != local_mark || local_name != entry.name || method != central.method || flags != central.flags) {
    refuse(file, "the local header of entry '{}' contradicts the directory", name);
  }
  if ((flags & flag_sizes_follow) == 0) {
    resolve_zip64(file, extra, {&bytes, &stored_bytes});
    if (checksum != entry.checksum || stored_bytes != entry.stored_bytes || bytes != entry.bytes) {
      refuse(file, "sizes or checksum in the local header of entry '{}' differ from the directory", name);
    }
  }
  entry.offset = cursor.position();
  if (entry.stored_bytes > cursor.remaining()) {
    refuse(file, "entry '{}' of {} bytes overlaps the next one at byte {}", name, entry.stored_bytes, limit);
  }
}

/// Inflates the entry into `contents`. Returns false if the sizes do not match.
bool inflate_into(const ByteFile& file, const ZipEntry& entry, std::span<std::byte> contents) {
  z_stream stream{};
  if (inflateInit2(&stream, -MAX_WBITS) != Z_OK)
    throw MachineError("{}: cannot start zlib; memory may be exhausted", file.path());
  struct Ender {
    z_stream& stream;
    ~Ender() { inflateEnd(&stream); }
  } ender{stream};
  constexpr std::uint64_t piece_bytes = 1 << 18;
  std::vector<std::byte> piece(std::min(piece_bytes, entry.stored_bytes));
  std::uint64_t taken = 0, given = 0;
  Bytef nothing = 0;
  stream.next_out = &nothing;  // zlib accepts no null pointer, which an empty vector may have
  int status = Z_OK;
  while (status == Z_OK) {
    if (stream.avail_in == 0) {
      const std::uint64_t part = std::min(piece_bytes, entry.stored_bytes - taken);
      file.read_at(entry.offset + taken, std::span(piece).first(part));
      taken += part;
      stream.next_in = reinterpret_cast<Bytef*>(piece.data());
      stream.avail_in = static_cast<uInt>(part);
    }
    if (stream.avail_out == 0 && given < contents.size()) {
      const std::uint64_t part = std::min<std::uint64_t>(1 << 30, contents.size() - given);
      stream.next_out = reinterpret_cast<Bytef*>(contents.data() + given);
      stream.avail_out = static_cast<uInt>(part);
      given += part;
    }
    status = inflate(&stream, Z_NO_FLUSH);  // Z_BUF_ERROR ends the loop if neither side can progress
  }
  return status == Z_STREAM_END && taken == entry.stored_bytes && stream.avail_in == 0 && given == contents.size() &&
         stream.avail_out == 0;
}

}  // namespace

ZipFile::ZipFile(const ByteFile& file) : file_(file) {
  const Directory directory = find_directory(file);
  ByteCursor cursor(file, directory.offset, directory.offset + directory.bytes, file.path());
  std::vector<CentralEntry> found;
  for (std::uint64_t i = 0; i < directory.n_entries; ++i) found.push_back(read_central(file, cursor));
  if (cursor.remaining() != 0) refuse(file, "its directory has {} bytes after its last entry", cursor.remaining());
  std::sort(found.begin(), found.end(),
            [](const CentralEntry& a, const CentralEntry& b) { return a.entry.offset < b.entry.offset; });
  for (std::size_t i = 0; i < found.size(); ++i) {
    pass_local_header(file, found[i],
                      i + 1 < found.size() ? std::min(found[i + 1].entry.offset, directory.offset) : directory.offset);
    entries_.push_back(std::move(found[i].entry));
  }
  std::sort(entries_.begin(), entries_.end(), [](const ZipEntry& a, const ZipEntry& b) { return a.name < b.name; });
  const auto twice = std::adjacent_find(entries_.begin(), entries_.end(),
                                        [](const ZipEntry& a, const ZipEntry& b) { return a.name == b.name; });
  if (twice != entries_.end()) refuse(file, "it has two entries '{}'", printable(twice->name));
}

const ZipEntry* ZipFile::find(std::string_view name) const {
  const auto found = std::lower_bound(entries_.begin(), entries_.end(), name,
                                      [](const ZipEntry& a, std::string_view b) { return a.name < b; });
  return found != entries_.end() && found->name == name ? &*found : nullptr;
}

std::vector<std::byte> ZipFile::extract(const ZipEntry& entry) const {
  std::vector<std::byte> contents(entry.bytes);
  if (!entry.deflated) {
    file_.read_at(entry.offset, contents);
  } else if (!inflate_into(file_, entry, contents)) {
    refuse(file_, "entry '{}' does not inflate to the {} bytes stated", printable(entry.name), entry.bytes);
  }
  if (crc32_z(0, reinterpret_cast<const Bytef*>(contents.data()), contents.size()) != entry.checksum) {
    refuse(file_, "the checksum of entry '{}' differs from the stated one", printable(entry.name));
  }
  return contents;
}

void ZipFile::verify(const ZipEntry& entry) const {
  if (entry.deflated) {
    extract(entry);
    return;
  }
  constexpr std::uint64_t piece_bytes = 1 << 20;
  std::vector<std::byte> piece(std::min(piece_bytes, entry.bytes));
  uLong checksum = 0;
  for (std::uint64_t at = 0; at < entry.bytes; at += piece_bytes) {
    const auto part = std::span(piece).first(std::min(piece_bytes, entry.bytes - at));
    file_.read_at(entry.offset + at, part);
    checksum = crc32_z(checksum, reinterpret_cast<const Bytef*>(part.data()), part.size());
  }
  if (checksum != entry.checksum)
    refuse(file_, "the checksum of entry '{}' differs from the stated one", printable(entry.name));
}

}  // namespace furlong::foreign
