#pragma once
// The three kinds of errors. Exceptions cross layers; only the command line turns them into an exit status.
#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace furlong {

/// Base of all errors that Furlong throws. `what()` is one line without a final full stop.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
  /// Exit status of a program that this error stops.
  virtual int exit_status() const noexcept { return 1; }
};

/// A user error: a wrong key, path, shape or file. The message states what was found, what was expected, and a hint.
class UserError : public Error {
 public:
  template <class... Args>
  explicit UserError(fmt::format_string<Args...> format, Args&&... args)
      : Error(fmt::format(format, std::forward<Args>(args)...)) {}
  int exit_status() const noexcept override { return 2; }
};

/// A machine error: disk full, read error, out of memory, a peer is gone.
class MachineError : public Error {
 public:
  template <class... Args>
  explicit MachineError(fmt::format_string<Args...> format, Args&&... args)
      : Error(fmt::format(format, std::forward<Args>(args)...)) {}
};

/// A bug: code inside Furlong broke a contract, for example by passing a wrong shape. Never caused by user input.
class ContractError : public Error {
 public:
  template <class... Args>
  explicit ContractError(fmt::format_string<Args...> format, Args&&... args)
      : Error(fmt::format(format, std::forward<Args>(args)...)) {}
};

/// Throws ContractError with the message if `condition` is false.
template <class... Args>
void require(bool condition, fmt::format_string<Args...> format, Args&&... args) {
  if (!condition) throw ContractError(format, std::forward<Args>(args)...);
}

}  // namespace furlong
