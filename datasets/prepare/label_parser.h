#pragma once
// Labels of records as `furlong prepare labeled` reads them.
#include <map>
#include <string>
#include <vector>

#include "datasets/prepare/labeled_readers.h"

namespace furlong {

/// The label of one record.
struct ParsedLabel {
  std::vector<std::int32_t> ids;
  std::vector<float> numbers;
};

/// Returns the text without ASCII whitespace at its ends.
std::string_view without_spaces_around(std::string_view text);

/// Throws UserError if a name of --labels is not UTF-8 or occurs twice.
void check_label_names(const std::vector<std::string>& names);

/// Converts the texts of labels to numbers and checks them.
class LabelParser {
 public:
  /// Throws UserError if options do not fit the kind of label.
  explicit LabelParser(const LabeledFormat& format);

  /// Returns the texts of a table's field: the field itself (LabelKind::classes, numbers), its parts between separators
  /// (sets), or its characters (tokens).
  std::vector<std::string> split(std::string_view field) const;
  /// Converts the texts of one record. `names` names the numbers of LabelKind::numbers. Throws UserError, starting with
  /// `place`, if a text is no number or not one of the known labels.
  ParsedLabel parse(const std::vector<std::string>& texts, const std::vector<std::string>& names,
                    const std::string& place);
  /// Does both for a field with a label for each character (LabelKind::tokens), in memory proportional to it.
  ParsedLabel parse_letters(std::string_view field, const std::string& place);
  /// Returns the names of the labels or numbers 0, 1, ...
  const std::vector<std::string>& names() const { return names_; }

 private:
  std::int32_t id_of(const std::string& name, const std::string& place);
  float number_of(const std::string& text, const std::string& name, const std::string& place) const;

  LabelKind kind_;
  std::string separator_;
  std::vector<std::string> unlabeled_, names_;
  std::map<std::string, std::int32_t> ids_;
  bool fixed_;
};

/// Moves labels of letters to the places of their tokens: a document has `n_tokens`, of which the vocabulary's
/// tokenizer may put some before and after the letters. Throws UserError, starting with `place` (of the document), if
/// there is not one label for each letter; `label_place` is that of the labels.
void frame_token_labels(const Vocabulary& vocabulary, std::size_t n_tokens, std::vector<std::int32_t>& labels,
                        const std::string& place, const std::string& label_place);

}  // namespace furlong
