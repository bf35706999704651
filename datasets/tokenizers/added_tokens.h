#pragma once
// Tokens that are matched literally in the text, before the model sees it: the "added_tokens" of a tokenizer.json.
#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "datasets/tokenizers/tokenizer.h"

namespace furlong {

/// One added token and the rules for matching it.
struct AddedToken {
  std::string content;
  std::int32_t id = 0;
  bool special = false;                 ///< stands for no text; matched only with SpecialTokenMode::as_token
  bool normalized = false;              ///< matched in normalized text
  bool single_word = false;             ///< not matched inside a word
  bool lstrip = false, rstrip = false;  ///< includes the whitespace before or after it
};

/// Matches from left to right; at each position the longest token wins.
class AddedTokens {
 public:
  AddedTokens() = default;
  explicit AddedTokens(std::vector<AddedToken> tokens);

  /// Called with a part of the text and no id, or with a token and its id.
  using Sink = std::function<void(std::string_view, std::optional<std::int32_t>)>;
  /// Splits `text` at the tokens and passes all parts to `sink`, in order.
  void split(std::string_view text, SpecialTokenMode special, const Sink& sink) const;
  const std::vector<AddedToken>& tokens() const { return tokens_; }

 private:
  const AddedToken* longest_at(std::string_view text, std::size_t position) const;
  std::vector<AddedToken> tokens_;
  // indices into tokens_, longest token first
  std::array<std::vector<std::size_t>, 256> by_first_byte_;
};

}  // namespace furlong
