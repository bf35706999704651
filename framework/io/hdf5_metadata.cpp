#include "framework/io/hdf5_metadata.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "framework/core/error.h"
#include "framework/core/file_error.h"
#include "framework/io/hdf5_descriptor.h"

namespace furlong::hdf5 {
namespace {

// HDF5 File Format Specification 3.0, sections II.A (superblock), IV.A.1.b (object headers) and IV.A.2 (messages).
constexpr std::uint64_t file_signature = 0x0a1a0a0d46444889;
constexpr std::uint64_t header_signature = 0x5244484f, continued_signature = 0x4b48434f;  // OHDR, OCHK
constexpr std::uint64_t superblock_bytes = 48, undefined_address = ~std::uint64_t{0};
constexpr std::uint64_t has_creation_order = 1 << 2, has_attribute_limits = 1 << 4, has_times = 1 << 5;  // of a header
constexpr std::uint64_t is_shared = 1 << 1;                                                              // of a message

constexpr std::uint64_t layout_message = 8, attribute_message = 12, continuation_message = 16;
/// Those of the writer: padding, dataspace, link info, datatype, fill value, link, layout, group info, filters,
/// attribute, continuation, attribute info; and the number of links, which a second link to an object adds.
constexpr std::array<std::uint64_t, 13> accepted_messages = {
    0, 1, 2, 3, 5, 6, layout_message, 10, 11, attribute_message, continuation_message, 21, 22};
constexpr std::size_t max_messages = 1024;  // a header of the writer has fewer than 50

}  // namespace

MetadataCheck::MetadataCheck(DescriptorIo& io, std::string path) : io_(&io), path_(std::move(path)), size_(io.size()) {
  // libhdf5 searches for the signature at byte 0, 512, 1024, 2048 and so on. Without one it rejects the file itself.
  for (;; base_ = base_ == 0 ? 512 : 2 * base_) {
    if (size_ < superblock_bytes || base_ > size_ - superblock_bytes) return;
    if (number(base_, 8) == file_signature) break;
  }
  if (const std::uint64_t version = number(base_ + 8, 1); version < 3)
    throw UserError(
        "{}: not all HDF5 metadata have checksums (superblock version {}); expected version 3; rewrite the file with "
        "h5py.File(..., libver='v110') or h5repack --low=2",
        path_, version);
  if (number(base_ + 9, 1) != 8 || number(base_ + 10, 1) != 8) refuse("its addresses do not have 64 bits");
  if (number(base_ + 20, 8) != undefined_address) refuse("its superblock has an extension");
  check_object(number(base_ + 36, 8));
}

void MetadataCheck::refuse(std::string_view what) const {
  throw UserError(
      "{}: HDF5 metadata that Furlong does not write: {}; the file is damaged, or another program changed it; copy or "
      "write it again",
      path_, what);
}

std::uint64_t MetadataCheck::number(std::uint64_t place, std::size_t bytes) const {
  if (bytes > size_ || place > size_ - bytes) refuse("a header is outside the file");
  std::uint64_t value = 0;
  if (!io_->read_at(place, &value, bytes)) throw_file_error(path_, "read", io_->error());
  return value;
}

MetadataCheck::Block MetadataCheck::first_block(std::uint64_t header) const {
  if (number(header, 4) != header_signature || number(header + 4, 1) != 2)
    refuse(fmt::format("the header at byte {} has no checksum", header));
  const std::uint64_t flags = number(header + 5, 1);
  const std::uint64_t place =
      header + 6 + ((flags & has_times) != 0 ? 16 : 0) + ((flags & has_attribute_limits) != 0 ? 4 : 0);
  const std::size_t width = std::size_t{1} << (flags & 3);
  return {place + width, number(place, width)};
}

MetadataCheck::Block MetadataCheck::continued_block(std::uint64_t message, std::uint64_t bytes) const {
  constexpr std::uint64_t frame = 8;  // signature and checksum
  const std::uint64_t begin = base_ + number(message, 8), whole = number(message + 8, 8);
  if (bytes != 16 || whole < frame || number(begin, 4) != continued_signature)
    refuse(fmt::format("the header at byte {} has no checksum", begin));
  return {begin + 4, whole - frame};
}

void MetadataCheck::check_object(std::uint64_t address) const {
  const std::uint64_t header = base_ + address;
  std::vector<Block> blocks{first_block(header)};
  const std::uint64_t prefix = (number(header + 5, 1) & has_creation_order) != 0 ? 6 : 4;
  std::size_t n_messages = 0;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    auto [place, left] = blocks[i];
    while (left >= prefix) {
      if (++n_messages > max_messages) refuse(fmt::format("a header has more than {} messages", max_messages));
      const std::uint64_t start = number(place, 4), type = start & 0xff, bytes = start >> 8 & 0xffff;
      place += prefix, left -= prefix;
      if (bytes > left) refuse(fmt::format("a message at byte {} is longer than its header", place));
      check_message(type, start >> 24, place);
      if (type == continuation_message) blocks.push_back(continued_block(place, bytes));
      place += bytes, left -= bytes;
    }
  }
}

void MetadataCheck::check_message(std::uint64_t type, std::uint64_t flags, std::uint64_t place) const {
  if (std::find(accepted_messages.begin(), accepted_messages.end(), type) == accepted_messages.end() ||
      (flags & is_shared) != 0)
    refuse(fmt::format("a header has a message of type {} with flags {}", type, flags));
  // Another object, which is not checked, would have the datatype or dataspace.
  if (type == attribute_message && (number(place, 1) < 2 || (number(place + 1, 1) & 3) != 0))
    refuse("an attribute has a named type or shared dataspace");
  if (type != layout_message) return;
  // Earlier versions have an index of chunks without checksums; a virtual dataset has a description without one.
  if (const std::uint64_t version = number(place, 1), kind = number(place + 1, 1); version < 4 || kind > 2)
    refuse(fmt::format("a dataset has a layout of version {} and class {}", version, kind));
}

}  // namespace furlong::hdf5
