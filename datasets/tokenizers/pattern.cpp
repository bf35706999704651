#include "datasets/tokenizers/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <utility>

#include "datasets/tokenizers/unicode.h"
#include "framework/core/error.h"
#include "framework/core/printable.h"

namespace furlong {
namespace {

/// The characters of \s and \w in Oniguruma, as the inside of a PCRE2 class. PCRE2's \s also has U+180E; its \w has all
/// numbers but few marks and connectors.
constexpr std::string_view space_characters =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
constexpr std::string_view word_characters = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})";
/// In Oniguruma, \w also matches these numbers, but only outside of classes.
constexpr std::string_view more_word_characters = R"(\x{b2}\x{b3}\x{b9}\x{bc}-\x{be})";

/// Translates an expression to PCRE2 syntax.
class Translator {
 public:
  Translator(std::string_view expression, std::string_view origin) : in_(expression), origin_(origin) {}

  std::string translate() {
    while (at_ < in_.size()) {
      const char letter = in_[at_];
      if (letter == '\\') {
        escape(false);
      } else if (letter == '[') {
        character_class();
      } else if (letter == '(') {
        group();
      } else if (letter == '{') {
        repetition();
      } else if (letter == '^' || letter == '$' || letter == '}') {
        refuse(std::string(1, letter));
      } else {
        out_ += letter;
        ++at_;
      }
    }
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(std::string_view what) const {
    throw UserError(
        "{}: the pattern '{}' has '{}', which is not supported (its meaning differs between regular expression "
        "engines)",
        origin_, in_, what);
  }

  void escape(bool inside_class) {
    if (at_ + 1 >= in_.size()) refuse("\\");
    const char letter = in_[at_ + 1];
    at_ += 2;
    if (letter == 'p' || letter == 'P') return property(letter);
    if (letter == 's' || (letter == 'w' && inside_class)) {
      const std::string_view members = letter == 's' ? space_characters : word_characters;
      out_ += inside_class ? std::string(members) : fmt::format("[{}]", members);
    } else if (letter == 'w') {
      out_ += fmt::format("[{}{}]", word_characters, more_word_characters);
    } else if (letter == 'S' && !inside_class) {
      out_ += fmt::format("[^{}]", space_characters);
    } else if (letter == 'W' && !inside_class) {
      out_ += fmt::format("[^{}{}]", word_characters, more_word_characters);
    } else if (letter == 'd' || letter == 'D') {
      out_ += letter == 'd' ? "\\p{Nd}" : "\\P{Nd}";
    } else if ((letter == 'A' || letter == 'z') && !inside_class) {  // start and end of the text in both
      out_ += letter == 'A' ? "\\A" : "\\z";
    } else if (letter == 'r' || letter == 'n' || letter == 't' ||
               (std::ispunct(static_cast<unsigned char>(letter)) != 0)) {
      out_ += '\\';
      out_ += letter;
    } else {
      refuse(in_.substr(at_ - 2, 2));
    }
  }

  void property(char letter) {
    const std::size_t close = in_.find('}', at_);
    if (at_ >= in_.size() || in_[at_] != '{' || close == std::string_view::npos) refuse("\\p");
    const std::string_view name = in_.substr(at_ + 1, close - at_ - 1);
    at_ = close + 1;
    if (name.empty()) refuse("\\p{}");
    for (const char part : name) {
      if (std::isalpha(static_cast<unsigned char>(part)) == 0) refuse(fmt::format("\\{}{{{}}}", letter, name));
    }
    // General categories have one or two letters. Longer names are scripts; without "sc:" PCRE2 uses script extensions.
    out_ += fmt::format("\\{}{{{}{}}}", letter, name.size() > 2 ? "sc:" : "", name);
  }

  void character_class() {
    out_ += '[';
    ++at_;
    if (at_ < in_.size() && in_[at_] == '^') out_ += in_[at_++];
    for (bool first = true; at_ < in_.size(); first = false) {
      const char letter = in_[at_];
      if (letter == ']' && !first) {
        out_ += in_[at_++];
        return;
      }
      if (letter == '[' || letter == ']' || in_.substr(at_, 2) == "&&") refuse(in_.substr(at_, 2));
      if (letter == '\\') {
        escape(true);
      } else {
        out_ += letter;
        ++at_;
      }
    }
    refuse("[");
  }

  void group() {
    out_ += '(';
    ++at_;
    if (at_ < in_.size() && in_[at_] == '*') refuse("(*");
    if (at_ >= in_.size() || in_[at_] != '?') return;
    for (const std::string_view kind : {"?:", "?i:", "?=", "?!", "?<=", "?<!", "?>"}) {
      if (in_.substr(at_).starts_with(kind)) {
        out_ += kind;
        at_ += kind.size();
        return;
      }
    }
    refuse(fmt::format("({}", in_.substr(at_, 3)));
  }

  /// {n}, {n,} and {n,m}. A + after it repeats the repetition in Oniguruma, but makes it possessive in PCRE2.
  void repetition() {
    const std::size_t close = in_.find('}', at_);
    if (close == std::string_view::npos || close == at_ + 1) refuse("{");
    const std::string_view inside = in_.substr(at_ + 1, close - at_ - 1);
    if (std::isdigit(static_cast<unsigned char>(inside[0])) == 0) refuse(in_.substr(at_, close + 1 - at_));
    for (const char letter : inside) {
      if (std::isdigit(static_cast<unsigned char>(letter)) == 0 && letter != ',')
        refuse(in_.substr(at_, close + 1 - at_));
    }
    if (close + 1 < in_.size() && (in_[close + 1] == '+' || in_[close + 1] == '?' || in_[close + 1] == '*')) {
      refuse(in_.substr(at_, close + 2 - at_));
    }
    out_ += in_.substr(at_, close + 1 - at_);
    at_ = close + 1;
  }

  std::string_view in_, origin_;
  std::string out_;
  std::size_t at_ = 0;
};

/// Step limit of one match attempt at one position: PCRE2's default (about a second), or what a run of characters as
/// long as the text may need. It stops patterns that backtrack endlessly.
constexpr std::uint32_t min_steps = 10'000'000;
constexpr std::size_t steps_per_byte = 8;
/// Time limit of all attempts on one text: about eighty times what published patterns take. It stops patterns whose
/// time is quadratic in the text's length.
constexpr std::chrono::milliseconds time_limit{4000}, time_per_mebibyte{4000};
/// Heap limit of the interpreter, which is used if the compiled code's stack is too small; PCRE2's default is 20 GB.
constexpr std::uint32_t max_heap_kibibytes = 1 << 20;

std::string message_of(int code) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

}  // namespace

