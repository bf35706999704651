#pragma once
#include <span>
#include <string>
#include <vector>

#include "datasets/vocabulary.h"

namespace furlong {

/// Text that comes token by token: what next() returns, put together, is the text of the tokens as they stand behind
/// the prompt. A token alone does not say whether a space stands in front of it, and may be no more than a part of a
/// character. The vocabulary has to outlive it.
class TextStream {
 public:
  TextStream(const Vocabulary& vocabulary, std::span<const std::int32_t> prompt);
  /// The text that this token completes; may be empty. Of bytes and byte-level BPE the token's bytes, whatever
  /// characters they make.
  std::string next(std::int32_t token);
  /// What was waiting for the rest of a character that did not come.
  std::string finish();

 private:
  std::string take();
  const Vocabulary* vocabulary_;
  std::vector<std::int32_t> before_, pending_;
};

/// The text of `tokens` behind `prompt`.
std::string text_behind(const Vocabulary& vocabulary, std::span<const std::int32_t> prompt,
                        std::span<const std::int32_t> tokens);

}  // namespace furlong
