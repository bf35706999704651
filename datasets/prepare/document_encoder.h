#pragma once
// Documents through a tokenizer into a token store, in memory that does not grow with their length.
#include <string>
#include <string_view>
#include <vector>

#include "datasets/prepare/store_writer.h"
#include "datasets/vocabulary.h"

namespace furlong {

/// Takes the text of one document after another, and writes each as the tokenizer frames it. A document of more than
/// `piece_bytes` is encoded in pieces, cut between two lines of which neither is empty nor the second indented; in text
/// that has no such place for eight times as long, at any line end, or between any two characters. What the tokens at
/// such a cut are is then no longer the tokenizer's own choice.
class DocumentEncoder {
 public:
  static constexpr std::size_t default_piece_bytes = std::size_t{1} << 20;

  /// `vocabulary` has a tokenizer; `writer` has to outlive this.
  DocumentEncoder(const Vocabulary& vocabulary, StoreWriter& writer, std::size_t piece_bytes = default_piece_bytes);

  void put(char byte) {
    text_.push_back(byte);
    if (text_.size() >= next_cut_) encode_piece();
  }
  /// A token in the place of text; not to be mixed with text in a document.
  void put_token(std::int32_t id);
  /// A document of no tokens is not kept, as StoreWriter says.
  void end_document();
  /// Documents that were encoded in pieces.
  std::uint64_t n_cut_documents() const { return n_cut_documents_; }

 private:
  void encode_piece();
  std::size_t find_cut() const;
  void write(const std::vector<std::int32_t>& ids);

  const Vocabulary vocabulary_;
  StoreWriter& writer_;
  std::size_t piece_bytes_, next_cut_;
  std::string text_;
  std::vector<std::int32_t> ids_;
  std::uint64_t n_cut_documents_ = 0;
  bool begun_ = false, cut_ = false;
};

}  // namespace furlong
