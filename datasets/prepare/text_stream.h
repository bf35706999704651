#pragma once
#include <span>
#include <string>
#include <vector>

#include "datasets/vocabulary.h"

namespace furlong {

/// Decodes tokens to text one by one. The concatenated results of next() and finish() are the text of the tokens as a
/// continuation of the prompt. A single token is not enough for that: the space before it may depend on its
/// predecessors, and it may be only part of a character. The vocabulary must outlive this object.
class TextStream {
 public:
  /// `prompt`: the tokens before the first one; copied.
  TextStream(const Vocabulary& vocabulary, std::span<const std::int32_t> prompt);
  /// Returns the text that `token` completes; may be empty. With bytes and byte-level BPE it returns the token's bytes,
  /// even if they are an incomplete character.
  std::string next(std::int32_t token);
  /// Returns the text of the tokens still pending, whose last character is incomplete.
  std::string finish();

 private:
  std::string decode_pending();
  const Vocabulary* vocabulary_;
  std::vector<std::int32_t> context_, pending_;
};

/// Returns the text of `tokens` as a continuation of `prompt`.
std::string continuation_text(const Vocabulary& vocabulary, std::span<const std::int32_t> prompt,
                              std::span<const std::int32_t> tokens);

}  // namespace furlong
