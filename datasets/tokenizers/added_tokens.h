#pragma once
// Tokens that are looked for in the text as they are spelled, before a model sees it: the "added_tokens" of a
// tokenizer.json.
#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "datasets/tokenizers/tokenizer.h"

namespace furlong {

struct AddedToken {
  std::string content;
  std::int32_t id = 0;
  bool special = false;                 ///< stands for no text; looked for only with SpecialSpelling::is_token
  bool normalized = false;              ///< looked for in normalized text
  bool single_word = false;             ///< not inside a word
  bool lstrip = false, rstrip = false;  ///< takes in the whitespace before or behind it
};

/// Finds the longest token at the first place where there is one, then goes on behind it.
class AddedTokens {
 public:
  AddedTokens() = default;
  explicit AddedTokens(std::vector<AddedToken> tokens);

  /// Called with a stretch of text and no id, or with a token and its id.
  using Sink = std::function<void(std::string_view, std::optional<std::int32_t>)>;
  void split(std::string_view text, SpecialSpelling special, const Sink& sink) const;
  const std::vector<AddedToken>& tokens() const { return tokens_; }

 private:
  const AddedToken* longest_at(std::string_view text, std::size_t position) const;
  std::vector<AddedToken> tokens_;
  std::array<std::vector<std::size_t>, 256> by_first_byte_;  // places in tokens_, longest first
};

}  // namespace furlong
