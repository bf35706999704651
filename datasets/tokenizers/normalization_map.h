#pragma once
// Checks what SentencePiece takes on trust: the compiled normalization in a model, which it walks without bounds.
#include <string_view>

namespace furlong {

/// `model`: a serialized sentencepiece.ModelProto. Throws UserError, beginning with `origin`, where it is not in the
/// wire format of protocol buffers, or where a text could lead the normalizer's search outside of its
/// precompiled_charsmap. That is the size of a trie in bytes (32 bits), the trie, and texts that end with NUL each; the
/// trie is an array of 32-bit units (Yata et al. 2007, "A compact static double-array keeping character codes"), in
/// which the child of node p for byte b lies at p ^ b and leads on to (p ^ b) ^ offset.
void check_normalization_maps(std::string_view model, std::string_view origin);

}  // namespace furlong
