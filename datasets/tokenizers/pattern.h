#pragma once
// Regular expressions that tokenizers split text with, run by PCRE2.
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace furlong {

/// A compiled regular expression over UTF-8. Tokenizer files contain expressions for Oniguruma. Accepted are those
/// parts of its syntax that mean the same in PCRE2, or that can be translated: \s and \w, whose characters differ, and
/// scripts, which PCRE2 extends. All else is rejected, because a slightly different meaning would silently change ids.
/// Const calls are thread-safe.
class Pattern {
 public:
  /// Throws UserError, starting with `origin`, if the expression is rejected or can match the empty text.
  Pattern(std::string_view expression, std::string_view origin);
  ~Pattern();
  Pattern(Pattern&&) noexcept;
  Pattern& operator=(Pattern&&) noexcept;

  /// Finds all matches in valid UTF-8, one after another.
  class Search {
   public:
    Search(const Pattern& pattern, std::string_view text);
    ~Search();
    Search(const Search&) = delete;
    Search& operator=(const Search&) = delete;
    /// Returns begin and end of the next match, or nullopt if there is none. Throws UserError if matching takes too
    /// much time, steps or memory.
    std::optional<std::pair<std::size_t, std::size_t>> next();

   private:
    struct State;
    std::unique_ptr<State> state_;
  };

 private:
  struct Code;
  std::unique_ptr<Code> code_;
};

/// Returns the expression in PCRE2 syntax. Throws UserError as Pattern does.
std::string pattern_for_pcre2(std::string_view expression, std::string_view origin);

}  // namespace furlong
