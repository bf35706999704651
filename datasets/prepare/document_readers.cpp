#include "datasets/prepare/document_readers.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <vector>

#include "datasets/prepare/byte_source.h"
#include "datasets/prepare/document_encoder.h"
#include "datasets/prepare/input_checks.h"
#include "framework/core/error.h"

namespace furlong {

namespace {

/// Returns a letter as errors show it.
std::string quoted(unsigned char byte) {
  return byte > 0x20 && byte < 0x7f ? fmt::format("'{}'", static_cast<char>(byte)) : fmt::format("byte 0x{:02x}", byte);
}

// Readers find documents and pass their bytes to an outlet, which has put(byte or letter), end_document(),
// n_cut_documents() and ignored().

/// Buffers tokens for the writer, one per byte.
class ByteOutlet {
 public:
  explicit ByteOutlet(DocumentSink& writer) : writer_(writer) { buffer_.reserve(kCapacity); }
  void put(char byte) { put_token(static_cast<unsigned char>(byte)); }
  void put_token(std::int32_t id) {
    buffer_.push_back(static_cast<std::uint16_t>(id));
    if (buffer_.size() == kCapacity) flush();
  }
  void end_document() {
    flush();
    writer_.end_document();
  }
  void flush() {
    writer_.append(std::span<const std::uint16_t>(buffer_));
    buffer_.clear();
  }
  static std::uint64_t n_cut_documents() { return 0; }
  static TextCount ignored() { return {}; }

 private:
  static constexpr std::size_t kCapacity = 8192;
  DocumentSink& writer_;
  std::vector<std::uint16_t> buffer_;
};

/// Maps the letters of an alphabet to tokens.
class AlphabetOutlet : public ByteOutlet {
 public:
  AlphabetOutlet(const Vocabulary& vocabulary, AlphabetSource source, DocumentSink& writer)
      : ByteOutlet(writer), vocabulary_(vocabulary), source_(source) {}
  bool knows(unsigned char letter) const { return vocabulary_.id_of_byte(letter) >= 0; }
  void put(unsigned char letter) { put_token(vocabulary_.id_of_byte(letter)); }
  void put_unknown(unsigned char) { put_token(*vocabulary_.unknown_id()); }
  std::string refusal() const { return letter_refusal(vocabulary_, source_); }

 private:
  const Vocabulary vocabulary_;
  AlphabetSource source_;
};

/// Letters for a tokenizer, in upper case. Tokenizers that work word by word encode each letter separately, because
/// sequences have no words; others encode text.
class TokenizerLetters {
 public:
  TokenizerLetters(const Vocabulary& vocabulary, DocumentSink& writer)
      : vocabulary_(vocabulary), encoder_(vocabulary, writer) {
    const std::string_view kind = vocabulary.tokenizer()->kind();
    one_by_one_ = kind == "letters" || kind == "wordpiece";
    for (std::size_t byte = 0; byte < ids_.size(); ++byte) {
      const auto letter = static_cast<char>(std::toupper(static_cast<int>(byte)));
      const std::vector<std::int32_t> ids = vocabulary.encode(std::string_view(&letter, 1));
      const bool known =
          byte < 0x80 && !ids.empty() && (!one_by_one_ || ids.size() == 1) &&
          std::none_of(ids.begin(), ids.end(), [&](std::int32_t id) { return id == vocabulary.unknown_id(); });
      ids_[byte] = known ? ids.front() : -1;
    }
  }
  bool knows(unsigned char letter) const { return ids_[letter] >= 0; }
  void put(unsigned char letter) {
    if (one_by_one_) {
      encoder_.put_token(ids_[letter]);
    } else {
      encoder_.put(static_cast<char>(std::toupper(letter)));
    }
  }
  void put_unknown(unsigned char letter) {
    const auto byte = static_cast<char>(letter);
    if (!vocabulary_.unknown_id() && (one_by_one_ || vocabulary_.encode(std::string_view(&byte, 1)).empty()))
      throw UserError("--unknown map: the {} has no unknown token; omit this option", vocabulary_.description());
    one_by_one_ ? encoder_.put_token(*vocabulary_.unknown_id()) : encoder_.put(byte);
  }
  std::string refusal() const {
    return fmt::format("has no token in the {}{}", vocabulary_.description(),
                       vocabulary_.unknown_id() ? "; use --unknown map to read such letters as its unknown token" : "");
  }
  void end_document() { encoder_.end_document(); }
  std::uint64_t n_cut_documents() const { return encoder_.n_cut_documents(); }
  TextCount ignored() const { return encoder_.ignored(); }

