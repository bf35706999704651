// TSV, CSV and JSON lines. The first byte chooses the format, the second the fields, the labels and their type.
#include "tests/fuzz/documents.h"

namespace fuzzing = furlong::fuzzing;
using furlong::LabeledFormat;
using furlong::Vocabulary;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  LabeledFormat format;
  format.kind = static_cast<LabeledFormat::Kind>(data[0] % 3);
  const int chosen = data[1];
  if ((chosen & 1) != 0) format.text_field = "text", format.label_fields = {"label"};
  if ((chosen & 2) != 0) format.second_text_field = (chosen & 1) != 0 ? "other" : "2";
  if ((chosen & 4) != 0) format.labels = {"yes", "no"};
  if ((chosen & 2) == 0) format.label_kind = static_cast<furlong::LabelKind>((chosen >> 5) % 4);
  const Vocabulary vocabulary = (chosen & 8) != 0 ? Vocabulary::dna() : Vocabulary::bytes(true);
  furlong::DatasetWriterOptions options;
  options.documents_per_label = (chosen & 2) != 0 ? 2 : 1;
  options.label_kind = format.label_kind;
  options.shares = furlong::parse_split_shares("1");
  options.split_by = furlong::DatasetWriterOptions::SplitBy::document;
  fuzzing::read_documents(fuzzing::text_of(data + 2, size - 2), vocabulary, options,
                          [&](furlong::DatasetWriter& writer) {
                            return make_labeled_reader(format, vocabulary, (chosen & 16) != 0, writer);
                          });
  return 0;
}
