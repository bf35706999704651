#pragma once
// Typed access to environment variables. They are read through a function, so that tests can replace the environment.
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

namespace furlong {

/// Returns the value of a variable, or nothing if it is not set.
using EnvironmentFunction = std::function<std::optional<std::string>(const char* name)>;

/// Reads this process's environment.
std::optional<std::string> process_environment(const char* name);

/// Returns `text` for a one-line message: replaces control characters with '?' and truncates to 80 characters.
std::string printable(const std::string& text);

/// A variable that is set but empty counts as not set, because scripts clear variables with `export NAME=`.
class EnvironmentReader {
 public:
  explicit EnvironmentReader(const EnvironmentFunction& environment) : environment_(environment) {}

  std::optional<std::string> find(const char* name) const;
  bool has(const char* name) const { return find(name).has_value(); }
  bool has_any(std::initializer_list<const char*> names) const;
  /// Returns "NAME=value" for the first of `names` that is set, or "" if none is.
  std::string first_set(std::initializer_list<const char*> names) const;
  std::vector<std::string> missing(std::initializer_list<const char*> names) const;
  /// Returns an integer, or nothing if the variable is not set. Throws UserError unless it is from `low` to `high`.
  std::optional<std::int64_t> find_integer(const char* name, std::int64_t low, std::int64_t high) const;
  /// The same, for a variable that the caller knows to be set.
  std::int64_t integer(const char* name, std::int64_t low, std::int64_t high) const;

 private:
  const EnvironmentFunction& environment_;
};

}  // namespace furlong
