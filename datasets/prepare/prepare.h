#pragma once
// From text, FASTA and labelled files to a token store: what `furlong prepare` does.
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "datasets/prepare/document_readers.h"
#include "datasets/prepare/labelled_readers.h"
#include "datasets/prepare/store_writer.h"

namespace furlong {

struct PrepareOptions {
  enum class Format { text, fasta, labelled } format = Format::text;
  std::vector<std::string> inputs;  ///< paths, plain, gzip or xz; "-" is standard input
  std::string output;
  bool force = false;  ///< replace an existing output
  StoreWriterOptions store;
  DocumentSeparator separator = DocumentSeparator::file;  ///< text
  LabelledFormat labelled;                                ///< labelled
  std::string alphabet = "auto";  ///< FASTA: dna, rna, protein, or auto; labelled: those, or auto for bytes
  bool map_unknown = false;       ///< FASTA, labelled: read letters that the alphabet lacks as N or X
  /// Empty: bytes or an alphabet. Otherwise what load_tokenizer reads, or a checkpoint of a model with a tokenizer;
  /// documents are framed.
  std::string tokenizer;
  /// Called every few seconds.
  struct Progress {
    std::string input;
    std::uint64_t file_bytes = 0;  ///< read so far, over all inputs, compressed as they are
    std::uint64_t n_tokens = 0;
    double seconds = 0;
  };
  std::function<void(const Progress&)> progress;
};

struct PrepareReport {
  std::string output;
  std::string vocabulary;  ///< its kind
  std::string tokenizer;   ///< its kind; empty: none
  std::int32_t vocabulary_size = 0;
  std::uint64_t file_bytes = 0;   ///< of all inputs, compressed as they are
  std::uint64_t input_bytes = 0;  ///< the same, uncompressed
  StoreSummary store;
  std::vector<std::pair<std::string, std::uint64_t>> ambiguous;  ///< symbol and count, those that occur
  std::uint64_t n_mapped = 0;         ///< unknown letters read as N or X; among the ambiguous
  std::uint64_t n_unknown = 0;        ///< unknown tokens of a tokenizer
  std::uint64_t n_cut_documents = 0;  ///< that were encoded in pieces (DocumentEncoder)
  double seconds = 0;
};

/// Streams the inputs into the store, in constant memory. Throws UserError (which input, line, column) and
/// MachineError; the output is then as it was before.
PrepareReport prepare(const PrepareOptions& options);

/// For a person, several lines.
std::string to_text(const PrepareReport& report);
/// One JSON object.
std::string to_json(const PrepareReport& report);

}  // namespace furlong
