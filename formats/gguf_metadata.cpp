#include "formats/gguf_metadata.h"

#include <array>
#include <limits>
#include <type_traits>

#include "framework/core/printable.h"

namespace furlong::foreign {

namespace {

/// Value types by their numbers in the file.
enum class Type : std::uint32_t {
  uint8,
  int8,
  uint16,
  int16,
  uint32,
  int32,
  float32,
  boolean,
  text,
  array,
  uint64,
  int64,
  float64
};

constexpr int max_array_depth = 4;

/// Minimum bytes of a value of each type. They bound the length of an array by the remaining bytes of the file.
constexpr std::array<std::uint64_t, 13> min_bytes = {1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8};

class PairReader {
 public:
  explicit PairReader(ByteCursor& cursor) : cursor_(cursor) {}

  std::pair<std::string, GgufValue> read() {
    key_ = cursor_.take_text(cursor_.take<std::uint64_t>());
    if (!is_utf8(key_)) fail("is not UTF-8");
    const Type type = read_type();
    return {key_, type == Type::array ? read_array() : read_scalar(type)};
  }

 private:
  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    throw UserError("{}: damaged: metadata key '{}' {}; download or copy it again", cursor_.origin(), printable(key_),
                    fmt::format(format, std::forward<Args>(args)...));
  }

  Type read_type() {
    const auto type = cursor_.take<std::uint32_t>();
    if (type >= min_bytes.size()) fail("has a value of type {}, expected 0 to {}", type, min_bytes.size() - 1);
    return static_cast<Type>(type);
  }

  std::uint64_t read_count(Type type) {
    const auto count = cursor_.take<std::uint64_t>();
    const std::uint64_t bytes = min_bytes[static_cast<std::size_t>(type)];
    if (count > cursor_.remaining() / bytes)
      fail("is an array of {} values, but only {} bytes of the file remain", count, cursor_.remaining());
    return count;
  }

  bool read_boolean() {
    const auto byte = cursor_.take<std::uint8_t>();
    if (byte > 1) fail("has the boolean {}, expected 0 or 1", byte);
    return byte == 1;
  }

  std::string read_text() { return cursor_.take_text(cursor_.take<std::uint64_t>()); }

  /// Calls `action` with a value of the C++ type of `type`.
  template <class Action>
  static void with_number(Type type, const Action& action) {
    switch (type) {
      case Type::uint8:
        return action(std::uint8_t{});
      case Type::int8:
        return action(std::int8_t{});
      case Type::uint16:
        return action(std::uint16_t{});
      case Type::int16:
        return action(std::int16_t{});
      case Type::uint32:
        return action(std::uint32_t{});
      case Type::int32:
        return action(std::int32_t{});
      case Type::uint64:
        return action(std::uint64_t{});
      case Type::int64:
        return action(std::int64_t{});
      case Type::float32:
        return action(float{});
      case Type::float64:
        return action(double{});
      case Type::boolean:
      case Type::text:
      case Type::array:
        break;
    }
    require(false, "type {} is not a number", static_cast<int>(type));
  }

  template <class Stored>
  using Loaded = std::conditional_t<std::is_floating_point_v<Stored>, double, std::int64_t>;
  /// Whether a number can be stored as int64; only a uint64 may not fit.
  template <class Stored>
  static bool fits(Stored number) {
    if constexpr (std::is_same_v<Stored, std::uint64_t>)
      return number <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
    return true;
  }

  GgufValue read_scalar(Type type) {
    if (type == Type::text) return read_text();
    if (type == Type::boolean) return read_boolean();
    GgufValue value;
    with_number(type, [&]<class Stored>(Stored) {
      const auto number = cursor_.take<Stored>();
      if (fits(number)) value = static_cast<Loaded<Stored>>(number);
    });
    return value;
  }

  template <class T, class Take>
  static std::vector<T> repeated(std::uint64_t count, const Take& take) {
    std::vector<T> values;
    values.reserve(count);
    for (std::uint64_t i = 0; i < count; ++i) values.push_back(take());
    return values;
  }

  GgufValue read_array() {
    const Type type = read_type();
    const std::uint64_t count = read_count(type);
    if (type == Type::text) return repeated<std::string>(count, [&] { return read_text(); });
    if (type == Type::boolean) return repeated<bool>(count, [&] { return read_boolean(); });
    if (type == Type::array) {
      for (std::uint64_t i = 0; i < count; ++i) skip_array(2);
      return {};
    }
    GgufValue value;
    with_number(type, [&]<class Stored>(Stored) {
      bool all_fit = true;
      auto numbers = repeated<Loaded<Stored>>(count, [&] {
        const auto number = cursor_.take<Stored>();
        all_fit = all_fit && fits(number);
        return static_cast<Loaded<Stored>>(number);
      });
      if (all_fit) value = std::move(numbers);
    });
    return value;
  }