 private:
  const Vocabulary vocabulary_;
  DocumentEncoder encoder_;
  std::array<std::int32_t, 256> ids_{};
  bool one_by_one_ = false;
};

/// Leaves out a byte order mark at the start of an input. A part of one is text.
class MarkFilter {
 public:
  void begin_input() { matched_ = 0; }
  template <class Take>
  void feed(std::string_view block, Take&& take) {
    for (const char byte : block) {
      if (matched_ < byte_order_mark.size() && byte == byte_order_mark[matched_]) {
        ++matched_;
        continue;
      }
      end_mark(take);
      take(byte);
    }
  }
  /// Call this at the end of an input, too.
  template <class Take>
  void end_mark(Take&& take) {
    const std::size_t begun = std::exchange(matched_, byte_order_mark.size());
    if (begun == byte_order_mark.size()) return;
    for (const char byte : byte_order_mark.substr(0, begun)) take(byte);
  }

 private:
  std::size_t matched_ = 0;
};

template <class Outlet>
class WholeFileReader : public DocumentReader {
 public:
  explicit WholeFileReader(Outlet outlet) : outlet_(std::move(outlet)) {}
  void begin_input(const std::string&) override { mark_.begin_input(); }
  void feed(std::string_view block) override {
    mark_.feed(block, [this](char byte) { outlet_.put(byte); });
  }
  void end_input() override {
    mark_.end_mark([this](char byte) { outlet_.put(byte); });
    outlet_.end_document();
    outlet_.flush();
  }
  std::uint64_t n_cut_documents() const override { return outlet_.n_cut_documents(); }
  TextCount ignored() const override { return outlet_.ignored(); }

 private:
  MarkFilter mark_;
  Outlet outlet_;
};

template <class Outlet>
class LineReader : public DocumentReader {
 public:
  LineReader(bool by_blank_line, Outlet outlet) : by_blank_line_(by_blank_line), outlet_(std::move(outlet)) {}
  void begin_input(const std::string&) override {
    reset();
    mark_.begin_input();
  }

  void feed(std::string_view block) override {
    mark_.feed(block, [this](char byte) { take(byte); });
  }

  void end_input() override {
    mark_.end_mark([this](char byte) { take(byte); });
    if (held_return_) put('\r');
    if (in_document_) outlet_.end_document();
    outlet_.flush();
    reset();
  }
  std::uint64_t n_cut_documents() const override { return outlet_.n_cut_documents(); }
  TextCount ignored() const override { return outlet_.ignored(); }

 private:
  void take(char byte) {
    if (byte == '\n') {
      held_return_ = false;
      end_line();
      return;
    }
    if (held_return_) put('\r');
    held_return_ = byte == '\r';
    if (!held_return_) put(byte);
  }

  void reset() {
    held_return_ = in_document_ = line_break_due_ = false;
    indent_.clear();
    begins_line_ = true;
  }

  void put(char byte) {
    // A line of spaces and tabs is blank too; one that is longer than this is text.
    constexpr std::size_t longest_indent = 4096;
    const bool is_blank = byte == ' ' || byte == '\t';
    if (by_blank_line_ && begins_line_ && is_blank && indent_.size() < longest_indent) {
      indent_ += byte;
      return;
    }
    begins_line_ = false;
    // The line break is written when the next line is known not to be blank.
    if (line_break_due_) outlet_.put('\n');
    line_break_due_ = false;
    in_document_ = true;
    for (const char space : indent_) outlet_.put(space);
    indent_.clear();
    outlet_.put(byte);
  }

  void end_line() {
    indent_.clear();
    begins_line_ = true;
    const bool ends = !by_blank_line_ || line_break_due_;
    if (!ends) {
      line_break_due_ = in_document_;
      return;
    }
    // Line mode: an empty line is an empty document, which the writer counts. Paragraph mode: further blank lines have
    // no effect.
    outlet_.end_document();
    in_document_ = line_break_due_ = false;
  }

