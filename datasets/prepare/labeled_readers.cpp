#include "datasets/prepare/labeled_readers.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>

#include "datasets/prepare/byte_source.h"
#include "datasets/prepare/csv_quotes.h"
#include "datasets/prepare/input_checks.h"
#include "datasets/prepare/input_files.h"
#include "datasets/prepare/label_parser.h"
#include "formats/json_text.h"
#include "framework/core/error.h"
#include "framework/core/printable.h"

namespace furlong {
namespace {

using Kind = LabeledFormat::Kind;

constexpr std::size_t kMaxRecordBytes = std::size_t{1} << 30;
constexpr std::size_t kMaxObjectBytes = std::size_t{1} << 26;  // parsing needs many times its size
constexpr std::size_t kMaxColumns = std::size_t{1} << 20;      // a column takes 32 bytes, also if it is empty

/// Returns the column number (from 1), or nullopt if `field` is a name.
std::optional<std::size_t> column_number(std::string_view field) {
  std::size_t number = 0;
  const auto [end, failure] = std::from_chars(field.data(), field.data() + field.size(), number);
  if (failure != std::errc() || end != field.data() + field.size() || number == 0) return std::nullopt;
  return number;
}

/// One record.
struct Record {
  std::vector<std::string> texts;
  std::string id;
  std::vector<std::string> labels = {};     // parts of the label: see LabelParser
  std::vector<std::string> names = {};      // of the parts, for LabelKind::numbers
  std::optional<std::string> letters = {};  // instead of parts: a text with a label for each character
};

/// Extracts the fields of a record; errors start with `place`.
class RecordParser {
 public:
  RecordParser(const LabeledFormat& format, const LabelParser& labels)
      : kind_(format.kind), label_kind_(format.label_kind), labels_(labels), named_(!format.id_field.empty()) {
    const bool json = kind_ == Kind::jsonl, pairs = !format.second_text_field.empty();
    const auto given = [](const std::string& field, const char* standard) { return field.empty() ? standard : field; };
    fields_.push_back(given(format.text_field, json ? "text" : "1"));
    if (pairs) fields_.push_back(format.second_text_field);
    n_texts_ = fields_.size();
    if (named_) fields_.push_back(format.id_field);
    if (format.has_label) {
      fields_.insert(fields_.end(), format.label_fields.begin(), format.label_fields.end());
      if (format.label_fields.empty()) fields_.emplace_back(json ? "label" : pairs ? "3" : "2");
    }
    for (std::size_t i = 0; i < fields_.size() && !format.text_is_name; ++i)
      for (std::size_t text = 0; is_label(i) && text < n_texts_; ++text)
        if (fields_[i] == fields_[text] ||
            (!json && column_number(fields_[i]) && column_number(fields_[i]) == column_number(fields_[text])))
          throw UserError("--label-field: '{}' is the text, which would be its own label", fields_[i]);
    header_ = !json && std::any_of(fields_.begin(), fields_.end(),
                                   [](const std::string& field) { return !column_number(field); });
  }

  void begin_input() {
    columns_.clear();
    width_ = lines_ = 0;
    if (kind_ == Kind::jsonl || header_) return;
    for (const std::string& field : fields_) columns_.push_back(*column_number(field) - 1);
  }

  /// Returns nullopt for a header or an empty line.
  std::optional<Record> parse(std::string_view line, const std::string& place) {
    if (without_spaces_around(line).empty()) return std::nullopt;
    if (kind_ == Kind::jsonl) return parse_object(line, place);
    values_ = kind_ == Kind::csv ? split_csv(line, place) : split_tsv(line, place);
    const std::vector<std::string>& values = values_;
    check_width(values, place);
    if (columns_.empty()) {
      take_header(values, place);
      return std::nullopt;
    }
    Record record;
    for (std::size_t i = 0; i < fields_.size(); ++i) {
      const char* what = is_label(i) ? "the label" : is_id(i) ? "the id" : "text";
      if (columns_[i] >= values.size())
        throw UserError("{}: the record has {} column{}, expected {} in column {}; check that the file is {}", place,
                        values.size(), values.size() == 1 ? "" : "s", what, columns_[i] + 1, name_of(kind_));
      if (is_label(i)) {
        if (label_kind_ == LabelKind::tokens)
          record.letters = values[columns_[i]];
        else
          add_labels(record, labels_.split(values[columns_[i]]), i);
      } else if (is_id(i)) {
        record.id = id_of(values[columns_[i]], place);
      } else {
        record.texts.push_back(values[columns_[i]]);
      }
    }
    return record;
  }

