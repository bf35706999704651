#include "datasets/prepare/label_parser.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>

#include "datasets/tokenizers/unicode.h"
#include "framework/core/error.h"
#include "framework/core/printable.h"

namespace furlong {
namespace {

constexpr std::size_t kMaxLabels = 1 << 16;

}  // namespace

std::string_view without_spaces_around(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t\r\n\v\f"), end = text.find_last_not_of(" \t\r\n\v\f");
  return begin == std::string_view::npos ? std::string_view{} : text.substr(begin, end - begin + 1);
}

void check_label_names(const std::vector<std::string>& names) {
  std::set<std::string> known;
  for (const std::string& name : names) {
    if (!foreign::is_utf8(name)) throw UserError("--labels: '{}' is not valid UTF-8", foreign::printable(name));
    if (!known.insert(name).second) throw UserError("--labels: '{}' occurs twice", name);
  }
}

LabelParser::LabelParser(const LabeledFormat& format)
    : kind_(format.label_kind),
      separator_(format.label_separator.empty() ? ";" : format.label_separator),
      unlabeled_(format.unlabeled),
      names_(format.labels),
      fixed_(!format.labels.empty()) {
  if (kind_ != LabelKind::numbers && format.label_fields.size() > 1)
    throw UserError("--label-field: found {} fields; expected one, or --label-type number", format.label_fields.size());
  for (auto field = format.label_fields.begin(); field != format.label_fields.end(); ++field)
    if (std::find(format.label_fields.begin(), field, *field) != field)
      throw UserError("--label-field: '{}' occurs twice; remove one", foreign::printable(*field));
  if (kind_ != LabelKind::classes && !format.second_text_field.empty())
    throw UserError("--second-text-field cannot be combined with --label-type {}; pairs have one class",
                    name_of(kind_));
  if (kind_ != LabelKind::sets && !format.label_separator.empty())
    throw UserError("--label-separator has no effect with --label-type {}; use --label-type set", name_of(kind_));
  if (kind_ != LabelKind::tokens && !unlabeled_.empty())
    throw UserError("--unlabeled has no effect with --label-type {}; use --label-type token", name_of(kind_));
  check_label_names(names_);
  for (std::size_t i = 0; i < names_.size(); ++i) ids_.emplace(names_[i], static_cast<std::int32_t>(i));
}

std::vector<std::string> LabelParser::split(std::string_view field) const {
  std::vector<std::string> texts;
  if (kind_ == LabelKind::tokens) {
    for (std::size_t begin = 0, end = 0; begin < field.size(); begin = end) {
      unicode::next(field, end);
      texts.emplace_back(field.substr(begin, end - begin));
    }
    return texts;
  }
  if (kind_ != LabelKind::sets) return {std::string(without_spaces_around(field))};
  for (std::size_t begin = 0; begin <= field.size();) {
    const std::size_t end = std::min(field.find(separator_, begin), field.size());
    const std::string_view part = without_spaces_around(field.substr(begin, end - begin));
    if (!part.empty()) texts.emplace_back(part);
    begin = end + separator_.size();
  }
  return texts;
}

ParsedLabel LabelParser::parse(const std::vector<std::string>& texts, const std::vector<std::string>& names,
                               const std::string& place) {
  ParsedLabel label;
  if (kind_ == LabelKind::numbers) {
    if (names_.empty()) names_ = names;
    if (texts.size() != names_.size())
      throw UserError("{}: the record has {} numbers as its label, expected {}: {}", place, texts.size(), names_.size(),
                      fmt::format("{}", fmt::join(names_, ", ")));
    for (std::size_t i = 0; i < texts.size(); ++i) label.numbers.push_back(number_of(texts[i], names_[i], place));
    return label;
  }
  for (const std::string& text : texts) {
    const bool none = kind_ == LabelKind::tokens &&
                      (text.empty() || std::find(unlabeled_.begin(), unlabeled_.end(), text) != unlabeled_.end());
    if (text.empty() && !none) throw UserError("{}: the label is empty", place);
    label.ids.push_back(none ? -1 : id_of(text, place));
  }
  if (kind_ == LabelKind::sets) {
    std::sort(label.ids.begin(), label.ids.end());
    label.ids.erase(std::unique(label.ids.begin(), label.ids.end()), label.ids.end());
  }
  return label;
}

ParsedLabel LabelParser::parse_letters(std::string_view field, const std::string& place) {
  constexpr std::size_t part_bytes = 1 << 16;  // a string for each letter takes 32 times the memory of the text
  ParsedLabel label;
  for (std::size_t begin = 0, end = 0; begin < field.size(); begin = end) {
    end = std::min(begin + part_bytes, field.size());
    while (end < field.size() && (static_cast<unsigned char>(field[end]) & 0xC0) == 0x80) ++end;
    const ParsedLabel part = parse(split(field.substr(begin, end - begin)), {}, place);
    label.ids.insert(label.ids.end(), part.ids.begin(), part.ids.end());
  }
  return label;
}

float LabelParser::number_of(const std::string& text, const std::string& name, const std::string& place) const {
  double number = 0;
  const char* end = text.data() + text.size();
  const auto [stopped, failure] =
      std::from_chars(text.data() + (text.starts_with('+') && !text.starts_with("+-") ? 1 : 0), end, number);
  const auto stored = static_cast<float>(number);
  const bool is_number = failure == std::errc() && stopped == end && std::isfinite(number);
  if (is_number && std::isfinite(stored)) return stored;
  if (text.empty())
    throw UserError("{}: the value in {} is missing; expected a number. Add it, or remove the record", place,
                    foreign::printable(name));
  throw UserError("{}: '{}' in {} {}; correct or remove the record", place, foreign::single_line(text, 60),
                  foreign::printable(name), is_number ? "is too large for float32" : "is not a finite number");
}

std::int32_t LabelParser::id_of(const std::string& name, const std::string& place) {
  const auto found = ids_.find(name);
  if (found != ids_.end()) return found->second;
  if (fixed_)
    throw UserError("{}: the label '{}' is not in --labels: {}", place, foreign::printable(name),
                    fmt::format("{}", fmt::join(names_, ", ")));
  if (!foreign::is_utf8(name))
    throw UserError("{}: the label '{}' is not valid UTF-8; convert the file (iconv -f LATIN1 -t UTF-8)", place,
                    foreign::printable(name));
  if (names_.size() == kMaxLabels)
    throw UserError("{}: more than {} different labels; check --label-field and --label-type", place, kMaxLabels);
  names_.push_back(name);
  return ids_[name] = static_cast<std::int32_t>(names_.size() - 1);
}

void frame_token_labels(const Vocabulary& vocabulary, std::size_t n_tokens, std::vector<std::int32_t>& labels,
                        const std::string& place, const std::string& label_place) {
  const std::size_t front = vocabulary.tokenizer() ? vocabulary.frame_front().size() : 0;
  const std::size_t back = vocabulary.tokenizer() ? vocabulary.frame_back().size() : 0;
  const std::size_t letters = n_tokens - std::min(n_tokens, front + back);
  if (labels.size() != letters)
    throw UserError(
        "{}: the sequence has {} tokens, but there are {} labels{}; expected one token and one label for each letter",
        place, letters, labels.size(), place == label_place ? "" : " at " + label_place);
  labels.insert(labels.begin(), front, -1);
  labels.insert(labels.end(), back, -1);
}

}  // namespace furlong
