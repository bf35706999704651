#include "datasets/tokenizers/pre_tokenizer.h"

#include <optional>
#include <utility>

#include "datasets/tokenizers/pattern.h"
#include "datasets/tokenizers/text_growth.h"
#include "datasets/tokenizers/unicode.h"

namespace furlong {

const std::string_view gpt2_pattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

namespace {

/// What a match becomes: a separate piece, nothing, part of the previous or next piece, or part of a run of matches.
enum class Behavior { isolated, removed, merged_with_previous, merged_with_next, contiguous };

Behavior behavior_of(const JsonView& json) {
  const std::string& name = json.text();
  if (name == "Isolated") return Behavior::isolated;
  if (name == "Removed") return Behavior::removed;
  if (name == "MergedWithPrevious") return Behavior::merged_with_previous;
  if (name == "MergedWithNext") return Behavior::merged_with_next;
  if (name == "Contiguous") return Behavior::contiguous;
  throw UserError(
      "{}: unknown behavior '{}'; expected Isolated, Removed, MergedWithPrevious, MergedWithNext or Contiguous",
      json.name(), name);
}

struct Section {
  std::size_t begin, end;
  bool matched;
};

/// Takes the matched and unmatched parts of a text, in order, and emits the pieces.
class Splitter {
 public:
  Splitter(TextPiece piece, Behavior behavior, bool invert, const PieceSink& sink)
      : piece_(piece), behavior_(behavior), invert_(invert), sink_(sink) {}

  void match(std::size_t begin, std::size_t end) {
    if (begin > done_) take({done_, begin, invert_});
    take({begin, end, !invert_});
    done_ = end;
  }
  void finish() {
    if (done_ < piece_.text.size()) take({done_, piece_.text.size(), invert_});
    if (holds_) emit(held_);
  }

 private:
  void take(Section next) {
    if (behavior_ == Behavior::removed) {
      if (!next.matched) emit(next);
    } else if (behavior_ == Behavior::isolated) {
      emit(next);
    } else if (holds_ && joins(next)) {
      // A piece that has absorbed a match absorbs no other.
      held_ = Section{held_.begin, next.end, next.matched};
    } else {
      if (holds_) emit(held_);
      held_ = next;
      holds_ = true;
    }
  }
  bool joins(const Section& next) const {
    switch (behavior_) {
      case Behavior::contiguous:
        return held_.matched == next.matched;
      case Behavior::merged_with_previous:
        return next.matched && !held_.matched;
      case Behavior::merged_with_next:
        return held_.matched && !next.matched;
      default:
        return false;
    }
  }
  void emit(const Section& section) {
    sink_({piece_.text.substr(section.begin, section.end - section.begin), piece_.at_start && section.begin == 0,
           piece_.in_word && section.begin == 0});
  }

  TextPiece piece_;
  Behavior behavior_;
  bool invert_;
  const PieceSink& sink_;
  std::size_t done_ = 0;
  Section held_{0, 0, false};
  bool holds_ = false;
};

class PatternSplit : public PreTokenizer::Step {
 public:
  PatternSplit(Pattern pattern, Behavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}
  void split(TextPiece piece, const PieceSink& sink) const override {
    Splitter splitter(piece, behavior_, invert_, sink);
    Pattern::Search search(pattern_, piece.text);
    while (const auto match = search.next()) splitter.match(match->first, match->second);
    splitter.finish();
  }

 private:
  Pattern pattern_;
  Behavior behavior_;
  bool invert_;
};

class StringSplit : public PreTokenizer::Step {
 public:
  StringSplit(std::string wanted, Behavior behavior, bool invert)
      : wanted_(std::move(wanted)), behavior_(behavior), invert_(invert) {}
  void split(TextPiece piece, const PieceSink& sink) const override {
    Splitter splitter(piece, behavior_, invert_, sink);
    for (std::size_t at = piece.text.find(wanted_); at != std::string_view::npos;
         at = piece.text.find(wanted_, at + wanted_.size())) {
      splitter.match(at, at + wanted_.size());
    }
    splitter.finish();
  }

