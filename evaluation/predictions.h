#pragma once
// What a model predicts for each sample of a split, or each sequence, and the rows of it.
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "evaluation/label_metrics.h"
#include "framework/io/atomic_file.h"
#include "trainers/train/validation.h"

namespace furlong {

/// Probabilities of the labels, and the evaluation that follows from them.
struct LabelPredictions {
  ClassScores classes;  ///< scores are probabilities
  Evaluation found;
};

/// Predicts the label of each sample in one pass over a source of labeled documents or pairs. Loss, accuracy and
/// counts are those of evaluate(). `max_batches`: 0 means all.
LabelPredictions predict_labels(Model& model, const BatchSource& source, std::int64_t batch_size,
                                std::int64_t max_batches = 0);

/// Returns whether a file of predictions is JSON lines rather than TSV, as its extension says. Throws UserError, which
/// names `option`, unless the extension is .tsv or .jsonl.
bool writes_json_lines(const std::filesystem::path& path, std::string_view option);

/// Rows of predictions as TSV with a header, or as JSON lines. Text goes to `write` in blocks.
class PredictionRows {
 public:
  PredictionRows(bool json_lines, std::function<void(std::string_view)> write)
      : json_lines_(json_lines), write_(std::move(write)) {}
  /// Writes an object: its keys are columns; those of objects in it are columns too. Lists are JSON in TSV too.
  void write(const nlohmann::ordered_json& row);
  /// Writes what is left. Call once, last.
  void finish();

 private:
  void put(std::string_view line);

  bool json_lines_, begun_ = false;
  std::function<void(std::string_view)> write_;
  std::string buffer_;
};

/// Adds to `row` what a model predicts of one sample, or one token: `predicted`, a label, a list of labels, or a number
/// for each label in the units of the data; and, unless labels are numbers, `probabilities` of each label. `logits`
/// [labels] are overwritten.
void add_prediction(nlohmann::ordered_json& row, const Vocabulary& vocabulary, LabelKind kind,
                    std::span<double> logits);

/// A file of predictions, TSV with a header or JSON lines, as its extension says. It appears whole, by commit().
class PredictionFile {
 public:
  /// Throws UserError unless the extension is .tsv or .jsonl, and as AtomicFile.
  explicit PredictionFile(const std::filesystem::path& path);
  /// Sets the index in the dataset of each sample's document or pair (LabeledSource::documents()), before the first
  /// line. write_rows() does not need it.
  void set_documents(std::vector<std::uint64_t> documents) { documents_ = std::move(documents); }

  // Lines of samples start with sample and document, both from 1: the number in the split and in the dataset.

  /// One line for each sample: label, predicted, and the probability of each label.
  void write_labels(const ClassScores& classes, const std::vector<std::string>& labels);
  /// One line for each sample: the given and the predicted number of each label. `predicted` is [samples, labels], in
  /// the units of the data; `numbers` are TokenizedDataset::label_numbers().
  void write_numbers(std::span<const double> predicted, std::span<const float> numbers,
                     const std::vector<std::string>& labels);
  /// One line for each sample: the given and the predicted labels, and the probability of each label. `logits` and
  /// `targets` (0 or 1) are [samples, labels].
  void write_sets(std::span<const double> logits, std::span<const double> targets,
                  const std::vector<std::string>& labels);
  /// One line for each token of a batch with a label: position (from 1, in the document), label, predicted, and the
  /// probability of each label. `first` samples are before the batch. `logits` is [batch, n, labels].
  void write_token_labels(std::uint64_t first, const Batch& batch, std::vector<double> logits,
                          const Vocabulary& vocabulary);
  /// One line for each row of a batch that has targets: row (from 1, `first` rows before the batch), targets, loss
  /// (mean, nats) and perplexity. `losses` [batch, n] are those of the targets.
  void write_rows(std::uint64_t first, const Batch& batch, const std::vector<double>& losses);
  void commit();

 private:
  /// Returns a row with the first columns of a sample.
  nlohmann::ordered_json row_of(std::uint64_t sample) const;

  PredictionRows rows_;
  std::vector<std::uint64_t> documents_;
  AtomicFile file_;
};

}  // namespace furlong
