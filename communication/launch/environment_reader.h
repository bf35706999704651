#pragma once
// Environment variables as discovery reads them: through a function, so that a test can stand in for the process's own.
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

namespace furlong {

/// The value of a variable, nothing where it is not set.
using EnvironmentFunction = std::function<std::optional<std::string>(const char* name)>;

/// This process's own variables.
std::optional<std::string> process_environment(const char* name);

/// `text` fit for a one-line message: control characters become '?', and what is beyond 80 characters is cut.
std::string printable(const std::string& text);

/// Typed access. A variable that is set but empty counts as not set: `export NAME=` is how scripts clear one.
class EnvironmentReader {
 public:
  explicit EnvironmentReader(const EnvironmentFunction& environment) : environment_(environment) {}

  std::optional<std::string> find(const char* name) const;
  bool has(const char* name) const { return find(name).has_value(); }
  bool has_any(std::initializer_list<const char*> names) const;
  /// "NAME=value" of the first of `names` that is set; "" if none is.
  std::string first_set(std::initializer_list<const char*> names) const;
  std::vector<std::string> missing(std::initializer_list<const char*> names) const;
  /// A whole number from `low` to `high`, nothing where the variable is not set; throws UserError for anything else.
  std::optional<std::int64_t> find_integer(const char* name, std::int64_t low, std::int64_t high) const;
  /// As above, for a variable that the caller knows to be set.
  std::int64_t integer(const char* name, std::int64_t low, std::int64_t high) const;

 private:
  const EnvironmentFunction& environment_;
};

}  // namespace furlong
