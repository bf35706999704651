#include "evaluation/unigram_baseline.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "datasets/tokenized_dataset.h"
#include "framework/core/error.h"
#include "trainers/model/objective.h"

namespace furlong {
namespace {

using Counts = std::vector<std::uint64_t>;  // by token or label

constexpr std::uint64_t kMostTokens = std::uint64_t{1} << 27;
constexpr std::uint64_t kTokensAtOnce = std::uint64_t{1} << 20;

void count(const std::vector<std::int32_t>& found, Counts& counts) {
  for (const std::int32_t id : found) {
    if (id != ignored_target) ++counts[static_cast<std::size_t>(id)];
  }
}

Counts count_targets(const Settings& settings, const Vocabulary& vocabulary, const Dataset& data, Split split,
                     std::int64_t sequence_length, std::int64_t batch_size, std::int64_t max_batches) {
  const bool labels = settings.objective.learns_labels();
  Counts counts(labels ? vocabulary.labels().size() : static_cast<std::size_t>(vocabulary.size()), 0);
  const auto source = evaluation_source(settings, vocabulary, data, split, sequence_length, batch_size, max_batches);
  if (settings.data.sampler != "stream") batch_size = source->rows_of_one_pass(batch_size);
  std::int64_t batches = 0;
  for (std::uint64_t first = 0; first < source->n_samples() && (max_batches == 0 || batches < max_batches);
       first += static_cast<std::uint64_t>(batch_size), ++batches) {
    const Batch batch = source->single_pass_batch(first, batch_size);
    count(batch.labels.empty() ? batch.targets : batch.labels, counts);
  }
  return counts;
}

/// Counts tokens or labels of the training split.
Counts count_training(const Settings& settings, const Vocabulary& vocabulary, const Dataset& data) {
  if (settings.data.task != "none") {
    Counts counts(static_cast<std::size_t>(vocabulary.size()), 0);
    std::fill_n(counts.begin(), settings.data.task_symbols,
                kMostTokens);  // large counts: add-one smoothing has no effect
    return counts;
  }
  if (settings.objective.learns_labels())
    return count_targets(settings, vocabulary, data, Split::train, settings.data.sequence_length,
                         settings.data.batch_size, 0);
  require(!data.stores().empty(), "{} is not a tokenized dataset", data.path());
  const TokenizedDataset* store = data.stores().front();
  Counts counts(static_cast<std::size_t>(vocabulary.size()), 0);
  const std::uint64_t size = std::min(store->size(Split::train), kMostTokens);
  for (std::uint64_t place = 0; place < size; place += kTokensAtOnce)
    count(store->read(Split::train, place, static_cast<std::size_t>(std::min(size - place, kTokensAtOnce))), counts);
  return counts;
}

/// Returns which tokens or labels can be targets.
std::vector<bool> possible_targets(const Settings& settings, const Vocabulary& vocabulary, std::size_t classes) {
  std::vector<bool> possible(classes, true);
  if (settings.objective.learns_labels()) return possible;
  if (settings.data.task != "none") {
    std::fill(possible.begin() + settings.data.task_symbols, possible.end(), false);
    return possible;
  }
  for (std::size_t id = 0; id < classes; ++id) {
    if (settings.objective.name == Objective::masked_tokens)
      possible[id] = vocabulary.is_data_symbol(static_cast<std::int32_t>(id));
  }
  for (const std::string& symbol : settings.data.ignore_tokens)
    possible[static_cast<std::size_t>(vocabulary.id_of(symbol))] = false;
  return possible;
}

/// Returns the bytes of the text, if the bytes of a token do not depend on its neighbors; otherwise 0.
std::int64_t bytes_of(const Counts& counts, const Vocabulary& vocabulary) {
  const Tokenizer* tokenizer = vocabulary.tokenizer().get();
  if (!tokenizer && vocabulary.kind() != Vocabulary::Kind::bytes) return 0;
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const auto id = static_cast<std::int32_t>(i);
    if (counts[i] > 0 && id == vocabulary.unknown_id()) return 0;
    if (counts[i] == 0 || !vocabulary.is_data_symbol(id)) continue;
    const auto bytes = tokenizer ? tokenizer->text_bytes(id) : std::optional<std::size_t>(1);
    if (!bytes) return 0;
    sum += counts[i] * *bytes;
  }
  return static_cast<std::int64_t>(sum);
}

/// Calls action(k, value) for output k of each sample of a split that counts.
template <class Action>
std::int64_t for_values(const Settings& settings, const Vocabulary& vocabulary, const Dataset& data, Split split,
                        std::int64_t sequence_length, std::int64_t batch_size, std::int64_t max_batches,
                        const Action& action) {
  const auto source = evaluation_source(settings, vocabulary, data, split, sequence_length, batch_size, max_batches);
  batch_size = source->rows_of_one_pass(batch_size);
  const std::size_t outputs = vocabulary.labels().size();
  std::int64_t batches = 0, samples = 0;
  for (std::uint64_t first = 0; first < source->n_samples() && (max_batches == 0 || batches < max_batches);
       first += static_cast<std::uint64_t>(batch_size), ++batches) {
    const Batch batch = source->single_pass_batch(first, batch_size);
    for (std::size_t i = 0; i < batch.labels.size(); ++i) {
      if (batch.labels[i] == ignored_target) continue;
      ++samples;
      for (std::size_t k = 0; k < outputs; ++k)
        action(k, static_cast<double>(std::bit_cast<float>(batch.values[i * outputs + k])));
    }
  }
  return samples;
}

/// The baseline of numbers and sets of labels: the mean of each output in the training split.
UnigramBaseline chance_of_values(const Settings& settings, const Vocabulary& vocabulary, const Dataset& data,
                                 Split split, std::int64_t sequence_length, std::int64_t batch_size,
                                 std::int64_t max_batches) {
  const bool sets = settings.objective.label_kind() == LabelKind::sets;
  const std::size_t outputs = vocabulary.labels().size();
  std::vector<double> mean(outputs, sets ? 1 : 0);  // add-one smoothing of both outcomes
  const std::int64_t n =
      for_values(settings, vocabulary, data, Split::train, settings.data.sequence_length, settings.data.batch_size, 0,
                 [&](std::size_t k, double value) { mean[k] += value; });
  for (double& one : mean) one /= static_cast<double>(n + (sets ? 2 : 0));
  UnigramBaseline found;
  double correct = 0;
  bool as_predicted = true;
  found.targets = for_values(
      settings, vocabulary, data, split, sequence_length, batch_size, max_batches, [&](std::size_t k, double value) {
        found.loss += sets ? -std::log(value > 0.5 ? mean[k] : 1 - mean[k]) : (value - mean[k]) * (value - mean[k]);
        as_predicted = (k == 0 || as_predicted) && (mean[k] > 0.5) == (value > 0.5);
        if (k + 1 == outputs) correct += as_predicted;
      });
  if (found.targets == 0)
    throw UserError("{}: the {} split has no targets; choose another split", data.path(), name_of(split));
  found.loss /= static_cast<double>(found.targets) * static_cast<double>(outputs);
  found.accuracy = sets ? correct / static_cast<double>(found.targets) : std::nan("");
  return found;
}

}  // namespace

