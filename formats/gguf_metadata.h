#pragma once
// The key-value pairs at the start of a GGUF file.
#include <functional>
#include <map>
#include <string>

#include "formats/byte_file.h"
#include "formats/gguf.h"

namespace furlong::foreign {

using GgufMetadata = std::map<std::string, GgufValue, std::less<>>;

/// Reads `count` pairs and leaves the cursor after them. Throws UserError if a pair has an unknown type, a length
/// beyond the remaining bytes, or a key that is not UTF-8 or occurs twice.
GgufMetadata read_gguf_metadata(ByteCursor& cursor, std::uint64_t count);

}  // namespace furlong::foreign
