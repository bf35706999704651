#pragma once
// Small tokenized datasets of given documents.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "datasets/prepare/dataset_writer.h"
#include "datasets/tokenized_dataset.h"

namespace furlong::testing {

using Documents = std::vector<std::vector<std::uint16_t>>;

/// Writes a dataset of `documents` and returns its path.
inline std::string write_documents(const std::string& path, const Vocabulary& vocabulary, const Documents& documents,
                                   const std::string& shares = "1") {
  DatasetWriterOptions options;
  options.shares = parse_split_shares(shares);
  DatasetWriter writer(path, vocabulary, options);
  for (const std::vector<std::uint16_t>& ids : documents) {
    writer.append(ids);
    writer.end_document();
  }
  writer.finish("{}");
  return path;
}

/// Writes a dataset of texts, with bytes as tokens, and returns its path.
inline std::string write_texts(const std::string& path, const std::vector<std::string>& texts,
                               const std::string& shares = "1") {
  Documents documents;
  for (const std::string& text : texts) {
    const auto* const bytes = reinterpret_cast<const unsigned char*>(text.data());
    documents.emplace_back(bytes, bytes + text.size());
  }
  return write_documents(path, Vocabulary::bytes(false), documents, shares);
}

/// Documents of these lengths. Their tokens count 0, 1, 2, ... across documents, modulo `period`. With `ends`, the
/// document token counts, too.
inline Documents counting(const std::vector<std::size_t>& lengths, std::size_t period, bool ends = false) {
  Documents documents;
  std::size_t next = 0;
  for (const std::size_t length : lengths) {
    for (std::uint16_t& id : documents.emplace_back(length)) id = static_cast<std::uint16_t>(next++ % period);
    if (ends) ++next;
  }
  return documents;
}

}  // namespace furlong::testing
