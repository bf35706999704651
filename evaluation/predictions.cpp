#include "evaluation/predictions.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "evaluation/score_file.h"
#include "evaluation/sequences/hidden_states.h"
#include "framework/core/clock.h"
#include "framework/core/json_output.h"
#include "framework/core/printable.h"
#include "framework/core/shape.h"
#include "trainers/model/objective.h"

namespace furlong {
namespace {

using Json = nlohmann::ordered_json;

/// Replaces logits by probabilities. Returns the logarithm of the probability of `label`.
double softmax_of(std::span<double> logits, std::size_t label) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const double logit : logits) sum += std::exp(logit - largest);
  const double log_probability = logits[label] - largest - std::log(sum);
  for (double& logit : logits) logit = std::exp(logit - largest) / sum;
  return log_probability;
}

/// Returns the shortest decimal that is this float32: 0.1, not 0.10000000149.
double shortest_decimal(float number) {
  const std::string text = fmt::to_string(number);
  double value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

Json by_label(const std::vector<std::string>& labels, std::span<const double> values) {
  Json::object_t object;
  object.reserve(labels.size());
  // Labels are distinct; operator[] would search all labels before it.
  for (std::size_t i = 0; i < labels.size(); ++i) object.emplace_back(labels[i], values[i]);
  return object;
}

/// Returns the columns of a row: its keys, and of an object a column for each of its keys.
std::vector<std::string> columns_of(const Json& row) {
  std::vector<std::string> columns;
  for (const auto& [key, value] : row.items()) {
    if (!value.is_object()) {
      columns.push_back(key);
      continue;
    }
    const std::string stem = key == "probabilities" ? "probability" : key;
    for (const auto& [name, one] : value.items()) columns.push_back(stem + "_" + foreign::single_line(name));
  }
  return columns;
}

std::string cell_of(const Json& value) {
  if (value.is_string()) return foreign::single_line(value.get<std::string>(), 1 << 16);
  return value.is_number_float() ? tsv_number(value.get<double>()) : json_line(value);
}

void add_class(Json& row, const std::vector<std::string>& labels, std::span<const double> probabilities) {
  row["predicted"] = labels[static_cast<std::size_t>(std::max_element(probabilities.begin(), probabilities.end()) -
                                                     probabilities.begin())];
  row["probabilities"] = by_label(labels, probabilities);
}

void add_set(Json& row, const std::vector<std::string>& labels, std::span<const double> logits) {
  Json predicted = Json::array();
  std::vector<double> probabilities;
  for (std::size_t k = 0; k < labels.size(); ++k) {
    if (logits[k] > 0) predicted.push_back(labels[k]);
    probabilities.push_back(1 / (1 + std::exp(-logits[k])));
  }
  row["predicted"] = predicted;
  row["probabilities"] = by_label(labels, probabilities);
}

}  // namespace

LabelPredictions predict_labels(Model& model, const BatchSource& source, std::int64_t batch_size,
                                std::int64_t max_batches) {
  require(model.encoder && model.settings.objective.learns_labels(), "predict_labels: a model without labels");
  LabelPredictions result;
  ClassScores& classes = result.classes;
  classes.n_classes = std::ssize(model.vocabulary.labels());
  std::int64_t correct = 0, batches = 0;
  batch_size = source.rows_of_one_pass(batch_size);
  const auto start = Clock::now();
  for (std::uint64_t first = 0; first < source.n_samples() && (max_batches == 0 || batches < max_batches);
       first += static_cast<std::uint64_t>(batch_size), ++batches) {
    const Batch batch = source.single_pass_batch(first, batch_size);
    const DeviceBatch input = on_device(batch, model.store->device());
    Tape tape(model.stream);
    const Tape::NoGradient guard(tape);
    layers::ForwardContext context{tape};
    context.attention_mask = input.mask;
    std::vector<double> logits = doubles_of(model.encoder->label_logits(context, input.inputs));
    for (std::size_t sample = 0; sample < batch.labels.size(); ++sample) {
      if (batch.labels[sample] == ignored_target) continue;
      const auto row = std::span(logits).subspan(sample * at(classes.n_classes), at(classes.n_classes));
      result.found.loss -= softmax_of(row, at(batch.labels[sample]));
      classes.labels.push_back(batch.labels[sample]);
      classes.scores.insert(classes.scores.end(), row.begin(), row.end());
      correct += classes.predicted(classes.labels.size() - 1) == batch.labels[sample];
    }
    result.found.tokens += batch.n_tokens;
  }
  result.found.seconds = seconds_since(start);
  result.found.targets = std::ssize(classes.labels);
  result.found.loss /= static_cast<double>(result.found.targets);
  result.found.accuracy = static_cast<double>(correct) / static_cast<double>(result.found.targets);
  return result;
}

bool writes_json_lines(const std::filesystem::path& path, std::string_view option) {
  const std::string extension = path.extension().string();
  if (extension != ".tsv" && extension != ".jsonl")
    throw UserError("{}: {} has the extension '{}'; expected .tsv or .jsonl", option, path.string(), extension);
  return extension == ".jsonl";
}

void PredictionRows::write(const Json& row) {
  if (json_lines_) return put(json_line(row));
  if (!std::exchange(begun_, true)) put(fmt::format("{}", fmt::join(columns_of(row), "\t")));
  std::vector<std::string> cells;
  for (const auto& [key, value] : row.items()) {
    if (value.is_object()) {
      for (const Json& one : value) cells.push_back(cell_of(one));
    } else {
      cells.push_back(cell_of(value));
    }
  }
  put(fmt::format("{}", fmt::join(cells, "\t")));
}

