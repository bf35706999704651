#pragma once
// Validates the compiled normalization map of a SentencePiece model, which SentencePiece reads without bounds checks.
#include <string_view>

namespace furlong {

/// Checks that no text can lead the normalizer outside of the precompiled_charsmap. `model` is a serialized
/// sentencepiece.ModelProto. Throws UserError, starting with `origin`, if the model is not in protocol buffers' wire
/// format, or if the map is unsafe.
/// The map is the size of a trie in bytes (32 bits), the trie, and texts that end with NUL. The trie is an array of
/// 32-bit units (Yata et al. 2007, "A compact static double-array keeping character codes"): the child of node p for
/// byte b is at p ^ b and leads to (p ^ b) ^ offset.
void check_normalization_maps(std::string_view model, std::string_view origin);

}  // namespace furlong