  /// Returns whether the first line is a record although it could be a header.
  bool needs_no_header() const { return kind_ != Kind::jsonl && !header_; }
  /// Returns all columns of the last record of a table.
  const std::vector<std::string>& values() const { return values_; }

 private:
  /// Returns the option that names field i.
  const char* option_of(std::size_t i) const {
    return i == 0 ? "--text-field" : is_label(i) ? "--label-field" : is_id(i) ? "--id-field" : "--second-text-field";
  }
  static std::string keys_of(const nlohmann::json& object) {
    std::vector<std::string> keys;
    for (const auto& [key, value] : object.items()) keys.push_back(key);
    return keys.empty() ? "none" : foreign::single_line(fmt::format("{}", fmt::join(keys, ", ")), 200);
  }

  bool is_id(std::size_t field) const { return named_ && field == n_texts_; }
  bool is_label(std::size_t field) const { return field >= n_texts_ + (named_ ? 1 : 0); }

  /// Adds the parts of label field i.
  void add_labels(Record& record, std::vector<std::string> parts, std::size_t i) const {
    for (std::size_t part = 0; label_kind_ == LabelKind::numbers && part < parts.size(); ++part)
      record.names.push_back(parts.size() == 1 ? fields_[i] : fmt::format("{}[{}]", fields_[i], part));
    record.labels.insert(record.labels.end(), std::move_iterator(parts.begin()), std::move_iterator(parts.end()));
  }

  static std::string id_of(std::string_view text, const std::string& place) {
    const std::string_view id = without_spaces_around(text);
    if (id.empty()) throw UserError("{}: the id is empty", place);
    return std::string(id);
  }

  static void check_columns(std::size_t columns, const std::string& place) {
    if (columns > kMaxColumns)
      throw UserError("{}: the record has more than {} columns; check that the file is a table", place, kMaxColumns);
  }

  /// Fields of a record that is wider than the first line would be read from the wrong columns.
  void check_width(const std::vector<std::string>& values, const std::string& place) {
    ++lines_;
    // Records may have a separator at their end that the header lacks.
    const bool ends_empty =
        lines_ == 2 && header_ && values.size() == width_ + 1 && without_spaces_around(values.back()).empty();
    if (lines_ == 1 || ends_empty) width_ = values.size();
    if (values.size() <= width_) return;
    throw UserError("{}: the record has {} columns, and the {} {}; {}", place, values.size(),
                    header_ ? "header" : "first record", width_,
                    kind_ == Kind::csv ? "put double quotes around a text that contains commas, or remove empty columns"
                    : header_          ? "a text cannot contain tabs, and each column needs a name"
                                       : "a text cannot contain tabs");
  }

  static std::vector<std::string> split_tsv(std::string_view line, const std::string& place) {
    std::vector<std::string> values;
    for (std::size_t begin = 0; begin <= line.size();) {
      check_columns(values.size() + 1, place);
      const std::size_t end = std::min(line.find('\t', begin), line.size());
      values.emplace_back(line.substr(begin, end - begin));
      begin = end + 1;
    }
    return values;
  }

  static std::vector<std::string> split_csv(std::string_view line, const std::string& place) {
    std::vector<std::string> values(1);
    CsvQuotes quotes;
    for (const char byte : line) {
      switch (quotes.take(byte)) {
        case CsvQuotes::Part::text:
          values.back() += byte;
          break;
        case CsvQuotes::Part::separator:
          check_columns(values.size() + 1, place);
          values.emplace_back();
          break;
        case CsvQuotes::Part::quote:
          break;
        case CsvQuotes::Part::stray:
          throw UserError(
              "{}: text follows the closing quotation mark of a column in this record; double quotation "
              "marks inside of quoted text",
              place);
      }
    }
    return values;
  }

