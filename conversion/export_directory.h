#pragma once
// The files of furlong export, which appear together.
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/safetensors_writer.h"
#include "framework/io/atomic_file.h"
#include "framework/io/new_directories.h"

namespace furlong {

/// The directory of an export. Until commit() all files have temporary names, and an earlier model is complete. Without
/// commit() the destructor removes them, and the directory if this object has created it; so does a signal that ends
/// the program. One process at a time exports to a directory.
class ExportDirectory {
 public:
  /// Creates the directory if it is missing. Throws UserError if it holds a model, unless `overwrite`; FileInUse if
  /// another process exports to it; otherwise as AtomicFile. Without `overwrite` no file is replaced.
  ExportDirectory(std::filesystem::path path, bool overwrite);

  /// Starts the file of weights. Call once, and flush() it before commit().
  SafetensorsWriter& add_weights(std::vector<ForeignTensor> tensors);
  /// Writes another file and flushes it to disk.
  void add(const std::string& name, std::string_view text);
  /// The same for config.json. Call once.
  void add_config(std::string_view text);
  /// Gives the files their names, and removes files of an earlier model that this one does not have, recognized by
  /// their names. Returns the latter. Without config.json, which comes last, a directory is incomplete. Signals wait
  /// until the end. After a throw without `overwrite`, none of the files has its name. Throws before anything changes
  /// if a file of the earlier model lies in a folder that cannot be written.
  std::vector<std::string> commit();

  const std::filesystem::path& path() const { return path_; }

 private:
  bool adds(const std::string& name) const;
  /// Returns the files of an earlier model that this one does not have.
  std::vector<std::string> earlier_files() const;
  std::vector<std::string> remove_earlier(const std::vector<std::string>& names) const;

  std::filesystem::path path_;
  bool overwrite_;
  NewDirectories created_;
  std::unique_ptr<AtomicFile> config_;  // its lock is that of the directory
  bool holds_model_ = false;
  std::unique_ptr<SafetensorsWriter> weights_;
  std::vector<std::unique_ptr<AtomicFile>> files_;
};

}  // namespace furlong
