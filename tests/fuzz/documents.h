#pragma once
#include <functional>
#include <memory>

#include "datasets/prepare/dataset_writer.h"
#include "datasets/prepare/document_readers.h"
#include "datasets/prepare/labeled_readers.h"
#include "tests/fuzz/target.h"

namespace furlong::fuzzing {

using MakeReader = std::function<std::unique_ptr<DocumentReader>(DatasetWriter&)>;

/// Returns the result of a reader for a text fed in blocks: the dataset's contents, or the error.
inline std::string documents_in(std::string_view text, std::size_t block, const Vocabulary& vocabulary,
                                const DatasetWriterOptions& options, const MakeReader& make) {
  DatasetWriter writer(Folder::instance().path("documents.h5"), vocabulary, options);
  const std::unique_ptr<DocumentReader> reader = make(writer);
  std::string result;
  const bool read = succeeds([&] {
    try {
      reader->begin_input("input");
      for (std::size_t at = 0; at < text.size(); at += block) reader->feed(text.substr(at, block));
      reader->end_input();
      const DatasetSummary summary = writer.finish("{}", reader->label_names());
      result = fmt::format("{} {} {}", summary.n_documents, summary.n_empty_documents, reader->n_mapped());
      for (const std::uint64_t count : summary.counts) result += fmt::format(" {}", count);
      for (const LabelSummary& label : summary.labels) result += fmt::format(" {}: {}", label.name, label.count);
    } catch (const UserError& error) {
      result = error.what();
      throw;
    }
  });
  return (read ? "read: " : "refused: ") + result;
}

/// Checks that the result does not depend on the block size.
inline void read_documents(std::string_view text, const Vocabulary& vocabulary, const DatasetWriterOptions& options,
                           const MakeReader& make) {
  const std::string whole = documents_in(text, std::max<std::size_t>(text.size(), 1), vocabulary, options, make);
  const std::string in_pieces = documents_in(text, 1 + text.size() % 7, vocabulary, options, make);
  if (whole != in_pieces) finding("the result depends on the block size", whole + " / " + in_pieces);
}

}  // namespace furlong::fuzzing
