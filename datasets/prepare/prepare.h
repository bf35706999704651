#pragma once
// Converts text, FASTA, labeled files and images to a tokenized dataset: the implementation of `furlong prepare`.
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "datasets/prepare/dataset_writer.h"
#include "datasets/prepare/document_readers.h"
#include "datasets/prepare/labeled_readers.h"

namespace furlong {

/// Inputs, output and options of prepare().
struct PrepareOptions {
  enum class Format { text, fasta, labeled, images } format = Format::text;
  /// Paths of plain, gzip, xz or zstd files, or of folders of them (files_of()); "-" is standard input. If the names of
  /// folders are labels, files are read in a random order, which depends on store.seed: a part of a split then has all
  /// labels.
  std::vector<std::string> inputs;
  /// Inputs of the same kind that are the validation or test split. Such a split gets none of `inputs`: its share must
  /// be 0. Needs SplitBy::document.
  std::vector<std::string> validation_inputs, test_inputs;
  std::string output;
  bool force = false;  ///< replace an existing output
  DatasetWriterOptions store;
  DocumentSeparator separator = DocumentSeparator::file;  ///< for text
  LabeledFormat labeled;                                  ///< for labeled; for images, `labels` has their names
  /// For labeled: the labels of the inputs, which are FASTA; see LabelTable. Empty: the inputs have the labels.
  std::string label_file;
  /// For images: the IDX file of labels of each input, validation and test input, in this order; empty: none.
  std::vector<std::string> image_labels;
  bool grayscale = false, cifar10 = false;  ///< for images: see ImageOptions
  /// FASTA: dna, rna, protein, or auto to guess it. Labeled: dna, rna, protein, or auto for bytes.
  std::string alphabet = "auto";
  /// FASTA, labeled: read letters outside the alphabet as N or X.
  bool map_unknown = false;
  /// Empty: bytes or an alphabet. Otherwise a tokenizer that load_tokenizer() reads, or a checkpoint of a model with a
  /// tokenizer; its special tokens are put before and after each document.
  std::string tokenizer;
  /// Progress of a call to prepare().
  struct Progress {
    std::string input;
    std::uint64_t file_bytes = 0;  ///< read so far from all inputs, before decompression
    std::uint64_t n_tokens = 0;
    double seconds = 0;
  };
  /// Called every few seconds, in the thread that called prepare(). May be empty.
  std::function<void(const Progress&)> progress;
};

/// The result of prepare().
struct PrepareReport {
  std::string output;
  std::string vocabulary;  ///< its kind
  std::string tokenizer;   ///< its kind; empty: none
  std::int32_t vocabulary_size = 0;
  std::uint64_t file_bytes = 0;   ///< of all inputs, before decompression
  std::uint64_t input_bytes = 0;  ///< of all inputs, after decompression
  bool is_plain_text = false;     ///< the inputs contain nothing but the documents' text and its separators
  DatasetSummary store;
  /// Ambiguous symbols that occur, with their counts.
  std::vector<std::pair<std::string, std::uint64_t>> ambiguous;
  std::uint64_t n_mapped = 0;         ///< unknown letters read as N or X; included in `ambiguous`
  std::uint64_t n_unknown = 0;        ///< unknown tokens of a tokenizer
  TextCount ignored;                  ///< characters that a tokenizer leaves out
  std::uint64_t n_cut_documents = 0;  ///< documents encoded in pieces (DocumentEncoder)
  double seconds = 0;
};

/// Streams the inputs into the output, in constant memory. Blocks until the output is complete. Throws UserError with
/// input, line and column, or MachineError; the output then remains as it was.
PrepareReport prepare(const PrepareOptions& options);

/// Returns the report as several lines of text.
std::string to_text(const PrepareReport& report);
/// Returns the report as one JSON object, in several lines.
std::string to_json(const PrepareReport& report);

}  // namespace furlong