 private:
  std::string wanted_;
  Behavior behavior_;
  bool invert_;
};

/// Each character of a class is a match.
class CharacterSplit : public PreTokenizer::Step {
 public:
  CharacterSplit(bool (*matches)(char32_t), Behavior behavior) : matches_(matches), behavior_(behavior) {}
  void split(TextPiece piece, const PieceSink& sink) const override {
    Splitter splitter(piece, behavior_, false, sink);
    for (std::size_t position = 0; position < piece.text.size();) {
      const std::size_t begin = position;
      if (matches_(unicode::next(piece.text, position))) splitter.match(begin, position);
    }
    splitter.finish();
  }

 private:
  bool (*matches_)(char32_t);
  Behavior behavior_;
};

/// Runs of word characters, and runs of other characters than those and whitespace, as \w+|[^\w\s]+ finds them in the
/// regular expressions of Rust. Their \w is not that of Oniguruma, which Split has.
class WordSplit : public PreTokenizer::Step {
 public:
  void split(TextPiece piece, const PieceSink& sink) const override {
    enum class Class { whitespace, word, other };
    std::size_t begin = 0;
    Class run = Class::whitespace;
    const auto end_run = [&](std::size_t end) {
      if (run != Class::whitespace)
        sink({piece.text.substr(begin, end - begin), piece.at_start && begin == 0, piece.in_word && begin == 0});
    };
    for (std::size_t position = 0; position < piece.text.size();) {
      const std::size_t here = position;
      const char32_t character = unicode::next(piece.text, position);
      const Class found = unicode::is_word(character)         ? Class::word
                          : unicode::is_whitespace(character) ? Class::whitespace
                                                              : Class::other;
      if (found == run) continue;
      end_run(here);
      begin = here;
      run = found;
    }
    end_run(piece.text.size());
  }
};

/// Adds a leading space if there is none, as the first word would have inside a text.
class PrefixSpace : public PreTokenizer::Step {
 public:
  void split(TextPiece piece, const PieceSink& sink) const override {
    if (piece.in_word || piece.text.starts_with(' ')) return sink(piece);
    const std::string spaced = ' ' + std::string(piece.text);
    sink({spaced, piece.at_start});
  }
};

/// As in SentencePiece: a mark ("▁") for each space and before the first word; words start with it.
class Metaspace : public PreTokenizer::Step {
 public:
  explicit Metaspace(const JsonView& json)
      : mark_(json.text("replacement", "\u2581")), cuts_(json.boolean("split", true)) {
    std::string scheme = json.text("prepend_scheme", json.boolean("add_prefix_space", true) ? "always" : "never");
    if (scheme != "always" && scheme != "first" && scheme != "never") {
      throw UserError("{}: unknown prepend_scheme '{}'; expected always, first or never", json.name(), scheme);
    }
    // A mark with spaces would grow with each further Metaspace.
    if (mark_.empty() || mark_.size() > 16 || mark_.find(' ') != std::string::npos)
      throw UserError("{}: the replacement is '{}', expected 1 to 16 bytes without spaces", json.name(), mark_);
    always_ = scheme == "always";
    first_ = scheme == "first";
  }
  void split(TextPiece piece, const PieceSink& sink) const override {
    std::string marked;
    for (const char letter : piece.text) letter == ' ' ? marked += mark_ : marked += letter;
    if ((always_ || (first_ && piece.at_start)) && !marked.starts_with(mark_)) marked.insert(0, mark_);
    if (!cuts_) return sink({marked, piece.at_start});
    StringSplit(mark_, Behavior::merged_with_next, false).split({marked, piece.at_start}, sink);
  }

