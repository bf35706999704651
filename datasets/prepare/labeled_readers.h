#pragma once
// Reader of labeled documents in tables and JSON Lines: `furlong prepare labeled`.
#include <memory>
#include <string>
#include <vector>

#include "datasets/label_kind.h"
#include "datasets/prepare/document_readers.h"

namespace furlong {

/// Where the text and the label are in a record. In tsv and csv a field is a column: a number from 1, or a name from
/// the header, which is then the first record of each input. In jsonl a field is a key.
/// tsv: one record per line, tabs between fields, no quoting. csv: as in RFC 4180. jsonl: one JSON object per line; the
/// text is a string or a list of bytes, the label a string, an integer, true or false. files: each input is one text,
/// whose label is the name of its folder; there are no fields.
/// label_kind: numbers are one field each, or a list in jsonl; a set is a text with separators, or a list of labels;
/// for tokens the label is a text with one character for each letter of the sequence, or a list of labels and nulls.
struct LabeledFormat {
  enum class Kind { tsv, csv, jsonl, files } kind = Kind::tsv;
  std::string text_field;         ///< empty: column 1, key "text"
  std::string second_text_field;  ///< second text of a pair; empty: single documents
  std::string id_field;           ///< empty: documents get no names
  LabelKind label_kind = LabelKind::classes;
  bool label_kind_is_given = false;  ///< the user chose it; otherwise many numbers as classes are worth a warning
  /// Several for LabelKind::numbers. Empty: column 2 (column 3 for pairs), key "label".
  std::vector<std::string> label_fields;
  bool text_is_name = false;  ///< the text only names the sequence that has the label (LabelTable)
  bool has_label = true;      ///< false: records are only texts; label_fields is ignored
  /// Names of the labels 0, 1, ...; empty: in order of first occurrence, or the fields' names for LabelKind::numbers.
  std::vector<std::string> labels;
  std::string label_separator;         ///< LabelKind::sets; empty: ;
  std::vector<std::string> unlabeled;  ///< LabelKind::tokens: texts that stand for no label
};

/// Returns "tsv", "csv", "jsonl" or "files".
std::string_view name_of(LabeledFormat::Kind kind);
/// Returns the format for a file name such as "reviews.csv.gz". Throws UserError if the extension is unknown.
LabeledFormat::Kind labeled_format_of(std::string_view file_name);

/// Returns a reader that writes each text as a document and each record's label. Texts are tokenized with the
/// vocabulary: a tokenizer's documents are framed; an alphabet ignores whitespace and treats unknown letters as in
/// make_fasta_reader(). An id names its document. Records with a text of no tokens are skipped. Errors name file and
/// line. The writer's documents_per_label must be 2 if there is a second text, otherwise 1. Labels of tokens need one
/// token for each letter of the text, except whitespace. Warns if the first record seems to be a header, and of many
/// numbers as classes.
std::unique_ptr<DocumentReader> make_labeled_reader(const LabeledFormat& format, const Vocabulary& vocabulary,
                                                    bool map_unknown, DocumentSink& writer,
                                                    AlphabetSource source = AlphabetSource::option);

}  // namespace furlong
