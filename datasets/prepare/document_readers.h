#pragma once
// From bytes to documents of tokens: what furlong prepare reads.
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "datasets/prepare/store_writer.h"
#include "datasets/vocabulary.h"

namespace furlong {

/// Takes inputs block by block, in order, and writes tokens and document ends to a StoreWriter that outlives it.
class DocumentReader {
 public:
  virtual ~DocumentReader() = default;
  /// `name` is what errors call the input that begins.
  virtual void begin_input(const std::string& name) = 0;
  virtual void feed(std::string_view block) = 0;
  virtual void end_input() = 0;
  /// Letters that were not in the alphabet and were read as unknown.
  virtual std::uint64_t n_mapped() const { return 0; }
  /// Documents that a tokenizer was given in pieces, because they are long.
  virtual std::uint64_t n_cut_documents() const { return 0; }
  /// Names of the labels 0, 1, ... that were given to documents.
  virtual std::vector<std::string> label_names() const { return {}; }
};

/// What ends a document in text. `line`: each line is one, without its line break (LF or CR LF). `blank_line`: one or
/// more empty lines stand between documents; line breaks inside one are LF. `file`: each input is one, byte for byte.
enum class DocumentSeparator { file, line, blank_line };

/// As bytes, or through the vocabulary's tokenizer.
std::unique_ptr<DocumentReader> make_text_reader(DocumentSeparator separator, const Vocabulary& vocabulary,
                                                 StoreWriter& writer);

/// FASTA: each record is a document; lines that begin with '>' open one, lines that begin with ';' are comments,
/// whitespace is left out. A byte that is no letter of the vocabulary's alphabet is a UserError naming file, line and
/// column, or the unknown letter (N, X) when `map_unknown`. With a tokenizer letters are read in upper case: one token
/// each where it is of letters or of word pieces, otherwise a record is a text; a letter that comes out as the unknown
/// token is such an error.
std::unique_ptr<DocumentReader> make_fasta_reader(const Vocabulary& vocabulary, bool map_unknown, StoreWriter& writer);

/// The alphabet that the beginning of a FASTA file speaks for: "dna" or "rna" when at least 90 % of the letters are A,
/// C, G, T, U or N and all are nucleotide codes, else "protein". Throws UserError, beginning with `name`, when it holds
/// no letters.
std::string guess_alphabet(std::string_view beginning, std::string_view name);

}  // namespace furlong