void PredictionRows::put(std::string_view line) {
  buffer_ += line;
  buffer_ += '\n';
  if (buffer_.size() >= 1 << 16) finish();
}

void PredictionRows::finish() {
  write_(buffer_);
  buffer_.clear();
}

void add_prediction(Json& row, const Vocabulary& vocabulary, LabelKind kind, std::span<double> logits) {
  const std::vector<std::string>& labels = vocabulary.labels();
  require(logits.size() == labels.size(), "{} logits of {} labels", logits.size(), labels.size());
  if (kind == LabelKind::sets) return add_set(row, labels, logits);
  if (kind == LabelKind::numbers) {
    for (std::size_t k = 0; k < logits.size(); ++k) {
      const LabelScale& scale = vocabulary.label_scales()[k];
      logits[k] = scale.mean + scale.scale * logits[k];
    }
    row["predicted"] = by_label(labels, logits);
    return;
  }
  softmax_of(logits, 0);
  add_class(row, labels, logits);
}

PredictionFile::PredictionFile(const std::filesystem::path& path)
    : rows_(writes_json_lines(path, "--predictions"), [this](std::string_view text) { file_.write(text); }),
      file_(path) {}

void PredictionFile::commit() {
  rows_.finish();
  file_.commit();
}

Json PredictionFile::row_of(std::uint64_t sample) const {
  require(sample < documents_.size(), "sample {} of {}", sample, documents_.size());
  return {{"sample", sample + 1}, {"document", documents_[sample] + 1}};
}

void PredictionFile::write_labels(const ClassScores& classes, const std::vector<std::string>& labels) {
  require(std::ssize(labels) == classes.n_classes, "{} names of {} labels", labels.size(), classes.n_classes);
  for (std::size_t sample = 0; sample < classes.labels.size(); ++sample) {
    const auto probabilities = std::span(classes.scores).subspan(sample * labels.size(), labels.size());
    Json row = row_of(sample);
    row["label"] = labels[at(classes.labels[sample])];
    add_class(row, labels, probabilities);
    rows_.write(row);
  }
}

void PredictionFile::write_numbers(std::span<const double> predicted, std::span<const float> numbers,
                                   const std::vector<std::string>& labels) {
  const std::size_t width = labels.size();
  std::vector<double> given(width);
  for (std::size_t sample = 0; sample < predicted.size() / width; ++sample) {
    Json row = row_of(sample);
    require(numbers.size() / width > documents_[sample], "document {} of {}", documents_[sample],
            numbers.size() / width);
    const auto of_document = numbers.subspan(documents_[sample] * width, width);
    std::transform(of_document.begin(), of_document.end(), given.begin(), shortest_decimal);
    row["label"] = by_label(labels, given);
    row["predicted"] = by_label(labels, predicted.subspan(sample * width, width));
    rows_.write(row);
  }
}

void PredictionFile::write_sets(std::span<const double> logits, std::span<const double> targets,
                                const std::vector<std::string>& labels) {
  require(logits.size() == targets.size(), "{} logits of {} targets", logits.size(), targets.size());
  const std::size_t width = labels.size();
  for (std::size_t sample = 0; sample < targets.size() / width; ++sample) {
    Json given = Json::array();
    for (std::size_t k = 0; k < width; ++k) {
      if (targets[sample * width + k] > 0.5) given.push_back(labels[k]);
    }
    Json row = row_of(sample);
    row["label"] = given;
    add_set(row, labels, logits.subspan(sample * width, width));
    rows_.write(row);
  }
}

void PredictionFile::write_token_labels(std::uint64_t first, const Batch& batch, std::vector<double> logits,
                                        const Vocabulary& vocabulary) {
  const std::vector<std::string>& labels = vocabulary.labels();
  require(logits.size() == batch.targets.size() * labels.size(), "{} logits of {} tokens", logits.size(),
          batch.targets.size());
  // A tokenizer's special tokens at the start of a document are no positions.
  const std::size_t n = at(batch.n), front = vocabulary.tokenizer() ? vocabulary.frame_front().size() : 0;
  for (std::size_t i = 0; i < batch.targets.size(); ++i) {
    if (batch.targets[i] == ignored_target) continue;
    Json row = row_of(first + i / n);
    row["position"] = i % n - front + 1;
    row["label"] = labels[at(batch.targets[i])];
    add_prediction(row, vocabulary, LabelKind::tokens, std::span(logits).subspan(i * labels.size(), labels.size()));
    rows_.write(row);
  }
}

void PredictionFile::write_rows(std::uint64_t first, const Batch& batch, const std::vector<double>& losses) {
  for (std::int64_t row = 0; row < batch.batch; ++row) {
    double sum = 0;
    std::int64_t targets = 0;
    for (std::size_t i = at(row * batch.n); i < at((row + 1) * batch.n); ++i) {
      if (batch.targets[i] == ignored_target) continue;
      sum += losses[i];
      ++targets;
    }
    if (targets == 0) continue;
    const double loss = sum / static_cast<double>(targets);
    rows_.write({{"row", first + static_cast<std::uint64_t>(row) + 1},
                 {"targets", targets},
                 {"loss", loss},
                 {"perplexity", std::exp(loss)}});
  }
}

}  // namespace furlong
