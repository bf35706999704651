#pragma once
// Documents with labels out of tables and JSON lines: what `furlong prepare labelled` reads.
#include <memory>
#include <string>
#include <vector>

#include "datasets/prepare/document_readers.h"

namespace furlong {

/// Where text and label stand in a record. In tsv and csv a field is a column: a number from 1, or a name, for which
/// the first record of each input is a header; in jsonl it is a key. tsv: a line is a record, tabs stand between
/// fields, nothing is quoted. csv: as RFC 4180 says. jsonl: a JSON object a line; text is a string, or a list of bytes;
/// a label is a string, a whole number, true or false.
struct LabelledFormat {
  enum class Kind { tsv, csv, jsonl } kind = Kind::tsv;
  std::string text_field;           ///< empty: column 1, key "text"
  std::string second_text_field;    ///< empty: single documents; else the second of a pair
  std::string label_field;          ///< empty: column 2 (of pairs: 3), key "label"
  std::vector<std::string> labels;  ///< names of the labels 0, 1, ...; empty: in the order in which they come
};

/// "tsv", "csv", "jsonl".
std::string_view name_of(LabelledFormat::Kind kind);
/// What a file name says ("reviews.csv.gz"). Throws UserError for other names.
LabelledFormat::Kind labelled_format_of(std::string_view file_name);

/// Each text becomes a document, in tokens of the vocabulary (letters that an alphabet lacks: see make_fasta_reader;
/// whitespace is left out of those; a tokenizer's framed), each record a label. Records with a text of no tokens are
/// left out. Errors name file and line. The writer's documents_per_label has to be 2 with a second text, 1 without.
std::unique_ptr<DocumentReader> make_labelled_reader(const LabelledFormat& format, const Vocabulary& vocabulary,
                                                     bool map_unknown, StoreWriter& writer);

}  // namespace furlong