UnigramBaseline chance(const Settings& settings, const Vocabulary& vocabulary, const Dataset& data, Split split,
                       std::int64_t sequence_length, std::int64_t batch_size, std::int64_t max_batches) {
  const LabelKind kind = settings.objective.label_kind();
  if (kind == LabelKind::numbers || kind == LabelKind::sets)
    return chance_of_values(settings, vocabulary, data, split, sequence_length, batch_size, max_batches);
  const Counts targets = count_targets(settings, vocabulary, data, split, sequence_length, batch_size, max_batches);
  const Counts training = count_training(settings, vocabulary, data);
  const std::vector<bool> possible = possible_targets(settings, vocabulary, targets.size());
  double n_training = 0, n_targets = 0;
  std::size_t commonest = targets.size();
  for (std::size_t i = 0; i < possible.size(); ++i) {
    if (possible[i]) {
      n_training += static_cast<double>(training[i] + 1);
      if (commonest == targets.size() || training[i] > training[commonest]) commonest = i;
    }
    n_targets += static_cast<double>(targets[i]);
  }
  if (n_targets == 0)
    throw UserError("{}: the {} split has no targets; choose another split", data.path(), name_of(split));
  UnigramBaseline found;
  for (std::size_t i = 0; i < targets.size(); ++i) {
    if (targets[i] > 0)
      found.loss -= static_cast<double>(targets[i]) * std::log(static_cast<double>(training[i] + 1) / n_training);
  }
  found.loss /= n_targets;
  if (commonest < targets.size()) found.accuracy = static_cast<double>(targets[commonest]) / n_targets;
  found.targets = static_cast<std::int64_t>(n_targets);
  if (settings.objective.name == Objective::next_token) found.bytes = bytes_of(targets, vocabulary);
  return found;
}

}  // namespace furlong
