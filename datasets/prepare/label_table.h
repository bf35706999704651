#pragma once
// Labels of FASTA records in a file of their own: `furlong prepare labeled --label-file`.
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "datasets/prepare/label_parser.h"

namespace furlong {

/// The labels of FASTA records by the record's name, in memory. The file is a table or JSON lines, whose text field is
/// the name, or FASTA with one character for each letter of a sequence (LabelKind::tokens).
class LabelTable : public DocumentSink {
 public:
  LabelTable(const LabeledFormat& format, const std::string& file_name);

  /// Returns the reader of the file. Its errors name file and line.
  DocumentReader& reader() { return *reader_; }
  /// Returns the label of a record. Throws UserError, starting with `place`, if there is none.
  const ParsedLabel& label_of(const std::string& name, const std::string& place);
  /// Returns where the label of a record is, such as "labels.csv:3".
  const std::string& place_of(const std::string& name) const { return labels_.at(name).place; }
  std::vector<std::string> label_names() const { return is_fasta_ ? parser_.names() : reader_->label_names(); }
  /// Returns warnings of the reader, and of labels that label_of() has not returned.
  std::vector<std::string> warnings() const;

  void append(std::span<const std::uint16_t> ids) override { text_.append(ids.begin(), ids.end()); }
  void append(std::span<const std::int32_t> ids) override { text_.append(ids.begin(), ids.end()); }
  void name_document(std::string_view name, const std::string& place) override;
  void end_document() override;
  void label(const DocumentLabel& label) override;

 private:
  struct Entry {
    ParsedLabel label;
    std::string place;
    std::size_t number = 0;  // of the entry, from 0 in the order of the file
    bool used = false;
  };
  void add(const std::string& name, ParsedLabel label, const std::string& place);

  bool is_fasta_;
  std::string file_name_, text_, name_, place_;
  LabelParser parser_;  // of labels in FASTA
  std::unique_ptr<DocumentReader> reader_;
  std::map<std::string, Entry> labels_;
};

/// Returns a reader of FASTA that gives each record its label from `table`. See make_fasta_reader().
std::unique_ptr<DocumentReader> make_labeled_fasta_reader(LabelTable& table, LabelKind kind,
                                                          const Vocabulary& vocabulary, bool map_unknown,
                                                          DocumentSink& writer,
                                                          AlphabetSource source = AlphabetSource::option);

}  // namespace furlong
