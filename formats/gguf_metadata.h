#pragma once
// The key-value pairs at the beginning of a GGUF file.
#include <functional>
#include <map>
#include <string>

#include "formats/byte_file.h"
#include "formats/gguf.h"

namespace furlong::foreign {

using GgufMetadata = std::map<std::string, GgufValue, std::less<>>;

/// Reads `count` pairs and leaves the cursor behind them. Throws UserError where one has an unknown type, a length
/// beyond what is left, or a key that is not UTF-8 or was there before.
GgufMetadata read_gguf_metadata(ByteCursor& cursor, std::uint64_t count);

}  // namespace furlong::foreign
