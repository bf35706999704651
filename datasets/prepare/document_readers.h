#pragma once
// Readers of `furlong prepare`: split input bytes into documents and tokenize them.
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "datasets/prepare/document_sink.h"
#include "datasets/vocabulary.h"

namespace furlong {

/// Takes inputs block by block, in order. Writes tokens and document ends to a DocumentSink, which must outlive the
/// reader.
class DocumentReader {
 public:
  virtual ~DocumentReader() = default;
  /// Starts a new input; `name` identifies it in errors.
  virtual void begin_input(const std::string& name) = 0;
  /// Reads the next block of the input. A block may end anywhere; it is not referred to afterwards.
  virtual void feed(std::string_view block) = 0;
  /// Ends the input, and its last document.
  virtual void end_input() = 0;
  /// Returns the number of letters outside the alphabet that were read as unknown.
  virtual std::uint64_t n_mapped() const { return 0; }
  /// Returns the number of documents that were tokenized in pieces because of their length.
  virtual std::uint64_t n_cut_documents() const { return 0; }
  /// Returns the characters that the tokenizer left out, and the documents that have some.
  virtual TextCount ignored() const { return {}; }
  /// Returns the names of the labels 0, 1, ... of the documents.
  virtual std::vector<std::string> label_names() const { return {}; }
  /// Returns warnings of what is valid, but probably not meant, in the inputs that have ended.
  virtual std::vector<std::string> warnings() const { return {}; }
};

/// Where a document ends in text. `file`: each input is one document, byte for byte. `line`: each line is one, without
/// its line break (LF or CR LF). `blank_line`: one or more empty lines separate documents; line breaks inside a
/// document become LF.
enum class DocumentSeparator { file, line, blank_line };

/// Returns a reader of text. Tokens are bytes, or those of the vocabulary's tokenizer, for which text waits until there
/// are `queue_bytes` of it.
std::unique_ptr<DocumentReader> make_text_reader(DocumentSeparator separator, const Vocabulary& vocabulary,
                                                 DocumentSink& writer, std::size_t queue_bytes = std::size_t{16} << 20);

/// What has set the alphabet; errors about other letters depend on it.
enum class AlphabetSource { option, detection, model };
/// Returns why a letter outside the vocabulary's alphabet is an error, and what to do: the end of a sentence.
std::string letter_refusal(const Vocabulary& vocabulary, AlphabetSource source);

/// Returns a reader of FASTA. Each record is a document: '>' starts a record, ';' starts a comment line, whitespace is
/// ignored. A byte outside the vocabulary's alphabet is read as the unknown letter (N, X) if `map_unknown`. Otherwise
/// the reader throws UserError with file, line and column.
/// With a tokenizer, letters are read in upper case. Letter and WordPiece tokenizers encode each letter separately;
/// others encode the record as text. A letter that becomes the unknown token is such an error, too.
/// Warns of records that have the same name.
std::unique_ptr<DocumentReader> make_fasta_reader(const Vocabulary& vocabulary, bool map_unknown, DocumentSink& writer,
                                                  AlphabetSource source = AlphabetSource::option);

/// Guesses the alphabet from the beginning of a FASTA file. Returns "dna" or "rna" if all letters are nucleotide codes
/// and at least 90 % are A, C, G, T, U or N; "protein" if fewer than 90 % are. Throws UserError, starting with `name`,
/// if there are no letters, and with line and column of another letter if 90 % are A, C, G, T, U or N: a few letters
/// decide nothing, unless `map_unknown` reads them as N.
std::string guess_alphabet(std::string_view beginning, std::string_view name, bool map_unknown = false);

}  // namespace furlong
