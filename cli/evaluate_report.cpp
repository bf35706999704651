#include "cli/evaluate_report.h"

#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>

#include "framework/core/enum_names.h"
#include "framework/core/printable.h"

namespace furlong::command_line {
namespace {

/// Ends of documents are tokens too, and targets of causal models.
const char* unit_of(const Vocabulary& vocabulary, const ObjectiveSettings& objective) {
  if (objective.name != Objective::masked_tokens && vocabulary.kind() != Vocabulary::Kind::copy) return "token";
  switch (vocabulary.kind()) {
    case Vocabulary::Kind::protein:
      return "residue";
    case Vocabulary::Kind::copy:
      return "symbol";
    case Vocabulary::Kind::bytes:
    case Vocabulary::Kind::tokenizer:
      return "token";
    default:
      return "base";
  }
}

double tokens_per_second(const Evaluation& found) {
  return static_cast<double>(found.tokens) / std::max(found.seconds, 1e-9);
}

/// Returns nothing if tokens have no length in bytes, or if the targets are not the whole text.
std::optional<double> bits_per_byte(const Evaluation& found, const UnigramBaseline& baseline) {
  if (baseline.bytes == 0) return std::nullopt;
  return found.bits_per_token() * (static_cast<double>(found.targets) / static_cast<double>(baseline.bytes));
}

/// Average precision depends on which of two labels is found; AUROC does not.
bool is_of_one_label(const Metric& metric, const std::vector<std::string>& labels) {
  return metric.name == "auprc" && labels.size() == 2;
}

std::string text_of(const Json& value, const char* undefined) {
  if (value.is_number_integer()) return std::to_string(value.get<std::int64_t>());
  return value.is_number() ? fmt::format("{:.5f}", value.get<double>()) : undefined;
}

/// Returns the width of a column of labels. Longer ones take more.
std::size_t label_width(const Json& labels) {
  std::size_t width = 12;
  for (const auto& [label, of_label] : labels.items())
    width = std::max(width, std::min<std::size_t>(foreign::printable(label).size(), 30));
  return width;
}

/// Prints a table with a line for each label.
void print_labels(const Json& labels) {
  constexpr std::size_t most_shown = 50;
  const std::size_t width = label_width(labels);
  std::size_t shown = 0;
  for (const auto& [label, of_label] : labels.items()) {
    if (shown == 0) {
      fmt::print("\n  {:<{}}", "label", width);
      for (const auto& [name, value] : of_label.items()) fmt::print(" {:>10}", name);
      fmt::print("\n");
    }
    if (shown++ == most_shown) {
      fmt::print("  and {} more; --json has all\n", labels.size() - most_shown);
      return;
    }
    fmt::print("  {:<{}}", foreign::printable(label), width);
    for (const Json& value : of_label) fmt::print(" {:>10}", text_of(value, "-"));
    fmt::print("\n");
  }
}

/// Prints a line for each label, unless the matrix is too wide for a terminal. Columns have the numbers of the labels.
void print_confusion(const Json& matrix) {
  constexpr std::size_t most_columns = 12;
  if (matrix.size() > most_columns) return;
  const std::size_t width = label_width(matrix);
  fmt::print("\n  {:<{}}", "label", width + 3);
  for (std::size_t i = 1; i <= matrix.size(); ++i) fmt::print(" {:>6}", i);
  fmt::print("  predicted\n");
  std::size_t number = 0;
  for (const auto& [label, row] : matrix.items()) {
    fmt::print("  {:>2} {:<{}}", ++number, foreign::printable(label), width);
    for (const auto& [predicted, of_predicted] : matrix.items())
      fmt::print(" {:>6}", row.value(predicted, std::int64_t{0}));
    fmt::print("\n");
  }
}

}  // namespace

void print_evaluation(const Evaluation& found, const UnigramBaseline& baseline, const Model& model) {
  const ObjectiveSettings& objective = model.settings.objective;
  const bool numbers = objective.label_kind() == LabelKind::numbers;
  const std::string bits_name = fmt::format("bits per {}", unit_of(model.vocabulary, objective));
  const std::size_t width = objective.learns_labels() ? 14 : std::max<std::size_t>(14, bits_name.size());
  const auto line = [&](const std::string& name, const std::string& value) {
    fmt::print("  {:<{}} {}\n", name, width, value);
  };
  const std::string accuracy = fmt::format("{:.4f}", found.accuracy);
  if (numbers) {
    line("loss",
         fmt::format("{:.5f}, the mean squared error of scaled numbers of {} documents", found.loss, found.targets));
  } else if (objective.learns_labels()) {
    const bool sets = objective.label_kind() == LabelKind::sets;
    line("loss", fmt::format("{:.5f} nats per label", found.loss));
    line("accuracy", fmt::format("{} of {} {}", accuracy, found.targets, sets ? "whole sets of labels" : "labels"));
  } else {
    line("loss",
         fmt::format(
             "{:.5f} nats per token{}", found.loss,
             objective.name == Objective::masked_tokens ? fmt::format(", over {} masked ones", found.targets) : ""));
    line("perplexity", fmt::format("{:.4f}", found.perplexity()));
    const std::optional<double> bits = bits_per_byte(found, baseline);
    if (!bits || *bits != found.bits_per_token()) line(bits_name, fmt::format("{:.4f}", found.bits_per_token()));
    if (bits) line("bits per byte", fmt::format("{:.4f}", *bits));
    line("accuracy", accuracy);
  }
  line("baseline",
       numbers ? fmt::format("loss {:.5f}, from the means of this dataset's training split alone", baseline.loss)
               : fmt::format("loss {:.5f}, accuracy {:.4f}, from the frequencies of {} alone", baseline.loss,
                             baseline.accuracy, objective.learns_labels() ? "labels" : "tokens"));
  line("speed", fmt::format("{:.0f} tokens/s", tokens_per_second(found)));
}

void print_metrics(const std::vector<Metric>& metrics, const Bootstrap& bootstrap,
                   const std::vector<std::string>& labels) {
  fmt::print("\n  {:<18}{:>8}{}\n", "metric", "value",
             bootstrap.resamples > 0 ? fmt::format("   95% interval, {} resamples", bootstrap.resamples) : "");
  for (const Metric& metric : metrics) {
    if (std::isnan(metric.value)) {
      fmt::print("  {:<18}{:>8}   undefined: all samples have one label, or a score is NaN\n", metric.name, "-");
    } else {
      fmt::print("  {:<18}{:>8.4f}{}{}\n", metric.name, metric.value,
                 bootstrap.resamples == 0    ? ""
                 : std::isfinite(metric.low) ? fmt::format("   {:.4f} to {:.4f}", metric.low, metric.high)
                                             : "   undefined: too many resamples lack a label",
                 is_of_one_label(metric, labels) ? "   of " + foreign::printable(labels[1]) : "");
    }
  }
}

void print_measures(const Json& measures) {
  for (const auto& [name, value] : measures.items())
    if (!value.is_object()) fmt::print("  {:<14} {}\n", name, text_of(value, "undefined"));
  if (measures.contains("labels")) print_labels(measures["labels"]);
  if (measures.contains("confusion_matrix")) print_confusion(measures["confusion_matrix"]);
}

void print_positions(const std::vector<ContextRange>& ranges) {
  fmt::print("\n  {:>21}{:>10}{:>10}{:>12}\n", "tokens of context", "loss", "bits", "targets");
  for (const ContextRange& range : ranges) {
    const std::string name =
        range.first == range.last ? std::to_string(range.first) : fmt::format("{} to {}", range.first, range.last);
    fmt::print("  {:>21}{:>10.5f}{:>10.5f}{:>12}\n", name, range.loss, range.bits(), range.targets);
  }
}

void print_lengths(const std::vector<LengthLoss>& lengths) {
  fmt::print("\n  {:>21}{:>10}{:>10}{:>10}{:>12}\n", "sequence length", "loss", "bits", "accuracy", "targets");
  for (const auto& [length, found] : lengths)
    fmt::print("  {:>21}{:>10.5f}{:>10.5f}{:>10.4f}{:>12}\n", length, found.loss, found.bits_per_token(),
               found.accuracy, found.targets);
}

void print_recall_head() {
  fmt::print("  {:<20}{:>8}{:>7}{:>10}{:>10}{:>9}{:>9}\n", "task", "length", "pairs", "accuracy", "baseline", "loss",
             "answers");
}

void print_recall(const RecallResult& result) {
  fmt::print("  {:<20}{:>8}{:>7}", name_of(result.task), result.length,
             result.pairs > 0 ? std::to_string(result.pairs) : "");
  if (result.obstacle.empty()) {
    fmt::print("{:>10.4f}{:>10.5f}{:>9.4f}{:>9}\n", result.accuracy, result.baseline, result.loss, result.answers);
  } else {
    fmt::print("  not run: {}\n", result.obstacle);
  }
  std::fflush(stdout);
}

Json as_json(const Evaluation& found, const UnigramBaseline& baseline, const Model& model) {
  const ObjectiveSettings& objective = model.settings.objective;
  Json object{{"objective", name_of(objective.name)}, {"loss", found.loss}};
  if (!objective.learns_labels()) {
    const auto bits = bits_per_byte(found, baseline);
    object["perplexity"] = found.perplexity();
    object["bits_per_token"] = found.bits_per_token();
    object["bits_per_byte"] = bits ? Json(*bits) : Json();
    object["bytes"] = bits ? Json(baseline.bytes) : Json();
  }
  const bool has_accuracy = objective.label_kind() != LabelKind::numbers;
  if (has_accuracy) object["accuracy"] = found.accuracy;
  object["baseline_loss"] = baseline.loss;
  if (has_accuracy) object["baseline_accuracy"] = baseline.accuracy;
  object["targets"] = found.targets;
  object["tokens"] = found.tokens;
  object["tokens_per_second"] = tokens_per_second(found);
  return object;
}

Json as_json(const std::vector<Metric>& metrics, const std::vector<std::string>& labels) {
  Json object;
  for (const Metric& metric : metrics) {
    object[metric.name] = {{"value", metric.value}, {"low", metric.low}, {"high", metric.high}};
    if (is_of_one_label(metric, labels)) object[metric.name]["label"] = labels[1];
  }
  return object;
}

Json as_json(const std::vector<ContextRange>& ranges) {
  Json list = Json::array();
  for (const ContextRange& range : ranges)
    list.push_back({{"first", range.first},
                    {"last", range.last},
                    {"loss", range.loss},
                    {"bits_per_token", range.bits()},
                    {"targets", range.targets}});
  return list;
}

Json as_json(const std::vector<LengthLoss>& lengths) {
  Json list = Json::array();
  for (const auto& [length, found] : lengths)
    list.push_back({{"sequence_length", length},
                    {"loss", found.loss},
                    {"bits_per_token", found.bits_per_token()},
                    {"accuracy", found.accuracy},
                    {"targets", found.targets}});
  return list;
}

Json as_json(const std::vector<RecallResult>& results) {
  Json list = Json::array();
  for (const RecallResult& result : results) {
    Json& object = list.emplace_back(Json{{"task", name_of(result.task)}, {"sequence_length", result.length}});
    if (result.pairs > 0) object["pairs"] = result.pairs;
    if (!result.obstacle.empty()) {
      object["not_run"] = result.obstacle;
      continue;
    }
    object["accuracy"] = result.accuracy;
    object["baseline_accuracy"] = result.baseline;
    object["loss"] = result.loss;
    object["answers"] = result.answers;
  }
  return list;
}

}  // namespace furlong::command_line
