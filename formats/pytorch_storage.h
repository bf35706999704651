#pragma once
// Storages of a PyTorch file: the flat arrays whose elements its tensors view. They lie in a zip archive, or one after
// the other in the older format.
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
  const ZipEntry* entry = nullptr;  ///< none in the older format
  std::uint64_t offset = 0;         ///< of the elements, from the beginning of the file
};

class PytorchStorages {
 public:
  /// `file` outlives the storages.
  explicit PytorchStorages(const ByteFile& file) : file_(file) {}

  /// Opens the file and returns the pickle of the object that was saved. Throws UserError where it is neither kind of
  /// PyTorch file.
  Pickle open();
  /// The index of the storage that a persistent reference tells of, added where it is new. Throws UserError where it is
  /// none.
  std::size_t add(const Pickle& pickle, const PickleValue& reference);
  /// Finds the elements of all storages added. Throws UserError where some are missing or have another size than
  /// stated.
  void locate();

  const Storage& operator[](std::size_t index) const { return storages_[index]; }
  /// Copies bytes of a storage from `offset` on; within it (ContractError). The first use of a storage verifies its
  /// checksum.
  void fetch(std::size_t index, std::uint64_t offset, std::span<std::byte> destination) const;

 private:
  Pickle open_zip();
  Pickle open_older();
  void locate_in_zip(Storage& storage) const;
  void locate_older();

  const ByteFile& file_;
  std::optional<ZipFile> zip_;
  std::string prefix_;             ///< of names in the archive: "archive/"
  std::uint64_t pickles_end_ = 0;  ///< in the older format: where the object's pickle ends
  std::vector<Storage> storages_;
  std::map<std::string, std::size_t> by_key_;

  mutable std::mutex mutex_;  ///< for what follows
  mutable std::vector<bool> verified_;
  mutable std::size_t inflated_ = static_cast<std::size_t>(-1);  ///< the deflated storage that `contents_` holds
  mutable std::vector<std::byte> contents_;
};

}  // namespace furlong::foreign
