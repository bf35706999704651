#include "evaluation/measures/confusion_matrix.h"

#include <nlohmann/json.hpp>

#include "framework/core/error.h"
#include "framework/core/shape.h"

namespace furlong {
namespace {

using Json = nlohmann::ordered_json;

Json ratio(std::int64_t part, std::int64_t whole) {
  return whole > 0 ? Json(static_cast<double>(part) / static_cast<double>(whole)) : Json();
}

}  // namespace

Json to_json(const LabelDecisions& of) {
  return {{"precision", ratio(of.true_positives, of.true_positives + of.false_positives)},
          {"recall", ratio(of.true_positives, of.samples())},
          {"f1", ratio(2 * of.true_positives, 2 * of.true_positives + of.false_positives + of.false_negatives)},
          {"samples", of.samples()}};
}

ConfusionMatrix::ConfusionMatrix(const ClassScores& scores) : ConfusionMatrix(at(scores.n_classes)) {
  for (std::size_t sample = 0; sample < scores.labels.size(); ++sample)
    add(at(scores.labels[sample]), at(scores.predicted(sample)));
}

void ConfusionMatrix::add(std::size_t target, std::size_t predicted) {
  require(target < samples_.size() && predicted < samples_.size(), "labels {} and {} of {}", target, predicted,
          samples_.size());
  ++samples_[target];
  ++predictions_[predicted];
  ++counts_[{target, predicted}];
}

std::int64_t ConfusionMatrix::count(std::size_t target, std::size_t predicted) const {
  const auto found = counts_.find({target, predicted});
  return found == counts_.end() ? 0 : found->second;
}

LabelDecisions ConfusionMatrix::decisions(std::size_t label) const {
  const std::int64_t correct = count(label, label);
  return {correct, predictions_[label] - correct, samples_[label] - correct};
}

double ConfusionMatrix::f1_macro() const {
  double sum = 0, occurring = 0;
  for (std::size_t label = 0; label < samples_.size(); ++label) {
    if (samples_[label] + predictions_[label] == 0) continue;
    sum += decisions(label).f1();
    ++occurring;
  }
  return occurring > 0 ? sum / occurring : 0;
}

Json ConfusionMatrix::to_json(const std::vector<std::string>& names) const {
  require(names.size() == samples_.size(), "{} names of {} labels", names.size(), samples_.size());
  // Labels are distinct; operator[] would search all labels before it.
  Json::object_t labels, matrix;
  for (std::size_t label = 0; label < names.size(); ++label) {
    labels.emplace_back(names[label], furlong::to_json(decisions(label)));
    Json::object_t row;
    for (auto cell = counts_.lower_bound({label, 0}); cell != counts_.end() && cell->first.first == label; ++cell)
      row.emplace_back(names[cell->first.second], cell->second);
    matrix.emplace_back(names[label], std::move(row));
  }
  return {{"labels", std::move(labels)}, {"confusion_matrix", std::move(matrix)}};
}

}  // namespace furlong
