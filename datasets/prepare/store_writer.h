#pragma once
// Writes a token store; the layout is in docs/file_formats.md and token_store.h reads it.
#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "datasets/split.h"
#include "datasets/vocabulary.h"

namespace furlong {

class AtomicFile;

/// Layout of the stores that StoreWriter writes and TokenStore reads.
inline constexpr std::int64_t token_store_version = 1;
inline constexpr std::string_view token_store_format = "furlong token store";

struct StoreWriterOptions {
  SplitShares shares;
  /// Whole documents go to the splits, by a hash of (seed, document number); or three spans of the token sequence, in
  /// the order train, validation, test, whatever documents they cut.
  enum class SplitBy { document, span } split_by = SplitBy::span;
  std::uint64_t seed = 1;
  /// 1: each document is to have a label; 2: each two that follow each other have one, and go to the same split; 0:
  /// there are no labels.
  std::uint64_t documents_per_label = 0;
};

/// What a finished store holds.
struct StoreSummary {
  std::uint64_t n_tokens = 0;     ///< document tokens included
  std::uint64_t n_documents = 0;  ///< empty ones are not kept
  std::uint64_t n_empty_documents = 0;
  std::array<std::uint64_t, 3> split_tokens{};
  std::array<std::uint64_t, 3> split_documents{};               ///< zero where spans were cut instead
  std::vector<std::uint64_t> counts;                            ///< of each token id, over the whole store
  double train_entropy = 0;                                     ///< order-0, in bits per token
  std::vector<std::pair<std::string, std::uint64_t>> labels{};  ///< name and number of documents or pairs
};

/// Streams tokens into a store that appears, whole, with finish(). Memory does not depend on how much is written.
/// Throws UserError where the path is at fault, MachineError where the machine is; either way an old store stays as it
/// was.
class StoreWriter {
 public:
  StoreWriter(const std::filesystem::path& path, Vocabulary vocabulary, const StoreWriterOptions& options);
  /// Into a file that the caller has opened before it knew the vocabulary.
  StoreWriter(std::unique_ptr<AtomicFile> file, Vocabulary vocabulary, const StoreWriterOptions& options);
  ~StoreWriter();
  StoreWriter(const StoreWriter&) = delete;
  StoreWriter& operator=(const StoreWriter&) = delete;

  /// Adds to the document at hand. Ids are inside the vocabulary (unchecked: the hot path).
  void append(std::span<const std::uint16_t> ids);
  void append(std::span<const std::int32_t> ids);
  /// Ends the document, with the document token where the vocabulary has one, unless it stands there already. A
  /// document without tokens is counted and not kept.
  void end_document();
  /// Labels the document, or the pair, that has just ended.
  void label(std::int32_t label);
  std::uint64_t n_tokens() const;
  /// `provenance` is JSON; `label_names` belong to the labels 0, 1, ... Throws UserError when a split that was to have
  /// something gets nothing.
  StoreSummary finish(const std::string& provenance, const std::vector<std::string>& label_names = {});

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace furlong
