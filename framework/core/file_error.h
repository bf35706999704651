#pragma once
// Errors of files and paths, in one form for the whole program.
#include <filesystem>
#include <string_view>

#include "framework/core/error.h"

namespace furlong {

/// A file that exists and may be intact, but cannot be used: no permission, a path that is not one of a file, or a
/// format version that this program does not know.
class UnusableFile : public UserError {
 public:
  using UserError::UserError;
};

/// Throws the error of a failed system call on `path`: UserError if the path is at fault (UnusableFile, except for
/// ENOENT), else MachineError. `action` completes "cannot …", for example "write"; `error` is an errno value.
[[noreturn]] void throw_file_error(const std::filesystem::path& path, std::string_view action, int error);

/// Throws UserError: "PATH: does not exist; expected EXPECTED; check the path".
[[noreturn]] void throw_missing(const std::filesystem::path& path, std::string_view expected);

}  // namespace furlong
