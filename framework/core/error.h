#pragma once
// What can go wrong, in three kinds. Exceptions cross layers; only the command line turns them into an exit status.
#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace furlong {

/// Base of everything that Furlong throws on purpose. `what()` is one line, without a trailing full stop or newline.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
  /// The status that a program stopped by this error exits with.
  virtual int exit_status() const noexcept { return 1; }
};

/// The user can mend it: a wrong key, path, shape or file. The message says what was found, what was expected, and a
/// hint.
class UserError : public Error {
 public:
  template <class... Args>
  explicit UserError(fmt::format_string<Args...> format, Args&&... args)
      : Error(fmt::format(format, std::forward<Args>(args)...)) {}
  int exit_status() const noexcept override { return 2; }
};

/// The machine failed: disk full, read error, memory exhausted, a peer gone.
class MachineError : public Error {
 public:
  template <class... Args>
  explicit MachineError(fmt::format_string<Args...> format, Args&&... args)
      : Error(fmt::format(format, std::forward<Args>(args)...)) {}
};

/// The program broke its own contract (a shape that a caller inside Furlong got wrong). A bug, never the user's fault.
class ContractError : public Error {
 public:
  template <class... Args>
  explicit ContractError(fmt::format_string<Args...> format, Args&&... args)
      : Error(fmt::format(format, std::forward<Args>(args)...)) {}
};

/// Throws ContractError with the message when `condition` is false.
template <class... Args>
void require(bool condition, fmt::format_string<Args...> format, Args&&... args) {
  if (!condition) throw ContractError(format, std::forward<Args>(args)...);
}

}  // namespace furlong