  void take_header(const std::vector<std::string>& names, const std::string& place) {
    for (const std::string& field : fields_) {
      const auto number = column_number(field);
      const auto named = [&](const std::string& name) { return !number && without_spaces_around(name) == field; };
      const auto found = std::find_if(names.begin(), names.end(), named);
      if (std::count_if(found, names.end(), named) > 1)
        throw UserError("{}: the header has '{}' more than once; give the number of the column", place, field);
      if (!number && found == names.end())
        throw UserError("{}: column '{}' is missing; the header has {}", place, field,
                        foreign::single_line(fmt::format("{}", fmt::join(names, ", ")), 200));
      columns_.push_back(number ? *number - 1 : static_cast<std::size_t>(found - names.begin()));
    }
  }

  std::optional<Record> parse_object(std::string_view line, const std::string& place) const {
    const auto json = foreign::parse_json(line, place);
    if (!json.is_object()) throw UserError("{}: expected a JSON object on this line", place);
    Record record;
    for (std::size_t i = 0; i < fields_.size(); ++i) {
      const auto value = json.find(fields_[i]);
      if (value == json.end())
        throw UserError("{}: the object has no key '{}'; its keys are {}. Choose the key with {}", place, fields_[i],
                        keys_of(json), option_of(i));
      if (is_label(i)) {
        if (label_kind_ == LabelKind::tokens && value->is_string())
          record.letters = value->get<std::string>();
        else
          add_labels(record, json_labels(*value, place, fields_[i]), i);
      } else if (is_id(i)) {
        record.id = id_of(json_name(*value, place, fields_[i]), place);
      } else {
        record.texts.push_back(json_text(*value, place, fields_[i]));
      }
    }
    return record;
  }

  static std::string json_text(const nlohmann::json& value, const std::string& place, const std::string& field) {
    if (value.is_string()) return value;
    std::string bytes;
    const auto fits = [](const nlohmann::json& byte) { return byte.is_number_integer() && byte >= 0 && byte <= 255; };
    if (!value.is_array() || !std::all_of(value.begin(), value.end(), fits))
      throw UserError("{}: '{}' must be a string or a list of integers from 0 to 255", place, field);
    for (const auto& byte : value) bytes += static_cast<char>(byte.get<int>());
    return bytes;
  }

  std::vector<std::string> json_labels(const nlohmann::json& value, const std::string& place,
                                       const std::string& field) const {
    if (value.is_string()) return labels_.split(value.get_ref<const std::string&>());
    if (!value.is_array() || label_kind_ == LabelKind::classes) return {json_label(value, place, field)};
    std::vector<std::string> parts;
    for (const nlohmann::json& one : value) {
      parts.push_back(json_label(one, place, field));
      if (label_kind_ == LabelKind::sets) parts.back() = without_spaces_around(parts.back());
    }
    return parts;
  }

  std::string json_label(const nlohmann::json& value, const std::string& place, const std::string& field) const {
    if (label_kind_ == LabelKind::numbers && value.is_number()) return value.dump();
    if (label_kind_ == LabelKind::numbers)
      throw UserError("{}: found {} as a label; expected a number or a list of numbers", place,
                      foreign::single_line(value.dump(), 60));
    // -100 marks tokens without a label in datasets for transformers.
    if (label_kind_ == LabelKind::tokens && (value.is_null() || value == -100)) return "";
    return json_name(value, place, field);
  }

  /// Returns an id, or the name of a label.
  static std::string json_name(const nlohmann::json& value, const std::string& place, const std::string& field) {
    if (value.is_string()) return value;
    if (value.is_number_integer() || value.is_boolean()) return value.dump();
    throw UserError("{}: '{}' must be a string, an integer, true or false", place, field);
  }

  Kind kind_;
  LabelKind label_kind_;
  const LabelParser& labels_;
  bool named_, header_ = false;
  std::size_t n_texts_ = 0;
  std::vector<std::string> fields_;  // texts, then the id, then labels
  std::vector<std::size_t> columns_;
  std::size_t width_ = 0, lines_ = 0;  // columns of the first line; lines read
  std::vector<std::string> values_;
};

class LabeledReader : public DocumentReader {
 public:
  LabeledReader(const LabeledFormat& format, const Vocabulary& vocabulary, bool map_unknown, DocumentSink& writer,
                AlphabetSource source)
      : csv_(format.kind == Kind::csv),
        json_(format.kind == Kind::jsonl),
        files_(format.kind == Kind::files),
        labeled_(format.has_label),
        places_labels_(labeled_ && format.label_kind == LabelKind::tokens && !format.text_is_name),
        labels_(format),
        parser_(format, labels_),
        checks_header_(!files_ && parser_.needs_no_header()),
        learns_classes_(labeled_ && format.label_kind == LabelKind::classes && format.labels.empty()),
        may_be_numbers_(learns_classes_ && !format.label_kind_is_given && format.second_text_field.empty()),
        vocabulary_(vocabulary),
        source_(source),
        map_unknown_(map_unknown),
        writer_(writer) {}

