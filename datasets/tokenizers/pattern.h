#pragma once
// The regular expressions that tokenizers split text with, run by PCRE2.
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace furlong {

/// A compiled regular expression over UTF-8. Tokenizer files hold expressions for Oniguruma; those parts of its
/// language that mean the same in PCRE2, or that can be said in it (\s and \w, whose characters differ; scripts, which
/// PCRE2 widens), are accepted and all else is refused: a pattern that means something slightly different would give
/// other ids without a word. Const calls may come from several threads at once.
class Pattern {
 public:
  /// Throws UserError, beginning with `origin`, for what is refused and for what can match nothing at all.
  Pattern(std::string_view expression, std::string_view origin);
  ~Pattern();
  Pattern(Pattern&&) noexcept;
  Pattern& operator=(Pattern&&) noexcept;

  /// Finds one match after the other in valid UTF-8.
  class Search {
   public:
    Search(const Pattern& pattern, std::string_view text);
    ~Search();
    Search(const Search&) = delete;
    Search& operator=(const Search&) = delete;
    /// Begin and end of the next match; nothing when there is none left.
    std::optional<std::pair<std::size_t, std::size_t>> next();

   private:
    struct State;
    std::unique_ptr<State> state_;
  };

 private:
  struct Code;
  std::unique_ptr<Code> code_;
};

/// The expression in PCRE2's language. Throws UserError as above.
std::string pattern_for_pcre2(std::string_view expression, std::string_view origin);

}  // namespace furlong
