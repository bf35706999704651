#pragma once
// Reads untrusted HDF5 files. A malformed file can corrupt the memory of libhdf5 1.10, so the library runs in a
// confined child process (confined_process.h). The child sends names, types, shapes and elements; all are validated
// here.
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "framework/io/hdf5.h"

namespace furlong::hdf5 {

class ForeignFile;

/// A dataset directly below the root group. Errors are those of hdf5.h.
class ForeignDataset {
 public:
  const std::string& file_name() const;
  /// "/name"
  const std::string& path() const { return path_; }
  Type type() const { return type_; }
  const Shape& shape() const { return shape_; }
  /// Reads the whole dataset. `bytes` must equal its size (ContractError).
  void read(void* destination, std::size_t bytes) const;

 private:
  friend class ForeignFile;
  ForeignDataset() = default;
  std::shared_ptr<ForeignFile> file_;
  std::string path_;
  Type type_ = Type::u8;
  Shape shape_;
};

/// Not thread-safe. While a file is opened, no other thread may use HDF5.
class ForeignFile : public std::enable_shared_from_this<ForeignFile> {
 public:
  static std::shared_ptr<ForeignFile> open(const std::string& path);
  ~ForeignFile();
  ForeignFile(const ForeignFile&) = delete;
  ForeignFile& operator=(const ForeignFile&) = delete;

  /// Direct members of the root group, in alphabetical order.
  const std::vector<Group::Member>& members() const { return members_; }
  bool has(const std::string& name) const;
  /// Returns a dataset. Throws UserError if it is missing, is not a dataset, has a type that is not in `Type`, or
  /// states more elements than the file or this machine's memory can hold.
  ForeignDataset dataset(const std::string& name);

 private:
  friend class ForeignDataset;
  class Reader;
  ForeignFile(const std::string& path, std::unique_ptr<Reader> reader);
  ForeignDataset find(const std::string& name);
  std::string path_;
  std::unique_ptr<Reader> reader_;
  std::vector<Group::Member> members_;
};

}  // namespace furlong::hdf5
