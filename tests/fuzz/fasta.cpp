// FASTA, and plain text. The first byte chooses the alphabet, the second whether unknown letters are mapped.
#include "tests/fuzz/documents.h"

namespace fuzzing = furlong::fuzzing;
using furlong::DocumentSeparator;
using furlong::Vocabulary;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const std::string_view text = fuzzing::text_of(data + 2, size - 2);
  const bool map_unknown = data[1] % 2 == 1;
  furlong::DatasetWriterOptions options;
  options.shares = furlong::parse_split_shares("1");
  if (data[0] % 6 >= 3) {
    constexpr DocumentSeparator separators[] = {DocumentSeparator::file, DocumentSeparator::line,
                                                DocumentSeparator::blank_line};
    const Vocabulary vocabulary = Vocabulary::bytes(map_unknown);
    fuzzing::read_documents(text, vocabulary, options, [&](furlong::DatasetWriter& writer) {
      return make_text_reader(separators[data[0] % 3], vocabulary, writer);
    });
    return 0;
  }
  std::string alphabet = "auto";
  if (data[0] % 6 == 0) fuzzing::succeeds([&] { alphabet = furlong::guess_alphabet(text, "input"); });
  if (alphabet == "auto") alphabet = data[0] % 6 == 1 ? "dna" : "protein";
  const Vocabulary vocabulary = Vocabulary::alphabet(alphabet);
  fuzzing::read_documents(text, vocabulary, options, [&](furlong::DatasetWriter& writer) {
    return make_fasta_reader(vocabulary, map_unknown, writer);
  });
  return 0;
}