  void begin_input(const std::string& name) override {
    name_ = name;
    line_ = first_line_ = 1;
    quotes_ = {};
    scanned_ = 0;
    record_.clear();
    parser_.begin_input();
    header_.begin_input(name);
  }

  void feed(std::string_view block) override {
    if (files_) {
      record_ += block;
      if (record_.size() > kMaxRecordBytes)
        throw UserError("{}: the file is larger than 1 GiB; split it into shorter texts", name_);
      return;
    }
    for (std::size_t begin = 0; begin < block.size();) {
      const std::size_t end = std::min(block.find('\n', begin), block.size());
      const std::string_view part = block.substr(begin, end - begin);
      record_ += part;
      if (json_ && record_.size() > kMaxObjectBytes)
        throw UserError("{}: the record is larger than 64 MiB; split it into shorter records", place());
      if (record_.size() > kMaxRecordBytes)
        throw UserError("{}: the record is larger than 1 GiB; check for an unclosed quotation mark", place());
      begin = end + 1;
      if (end == block.size()) break;
      ++line_;
      if (is_inside_quotes()) {
        record_ += '\n';
      } else {
        end_record();
      }
    }
  }

  void end_input() override {
    if (files_) {
      if (record_.starts_with(byte_order_mark)) record_.erase(0, byte_order_mark.size());
      return write({.texts = {record_}, .id = {}, .labels = {folder_of(name_)}});
    }
    if (is_inside_quotes()) throw UserError("{}: unclosed quotation mark in this record", place());
    end_record();
  }

  std::uint64_t n_mapped() const override { return n_mapped_; }
  TextCount ignored() const override { return ignored_; }
  std::vector<std::string> label_names() const override { return labels_.names(); }
  std::vector<std::string> warnings() const override {
    std::vector<std::string> found;
    if (std::string header = header_.warning(labels_.names()); !header.empty()) found.push_back(std::move(header));
    if (std::string numbers = warning_of_numbers(); !numbers.empty()) found.push_back(std::move(numbers));
    return found;
  }

 private:
  std::string place() const { return files_ ? name_ : fmt::format("{}:{}", name_, first_line_); }

  /// Whether the end of the current line is inside a quoted field.
  bool is_inside_quotes() {
    if (first_line_ == 1 && scanned_ == 0 && record_.starts_with(byte_order_mark))
      record_.erase(0, byte_order_mark.size());
    for (; csv_ && scanned_ < record_.size(); ++scanned_) quotes_.take(record_[scanned_]);
    return quotes_.is_open();
  }

  void end_record() {
    if (!record_.empty() && record_.back() == '\r') record_.pop_back();
    if (const auto record = parser_.parse(record_, place())) write(*record);
    record_.clear();
    quotes_ = {};
    scanned_ = 0;
    first_line_ = line_;
  }

  void write(const Record& record) {
    std::vector<std::vector<std::int32_t>> documents;
    for (const std::string& text : record.texts) documents.push_back(tokens_of(text));
    ParsedLabel label;
    if (labeled_)
      label = record.letters ? labels_.parse_letters(*record.letters, place())
                             : labels_.parse(record.labels, record.names, place());
    ++n_records_;
    if (checks_header_) header_.add(parser_.values(), record.texts[0], learns_classes_ ? label.ids[0] : -1);
    if (places_labels_ && !documents[0].empty())
      frame_token_labels(vocabulary_, documents[0].size(), label.ids, place(), place());
    // Both documents of a pair are stored, or neither.
    const bool whole =
        std::none_of(documents.begin(), documents.end(), [](const auto& tokens) { return tokens.empty(); });
    for (const auto& tokens : documents) {
      if (!record.id.empty()) writer_.name_document(record.id, place());
      if (whole) writer_.append(std::span<const std::int32_t>(tokens));
      writer_.end_document();
    }
    if (whole && labeled_) writer_.label({label.ids, label.numbers, place()});
  }

