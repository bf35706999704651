#pragma once
// The subset of Python's pickle (protocols 2 to 5) that torch.save uses for a state dict. A pickle is a program for a
// stack machine that may call any function. This reader builds only plain values and a closed list of named objects; it
// calls nothing.
#include <cstdint>
#include <string>
#include <vector>

#include "formats/byte_file.h"

namespace furlong::foreign {

/// The globals (module and name) that a pickle may reference. Any other throws a UserError that names it.
enum class PickleGlobal : std::uint8_t { ordered_dict, rebuild_tensor, rebuild_parameter, storage };

struct PickleValue {
  enum class Kind : std::uint8_t {
    none,
    boolean,     ///< integer: 0 or 1
    integer,     ///< `integer`
    large,       ///< an integer beyond 64 bits; `text` holds its bytes
    real,        ///< `real`
    text,        ///< UTF-8
    bytes,       ///< `text`
    list,        ///< `items`
    tuple,       ///< `items`
    dictionary,  ///< `items`: key, value, key, value, …; keys may repeat
    /// `global`; for a storage, `text` is its element type ("F32").
    global,
    /// A reference to data outside the pickle; `items` holds the value that identifies it.
    persistent,
    tensor,  ///< a call of rebuild_tensor; `items` holds the tuple of its arguments
  };
  Kind kind = Kind::none;
  PickleGlobal global = PickleGlobal::ordered_dict;
  std::int64_t integer = 0;
  double real = 0;
  std::string text;
  /// Indices in Pickle::values. A value may contain itself, so walk it only to a fixed depth.
  std::vector<std::int32_t> items;
};

/// Returns "an integer", "a list", …, for messages.
std::string_view description_of(PickleValue::Kind kind);

struct Pickle {
  std::vector<PickleValue> values;
  std::int32_t root = 0;

  const PickleValue& operator[](std::int32_t value) const { return values[static_cast<std::size_t>(value)]; }
};

/// Runs one pickle and leaves the cursor after it. Throws UserError with the byte offset if the pickle ends early,
/// contains an instruction, global or call that state dicts do not have, or misuses its stack. Also throws if it
/// exceeds 64 MiB, or pushes more than two million values, or more than 16 per byte of `file_bytes`, the size of its
/// file (a compressed pickle may be longer than its file). Marks and memo have the same limits.
Pickle read_pickle(ByteCursor& cursor, std::uint64_t file_bytes);

}  // namespace furlong::foreign
