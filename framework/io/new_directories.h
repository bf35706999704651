#pragma once
// Directories that a command creates for its output.
#include <filesystem>
#include <vector>

namespace furlong {

/// Creates directories. The destructor, or a signal that ends the program (interrupted_writes.h), removes those that
/// this object has created and that are still empty.
class NewDirectories {
 public:
  NewDirectories() = default;
  ~NewDirectories();
  NewDirectories(const NewDirectories&) = delete;
  NewDirectories& operator=(const NewDirectories&) = delete;

  /// Creates `path` and its parents, as far as they are missing. Throws UserError or MachineError.
  void create(const std::filesystem::path& path);

 private:
  struct Created {
    std::filesystem::path path;
    int slot = -1;  ///< registration for removal by a signal
  };
  std::vector<Created> created_;  ///< parents first
};

}  // namespace furlong