  /// Numbers are probably values to predict if many differ and they are no small set of integers.
  std::string warning_of_numbers() const {
    constexpr std::size_t many = 20;
    const std::vector<std::string>& names = labels_.names();
    if (!may_be_numbers_ || names.size() <= many || !std::all_of(names.begin(), names.end(), is_decimal_number))
      return "";
    const bool integers = std::all_of(names.begin(), names.end(), [](const std::string& name) {
      return name.find_first_not_of("+-0123456789") == std::string::npos;
    });
    if (integers && 10 * names.size() < n_records_) return "";
    return fmt::format(
        "the labels are {} different numbers, which become classes; pass --label-type number to predict numbers, or "
        "--label-type class",
        names.size());
  }

  std::vector<std::int32_t> tokens_of(const std::string& text) {
    std::vector<std::int32_t> tokens;
    if (const auto& tokenizer = vocabulary_.tokenizer()) {
      tokens = tokenizer->encode(text);
      if (const std::uint64_t count = tokenizer->count_ignored(text); count > 0) {
        ignored_.characters += count;
        ++ignored_.documents;
      }
      ignored_.not_utf8 += !tokenizer->keeps_invalid_bytes() && !foreign::is_utf8(text);
      return tokens.empty() ? tokens : tokenizer->framed(tokens);
    }
    tokens.reserve(text.size());
    const bool bytes = vocabulary_.kind() == Vocabulary::Kind::bytes;
    for (const char letter : text) {
      const auto byte = static_cast<unsigned char>(letter);
      std::int32_t id = vocabulary_.id_of_byte(byte);
      if (!bytes && id < 0 && std::isspace(byte) != 0) continue;
      if (id < 0) {
        if (!map_unknown_) {
          const bool may_be_header = checks_header_ && place().ends_with(":1");
          throw UserError("{}: {} {}{}", place(),
                          std::isprint(byte) != 0 ? fmt::format("'{}'", letter) : fmt::format("byte 0x{:02x}", byte),
                          letter_refusal(vocabulary_, source_),
                          may_be_header ? "; if that line is a header, give --text-field by name" : "");
        }
        id = *vocabulary_.unknown_id();
        ++n_mapped_;
      }
      tokens.push_back(id);
    }
    return tokens;
  }

  bool csv_, json_, files_, labeled_, places_labels_;
  LabelParser labels_;
  RecordParser parser_;
  bool checks_header_, learns_classes_, may_be_numbers_;
  HeaderCheck header_;
  std::uint64_t n_records_ = 0;
  const Vocabulary vocabulary_;
  AlphabetSource source_;
  bool map_unknown_;
  DocumentSink& writer_;
  std::string name_, record_;
  std::uint64_t line_ = 1, first_line_ = 1, n_mapped_ = 0;
  TextCount ignored_;
  CsvQuotes quotes_;
  std::size_t scanned_ = 0;  // bytes of record_ that quotes_ has taken
};

}  // namespace

std::string_view name_of(LabeledFormat::Kind kind) {
  constexpr std::array<std::string_view, 4> names{"tsv", "csv", "jsonl", "files"};
  return names.at(static_cast<std::size_t>(kind));
}

LabeledFormat::Kind labeled_format_of(std::string_view file_name) {
  const std::string extension = extension_of(file_name);
  if (extension == ".tsv") return Kind::tsv;
  if (extension == ".csv") return Kind::csv;
  if (extension == ".jsonl" || extension == ".ndjson") return Kind::jsonl;
  throw UserError("{}: the file extension is not .tsv, .csv or .jsonl; pass --format tsv, csv or jsonl", file_name);
}

std::unique_ptr<DocumentReader> make_labeled_reader(const LabeledFormat& format, const Vocabulary& vocabulary,
                                                    bool map_unknown, DocumentSink& writer, AlphabetSource source) {
  return std::make_unique<LabeledReader>(format, vocabulary, map_unknown, writer, source);
}

}  // namespace furlong
