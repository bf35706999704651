#include "datasets/prepare/label_table.h"

#include <utility>

#include "datasets/prepare/byte_source.h"
#include "framework/core/error.h"
#include "framework/core/printable.h"

namespace furlong {

LabelTable::LabelTable(const LabeledFormat& format, const std::string& file_name)
    : is_fasta_(is_fasta_name(file_name)), file_name_(file_name), parser_(format) {
  if (is_fasta_ && format.label_kind != LabelKind::tokens)
    throw UserError("--label-file: {} is FASTA, which has a label for each letter; use --label-type token, or a table",
                    file_name);
  const Vocabulary bytes = Vocabulary::bytes(false);
  LabeledFormat named = format;
  named.text_is_name = true;
  reader_ = is_fasta_ ? make_fasta_reader(bytes, false, *this) : make_labeled_reader(named, bytes, false, *this);
}

void LabelTable::name_document(std::string_view name, const std::string& place) {
  name_ = name;
  place_ = place;
}

void LabelTable::end_document() {
  if (!is_fasta_) return;
  add(name_, parser_.parse_letters(text_, place_), place_);
  text_.clear();
}

void LabelTable::label(const DocumentLabel& label) {
  add(text_, {{label.ids.begin(), label.ids.end()}, {label.numbers.begin(), label.numbers.end()}},
      std::string(label.place));
  text_.clear();
}

void LabelTable::add(const std::string& name, ParsedLabel label, const std::string& place) {
  if (!labels_.emplace(name, Entry{std::move(label), place, labels_.size()}).second)
    throw UserError("{}: '{}' has a label already, at {}; remove one of the two", place, foreign::printable(name),
                    labels_.at(name).place);
}

const ParsedLabel& LabelTable::label_of(const std::string& name, const std::string& place) {
  const auto found = labels_.find(name);
  if (found == labels_.end() && name.empty())
    throw UserError("{}: the header has no name, by which {} would label the record; add one, or remove the record",
                    place, file_name_);
  if (found == labels_.end())
    throw UserError("{}: '{}' has no label in {}; add one, or remove the record", place, foreign::printable(name),
                    file_name_);
  found->second.used = true;
  return found->second.label;
}

std::vector<std::string> LabelTable::warnings() const {
  std::vector<std::string> found = reader_->warnings();
  std::size_t n_unused = 0;
  const std::pair<const std::string, Entry>* first = nullptr;
  for (const auto& entry : labels_) {
    if (entry.second.used) continue;
    ++n_unused;
    if (first == nullptr || entry.second.number < first->second.number) first = &entry;
  }
  if (n_unused == 1)
    found.push_back(fmt::format("{}: no input has a record '{}'; its label is left out", first->second.place,
                                foreign::printable(first->first)));
  if (n_unused > 1)
    found.push_back(fmt::format("{}: no input has a record '{}', nor {} others of this file; their labels are left out",
                                first->second.place, foreign::printable(first->first), n_unused - 1));
  return found;
}

namespace {

/// Passes documents on and adds their labels.
class LabelingSink : public DocumentSink {
 public:
  LabelingSink(LabelTable& table, LabelKind kind, const Vocabulary& vocabulary, DocumentSink& writer)
      : table_(table), kind_(kind), vocabulary_(vocabulary), writer_(writer) {}

  void name_document(std::string_view name, const std::string& place) override {
    name_ = name;
    place_ = place;
    label_ = &table_.label_of(name_, place);
  }
  void append(std::span<const std::uint16_t> ids) override {
    n_tokens_ += ids.size();
    writer_.append(ids);
  }
  void append(std::span<const std::int32_t> ids) override {
    n_tokens_ += ids.size();
    writer_.append(ids);
  }
  void end_document() override {
    writer_.end_document();
    if (n_tokens_ > 0) {
      std::vector<std::int32_t> ids = label_->ids;
      if (kind_ == LabelKind::tokens) frame_token_labels(vocabulary_, n_tokens_, ids, place_, table_.place_of(name_));
      writer_.label({ids, label_->numbers, place_});
    }
    n_tokens_ = 0;
  }

 private:
  LabelTable& table_;
  LabelKind kind_;
  const Vocabulary vocabulary_;
  DocumentSink& writer_;
  std::string name_, place_;
  const ParsedLabel* label_ = nullptr;
  std::size_t n_tokens_ = 0;
};

class LabeledFastaReader : public DocumentReader {
 public:
  LabeledFastaReader(LabelTable& table, LabelKind kind, const Vocabulary& vocabulary, bool map_unknown,
                     DocumentSink& writer, AlphabetSource source)
      : table_(table),
        sink_(table, kind, vocabulary, writer),
        fasta_(make_fasta_reader(vocabulary, map_unknown, sink_, source)) {}
  void begin_input(const std::string& name) override { fasta_->begin_input(name); }
  void feed(std::string_view block) override { fasta_->feed(block); }
  void end_input() override { fasta_->end_input(); }
  std::uint64_t n_mapped() const override { return fasta_->n_mapped(); }
  std::uint64_t n_cut_documents() const override { return fasta_->n_cut_documents(); }
  std::vector<std::string> label_names() const override { return table_.label_names(); }
  std::vector<std::string> warnings() const override {
    std::vector<std::string> found = table_.warnings();
    for (std::string& warning : fasta_->warnings()) found.push_back(std::move(warning));
    return found;
  }

 private:
  LabelTable& table_;
  LabelingSink sink_;
  std::unique_ptr<DocumentReader> fasta_;
};

}  // namespace

std::unique_ptr<DocumentReader> make_labeled_fasta_reader(LabelTable& table, LabelKind kind,
                                                          const Vocabulary& vocabulary, bool map_unknown,
                                                          DocumentSink& writer, AlphabetSource source) {
  return std::make_unique<LabeledFastaReader>(table, kind, vocabulary, map_unknown, writer, source);
}

}  // namespace furlong
