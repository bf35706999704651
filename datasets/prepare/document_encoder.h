#pragma once
// Tokenizes documents into a tokenized dataset, in memory that does not grow with document length.
#include <string>
#include <string_view>
#include <vector>

#include "datasets/prepare/document_sink.h"
#include "datasets/vocabulary.h"

namespace furlong {

/// Takes the text of one document after another and writes its tokens, with the tokenizer's special tokens before and
/// after each document. A document longer than `piece_bytes` is encoded in pieces. A cut goes between two lines of
/// which neither is empty and the second is not indented. If 8 * piece_bytes of text have no such place, the cut goes
/// to any line end, before a space, or between any two characters. The tokens at such a cut may differ from those of
/// the uncut text. A piece is encoded behind the end of the one before, so that no tokenizer takes it for the beginning
/// of a text, unless a token crosses the cut. Pieces are encoded on all threads and written in order, so the result
/// does not depend on the number of threads.
class DocumentEncoder {
 public:
  static constexpr std::size_t default_piece_bytes = std::size_t{1} << 20;

  /// `vocabulary` must have a tokenizer. `writer` must outlive this object. Text waits until there are `queue_bytes` of
  /// it; 0: a document is written when it ends.
  DocumentEncoder(const Vocabulary& vocabulary, DocumentSink& writer, std::size_t queue_bytes = 0,
                  std::size_t piece_bytes = default_piece_bytes);

  /// Appends one byte of text to the document.
  void put(char byte) {
    text_.push_back(byte);
    if (text_.size() >= next_cut_) encode_piece();
  }
  /// Appends a token instead of text. A document must not mix put() and put_token().
  void put_token(std::int32_t id);
  /// Ends the document. A document without tokens is not stored (see DatasetWriter).
  void end_document();
  /// Encodes and writes the text that waits.
  void flush();
  /// Returns the number of documents that were encoded in pieces.
  std::uint64_t n_cut_documents() const { return n_cut_documents_; }
  /// Returns what the tokenizer left out so far.
  TextCount ignored() const { return ignored_; }

 private:
  struct Piece {
    std::string text;
    std::size_t context = 0;  ///< the first bytes, which belong to the piece before
    bool ends_document = false;
  };
  void enqueue(Piece piece);
  void encode_piece();
  std::vector<std::int32_t> ids_of(const Piece& piece) const;
  std::size_t find_cut() const;
  void write(const std::vector<std::int32_t>& ids);

  const Vocabulary vocabulary_;
  DocumentSink& writer_;
  std::size_t queue_bytes_, piece_bytes_, next_cut_;
  std::vector<Piece> queue_;
  std::size_t queued_bytes_ = 0;
  std::string text_, context_;  // text that waits; the end of the text before
  std::vector<std::int32_t> ids_;
  std::uint64_t n_cut_documents_ = 0;
  TextCount ignored_;
  bool started_ = false, cut_ = false, has_ignored_ = false, has_invalid_ = false;
};

}  // namespace furlong
