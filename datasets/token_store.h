#pragma once
// Token stores: HDF5 files of token ids with documents, splits, vocabulary and provenance (docs/file_formats.md). A
// store may come from anywhere: every offset, range and token id is checked before it is used.
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "datasets/dataset.h"

namespace furlong {

class TokenStore : public Dataset {
 public:
  /// A span [begin, end) of the store's token sequence.
  struct Range {
    std::uint64_t begin = 0, end = 0;
  };

  /// Throws one-line UserError naming the file when it is missing, truncated, damaged, not HDF5, not a token store, or
  /// contradicts itself. Damage to the tokens themselves (Fletcher32 per chunk) shows, in the same way, when they are
  /// read.
  static TokenStore open(const std::string& path);
  TokenStore(TokenStore&&) noexcept;
  TokenStore& operator=(TokenStore&&) noexcept;
  ~TokenStore() override;

  const std::string& path() const override;
  const Vocabulary& vocabulary() const override;
  /// JSON: sources with size and hash, options, time, version.
  const std::string& provenance() const;
  std::uint64_t n_tokens() const;
  std::uint64_t n_documents() const;
  /// Where a document lies in the token sequence. Throws UserError when the store's offsets contradict each other.
  Range document(std::uint64_t index) const;
  /// Where each document begins, and the number of tokens. Throws UserError when they contradict each other.
  std::vector<std::uint64_t> document_offsets() const;
  /// Documents that share a label: 1, or 2 where the store is of pairs; 0 when it has no labels.
  std::uint64_t documents_per_label() const;
  /// One for each document or pair: places in vocabulary().labels(). Throws UserError when they contradict the
  /// documents or the names.
  std::vector<std::int32_t> labels() const;

  /// Ranges of a split, in order, none empty, neighbours that touch made one. A split may be empty.
  const std::vector<Range>& ranges(Split split) const;
  /// Tokens in a split.
  std::uint64_t size(Split split) const override;

  /// Tokens [position, position + tokens.size()) of the split's ranges laid end to end; ContractError beyond them. A
  /// split of at most 1 GiB is held in memory from its first reading on. Any thread may read.
  void read(Split split, std::uint64_t position, std::span<std::int32_t> tokens) const;
  std::vector<std::int32_t> read(Split split, std::uint64_t position, std::size_t count) const;
  /// Positions p in (position, position + count) where a new range begins: token p does not follow token p - 1.
  std::vector<std::uint64_t> breaks(Split split, std::uint64_t position, std::uint64_t count) const;

 private:
  struct State;
  explicit TokenStore(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace furlong
