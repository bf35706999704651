#pragma once
// Storages of a PyTorch file: the flat arrays whose elements its tensors view. They lie in a zip archive, or one after
// another in the legacy format.
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "formats/element_type.h"
#include "formats/pickle.h"
#include "formats/zip_file.h"

namespace furlong::foreign {

struct Storage {
  std::string key;
  const ElementType* type = nullptr;
  std::int64_t n_elements = 0;
  const ZipEntry* entry = nullptr;  ///< null in the legacy format
  std::uint64_t offset = 0;         ///< of the elements, from the start of the file
};

class PytorchStorages {
 public:
  /// `file` must outlive the storages.
  explicit PytorchStorages(const ByteFile& file) : file_(file) {}

  /// Opens the file and returns the pickle of the saved object. Throws UserError if the file has neither PyTorch
  /// format.
  Pickle open();
  /// Returns the index of the storage that a persistent reference names; adds the storage if it is new. Throws
  /// UserError if the reference is not a storage.
  std::size_t add(const Pickle& pickle, const PickleValue& reference);
  /// Locates the elements of all added storages. Throws UserError if a storage is missing or its size differs from the
  /// stated one.
  void locate();

  const Storage& operator[](std::size_t index) const { return storages_[index]; }
  /// Copies bytes of a storage starting at `offset`; the range must lie within it (ContractError). The first access to
  /// a storage verifies its checksum.
  void fetch(std::size_t index, std::uint64_t offset, std::span<std::byte> destination) const;

 private:
  Pickle open_zip();
  Pickle open_legacy();
  void locate_in_zip(Storage& storage) const;
  void locate_legacy();

  const ByteFile& file_;
  std::optional<ZipFile> zip_;
  std::string prefix_;  ///< prefix of names in the archive: "archive/"
  /// In the legacy format: end of the object's pickle.
  std::uint64_t pickles_end_ = 0;
  std::vector<Storage> storages_;
  std::map<std::string, std::size_t> by_key_;

  mutable std::mutex mutex_;  ///< guards the members below
  mutable std::vector<bool> verified_;
  mutable std::size_t inflated_ = static_cast<std::size_t>(-1);  ///< the deflated storage in `contents_`
  mutable std::vector<std::byte> contents_;
};

}  // namespace furlong::foreign
