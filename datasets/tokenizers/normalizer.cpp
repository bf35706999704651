#include "datasets/tokenizers/normalizer.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "datasets/tokenizers/base64.h"
#include "datasets/tokenizers/normalization_map.h"
#include "datasets/tokenizers/pattern.h"
#include "datasets/tokenizers/unicode.h"

namespace furlong {
namespace {

bool is_ascii(std::string_view text) {
  return std::none_of(text.begin(), text.end(), [](char byte) { return static_cast<unsigned char>(byte) >= 0x80; });
}

/// Returns the text without the characters for which `dropped` is true.
template <class Predicate>
std::string without(std::string_view text, Predicate dropped) {
  std::string kept;
  kept.reserve(text.size());
  for (std::size_t position = 0; position < text.size();) {
    const std::size_t begin = position;
    if (!dropped(unicode::next(text, position))) kept += text.substr(begin, position - begin);
  }
  return kept;
}

class FormStep : public Normalizer::Step {
 public:
  explicit FormStep(unicode::Form form) : form_(form) {}
  std::string apply(std::string text, const TextGrowth& /*growth*/) const override {
    return is_ascii(text) ? std::move(text) : unicode::normalize(text, form_);
  }

 private:
  unicode::Form form_;
};

class LowercaseStep : public Normalizer::Step {
 public:
  std::string apply(std::string text, const TextGrowth& /*growth*/) const override { return unicode::lowercase(text); }
};

class StripAccentsStep : public Normalizer::Step {
 public:
  std::string apply(std::string text, const TextGrowth& /*growth*/) const override {
    return is_ascii(text) ? std::move(text) : without(text, unicode::is_mark);
  }
};

/// The normalizer of BERT's basic tokenizer (Devlin et al. 2019, arXiv:1810.04805; its released code).
class BertStep : public Normalizer::Step {
 public:
  explicit BertStep(const JsonView& json)
      : clean_(json.boolean("clean_text", true)),
        spaced_(json.boolean("handle_chinese_chars", true)),
        lower_(json.boolean("lowercase", true)),
        strip_(json.boolean("strip_accents", lower_)) {}

  std::string apply(std::string text, const TextGrowth& /*growth*/) const override {
    if (clean_ || spaced_) text = cleaned(text);
    if (strip_ && !is_ascii(text))
      text = without(unicode::normalize(text, unicode::Form::nfd), unicode::is_nonspacing_mark);
    return lower_ ? unicode::lowercase(text) : text;
  }

 private:
  std::string cleaned(std::string_view text) const {
    std::string out;
    out.reserve(text.size());
    for (std::size_t position = 0; position < text.size();) {
      const std::size_t begin = position;
      const char32_t character = unicode::next(text, position);
      if (clean_ && is_dropped(character)) continue;
      if (clean_ && unicode::is_whitespace(character)) {
        out += ' ';
      } else if (spaced_ && is_ideograph(character)) {
        out += ' ';
        out += text.substr(begin, position - begin);
        out += ' ';
      } else {
        out += text.substr(begin, position - begin);
      }
    }
    return out;
  }

  static bool is_dropped(char32_t character) {
    if (character == '\t' || character == '\n' || character == '\r') return false;
    return character == 0 || character == unicode::replacement_character || unicode::is_format_or_control(character);
  }

  /// The ranges that published tokenizers surround with spaces. Like them, the range at 2B920 starts 0x100 after the
  /// start of its block, 2B820.
  static bool is_ideograph(char32_t character) {
    constexpr std::pair<char32_t, char32_t> ranges[] = {{0x3400, 0x4DBF},   {0x4E00, 0x9FFF},   {0xF900, 0xFAFF},
                                                        {0x20000, 0x2A6DF}, {0x2A700, 0x2B81F}, {0x2B920, 0x2CEAF},
                                                        {0x2F800, 0x2FA1F}};
    return std::any_of(std::begin(ranges), std::end(ranges),
                       [&](const auto& range) { return character >= range.first && character <= range.second; });
  }

  bool clean_, spaced_, lower_, strip_;
};

class StripStep : public Normalizer::Step {
 public:
  explicit StripStep(const JsonView& json)
      : left_(json.boolean("strip_left", true)), right_(json.boolean("strip_right", true)) {}
  std::string apply(std::string text, const TextGrowth& /*growth*/) const override {
    std::size_t first = std::string::npos, last = 0;  // of the characters other than whitespace
    for (std::size_t position = 0; position < text.size();) {
      const std::size_t begin = position;
      if (unicode::is_whitespace(unicode::next(text, position))) continue;
      first = std::min(first, begin);
      last = position;
    }
    if (first == std::string::npos) return left_ || right_ ? std::string() : text;
    const std::size_t begin = left_ ? first : 0;
    return text.substr(begin, (right_ ? last : text.size()) - begin);
  }

