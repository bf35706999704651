// An input of `furlong embed` and `furlong score`. The first byte chooses the format and the separator of texts, the
// second the vocabulary, the column, and whether unknown letters are mapped. The result must not depend on whether long
// sequences are read in pieces.
#include "evaluation/sequences/sequence_reader.h"

#include "tests/datasets/tokenizers/small_tokenizers.h"
#include "tests/fuzz/target.h"

namespace fuzzing = furlong::fuzzing;
using furlong::SequenceInput;
using furlong::Vocabulary;

namespace {

/// Writes each sequence as one line.
class Lines : public furlong::SequenceWork {
 public:
  void window(const std::vector<furlong::Sequence>& sequences, const furlong::ShareDone& /*done*/) override {
    for (const furlong::Sequence& sequence : sequences) {
      begin_long(sequence);
      extend_long(sequence.tokens);
      end_long();
    }
  }
  void begin_long(const furlong::Sequence& sequence) override {
    text += fmt::format("{} {}:", sequence.number, sequence.id);
  }
  void extend_long(std::span<const std::int32_t> tokens) override {
    fuzzing::expect(!tokens.empty(), "an empty piece of a sequence");
    for (const std::int32_t token : tokens) text += fmt::format(" {}", token);
  }
  void end_long() override { text += '\n'; }

  std::string text;
};

std::string result_of(const SequenceInput& input, const Vocabulary& vocabulary, std::int64_t long_tokens) {
  furlong::ReadOptions options;
  options.long_tokens = long_tokens;
  if (long_tokens > 0) options.window_tokens = 5;
  options.frame = {{0}, {1, 2}};
  Lines lines;
  std::string end;
  fuzzing::succeeds([&] {
    try {
      const furlong::ReadSummary summary = read_sequences(input, vocabulary, options, lines);
      end = fmt::format("{} {} {} {} {}", summary.sequences, summary.empty, summary.tokens, summary.mapped,
                        summary.unknown);
    } catch (const furlong::UserError& error) {
      lines.text.clear();  // windows of different sizes
      end = error.what();
      throw;
    }
  });
  return lines.text + end;
}

const std::vector<Vocabulary>& vocabularies() {
  static const std::vector<Vocabulary> all = [] {
    const std::string folder = furlong::testing::letters_tokenizer(fuzzing::Folder::instance().path("letters"));
    return std::vector<Vocabulary>{Vocabulary::dna(), Vocabulary::alphabet("protein"), Vocabulary::bytes(true),
                                   Vocabulary::of_tokenizer(furlong::load_tokenizer(folder))};
  }();
  return all;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  using Format = SequenceInput::Format;
  constexpr Format formats[] = {Format::text, Format::fasta, Format::tsv, Format::csv, Format::jsonl};
  constexpr furlong::DocumentSeparator separators[] = {
      furlong::DocumentSeparator::line, furlong::DocumentSeparator::blank_line, furlong::DocumentSeparator::file};
  constexpr const char* fields[] = {"", "2", "text"};
  SequenceInput input;
  input.paths = {fuzzing::write_input("input", fuzzing::text_of(data + 2, size - 2))};
  input.format = formats[data[0] % 5];
  input.separator = separators[data[0] / 5 % 3];
  input.map_unknown = data[1] % 2 == 1;
  input.text_field = fields[data[1] / 2 % 3];
  const Vocabulary& vocabulary = vocabularies()[data[1] / 6 % 4];
  const std::string whole = result_of(input, vocabulary, 0), in_pieces = result_of(input, vocabulary, 3);
  if (whole != in_pieces) fuzzing::finding("the result depends on the size of pieces", whole + " / " + in_pieces);
  return 0;
}
