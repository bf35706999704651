#pragma once
// Writes a tokenized dataset. The layout is described in docs/file_formats.md; TokenizedDataset reads it.
#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "datasets/label_kind.h"
#include "datasets/prepare/document_sink.h"
#include "datasets/split.h"
#include "datasets/vocabulary.h"

namespace furlong {

class AtomicFile;

/// Version of the file layout that DatasetWriter writes and TokenizedDataset reads.
inline constexpr std::int64_t tokenized_dataset_version = 1;
/// Value of the file's `format` attribute.
inline constexpr std::string_view tokenized_dataset_format = "furlong token store";

/// How a dataset is split, and whether it has labels.
struct DatasetWriterOptions {
  SplitShares shares;
  /// `document`: whole documents are assigned to splits by a hash of (seed, document index). `span`: the token sequence
  /// is cut into three spans in the order train, validation, test, regardless of documents. `count`: the first
  /// split_documents[0] documents are train, the next split_documents[1] validation, the others test.
  enum class SplitBy { document, span, count } split_by = SplitBy::span;
  std::array<std::uint64_t, 3> split_documents{};  ///< of `count`
  std::uint64_t seed = 1;                          ///< of the hash; used by `document`
  /// 0: no labels. 1: each document has a label. 2: each pair of consecutive documents has one, and goes to one split.
  std::uint64_t documents_per_label = 0;
  LabelKind label_kind = LabelKind::classes;
  bool drops_unused_labels = false;   ///< labels that no document has get no id; the others keep their order
  std::function<void()> completed{};  ///< called once the file has its name, while signals wait; may be empty
};

/// A label, and how many documents or pairs have it, or tokens (LabelKind::tokens).
struct LabelSummary {
  std::string name;
  std::uint64_t count = 0;
  std::array<std::uint64_t, 3> split_counts{};  ///< zero if the splits are spans
};

/// The values of one number that documents have as their label.
struct NumberSummary {
  std::string name;
  double mean = 0, deviation = 0;  ///< of the training split; deviation: population standard deviation
  double minimum = 0, maximum = 0;
};

/// The contents of a finished dataset.
struct DatasetSummary {
  std::uint64_t n_tokens = 0;     ///< including document tokens
  std::uint64_t n_documents = 0;  ///< without empty ones, which are not stored
  std::uint64_t n_empty_documents = 0;
  std::array<std::uint64_t, 3> split_tokens{};
  std::array<std::uint64_t, 3> split_documents{};  ///< zero if the splits are spans
  std::vector<std::uint64_t> counts;               ///< of each token id, over the whole dataset
  double train_entropy = 0;                        ///< order-0 entropy of the training split, in bits per token
  std::vector<LabelSummary> labels{};              ///< in the order of their ids
  std::vector<NumberSummary> numbers{};            ///< LabelKind::numbers
};

/// Streams tokens into a dataset, in constant memory. The file appears, complete, with finish(). Throws UserError if
/// the path is invalid and MachineError if the system fails; an existing file then stays unchanged.
class DatasetWriter : public DocumentSink {
 public:
  /// Creates a temporary file next to `path`.
  DatasetWriter(const std::filesystem::path& path, Vocabulary vocabulary, const DatasetWriterOptions& options);
  /// Writes to a file that the caller opened before the vocabulary was known.
  DatasetWriter(std::unique_ptr<AtomicFile> file, Vocabulary vocabulary, const DatasetWriterOptions& options);
  /// Without finish(), removes the temporary file.
  ~DatasetWriter() override;
  DatasetWriter(const DatasetWriter&) = delete;
  DatasetWriter& operator=(const DatasetWriter&) = delete;

  /// Appends tokens to the current document. The ids must be inside the vocabulary; they are not checked here.
  void append(std::span<const std::uint16_t> ids) override;
  /// The same for 32-bit ids.
  void append(std::span<const std::int32_t> ids) override;
  /// Ends the current document. Appends the document token if the vocabulary has one and the document does not end with
  /// it. A document without tokens is counted but not stored.
  void end_document() override;
  /// Sets the label of the document or pair of documents that has just ended. Call it once after each
  /// documents_per_label calls of end_document() that stored a document, and before the next append(). Throws
  /// ContractError if documents_per_label is 0, inside a document, or if the label does not match label_kind.
  void label(const DocumentLabel& label) override;
  /// The same for one class.
  void label(std::int32_t label) { this->label(DocumentLabel{.ids = {&label, 1}}); }
  /// Puts the documents that follow into this split, or, with nullopt, where the options put them. Throws ContractError
  /// inside a document, and unless split_by is `document`.
  void set_split(std::optional<Split> split);
  /// Returns the number of tokens written so far.
  std::uint64_t n_tokens() const;
  /// Completes the file and renames it to its final name. Call once, last. `provenance` is JSON; `label_names` are the
  /// names of the labels 0, 1, ... (LabelKind::numbers: of the numbers). Throws UserError if there are no tokens, or if
  /// a split with a positive share is empty. Throws ContractError inside a document, if the number of labels does not
  /// match that of documents, or if a label has no name.
  DatasetSummary finish(const std::string& provenance, const std::vector<std::string>& label_names = {});

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace furlong
