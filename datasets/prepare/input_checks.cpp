#include "datasets/prepare/input_checks.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>

#include "framework/core/lower_case.h"
#include "framework/core/printable.h"

namespace furlong {
namespace {

constexpr std::size_t max_word = 60;  // bytes of a name of a column
constexpr std::uint64_t max_names = std::uint64_t{1} << 20;

/// Returns whether a value above numbers is the name of a column rather than a missing number.
bool is_name(const std::string& value) {
  constexpr std::array<std::string_view, 6> missing{"na", "n/a", "nan", "null", "none", "inf"};
  return !value.empty() && value.size() <= max_word && std::isalpha(static_cast<unsigned char>(value.front())) != 0 &&
         std::find(missing.begin(), missing.end(), lower_case(value)) == missing.end();
}

/// Returns whether a text is what columns of texts are called.
bool is_usual_name(const std::string& text) {
  constexpr std::array<std::string_view, 9> names{"sequence", "sequences", "seq", "text", "sentence",
                                                  "protein",  "peptide",   "dna", "rna"};
  return text.size() <= max_word && std::find(names.begin(), names.end(), lower_case(text)) != names.end();
}

}  // namespace

bool is_decimal_number(std::string_view text) {
  if (text.starts_with('+')) text.remove_prefix(1);
  double number = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
  return failure == std::errc() && end == text.data() + text.size() && std::isfinite(number);
}

void HeaderCheck::begin_input(const std::string& name) {
  if (warning_.empty() && n_records_ > 0) warning_ = warning_of(doubt_of_input());
  if (first_input_.empty()) first_input_ = name;
  input_ = name;
  text_.clear();
  words_.clear();
  n_records_ = 0;
}

void HeaderCheck::add(const std::vector<std::string>& columns, const std::string& text, std::int32_t label) {
  const bool is_first = n_records_++ == 0;
  if (is_first) {
    text_ = text.substr(0, max_word + 1);
    constexpr std::size_t max_columns = 64;  // each is visited for each record
    for (std::size_t i = 0; i < columns.size() && words_.size() < max_columns; ++i)
      if (is_name(columns[i])) words_.push_back({i, columns[i], 0});
  } else {
    std::erase_if(words_, [&](Column& column) {
      if (column.index >= columns.size() || columns[column.index].empty()) return false;
      ++column.numbers;
      return !is_decimal_number(columns[column.index]);
    });
  }
  if (label < 0 || (is_first && !label_counts_.empty())) return;
  const auto place = static_cast<std::size_t>(label);
  if (label_counts_.size() <= place) label_counts_.resize(place + 1, 0);
  ++label_counts_[place];
}

std::string HeaderCheck::doubt_of_input() const {
  if (n_records_ > 1 && is_usual_name(text_))
    return fmt::format("the text of the first record is '{}'", foreign::printable(text_));
  for (const Column& column : words_)
    if (column.numbers > 1)
      return fmt::format("the first record has '{}' in a column of numbers", foreign::printable(column.first));
  return "";
}

std::string HeaderCheck::warning_of(const std::string& doubt) const {
  if (doubt.empty()) return "";
  return fmt::format("{}: {}; if that line is a header, give --text-field by name{}", input_, doubt,
                     text_.size() > max_word ? "" : fmt::format(": {}", foreign::printable(text_)));
}

std::string HeaderCheck::warning(const std::vector<std::string>& labels) const {
  if (!warning_.empty()) return warning_;
  // A header that is read as a record has the column's name as its label.
  const bool is_single =
      label_counts_.size() > 2 && label_counts_[0] == 1 &&
      std::all_of(label_counts_.begin() + 1, label_counts_.end(), [](std::uint64_t count) { return count > 1; });
  if (!is_single) return warning_of(doubt_of_input());
  return fmt::format(
      "{}: the label '{}' of the first record occurs nowhere else; if that line is a header, give --text-field and "
      "--label-field by name",
      first_input_, foreign::printable(labels[0]));
}

void RepeatedNames::add(std::string_view name, const std::string& input, std::uint64_t line) {
  // Two assemblies both have a chr1, so names are those of one input.
  const std::uint64_t seed = XXH3_64bits_withSeed(input.data(), input.size(), seed_);
  const std::uint64_t hash = XXH3_64bits_withSeed(name.data(), name.size(), seed);
  if (name.empty() || !is_known(std::max<std::uint64_t>(hash, 1))) return;
  if (n_repeated_++ > 0) return;
  first_ = name;
  place_ = fmt::format("{}:{}", input, line);
}

bool RepeatedNames::is_known(std::uint64_t hash) {
  if (2 * n_names_ >= slots_.size() && n_names_ < max_names) {
    std::vector<std::uint64_t> old(std::max<std::size_t>(2 * slots_.size(), 1 << 10), 0);
    old.swap(slots_);
    n_names_ = 0;
    for (const std::uint64_t known : old)
      if (known != 0) is_known(known);
  }
  std::size_t slot = hash & (slots_.size() - 1);
  for (; slots_[slot] != 0; slot = (slot + 1) & (slots_.size() - 1))
    if (slots_[slot] == hash) return true;
  if (n_names_ == max_names) return false;
  slots_[slot] = hash;
  ++n_names_;
  return false;
}

std::string RepeatedNames::warning() const {
  if (n_repeated_ == 0) return "";
  return fmt::format(
      "{}{} {} the name of an earlier record of the same file, the first of them '{}' at {}; check for duplicates",
      n_names_ == max_names ? "at least " : "", n_repeated_, n_repeated_ == 1 ? "record has" : "records have",
      foreign::printable(first_), place_);
}

}  // namespace furlong
