#pragma once
// The part of Python's pickle that a state dict written by torch.save is made of (protocols 2 to 5). A pickle is a
// program for a stack machine that may call any function; here it can only build plain values, and name what stands in
// a closed list. Nothing is called.
#include <cstdint>
#include <string>
#include <vector>

#include "formats/byte_file.h"

namespace furlong::foreign {

/// What a pickle may name by module and name. Anything else is a UserError that tells which.
enum class PickleGlobal : std::uint8_t { ordered_dict, rebuild_tensor, rebuild_parameter, storage };

struct PickleValue {
  enum class Kind : std::uint8_t {
    none,
    boolean,     ///< integer: 0 or 1
    integer,     ///< `integer`
    large,       ///< an integer beyond 64 bits; text: its bytes
    real,        ///< `real`
    text,        ///< UTF-8
    bytes,       ///< `text`
    list,        ///< `items`
    tuple,       ///< `items`
    dictionary,  ///< items: key, value, key, value, ...; a key may be there more than once
    global,      ///< `global`; of a storage, text: its element type ("F32")
    persistent,  ///< a reference to what is kept outside the pickle; items: the one value that tells which
    tensor,      ///< a call of rebuild_tensor; items: the tuple of its arguments
  };
  Kind kind = Kind::none;
  PickleGlobal global = PickleGlobal::ordered_dict;
  std::int64_t integer = 0;
  double real = 0;
  std::string text;
  std::vector<std::int32_t> items;  ///< in Pickle::values; a value may contain itself, so walk it to a fixed depth only
};

/// "an integer", "a list", ... for messages.
std::string_view description_of(PickleValue::Kind kind);

struct Pickle {
  std::vector<PickleValue> values;
  std::int32_t root = 0;

  const PickleValue& operator[](std::int32_t value) const { return values[static_cast<std::size_t>(value)]; }
};

/// Runs one pickle and leaves the cursor behind it. Throws UserError, with the byte, where it ends early, has an
/// instruction, a name or a call that state dicts do not have, misuses its stack, or grows beyond 64 MiB or two million
/// values, or beyond 16 values for each of the `file_bytes` of the file that it comes from (a pickle that was
/// compressed may be longer than its file).
Pickle read_pickle(ByteCursor& cursor, std::uint64_t file_bytes);

}  // namespace furlong::foreign