 private:
  std::string mark_;
  bool cuts_, always_, first_;
};

std::shared_ptr<const PreTokenizer::Step> split_step(const JsonView& json) {
  const JsonView pattern = json.at("pattern");
  const Behavior behavior = behavior_of(json.at("behavior"));
  const bool invert = json.boolean("invert", false);
  if (pattern.has("Regex")) {
    return std::make_shared<PatternSplit>(Pattern(pattern.at("Regex").text(), pattern.name()), behavior, invert);
  }
  const std::string& wanted = pattern.at("String").text();
  if (wanted.empty()) throw UserError("{}: the text to split at is empty", pattern.name());
  return std::make_shared<StringSplit>(wanted, behavior, invert);
}

}  // namespace

/// One call of split(). Steps that insert marks and steps that split them can multiply the pieces without end.
struct PreTokenizer::Pass {
  const PieceSink& sink;
  TextGrowth growth;
  std::vector<std::size_t> bytes;  ///< that have reached each step, and `sink`
};

PreTokenizer::PreTokenizer(const JsonView& json) : name_(json.name()) {
  if (!json.is_null()) add(json);
}

void PreTokenizer::add(const JsonView& json) {
  check_step_count(steps_.size(), json.name(), "pre_tokenizers");
  const std::string& type = json.at("type").text();
  if (byte_level_)
    throw UserError("{}: '{}' after ByteLevel is not supported, because the pieces of ByteLevel are bytes", json.name(),
                    type);
  if (type == "Sequence") {
    for (const JsonView& item : json.at("pretokenizers").items()) add(item);
  } else if (type == "ByteLevel") {
    byte_level_ = true;
    if (json.boolean("add_prefix_space", true)) steps_.push_back(std::make_shared<PrefixSpace>());
    if (json.boolean("use_regex", true)) {
      steps_.push_back(std::make_shared<PatternSplit>(Pattern(gpt2_pattern, json.name()), Behavior::isolated, false));
    }
  } else if (type == "Split") {
    steps_.push_back(split_step(json));
  } else if (type == "Digits") {
    const Behavior behavior = json.boolean("individual_digits", false) ? Behavior::isolated : Behavior::contiguous;
    steps_.push_back(std::make_shared<CharacterSplit>(unicode::is_number, behavior));
  } else if (type == "BertPreTokenizer") {
    steps_.push_back(std::make_shared<CharacterSplit>(unicode::is_whitespace, Behavior::removed));
    steps_.push_back(std::make_shared<CharacterSplit>(unicode::is_punctuation, Behavior::isolated));
  } else if (type == "Whitespace") {
    steps_.push_back(std::make_shared<WordSplit>());
  } else if (type == "WhitespaceSplit") {
    steps_.push_back(std::make_shared<CharacterSplit>(unicode::is_whitespace, Behavior::removed));
  } else if (type == "Punctuation") {
    const Behavior behavior = json.has("behavior") ? behavior_of(json.at("behavior")) : Behavior::isolated;
    steps_.push_back(std::make_shared<CharacterSplit>(unicode::is_punctuation, behavior));
  } else if (type == "Metaspace") {
    steps_.push_back(std::make_shared<Metaspace>(json));
  } else {
    throw UserError(
        "{}: the pre_tokenizer '{}' is not supported; expected BertPreTokenizer, ByteLevel, Digits, Metaspace, "
        "Punctuation, Split, Whitespace or WhitespaceSplit",
        json.name(), type);
  }
}

void PreTokenizer::split(TextPiece piece, const PieceSink& sink) const {
  Pass pass{sink, TextGrowth(name_, piece.text.size()), std::vector<std::size_t>(steps_.size() + 1)};
  run(0, piece, pass);
}

void PreTokenizer::run(std::size_t step, TextPiece piece, Pass& pass) const {
  if (piece.text.empty()) return;
  pass.growth.check(pass.bytes[step] += piece.text.size());
  if (step == steps_.size()) return pass.sink(piece);
  steps_[step]->split(piece, [&, step](TextPiece part) { run(step + 1, part, pass); });
}

}  // namespace furlong