  bool by_blank_line_;
  Outlet outlet_;
  bool held_return_ = false, in_document_ = false, line_break_due_ = false;
  MarkFilter mark_;
  std::string indent_;  // of a line that may be blank
  bool begins_line_ = true;
};

template <class Outlet>
class FastaReader : public DocumentReader {
 public:
  FastaReader(bool map_unknown, DocumentSink& sink, Outlet outlet)
      : map_unknown_(map_unknown), sink_(sink), outlet_(std::move(outlet)) {
    for (std::size_t byte = 0; byte < meanings_.size(); ++byte) {
      const auto letter = static_cast<unsigned char>(byte);
      meanings_[byte] = std::isspace(letter) != 0 ? Meaning::space
                        : outlet_.knows(letter)   ? Meaning::letter
                                                  : Meaning::unknown;
    }
  }

  void begin_input(const std::string& name) override {
    name_ = name;
    line_ = 1;
    column_ = 0;
    in_record_ = in_header_ = named_ = naming_ = false;
  }

  void feed(std::string_view block) override {
    for (std::size_t position = 0; position < block.size(); ++position) {
      const auto byte = static_cast<unsigned char>(block[position]);
      ++column_;
      if (line_ == 1 && !in_header_ && !in_record_ && column_ <= byte_order_mark.size() &&
          byte == static_cast<unsigned char>(byte_order_mark[column_ - 1])) {
        if (column_ == byte_order_mark.size()) column_ = 0;
      } else if (byte == '\n') {
        ++line_;
        column_ = 0;
        end_header();
      } else if (in_header_) {
        // Headers can be long; skip to the end of the line.
        const std::size_t end = std::min(block.find('\n', position), block.size());
        take_name(block.substr(position, end - position));
        column_ += end - position - 1;
        position = end - 1;
      } else if (column_ == 1 && (byte == '>' || byte == ';')) {
        in_header_ = true;
        named_ = byte == '>';
        if (named_) begin_record();
      } else if (meanings_[byte] == Meaning::letter && in_record_) {
        outlet_.put(byte);
      } else if (meanings_[byte] != Meaning::space) {
        take_unknown(byte);
      }
    }
  }

  void end_input() override {
    end_header();
    if (in_record_) outlet_.end_document();
    in_record_ = false;
  }

  std::uint64_t n_mapped() const override { return n_mapped_; }
  std::uint64_t n_cut_documents() const override { return outlet_.n_cut_documents(); }
  TextCount ignored() const override { return outlet_.ignored(); }
  std::vector<std::string> warnings() const override {
    const std::string repeated = names_.warning();
    return repeated.empty() ? std::vector<std::string>{} : std::vector{repeated};
  }

 private:
  enum class Meaning : std::uint8_t { letter, space, unknown };

  void begin_record() {
    if (in_record_) outlet_.end_document();
    in_record_ = naming_ = true;
    header_line_ = line_;
    record_name_.clear();
  }

  /// The record's name is the first word of its header, of at most 1 KiB.
  void take_name(std::string_view header) {
    for (std::size_t i = 0; naming_ && i < header.size(); ++i) {
      const bool is_space = std::isspace(static_cast<unsigned char>(header[i])) != 0;
      if (is_space && record_name_.empty()) continue;
      naming_ = record_name_.size() < 1024 && !is_space;
      if (naming_) record_name_ += header[i];
    }
  }

  void end_header() {
    if (in_header_ && named_) {
      names_.add(record_name_, name_, header_line_);
      sink_.name_document(record_name_, fmt::format("{}:{}", name_, header_line_));
    }
    in_header_ = naming_ = named_ = false;
  }

  void take_unknown(unsigned char byte) {
    const std::string letter = quoted(byte);
    if (!in_record_) {
      throw UserError(
          "{}:{}:{}: found {} before the first record, expected a line that starts with '>'; check that the file is "
          "FASTA",
          name_, line_, column_, letter);
    }
    if (!map_unknown_) throw UserError("{}:{}:{}: {} {}", name_, line_, column_, letter, outlet_.refusal());
    ++n_mapped_;
    outlet_.put_unknown(byte);
  }