std::string pattern_for_pcre2(std::string_view expression, std::string_view origin) {
  return Translator(expression, origin).translate();
}

using MatchLimits = std::unique_ptr<pcre2_match_context, decltype(&pcre2_match_context_free)>;

struct Pattern::Code {
  Code(pcre2_code* compiled, std::string the_name) : pointer(compiled), name(std::move(the_name)) {
    if (limits) pcre2_set_heap_limit(limits.get(), max_heap_kibibytes);
  }
  ~Code() { pcre2_code_free(pointer); }
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
  pcre2_code* pointer;
  std::string name;  ///< for messages: its place and the expression
  MatchLimits limits{pcre2_match_context_create(nullptr), &pcre2_match_context_free};
};

Pattern::Pattern(std::string_view expression, std::string_view origin) {
  if (unicode::valid_length(expression) != expression.size())
    throw UserError("{}: the pattern is not valid UTF-8", origin);
  const std::string translated = pattern_for_pcre2(expression, origin);
  int failure = 0;
  std::size_t place = 0;
  const std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)> context(
      pcre2_compile_context_create(nullptr), &pcre2_compile_context_free);
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  code_ = std::make_unique<Code>(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_USE_OFFSET_LIMIT, &failure, &place, context.get()),
      fmt::format("{}: the pattern '{}'", origin, foreign::printable(expression)));
  if (!code_->limits) throw MachineError("out of memory while compiling a pattern");
  if (!code_->pointer) throw UserError("{}: the pattern '{}' is invalid: {}", origin, expression, message_of(failure));
  std::uint32_t matches_nothing = 0;
  pcre2_pattern_info(code_->pointer, PCRE2_INFO_MATCHEMPTY, &matches_nothing);
  if (matches_nothing != 0)
    throw UserError("{}: the pattern '{}' can match the empty text, which splits nothing", origin, expression);
  pcre2_jit_compile(code_->pointer,
                    PCRE2_JIT_COMPLETE);  // optional: without JIT support, matching is interpreted
}

Pattern::~Pattern() = default;
Pattern::Pattern(Pattern&&) noexcept = default;
Pattern& Pattern::operator=(Pattern&&) noexcept = default;

namespace {

std::chrono::nanoseconds time_of(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
}

/// Sums the time of many short calls, with a clock that is read in nanoseconds and ticks every few milliseconds.
class Stopwatch {
 public:
  explicit Stopwatch(std::size_t text_bytes)
      : allowed_(time_limit + time_per_mebibyte * static_cast<std::int64_t>(text_bytes >> 20)) {}

