#include "communication/launch/environment_reader.h"

#include <charconv>
#include <cstdlib>

#include "framework/core/error.h"

namespace furlong {

std::optional<std::string> process_environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? std::optional<std::string>(value) : std::nullopt;
}

std::string printable(const std::string& text) {
  constexpr std::size_t kLongest = 80;
  std::string result = text.substr(0, kLongest);
  for (char& c : result) {
    const auto code = static_cast<unsigned char>(c);
    if (code < 0x20 || code == 0x7f) c = '?';
  }
  if (text.size() > kLongest) result += "...";
  return result;
}

std::optional<std::string> EnvironmentReader::find(const char* name) const {
  std::optional<std::string> value = environment_(name);
  if (value && value->empty()) value.reset();
  return value;
}

bool EnvironmentReader::has_any(std::initializer_list<const char*> names) const { return !first_set(names).empty(); }

std::string EnvironmentReader::first_set(std::initializer_list<const char*> names) const {
  for (const char* name : names) {
    if (const auto value = find(name)) return fmt::format("{}={}", name, printable(*value));
  }
  return {};
}

std::vector<std::string> EnvironmentReader::missing(std::initializer_list<const char*> names) const {
  std::vector<std::string> result;
  for (const char* name : names) {
    if (!has(name)) result.emplace_back(name);
  }
  return result;
}

std::optional<std::int64_t> EnvironmentReader::find_integer(const char* name, std::int64_t low,
                                                            std::int64_t high) const {
  const std::optional<std::string> text = find(name);
  if (!text) return std::nullopt;
  std::int64_t value = 0;
  const char* end = text->data() + text->size();
  const auto [stop, failure] = std::from_chars(text->data(), end, value);
  if (failure != std::errc() || stop != end || value < low || value > high) {
    throw UserError("{}={}: expected an integer from {} to {}; check the launcher or the script that sets it", name,
                    printable(*text), low, high);
  }
  return value;
}

std::int64_t EnvironmentReader::integer(const char* name, std::int64_t low, std::int64_t high) const {
  const std::optional<std::int64_t> value = find_integer(name, low, high);
  require(value.has_value(), "{} is not set", name);
  return *value;
}

}  // namespace furlong
