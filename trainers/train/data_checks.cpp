#include "trainers/train/data_checks.h"

#include <algorithm>

#include "datasets/samplers/reverse_complement.h"
#include "framework/core/error.h"
#include "trainers/model/objective.h"
#include "trainers/train/parallel/agreement.h"
#include "trainers/train/validation.h"

namespace furlong {
namespace {

/// Returns "file:3:5: " for a key that was set, otherwise "".
std::string place_of(const LoadedSettings& loaded, const std::string& key) {
  const auto origin = loaded.origins.find(key);
  return origin == loaded.origins.end() ? "" : origin->second.text() + ": ";
}

/// Runs `check` and prefixes its UserError with the key and the key's place.
template <class Check>
void with_key(const LoadedSettings& loaded, const std::string& key, const Check& check) {
  try {
    check();
  } catch (const UserError& error) {
    const std::string message = error.what();
    throw UserError("{}{}{}", place_of(loaded, key), message.starts_with(key) ? "" : key + ": ", message);
  }
}

void check_sample(const Settings& settings, const Vocabulary& vocabulary) {
  if (settings.trainer.sample_tokens == 0) return;
  const auto n_prompt = static_cast<std::int64_t>(vocabulary.encode_prompt(settings.trainer.sample_prompt).size());
  if (n_prompt == 0 && !vocabulary.document_id()) {
    throw UserError(
        "the prompt is empty, and the vocabulary of {} ({}) has no document token to start from; give at least one "
        "symbol, or set trainer.sample_tokens: 0",
        settings.data.task == "none" ? settings.data.mixture().front().dataset.string() : "the task",
        vocabulary.description());
  }
  const std::int64_t total = std::max<std::int64_t>(n_prompt, 1) + settings.trainer.sample_tokens;
  if (settings.model.position == layers::Position::learned && total > settings.model.max_sequence_length) {
    throw UserError(
        "prompt and trainer.sample_tokens are {} tokens together, but the model has {} learned positions "
        "(model.max_sequence_length); shorten the sample",
        total, settings.model.max_sequence_length);
  }
}

}  // namespace

void check_against_data(const LoadedSettings& loaded, const Dataset& data) {
  const Settings& settings = loaded.settings;
  const Vocabulary& vocabulary = data.vocabulary();
  with_key(loaded, "trainer.early_stopping_patience", [&] {
    const TeacherSettings& teacher = settings.teacher;
    // Each layer has its own schedule: a plateau is no reason to leave out later layers.
    if (settings.trainer.early_stopping_patience > 0 && teacher.is_attention_transfer() &&
        teacher.layers == "layer_wise")
      throw UserError(
          "cannot be combined with teacher.layers: layer_wise, because later layers would not be trained; remove it, "
          "or set teacher.layers: joint");
  });
  with_key(loaded, "model.vocabulary_size", [&] { vocabulary_size(settings, vocabulary); });
  if (!settings.teacher.is_attention_transfer())
    with_key(loaded, "model.prediction_head", [&] {
      require_output_layer(settings, std::string("objective.name: ") + name_of(settings.objective.name));
    });
  with_key(loaded, "data.ignore_tokens", [&] {
    for (const std::string& symbol : settings.data.ignore_tokens) vocabulary.id_of(symbol);
  });
  with_key(loaded, "data.reverse_complement", [&] {
    if (settings.data.reverse_complement) ReverseComplement(vocabulary, 0);
  });
  const bool labeled = settings.objective.learns_labels();
  with_key(loaded, labeled ? "objective.name" : "data.sequence_length", [&] {
    const Vocabulary of_model = model_vocabulary(settings, vocabulary);
    training_source(settings, of_model, data);
    // Fail now instead of at the first validation.
    if ((labeled || settings.data.sampler == "stream" || settings.data.sampler == "documents") &&
        data.size(Split::validation) > 0)
      evaluation_source(settings, of_model, data, Split::validation, settings.data.sequence_length,
                        settings.data.batch_size);
  });
  // Usually reads one batch; prevents a failure at the first validation.
  if (data.size(Split::validation) >= 2) {
    check_targets(settings, model_vocabulary(settings, vocabulary), data, Split::validation,
                  settings.trainer.validation_batches);
  }
  with_key(loaded, "trainer.sample_prompt", [&] { check_sample(settings, vocabulary); });
}

std::vector<std::string> input_files(const LoadedSettings& loaded) {
  std::vector<std::string> files;
  for (const auto& config : loaded.files) files.push_back(config.string());
  for (const DataSource& source : loaded.settings.data.mixture()) files.push_back(source.dataset.string());
  for (const std::filesystem::path& model : {loaded.settings.model.weights, loaded.settings.teacher.checkpoint})
    if (!model.empty()) files.push_back(model.string());
  return files;
}

std::optional<bool> was_trained_on_other_data(const CheckpointReader& checkpoint, const Dataset& data) {
  if (!checkpoint.has("data_fingerprint")) return std::nullopt;
  return checkpoint.text("data_fingerprint") != data_fingerprint(data);
}

}  // namespace furlong