  void skip_array(int depth) {
    if (depth > max_array_depth) fail("is an array of arrays more than {} deep", max_array_depth);
    const Type type = read_type();
    const std::uint64_t count = read_count(type);
    if (type == Type::array) {
      for (std::uint64_t i = 0; i < count; ++i) skip_array(depth + 1);
    } else if (type == Type::text) {
      for (std::uint64_t i = 0; i < count; ++i) cursor_.skip(cursor_.take<std::uint64_t>());
    } else {
      cursor_.skip(count * min_bytes[static_cast<std::size_t>(type)]);
    }
  }

  ByteCursor& cursor_;
  std::string key_;
};

}  // namespace

GgufMetadata read_gguf_metadata(ByteCursor& cursor, std::uint64_t count) {
  PairReader reader(cursor);
  GgufMetadata metadata;
  for (std::uint64_t i = 0; i < count; ++i) {
    auto [key, value] = reader.read();
    if (!metadata.emplace(key, std::move(value)).second)
      throw UserError("{}: damaged: metadata key '{}' occurs twice; download or copy it again", cursor.origin(),
                      printable(key));
  }
  return metadata;
}

}  // namespace furlong::foreign

namespace furlong {

namespace {

std::string_view description_of(const GgufValue& value) {
  constexpr std::array descriptions = {"array of arrays or integer beyond 63 bits",
                                       "integer",
                                       "real number",
                                       "boolean",
                                       "string",
                                       "array of integers",
                                       "array of real numbers",
                                       "array of booleans",
                                       "array of strings"};
  static_assert(descriptions.size() == std::variant_size_v<GgufValue>);
  return descriptions[value.index()];
}

bool is_empty_array(const GgufValue& value) {
  return std::visit(
      [](const auto& held) {
        if constexpr (requires { held.empty(); })
          return held.empty() && !std::is_same_v<std::decay_t<decltype(held)>, std::string>;
        return false;
      },
      value);
}

const GgufValue& value_of(const GgufFile& file, std::string_view key) {
  const auto found = file.metadata().find(key);
  if (found == file.metadata().end())
    throw UserError("{}: has no metadata key '{}'", file.path(), foreign::printable(key));
  return found->second;
}

[[noreturn]] void refuse(const GgufFile& file, std::string_view key, std::string_view expected) {
  throw UserError("{}: metadata key '{}' has type {}, expected {}", file.path(), foreign::printable(key),
                  description_of(value_of(file, key)), expected);
}

template <class T>
const T& get(const GgufFile& file, std::string_view key, std::string_view expected) {
  const T* held = std::get_if<T>(&value_of(file, key));
  if (held == nullptr) refuse(file, key, expected);
  return *held;
}

template <class T>
const std::vector<T>& get_array(const GgufFile& file, std::string_view key, std::string_view expected) {
  static const std::vector<T> none;
  if (is_empty_array(value_of(file, key))) return none;
  return get<std::vector<T>>(file, key, expected);
}

}  // namespace

std::string GgufFile::text(std::string_view key) const { return get<std::string>(*this, key, "string"); }
std::int64_t GgufFile::integer(std::string_view key) const { return get<std::int64_t>(*this, key, "integer"); }
bool GgufFile::boolean(std::string_view key) const { return get<bool>(*this, key, "boolean"); }
double GgufFile::real(std::string_view key) const {
  const auto* integer = std::get_if<std::int64_t>(&value_of(*this, key));
  return integer != nullptr ? static_cast<double>(*integer) : get<double>(*this, key, "number");
}

const std::vector<std::string>& GgufFile::texts(std::string_view key) const {
  return get_array<std::string>(*this, key, "array of strings");
}
const std::vector<std::int64_t>& GgufFile::integers(std::string_view key) const {
  return get_array<std::int64_t>(*this, key, "array of integers");
}
const std::vector<bool>& GgufFile::booleans(std::string_view key) const {
  return get_array<bool>(*this, key, "array of booleans");
}
std::vector<double> GgufFile::reals(std::string_view key) const {
  const auto* integers = std::get_if<std::vector<std::int64_t>>(&value_of(*this, key));
  return integers != nullptr ? std::vector<double>(integers->begin(), integers->end())
                             : get_array<double>(*this, key, "array of numbers");
}

std::string GgufFile::text(std::string_view key, std::string_view fallback) const {
  return has(key) ? text(key) : std::string(fallback);
}
std::int64_t GgufFile::integer(std::string_view key, std::int64_t fallback) const {
  return has(key) ? integer(key) : fallback;
}
double GgufFile::real(std::string_view key, double fallback) const { return has(key) ? real(key) : fallback; }
bool GgufFile::boolean(std::string_view key, bool fallback) const { return has(key) ? boolean(key) : fallback; }

}  // namespace furlong