  bool map_unknown_;
  DocumentSink& sink_;
  Outlet outlet_;
  std::array<Meaning, 256> meanings_{};
  std::string name_, record_name_;
  std::uint64_t line_ = 1, header_line_ = 1, column_ = 0, n_mapped_ = 0;
  bool in_record_ = false, in_header_ = false;
  bool named_ = false, naming_ = false;  // the header is a record's; its first word goes on
  RepeatedNames names_;
};

}  // namespace

std::unique_ptr<DocumentReader> make_text_reader(DocumentSeparator separator, const Vocabulary& vocabulary,
                                                 DocumentSink& writer, std::size_t queue_bytes) {
  const auto make = [&]<class Outlet>(Outlet outlet) -> std::unique_ptr<DocumentReader> {
    if (separator == DocumentSeparator::file) return std::make_unique<WholeFileReader<Outlet>>(std::move(outlet));
    return std::make_unique<LineReader<Outlet>>(separator == DocumentSeparator::blank_line, std::move(outlet));
  };
  return vocabulary.tokenizer() ? make(DocumentEncoder(vocabulary, writer, queue_bytes)) : make(ByteOutlet(writer));
}

std::string letter_refusal(const Vocabulary& vocabulary, AlphabetSource source) {
  const std::string name(vocabulary.kind_name()), symbol = vocabulary.symbol(*vocabulary.unknown_id());
  switch (source) {
    case AlphabetSource::detection:
      return fmt::format(
          "is not a letter of the {} alphabet, which was detected, not given; pass --alphabet, or use "
          "--unknown map to read such letters as {}",
          name, symbol);
    case AlphabetSource::model:
      return fmt::format("is not a letter of the {} alphabet; --unknown map reads such letters as {}", name, symbol);
    case AlphabetSource::option:
      break;
  }
  return fmt::format(
      "is not a letter of the {} alphabet; choose another alphabet, or use --unknown map to read such "
      "letters as {}",
      name, symbol);
}

std::unique_ptr<DocumentReader> make_fasta_reader(const Vocabulary& vocabulary, bool map_unknown, DocumentSink& writer,
                                                  AlphabetSource source) {
  if (!vocabulary.tokenizer())
    return std::make_unique<FastaReader<AlphabetOutlet>>(map_unknown, writer,
                                                         AlphabetOutlet(vocabulary, source, writer));
  return std::make_unique<FastaReader<TokenizerLetters>>(map_unknown, writer, TokenizerLetters(vocabulary, writer));
}

std::string guess_alphabet(std::string_view beginning, std::string_view name, bool map_unknown) {
  constexpr std::string_view codes = "ACGTURYSWKMBDHVN";
  std::array<std::uint64_t, 256> counts{};
  std::uint64_t n_letters = 0, line_number = 0;
  if (beginning.starts_with(byte_order_mark)) beginning.remove_prefix(byte_order_mark.size());
  std::string other;  // place and letter of the first one that is no nucleotide code
  for (std::size_t begin = 0; begin < beginning.size();) {
    const std::size_t end = std::min(beginning.find('\n', begin), beginning.size());
    const std::string_view line = beginning.substr(begin, end - begin);
    begin = end + 1;
    ++line_number;
    if (line.starts_with('>') || line.starts_with(';')) continue;
    for (std::size_t column = 0; column < line.size(); ++column) {
      const auto letter = static_cast<unsigned char>(std::toupper(static_cast<unsigned char>(line[column])));
      if (std::isspace(letter) != 0 || letter == '-' || letter == '.' || letter == '*') continue;  // gaps and stops
      ++counts[letter];
      ++n_letters;
      if (other.empty() && codes.find(static_cast<char>(letter)) == std::string_view::npos)
        other = fmt::format("{}:{}: {}", line_number, column + 1, quoted(static_cast<unsigned char>(line[column])));
    }
  }
  if (n_letters == 0)
    throw UserError("{}: found no sequence to guess the alphabet from; use --alphabet dna, rna or protein", name);
  const auto count_of = [&](std::string_view letters) {
    std::uint64_t sum = 0;
    for (const char letter : letters) sum += counts[static_cast<unsigned char>(letter)];
    return sum;
  };
  const std::uint64_t n_common = count_of("ACGTUN");
  constexpr std::uint64_t unlikely_peptide = 100;  // a third of a protein's letters are no nucleotide codes
  if (10 * n_common < 9 * n_letters && other.empty() && n_letters >= unlikely_peptide)
    throw UserError(
        "{}: all {} letters are nucleotide codes, but only {} are A, C, G, T, U or N; pass --alphabet dna, rna or "
        "protein",
        name, n_letters, n_common);
  if (10 * n_common < 9 * n_letters) return "protein";
  if (!other.empty() && !map_unknown)
    throw UserError(
        "{}:{} is no nucleotide, but {} of {} letters are A, C, G, T, U or N; pass --alphabet dna, rna or "
        "protein",
        name, other, n_common, n_letters);
  return count_of("U") > count_of("T") ? "rna" : "dna";
}

}  // namespace furlong