 private:
  bool left_, right_;
};

/// The compiled normalization of a SentencePiece model, as the reference implementation of tokenizer.json applies it:
/// to short clusters of characters as wholes (their shortest prefix counts), else to each character.
class PrecompiledStep : public Normalizer::Step {
 public:
  explicit PrecompiledStep(const JsonView& json) {
    const JsonView text = json.at("precompiled_charsmap");
    const auto bytes = from_base64(text.text());
    if (!bytes) throw UserError("{}: not valid base64", text.name());
    if (bytes->empty()) return;
    map_ = NormalizationMap::parse(*bytes);
    if (!map_ || !map_->is_utf8()) throw UserError("{}: the map is damaged; download or copy it again", text.name());
  }
  std::string apply(std::string text, const TextGrowth& growth) const override {
    if (!map_) return text;
    std::string out;
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t end = unicode::cluster_end(text, begin);
      append(out, std::string_view(text).substr(begin, end - begin), growth);
      begin = end;
    }
    return out;
  }

 private:
  /// A cluster may have any number of characters, so that each one is checked.
  void append(std::string& out, std::string_view cluster, const TextGrowth& growth) const {
    constexpr std::size_t longest_whole = 5;  // bytes
    if (cluster.size() <= longest_whole) {
      if (const auto content = map_->find(cluster)) {
        out += *content;
        return growth.check(out.size());
      }
    }
    for (std::size_t position = 0; position < cluster.size();) {
      const std::size_t begin = position;
      unicode::next(cluster, position);
      const std::string_view character = cluster.substr(begin, position - begin);
      out += map_->find(character).value_or(character);
      growth.check(out.size());
    }
  }

  std::optional<NormalizationMap> map_;  // none: nothing changes
};

class PrependStep : public Normalizer::Step {
 public:
  explicit PrependStep(const JsonView& json) : front_(json.at("prepend").text()) {}
  std::string apply(std::string text, const TextGrowth& /*growth*/) const override {
    return text.empty() ? text : front_ + text;
  }

 private:
  std::string front_;
};

class ReplaceStep : public Normalizer::Step {
 public:
  explicit ReplaceStep(const JsonView& json) : content_(json.at("content").text()) {
    const JsonView pattern = json.at("pattern");
    if (pattern.has("Regex")) {
      pattern_.emplace(pattern.at("Regex").text(), pattern.name());
    } else {
      wanted_ = pattern.at("String").text();
      if (wanted_.empty()) throw UserError("{}: the text to replace is empty", pattern.name());
    }
  }
  std::string apply(std::string text, const TextGrowth& growth) const override {
    std::string out;
    std::size_t done = 0;
    const auto replace = [&](std::size_t begin, std::size_t end) {
      out.append(text, done, begin - done);
      out += content_;
      growth.check(out.size());
      done = end;
    };
    if (pattern_) {
      Pattern::Search search(*pattern_, text);
      while (const auto match = search.next()) replace(match->first, match->second);
    } else {
      for (std::size_t at = text.find(wanted_); at != std::string::npos; at = text.find(wanted_, done))
        replace(at, at + wanted_.size());
    }
    out.append(text, done);
    return out;
  }

 private:
  std::string wanted_, content_;
  std::optional<Pattern> pattern_;
};

}  // namespace

Normalizer::Normalizer(const JsonView& json) : name_(json.name()) {
  if (!json.is_null()) add(json);
}

void Normalizer::add(const JsonView& json) {
  static const std::map<std::string_view, unicode::Form> forms{{"NFC", unicode::Form::nfc},
                                                               {"NFD", unicode::Form::nfd},
                                                               {"NFKC", unicode::Form::nfkc},
                                                               {"NFKD", unicode::Form::nfkd}};
  check_step_count(steps_.size(), json.name(), "normalizers");
  const std::string& type = json.at("type").text();
  if (type == "Sequence") {
    for (const JsonView& item : json.at("normalizers").items()) add(item);
  } else if (const auto form = forms.find(type); form != forms.end()) {
    steps_.push_back(std::make_shared<FormStep>(form->second));
  } else if (type == "BertNormalizer") {
    steps_.push_back(std::make_shared<BertStep>(json));
  } else if (type == "Lowercase") {
    steps_.push_back(std::make_shared<LowercaseStep>());
  } else if (type == "StripAccents") {
    steps_.push_back(std::make_shared<StripAccentsStep>());
  } else if (type == "Strip") {
    steps_.push_back(std::make_shared<StripStep>(json));
  } else if (type == "Replace") {
    steps_.push_back(std::make_shared<ReplaceStep>(json));
  } else if (type == "Precompiled") {
    steps_.push_back(std::make_shared<PrecompiledStep>(json));
  } else if (type == "Prepend") {
    steps_.push_back(std::make_shared<PrependStep>(json));
  } else {
    throw UserError(
        "{}: the normalizer '{}' is not supported; expected BertNormalizer, Lowercase, NFC, NFD, NFKC, NFKD, "
        "Precompiled, Prepend, Replace, Strip or StripAccents",
        json.name(), type);
  }
}

std::string Normalizer::apply(std::string text) const {
  const TextGrowth growth(name_, text.size());
  for (const auto& step : steps_) {
    text = step->apply(std::move(text), growth);
    growth.check(text.size());
  }
  return text;
}

}  // namespace furlong
