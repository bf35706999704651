#pragma once
// Where the readers of documents put what they read.
#include <cstdint>
#include <span>
#include <string_view>

namespace furlong {

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
  virtual void label(std::int32_t label) = 0;
  /// Names the current document, before its first token: the first word of a FASTA header, the id of a record.
  virtual void name_document(std::string_view /*name*/) {}
};

}  // namespace furlong