  /// Returns the result of `call` and its duration.
  template <class Call>
  std::pair<int, std::chrono::nanoseconds> run(const Call& call) {
    const auto before = time_of(CLOCK_MONOTONIC_COARSE);
    const int result = call();
    const auto taken = time_of(CLOCK_MONOTONIC_COARSE) - before;
    spent_ += taken;
    return {result, taken};
  }

  /// Counts processor time as well in the second half of the limit, because the program may have been suspended.
  bool is_over() {
    if (spent_ <= allowed_ / 2) return false;
    const auto now = time_of(CLOCK_THREAD_CPUTIME_ID);
    spent_ = {};
    if (!processor_began_) processor_began_ = now;
    return now - *processor_began_ > allowed_ / 4;
  }
  double allowed_seconds() const { return std::chrono::duration<double>(allowed_).count(); }

 private:
  std::chrono::nanoseconds allowed_, spent_{};
  std::optional<std::chrono::nanoseconds> processor_began_;
};

}  // namespace

struct Pattern::Search::State {
  State(const Code& the_code, std::string_view the_text)
      : code(the_code),
        text(the_text),
        limits(pcre2_match_context_copy(the_code.limits.get()), &pcre2_match_context_free),
        data(pcre2_match_data_create(1, nullptr), &pcre2_match_data_free),
        stopwatch(the_text.size()),
        max_steps(static_cast<std::uint32_t>(
            std::clamp<std::size_t>(steps_per_byte * the_text.size(), min_steps, UINT32_MAX))) {
    if (!data || !limits) throw MachineError("out of memory while matching a pattern");
    pcre2_set_match_limit(limits.get(), max_steps);
  }

  /// Returns PCRE2's result for matches that start in the next `window` bytes.
  int match_in_window() {
    pcre2_set_offset_limit(limits.get(), std::min(text.size(), position + window));
    const auto match = [&](std::uint32_t options) {
      return pcre2_match(code.pointer, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), position,
                         PCRE2_NO_UTF_CHECK | options, data.get(), limits.get());
    };
    const auto [result, taken] = stopwatch.run([&] {
      const int compiled = match(0);
      // The interpreter keeps its stack on the heap.
      return compiled == PCRE2_ERROR_JIT_STACKLIMIT ? match(PCRE2_NO_JIT) : compiled;
    });
    if (stopwatch.is_over())
      throw UserError(
          "{} takes more than {:.0f} s for a text of {} bytes; use another tokenizer, or split the text into shorter "
          "lines",
          code.name, stopwatch.allowed_seconds(), text.size());
    // Keep each call short, however slow an attempt is.
    window = taken > std::chrono::milliseconds(8) ? std::max<std::size_t>(1, window / 2)
                                                  : std::min(2 * window, std::size_t{1} << 20);
    return result;
  }

  const Code& code;
  std::string_view text;
  std::size_t position = 0, window = 1;
  MatchLimits limits;
  std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> data;
  Stopwatch stopwatch;
  std::uint32_t max_steps;
};

Pattern::Search::Search(const Pattern& pattern, std::string_view text)
    : state_(std::make_unique<State>(*pattern.code_, text)) {}

Pattern::Search::~Search() = default;

std::optional<std::pair<std::size_t, std::size_t>> Pattern::Search::next() {
  State& s = *state_;
  while (s.position < s.text.size()) {
    const std::size_t last = s.position + s.window;
    const int result = s.match_in_window();
    if (result == PCRE2_ERROR_NOMATCH) {
      s.position = last + 1;
      while (s.position < s.text.size() && (static_cast<unsigned char>(s.text[s.position]) & 0xc0) == 0x80)
        ++s.position;
      continue;
    }
    if (result == PCRE2_ERROR_MATCHLIMIT || result == PCRE2_ERROR_DEPTHLIMIT || result == PCRE2_ERROR_HEAPLIMIT)
      throw UserError(
          "{} takes more than {} steps or {} GiB at one position of a text of {} bytes; use another tokenizer",
          s.code.name, s.max_steps, max_heap_kibibytes >> 20, s.text.size());
    if (result < 0)
      throw MachineError("matching a pattern in {} bytes of text failed: {}", s.text.size(), message_of(result));
    const std::size_t* range = pcre2_get_ovector_pointer(s.data.get());
    require(range[1] > range[0], "a pattern has matched the empty text");
    s.position = range[1];
    return std::pair(range[0], range[1]);
  }
  return std::nullopt;
}

}  // namespace furlong
