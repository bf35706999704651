#pragma once
// Tokenized datasets: HDF5 files of token ids with documents, splits, vocabulary and provenance (docs/file_formats.md).
// Files are not trusted: every offset, range and token id is checked before use.
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "datasets/dataset.h"
#include "datasets/label_kind.h"

namespace furlong {

/// A tokenized dataset that is open for reading.
class TokenizedDataset : public Dataset {
 public:
  /// A span [begin, end) of the dataset's token sequence.
  struct Range {
    std::uint64_t begin = 0, end = 0;
  };

  /// Opens a file. Throws UserError, naming the file, if it is missing, truncated, damaged, inconsistent, not HDF5, or
  /// not a tokenized dataset. Damaged tokens (Fletcher32 checksum per chunk) are detected when they are read, and also
  /// throw UserError; zeros in place of a whole chunk and its checksum are not.
  static TokenizedDataset open(const std::string& path);
  TokenizedDataset(TokenizedDataset&&) noexcept;
  TokenizedDataset& operator=(TokenizedDataset&&) noexcept;
  ~TokenizedDataset() override;

  const std::string& path() const override;
  const Vocabulary& vocabulary() const override;
  /// Returns JSON: sources with size and hash, options, time, version. Of files of others it may be any text, within
  /// the limits of check_ordered_json().
  const std::string& provenance() const;
  std::uint64_t n_tokens() const;
  std::uint64_t n_documents() const;
  /// Returns the span of a document. Throws UserError if its offsets are inconsistent.
  Range document(std::uint64_t index) const;
  /// Returns the start of each document, followed by the number of tokens. Throws UserError if the offsets do not
  /// ascend.
  std::vector<std::uint64_t> document_offsets() const;
  /// Returns the number of documents that share a label: 1, 2 if the dataset has pairs, 0 if it has no labels.
  std::uint64_t documents_per_label() const;
  /// Returns what the labels are; LabelKind::classes if there are none.
  LabelKind label_kind() const;
  /// Returns indices into vocabulary().labels(). LabelKind::classes: one per document or pair; tokens: one for each
  /// token, -1 without a label; sets: those of all documents in order, see label_ends(). Throws UserError if there are
  /// no such labels, or if they do not match the documents or the names.
  std::vector<std::int32_t> labels() const;
  /// LabelKind::sets: returns where the labels of each document end in labels(). Throws UserError if the ends do not
  /// match the documents or the labels.
  std::vector<std::uint64_t> label_ends() const;
  /// LabelKind::numbers: returns the numbers of each document, [documents, vocabulary().labels()]. Throws UserError if
  /// they do not match the documents or the names, or if one is not finite.
  std::vector<float> label_numbers() const;

  /// Returns the ranges of a split: ascending, not empty, adjacent ranges merged. A split may be empty.
  const std::vector<Range>& ranges(Split split) const;
  /// Returns the number of tokens in a split.
  std::uint64_t size(Split split) const override;
  std::vector<const TokenizedDataset*> stores() const override { return {this}; }

  /// Reads tokens [position, position + tokens.size()) of the concatenated ranges of the split. Throws ContractError if
  /// they exceed the split. A split of at most 1 GiB is loaded into memory by the first read. Thread-safe.
  void read(Split split, std::uint64_t position, std::span<std::int32_t> tokens) const;
  /// The same, returned as a new vector of `count` tokens.
  std::vector<std::int32_t> read(Split split, std::uint64_t position, std::size_t count) const;
  /// Returns the positions p in (position, position + count) at which a new range starts: token p does not follow token
  /// p - 1.
  std::vector<std::uint64_t> breaks(Split split, std::uint64_t position, std::uint64_t count) const;

 private:
  struct State;
  explicit TokenizedDataset(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace furlong
