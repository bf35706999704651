#pragma once
// Errors of files and paths, in one form for the whole program.
#include <filesystem>
#include <string>
#include <string_view>

#include "framework/core/error.h"

namespace furlong {

/// A system call failed because of the path that it was given.
class PathError : public UserError {
 public:
  PathError(const std::string& message, int error) : UserError("{}", message), error_(error) {}
  /// Returns the errno value.
  int error() const { return error_; }

 private:
  int error_;
};

/// Throws the error of a failed system call on `path`: PathError if the path is at fault, else MachineError. `action`
/// completes "cannot …", for example "write"; `error` is an errno value.
[[noreturn]] void throw_file_error(const std::filesystem::path& path, std::string_view action, int error);

/// Throws UserError: "PATH: does not exist; expected EXPECTED; check the path".
[[noreturn]] void throw_missing(const std::filesystem::path& path, std::string_view expected);

}  // namespace furlong
