#pragma once
// Where the readers of documents put what they read.
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace furlong {

/// The label of a document, or of a pair of documents.
struct DocumentLabel {
  /// LabelKind::classes: one label; sets: any number, ascending; tokens: one for each token of the document, or -1.
  std::span<const std::int32_t> ids = {};
  std::span<const float> numbers = {};  ///< LabelKind::numbers: equally many for all documents
  std::string_view place = {};          ///< for errors: file and line
};

/// What a tokenizer has lost of texts.
struct TextCount {
  std::uint64_t characters = 0, documents = 0;  ///< characters left out (Tokenizer::count_ignored), and of how many
  std::uint64_t not_utf8 = 0;                   ///< documents with bytes that are not UTF-8 and were replaced
};

/// Receives documents one after another, token by token.
class DocumentSink {
 public:
  DocumentSink() = default;
  virtual ~DocumentSink() = default;
  DocumentSink(const DocumentSink&) = delete;
  DocumentSink& operator=(const DocumentSink&) = delete;

  /// Adds to the current document. Ids are inside the vocabulary (unchecked: the hot path).
  virtual void append(std::span<const std::uint16_t> ids) = 0;
  virtual void append(std::span<const std::int32_t> ids) = 0;
  /// Ends the current document, which may have no tokens.
  virtual void end_document() = 0;
  /// Labels the document, or the pair, that has just ended.
  virtual void label(const DocumentLabel& /*label*/) {}
  /// Names the current document, before its first token: the first word of a FASTA header, the id of a record.
  /// `place`: its file and line.
  virtual void name_document(std::string_view /*name*/, const std::string& /*place*/) {}
};

}  // namespace furlong
