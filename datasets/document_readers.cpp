#include "datasets/document_readers.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <vector>

#include "framework/core/error.h"

namespace furlong {

namespace {

/// Tokens on their way to the writer, some thousand at a time.
class Outlet {
 public:
  explicit Outlet(StoreWriter& writer) : writer_(writer) { buffer_.reserve(kCapacity); }
  void put(std::uint16_t id) {
    buffer_.push_back(id);
    if (buffer_.size() == kCapacity) flush();
  }
  void end_document() {
    flush();
    writer_.end_document();
  }

 private:
  static constexpr std::size_t kCapacity = 8192;
  void flush() {
    writer_.append(buffer_);
    buffer_.clear();
  }
  StoreWriter& writer_;
  std::vector<std::uint16_t> buffer_;
};

class WholeFileReader : public DocumentReader {
 public:
  explicit WholeFileReader(StoreWriter& writer) : outlet_(writer) {}
  void begin_input(const std::string&) override {}
  void feed(std::string_view block) override {
    for (const char byte : block) outlet_.put(static_cast<unsigned char>(byte));
  }
  void end_input() override { outlet_.end_document(); }

 private:
  Outlet outlet_;
};

class LineReader : public DocumentReader {
 public:
  LineReader(bool by_blank_line, StoreWriter& writer) : by_blank_line_(by_blank_line), outlet_(writer) {}
  void begin_input(const std::string&) override { reset(); }

  void feed(std::string_view block) override {
    for (const char byte : block) {
      if (byte == '\n') {
        held_return_ = false;
        end_line();
        continue;
      }
      if (held_return_) put('\r');
      held_return_ = byte == '\r';
      if (!held_return_) put(byte);
    }
  }

  void end_input() override {
    if (held_return_) put('\r');
    if (in_document_) outlet_.end_document();
    reset();
  }

 private:
  void reset() { held_return_ = in_document_ = line_break_due_ = false; }

  void put(char byte) {
    // The break before a paragraph's next line is written when that line turns out not to be empty.
    if (line_break_due_) outlet_.put('\n');
    line_break_due_ = false;
    in_document_ = true;
    outlet_.put(static_cast<unsigned char>(byte));
  }

  void end_line() {
    const bool ends = !by_blank_line_ || line_break_due_;
    if (!ends) {
      line_break_due_ = in_document_;
      return;
    }
    // Empty lines in line mode are empty documents, which the writer counts; further blank lines between paragraphs are nothing.
    outlet_.end_document();
    in_document_ = line_break_due_ = false;
  }

  bool by_blank_line_;
  Outlet outlet_;
  bool held_return_ = false, in_document_ = false, line_break_due_ = false;
};

class FastaReader : public DocumentReader {
 public:
  FastaReader(const Vocabulary& vocabulary, bool map_unknown, StoreWriter& writer)
      : vocabulary_(vocabulary), map_unknown_(map_unknown), outlet_(writer) {
    for (std::size_t byte = 0; byte < actions_.size(); ++byte) {
      const auto letter = static_cast<unsigned char>(byte);
      actions_[byte] = std::isspace(letter) != 0 ? kSpace : vocabulary.id_of_byte(letter);
    }
  }

  void begin_input(const std::string& name) override {
    name_ = name;
    line_ = 1;
    column_ = 0;
    in_record_ = in_header_ = false;
  }

  void feed(std::string_view block) override {
    for (std::size_t position = 0; position < block.size(); ++position) {
      const auto byte = static_cast<unsigned char>(block[position]);
      ++column_;
      if (byte == '\n') {
        ++line_;
        column_ = 0;
        in_header_ = false;
      } else if (in_header_) {
        // Headers can be long; nothing in them counts before the line's end.
        const std::size_t end = std::min(block.find('\n', position), block.size());
        column_ += end - position - 1;
        position = end - 1;
      } else if (column_ == 1 && (byte == '>' || byte == ';')) {
        in_header_ = true;
        if (byte == '>') begin_record();
      } else if (actions_[byte] >= 0 && in_record_) {
        outlet_.put(static_cast<std::uint16_t>(actions_[byte]));
      } else if (actions_[byte] != kSpace) {
        take_unknown(byte);
      }
    }
  }

  void end_input() override {
    if (in_record_) outlet_.end_document();
    in_record_ = false;
  }

  std::uint64_t n_mapped() const override { return n_mapped_; }

 private:
  static constexpr std::int32_t kSpace = -2;

  void begin_record() {
    if (in_record_) outlet_.end_document();
    in_record_ = true;
  }

  void take_unknown(unsigned char byte) {
    const std::string letter =
        byte > 0x20 && byte < 0x7f ? fmt::format("'{}'", static_cast<char>(byte)) : fmt::format("byte 0x{:02x}", byte);
    if (!in_record_) {
      throw UserError("{}:{}:{}: found {} before the first record, expected a line that begins with '>'; is this FASTA?", name_, line_,
                      column_, letter);
    }
    if (!map_unknown_) {
      throw UserError(
          "{}:{}:{}: {} is not a letter of the {} alphabet; choose another --alphabet, or --unknown map to read such letters as {}", name_,
          line_, column_, letter, vocabulary_.kind_name(), vocabulary_.symbol(*vocabulary_.unknown_id()));
    }
    ++n_mapped_;
    outlet_.put(static_cast<std::uint16_t>(*vocabulary_.unknown_id()));
  }

  const Vocabulary vocabulary_;
  bool map_unknown_;
  Outlet outlet_;
  std::array<std::int32_t, 256> actions_{};  // token id, kSpace, or -1 for what the alphabet lacks
  std::string name_;
  std::uint64_t line_ = 1, column_ = 0, n_mapped_ = 0;
  bool in_record_ = false, in_header_ = false;
};

}  // namespace

std::unique_ptr<DocumentReader> make_text_reader(DocumentSeparator separator, StoreWriter& writer) {
  if (separator == DocumentSeparator::file) return std::make_unique<WholeFileReader>(writer);
  return std::make_unique<LineReader>(separator == DocumentSeparator::blank_line, writer);
}

std::unique_ptr<DocumentReader> make_fasta_reader(const Vocabulary& vocabulary, bool map_unknown, StoreWriter& writer) {
  return std::make_unique<FastaReader>(vocabulary, map_unknown, writer);
}

std::string guess_alphabet(std::string_view beginning, std::string_view name) {
  std::array<std::uint64_t, 256> counts{};
  std::uint64_t n_letters = 0;
  for (std::size_t begin = 0; begin < beginning.size();) {
    const std::size_t end = std::min(beginning.find('\n', begin), beginning.size());
    const std::string_view line = beginning.substr(begin, end - begin);
    begin = end + 1;
    if (line.starts_with('>') || line.starts_with(';')) continue;
    for (const char byte : line) {
      const auto letter = static_cast<unsigned char>(byte);
      if (std::isspace(letter) != 0) continue;
      ++counts[static_cast<std::size_t>(std::toupper(letter))];
      ++n_letters;
    }
  }
  if (n_letters == 0) throw UserError("{}: holds no sequence to guess the alphabet from; give --alphabet dna, rna or protein", name);
  const auto count_of = [&](std::string_view letters) {
    std::uint64_t sum = 0;
    for (const char letter : letters) sum += counts[static_cast<unsigned char>(letter)];
    return sum;
  };
  const bool nucleotides = count_of("ACGTURYSWKMBDHVN") == n_letters && 10 * count_of("ACGTUN") >= 9 * n_letters;
  if (!nucleotides) return "protein";
  return count_of("U") > count_of("T") ? "rna" : "dna";
}

}  // namespace furlong
