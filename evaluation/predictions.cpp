#include "evaluation/predictions.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "evaluation/sequences/hidden_states.h"
#include "framework/core/clock.h"
#include "framework/core/printable.h"
#include "framework/core/shape.h"
#include "trainers/model/objective.h"

namespace furlong {
namespace {

/// Replaces logits by probabilities. Returns the logarithm of the probability of `label`.
double softmax_of(std::span<double> logits, std::size_t label) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const double logit : logits) sum += std::exp(logit - largest);
  const double log_probability = logits[label] - largest - std::log(sum);
  for (double& logit : logits) logit = std::exp(logit - largest) / sum;
  return log_probability;
}

bool writes_json_lines(const std::filesystem::path& path) {
  const std::string extension = path.extension().string();
  if (extension != ".tsv" && extension != ".jsonl")
    throw UserError("--predictions: {} has the extension '{}'; expected .tsv or .jsonl", path.string(), extension);
  return extension == ".jsonl";
}

/// JSON with bytes that are not UTF-8 replaced.
std::string json_line(const nlohmann::ordered_json& object) {
  return object.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace

LabelPredictions predict_labels(Model& model, const BatchSource& source, std::int64_t batch_size,
                                std::int64_t max_batches) {
  require(model.encoder && model.settings.objective.learns_labels(), "predict_labels: a model without labels");
  LabelPredictions result;
  ClassScores& classes = result.classes;
  classes.n_classes = std::ssize(model.vocabulary.labels());
  std::int64_t correct = 0, batches = 0;
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

PredictionFile::PredictionFile(const std::filesystem::path& path) : json_lines_(writes_json_lines(path)), file_(path) {}

void PredictionFile::write_labels(const ClassScores& classes, const std::vector<std::string>& labels) {
  require(std::ssize(labels) == classes.n_classes, "{} names of {} labels", labels.size(), classes.n_classes);
  if (!json_lines_) {
    std::string header = "sample\tlabel\tpredicted";
    for (const std::string& label : labels) header += "\tprobability_" + foreign::single_line(label);
    file_.write(header + "\n");
  }
  for (std::size_t sample = 0; sample < classes.labels.size(); ++sample) {
    const std::string &label = labels[at(classes.labels[sample])], &predicted = labels[at(classes.predicted(sample))];
    const std::span<const double> probabilities =
        std::span(classes.scores).subspan(sample * labels.size(), labels.size());
    if (json_lines_) {
      nlohmann::ordered_json object{{"sample", sample + 1}, {"label", label}, {"predicted", predicted}};
      for (std::size_t i = 0; i < labels.size(); ++i) object["probabilities"][labels[i]] = probabilities[i];
      file_.write(json_line(object));
    } else {
      file_.write(fmt::format("{}\t{}\t{}\t{}\n", sample + 1, foreign::single_line(label),
                              foreign::single_line(predicted), fmt::join(probabilities, "\t")));
    }
  }
}

void PredictionFile::write_rows(std::uint64_t first, const Batch& batch, const std::vector<double>& losses) {
  if (!json_lines_ && !std::exchange(begun_, true)) file_.write("row\ttargets\tloss\tperplexity\n");
  for (std::int64_t row = 0; row < batch.batch; ++row) {
    double sum = 0;
    std::int64_t targets = 0;
    for (std::size_t i = at(row * batch.n); i < at((row + 1) * batch.n); ++i) {
      if (batch.targets[i] == ignored_target) continue;
      sum += losses[i];
      ++targets;
    }
    if (targets == 0) continue;
    const std::uint64_t number = first + static_cast<std::uint64_t>(row) + 1;
    const double loss = sum / static_cast<double>(targets);
    file_.write(json_lines_
                    ? json_line({{"row", number}, {"targets", targets}, {"loss", loss}, {"perplexity", std::exp(loss)}})
                    : fmt::format("{}\t{}\t{}\t{}\n", number, targets, loss, std::exp(loss)));
  }
}

}  // namespace furlong
